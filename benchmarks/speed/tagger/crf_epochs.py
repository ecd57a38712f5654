"""Batches and the loss of a CRF tagger, for benchmarks that train one without a trainer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar

import numpy as np
from torch import Tensor

from confide.kinds.tagger.model import TaggerTrainer
from confide.training.batches import Encoded
from confide.training.crf import negative_log_likelihood
from confide.training.tagger import CrfTagger, Tagger, TaggerBatch, batch_of, lose_words, shuffled
from confide.training.trainer import FoundSpan
from confide.training.vocabulary import ClearVocabulary


def tagging_loss(model: CrfTagger, batch: TaggerBatch) -> Tensor:
    """loss_B: the negative log-likelihood of each sentence's tags."""
    return negative_log_likelihood(
        model(batch), model.crf.scores(), tags_BL=batch.tags_BL, lengths_B=batch.lengths_B
    )


def train_batches(
    encoded: Encoded,
    *,
    batch_size: int,
    seed: int,
    word_dropout: float = 0.0,
    max_tokens: int = 8192,
) -> Iterator[TaggerBatch]:
    """One epoch in random order; `word_dropout` is the share of words to read as unknown."""
    random = np.random.default_rng(seed)
    for rows in shuffled(encoded.lengths_S, batch_size, random=random, max_tokens=max_tokens):
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
