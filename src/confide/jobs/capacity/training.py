"""Training one tagger on some documents, in the clear, as a single site would."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from confide.data.batches.encoding import Encoded, TagSet, encode
from confide.data.batches.examples import examples_from
from confide.data.batches.vectors import read_vectors
from confide.data.batches.vocabulary import count_characters, count_words, numbered
from confide.errors import DataError
from confide.jobs.capacity.measuring import Learn
from confide.kinds.context import NONE, find_encoder, with_cached
from confide.kinds.tagger.form import shape_for, tagger_sizes
from confide.learning.fit import fit
from confide.learning.optimisers import Optimiser
from confide.learning.predict import annotate, prepare
from confide.learning.weights import initial, set_words
from confide.models.tagger import Tagger
from confide.seeds import derive_seed
from confide.settings import Settings
from confide.text.document import Document


def tagger_training(
    settings: Settings,
    train: Sequence[Document],
    *,
    held_out: Sequence[Document],
    vectors: Path | None = None,
) -> Learn:
    """A function that trains the settings' tagger on part of `train` and annotates `held_out`.

    `vectors` is a file of word vectors to start from. Raises DataError if nothing in `train` is
    annotated and no type is declared.
    """
    seen = {entity.type for document in train for entity in document.entities}
    tags = TagSet(settings.data.types or tuple(sorted(seen)), settings.model.tag_scheme)
    if not tags.types:
        raise DataError("the training text has no entity", expected="at least one")
    how, context = settings.vocabulary.how, settings.model.context
    encoder = None if context == NONE else find_encoder(context)
    dim = encoder.dim if encoder else 0

    def learn(documents: Sequence[Document], stretch: float, seed: int) -> list[Document]:
        examples, _ = examples_from(documents)
        tokens = [token for example in examples for token in example.tokens]
        words = numbered(count_words(tokens, how), min_count=settings.vocabulary.min_count)
        letters = numbered(count_characters(tokens), kind="character")
        characters = None if settings.model.character == "none" else letters
        shape = shape_for(settings, tags.types, words=len(words), characters=len(letters), dim=dim)
        sizes = tagger_sizes(shape)
        model = initial(sizes, derive_seed(seed, "weights"), rules=tags.rules)
        assert isinstance(model, Tagger)
        if vectors is not None:
            set_words(model, read_vectors(vectors, words, how=how))
        encoded = encode(examples, words=words, characters=characters, tags=tags, how=how)
        if encoder is not None:
            encoded = with_cached(encoded, examples, encoder)
        _train(model, encoded, settings, stretch=stretch, seed=seed)
        prepared = prepare(held_out, words=words, characters=characters, tags=tags, how=how)
        if encoder is not None:
            read = with_cached(prepared.encoded, prepared.examples, encoder)
            prepared = prepared._replace(encoded=read)
        return annotate(model, prepared)

    return learn


def epochs_by_round(rounds: int, epochs: int) -> list[int]:
    """`epochs` spread over the rounds as evenly as whole numbers allow.

    >>> epochs_by_round(4, 10)
    [2, 3, 3, 2]
    """
    edges = [round(epochs * number / rounds) for number in range(rounds + 1)]
    return [end - start for start, end in pairwise(edges)]


def _train(
    model: Tagger, encoded: Encoded, settings: Settings, *, stretch: float, seed: int
) -> None:
    """Train all rounds of the settings, `stretch` times their epochs in all, one rate per round.

    If a round is one batch (FedNER), train equally many batches in one go.
    """
    training, rounds = settings.training, settings.rounds
    epochs = max(1, round(rounds * training.local_epochs * stretch))
    if settings.trained_by == "fedner-tagger":
        epochs, rounds = max(1, round(rounds * training.batch_size / len(encoded))), 1
    for number, in_round in enumerate(epochs_by_round(rounds, epochs)):
        optimiser = Optimiser(
            name=training.optimiser,
            learning_rate=training.learning_rate * training.decay**number,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            clip=training.clip,
        )
        if in_round:
            fit(
                model,
                encoded,
                epochs=in_round,
                batch_size=training.batch_size,
                optimiser=optimiser,
                seed=derive_seed(seed, "round", number),
                word_dropout=training.word_dropout,
            )
