"""A tiny corpus that a tagger can learn, and everything it needs to be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from confide.kinds.tagger.model import TaggerTrainer
from confide.training import tagger
from confide.training.batches import Encoded, Example, TagScheme, TagSet, encode_examples
from confide.training.crf import negative_log_likelihood
from confide.training.optimisers import Optimiser
from confide.training.tagger import (
    CrfTagger,
    Tagger,
    TaggerBatch,
    TaggerSizes,
    batch_of,
    lose_words,
    shuffled,
)
from confide.training.trainer import FitReport, FoundSpan, train_epochs
from confide.training.vocabulary import ClearVocabulary, count_characters, count_words, numbered
from confide.training.weights import initial

_DRUGS = ("aspirin", "ibuprofen", "codeine", "heparin")
_EFFECTS = (("joint", "pain"), ("nausea",), ("severe", "skin", "rash"))
_FILLERS = ("the", "patient", "took", "and", "then", "had", "today", "after")


def sentence(random: np.random.Generator, number: int) -> Example:
    """Fillers with one drug and one effect of one to three words."""
    tokens = list(random.choice(_FILLERS, 3))
    spans = [(3, 4, "Drug")]
    tokens += [str(random.choice(_DRUGS)), str(random.choice(_FILLERS))]
    effect = _EFFECTS[random.integers(len(_EFFECTS))]
    spans.append((5, 5 + len(effect), "Effect"))
    tokens += [*effect, *random.choice(_FILLERS, random.integers(0, 4))]
    return Example(0, number, tuple(map(str, tokens)), tuple(spans))


@dataclass(frozen=True)
class Tiny:
    """Examples, what numbers them, and models that fit."""

    examples: list[Example]
    words: ClearVocabulary
    characters: ClearVocabulary
    tags: TagSet

    def encode(self, examples: list[Example] | None = None, *, max_tokens: int = 512) -> Encoded:
        return encode_examples(
            self.examples if examples is None else examples,
            words=self.words,
            characters=self.characters,
            tags=self.tags,
            how="lower",
            max_tokens=max_tokens,
        )

    def model(self, seed: int = 1, character: str = "cnn") -> Tagger:
        sizes = TaggerSizes(
            words=len(self.words),
            characters=len(self.characters),
            tags=len(self.tags),
            word_dim=16,
            character=character,  # type: ignore[arg-type]
            character_dim=8,
            character_filters=8,
            character_hidden=8,
            bilstm_hidden=16,
            dropout=0.2,
        )
        return initial(sizes, seed, rules=self.tags.rules)


def tiny(sentences: int = 60, scheme: TagScheme = "iobes", seed: int = 0) -> Tiny:
    random = np.random.default_rng(seed)
    examples = [sentence(random, number) for number in range(sentences)]
    tokens = [token for example in examples for token in example.tokens]
    return Tiny(
        examples,
        numbered(count_words(tokens, "lower")),
        numbered(count_characters(tokens), kind="character"),
        TagSet(("Drug", "Effect"), scheme),
    )


def fit(
    model: Tagger,
    encoded: Encoded,
    *,
    epochs: int,
    batch_size: int,
    optimiser: Optimiser,
    seed: int,
    word_dropout: float = 0.05,
) -> FitReport:
    """Train a tagger in place on the mean loss of each batch's sentences."""

    def batches(seed: int) -> Iterator[tagger.TaggerBatch]:
        return train_batches(encoded, batch_size=batch_size, seed=seed, word_dropout=word_dropout)

    def loss(batch: tagger.TaggerBatch) -> Tensor:
        return tagging_loss(model, batch)

    return train_epochs(model, batches, loss, epochs=epochs, optimiser=optimiser, seed=seed)


def drawn_batch(
    encoded: Encoded, size: int, *, seed: int, word_dropout: float = 0.0
) -> tagger.TaggerBatch:
    """The sentences that a training step of this size draws by the seed."""
    random = np.random.default_rng(seed)
    batch = tagger.batch_of(encoded, tagger.drawn_rows(encoded.lengths_S, size, random=random))
    tagger.lose_words(batch, random, word_dropout)
    return batch


def tagging_loss(model: CrfTagger, batch: TaggerBatch) -> Tensor:
    """loss_B: the negative log-likelihood of each sentence's tags."""
    return negative_log_likelihood(
        model(batch), model.crf.scores(), tags_BL=batch.tags_BL, lengths_B=batch.lengths_B
    )


def train_batches(
    encoded: Encoded, *, batch_size: int, seed: int, word_dropout: float = 0.0
) -> Iterator[TaggerBatch]:
    """One epoch in random order; `word_dropout` is the share of words to read as unknown."""
    random = np.random.default_rng(seed)
    for rows in shuffled(encoded.lengths_S, batch_size, random=random):
        batch = batch_of(encoded, rows)
        lose_words(batch, random, word_dropout)
        yield batch


def predict_spans(
    model: Tagger,
    encoded: Encoded,
    *,
    wanted: Collection[str] | None = None,
    tokens_per_batch: int = 4096,
) -> list[list[FoundSpan]]:
    """The spans of each example, as the trainer of taggers finds them."""

    class Some(TaggerTrainer):
        per_batch: ClassVar[int] = tokens_per_batch

    trainer = Some(model.sizes, encoded.tags, ClearVocabulary(()), None, "none")
    return trainer.find(model, encoded, wanted=wanted)
