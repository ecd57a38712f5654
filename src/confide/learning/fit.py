"""Local training: some epochs over a place's own sentences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from confide.data.batches.encoding import Encoded
from confide.data.batches.least import check_covers
from confide.data.batches.tagger import TaggerBatch, train_batches
from confide.errors import DataError
from confide.learning.devices import beside, drawing, enough_memory, home, where_is
from confide.learning.optimisers import Descent, Optimiser, Steps, build
from confide.models import tagger
from confide.models.tagger import Tagger
from confide.seeds import derive_seed


@dataclass(frozen=True)
class FitReport:
    """A training in numbers: the mean loss per sentence in the last epoch, and the work done.

    `sentences` and `tokens` are counted over all epochs. `seconds` is wall time.
    """

    loss: float
    sentences: int
    tokens: int
    steps: int
    seconds: float


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
    """Train in place with a fresh optimiser on the mean loss of each batch's sentences.

    The same model, data and seed give the same bits (with one torch thread). `word_dropout` is the
    share of tokens read as the unknown word. Raises `DataError` if there is nothing to train on.
    """

    def batches(seed: int) -> Iterator[TaggerBatch]:
        return train_batches(encoded, batch_size=batch_size, seed=seed, word_dropout=word_dropout)

    return train(
        model,
        batches,
        lambda batch: tagger.loss(model, batch),
        epochs=epochs,
        optimiser=optimiser,
        seed=seed,
    )


class Batch(Protocol):
    """A batch of sentences; `tokens` counts without padding."""

    @property
    def tokens(self) -> int: ...  # noqa: D102
    def __len__(self) -> int: ...
    def part(self, start: int, end: int) -> Self:
        """Some of its sentences."""
        ...


B = TypeVar("B", bound=Batch)


def train(
    model: nn.Module,
    batches: Callable[[int], Iterable[B]],
    loss: Callable[[B], Tensor],
    *,
    epochs: int,
    optimiser: Optimiser,
    seed: int,
    make: Callable[[list[nn.Parameter], Optimiser], Steps] = build,
    count: Callable[[B], int] = len,
) -> FitReport:
    """Train any model in place, as `fit` trains a tagger.

    `batches` gives an epoch's batches for its seed, `loss` the loss of each sentence of a batch;
    `make` makes the optimiser, and `count` says how many sentences the report counts a batch as.
    Training ends after `epochs` or `optimiser.most` steps, whichever
    comes first. Raises SmallBatchError for a batch of fewer rows than a gradient may cover.
    """
    started = time.perf_counter()
    trained = [p for p in model.parameters() if p.requires_grad]
    descent = Descent(trained, optimiser, make=make)
    steps = tokens = sentences = 0
    mean = 0.0
    model.train()
    place = where_is(model)
    with drawing(model, derive_seed(seed, "dropout")), enough_memory(place):
        for epoch in range(epochs):
            values, sizes = list[Tensor](), list[int]()
            drawn = batches(derive_seed(seed, "batches", epoch))
            for batch in islice(drawn, optimiser.left(steps)):
                check_covers(len(batch))
                parts = in_parts(batch, place.at_once)
                values.append(descent.step_down(_losses(loss, parts, model, len(batch))))
                sizes.append(len(batch))
                steps, tokens = steps + 1, tokens + batch.tokens
                sentences += count(batch)
            if not sizes:
                raise DataError("there is no sentence to train on")
            means = home(torch.stack(values)).tolist()
            total = 0.0
            for one, size in zip(means, sizes, strict=True):
                total += one * size
            mean = total / sum(sizes)
            if optimiser.left(steps) == 0:
                break
    descent.steps.zero_grad()  # gradients would be held until the next training
    model.eval()
    return FitReport(mean, sentences, tokens, steps, time.perf_counter() - started)


def in_parts(batch: B, at_once: int) -> Iterator[B]:
    """The batch in parts of at most `at_once` sentences; 0: whole."""
    if not at_once or len(batch) <= at_once:
        yield batch
        return
    for start in range(0, len(batch), at_once):
        yield batch.part(start, min(start + at_once, len(batch)))


def _losses(
    loss: Callable[[B], Tensor], parts: Iterable[B], model: nn.Module, size: int
) -> Iterator[Tensor]:
    """Each part's share of the mean loss of a batch of this size."""
    for part in parts:
        loss_B = loss(beside(part, model))
        yield loss_B.mean() if len(part) == size else loss_B.sum() / size
