"""Training one model on some documents, in the clear, as a single site would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from confide.data.batches.encoding import TagSet
from confide.data.batches.examples import Example, examples_from
from confide.data.batches.features import Marks
from confide.data.batches.vectors import read_vectors
from confide.data.batches.vocabulary import count_characters, count_words, numbered
from confide.errors import DataError, SettingsError
from confide.jobs.capacity.measuring import Learn
from confide.kinds.context import NONE, find_encoder, with_cached
from confide.kinds.how import how_of
from confide.kinds.linear import LinearShape
from confide.kinds.tagger.form import shape_for, tagger_sizes
from confide.learning.crf_modelling import EncodedSplit, TaggerTrainer
from confide.learning.optimisers import Moments
from confide.learning.trainer import annotate_with, read
from confide.learning.weights import set_words
from confide.models.tagger import CrfTagger, Tagger
from confide.seeds import derive_seed
from confide.settings import Settings
from confide.text.document import Document


def training(
    settings: Settings,
    train: Sequence[Document],
    *,
    held_out: Sequence[Document],
    vectors: Path | None = None,
) -> Learn:
    """A function that trains the settings' model on part of `train` and annotates `held_out`.

    `vectors` is a file of word vectors to start from. Raises DataError if nothing in `train` is
    annotated and no type is declared, and SettingsError for other kinds than tagger and linear.
    """
    make = _MODELLERS.get(settings.kind)
    if make is None:
        raise SettingsError(
            "the capacity test does not train this kind of model",
            expected=f"model.kind = {' or '.join(_MODELLERS)}",
            got=settings.kind,
            fix="for a first answer: --set model.kind=linear, without your own [training]",
        )
    seen = {entity.type for document in train for entity in document.entities}
    tags = TagSet(settings.data.types or tuple(sorted(seen)), settings.model.tag_scheme)
    if not tags.types:
        raise DataError("the training text has no entity", expected="at least one")
    context = settings.model.context
    encoder = None if context == NONE else find_encoder(context)
    dim = encoder.dim if encoder else 0

    def learn(documents: Sequence[Document], stretch: float, seed: int) -> list[Document]:
        examples, _ = examples_from(documents)
        trainer = make(settings, tags, examples, dim)
        model = trainer.initial(derive_seed(seed, "weights"))
        if vectors is not None and isinstance(model, Tagger):
            set_words(model, read_vectors(vectors, trainer.words, how=trainer.how))
        text, held = trainer.prepared(examples), read(trainer, held_out)
        if encoder is not None:
            text = with_cached(text, examples, encoder)
            held = replace(held, text=with_cached(held.text, held.examples, encoder))
        spans = [one.spans for one in examples]
        encoded = trainer.annotated(text, spans, source={*tags.types})
        _train(trainer, model, encoded, settings, stretch=stretch, seed=seed)
        return annotate_with(trainer, model, held)

    return learn


def _tagger(
    settings: Settings, tags: TagSet, examples: Sequence[Example], dim: int
) -> TaggerTrainer:
    """The trainer of a tagger that knows the words of these examples."""
    own, how = settings.vocabulary, settings.vocabulary.how
    tokens = [token for example in examples for token in example.tokens]
    words = numbered(count_words(tokens, how), min_count=own.min_count)
    letters = numbered(count_characters(tokens), kind="character")
    shape = shape_for(settings, tags.types, words=len(words), characters=len(letters), dim=dim)
    return TaggerTrainer(
        sizes=tagger_sizes(shape),
        tags=tags,
        words=words,
        characters=None if settings.model.character == "none" else letters,
        how=how,
        word_dropout=settings.training.word_dropout,
    )


def _linear(
    settings: Settings, tags: TagSet, examples: Sequence[Example], dim: int
) -> TaggerTrainer:
    """The trainer of a linear CRF, whose features need no key where nothing leaves."""
    shape = LinearShape(
        types=list(tags.types),
        tag_scheme=tags.scheme,
        bits=settings.linear.bits,
        context=settings.model.context,
        context_dim=dim,
    )
    return shape.trainer(Marks(b""))


_MODELLERS: dict[str, Callable[[Settings, TagSet, Sequence[Example], int], TaggerTrainer]] = {
    "tagger": _tagger,
    "linear": _linear,
}


def epochs_by_round(rounds: int, epochs: int) -> list[int]:
    """`epochs` spread over the rounds as evenly as whole numbers allow.

    >>> epochs_by_round(4, 10)
    [2, 3, 3, 2]
    """
    edges = [round(epochs * number / rounds) for number in range(rounds + 1)]
    return [end - start for start, end in pairwise(edges)]


def _train(
    trainer: TaggerTrainer,
    model: CrfTagger,
    encoded: EncodedSplit,
    settings: Settings,
    *,
    stretch: float,
    seed: int,
) -> None:
    """Train all rounds of the settings, `stretch` times their epochs in all, one rate per round.

    If a round is one batch (FedNER), train equally many batches in one go.
    """
    training, rounds = settings.training, settings.rounds
    epochs = max(1, round(rounds * training.local_epochs * stretch))
    if settings.trained_by.startswith("fedner-"):
        epochs, rounds = max(1, round(rounds * training.batch_size / len(encoded))), 1
    moments = Moments()
    for number, in_round in enumerate(epochs_by_round(rounds, epochs)):
        how = how_of(settings, number + 1)
        optimiser = replace(how.steps, most=0, moments=moments if how.keep else None)
        if in_round:
            trainer.fit(
                model,
                encoded,
                epochs=in_round,
                batch_size=how.batch_size,
                optimiser=optimiser,
                seed=derive_seed(seed, "round", number),
            )
