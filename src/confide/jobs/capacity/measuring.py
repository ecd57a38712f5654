"""Growing parts of a corpus, and how well a model trained on each does on held-out text.

Legend: S seeds, K parts, N held-out sentences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.examples import examples_from
from confide.data.corpus.partitions import partition
from confide.errors import DataError
from confide.federation.events import Event, Watcher, unwatched
from confide.scoring import Count, f1, sentence_counts
from confide.scoring.curves import LEAST_SIZES
from confide.seeds import derive_seed
from confide.text.document import Document

Learn = Callable[[Sequence[Document], float, int], Sequence[Document]]
"""(documents, how many times the usual epochs, seed) -> the held-out documents, annotated."""


@dataclass(frozen=True, eq=False)
class Measured:
    """(true, predicted, gold) of every held-out sentence, and the sentences trained on."""

    counts_SKN3: NDArray[np.int64]
    sizes_K: tuple[float, ...]
    seconds: float

    @property
    def f1_SK(self) -> NDArray[np.float64]:  # noqa: N802
        """Strict micro-F1 of each training, as a fraction."""
        sums_SK3 = self.counts_SKN3.sum(axis=2)
        return np.array([[_f1(row) for row in rows] for rows in sums_SK3])


def measure(
    train: Sequence[Document],
    held_out: Sequence[Document],
    *,
    learn: Learn,
    parts: int = 5,
    seeds: int = 3,
    seed: int = 1,
    watch: Watcher = unwatched,
) -> Measured:
    """Train on 1, 2, ..., `parts` nested parts of the text, for each seed, and count strictly.

    Raises DataError for fewer than 4 parts or 2 seeds, or fewer documents than parts.
    """
    _check(parts, seeds)
    started = time.perf_counter()
    sentences = [len(examples_from([document])[0]) for document in train]
    weight = {id(document): count for document, count in zip(train, sentences, strict=True)}
    counts: list[list[NDArray[np.int64]]] = []
    sizes_SK = np.zeros((seeds, parts))
    for draw in range(seeds):
        own_seed = derive_seed(seed, "capacity", draw)
        slices = list(partition(train, parts, by="iid", seed=own_seed).values())
        counts.append([])
        for k in range(1, parts + 1):
            done = draw * parts + k
            watch(Event("ask", round=done, site=f"{k} of {parts} parts", step=f"seed {draw + 1}"))
            part = [document for piece in slices[:k] for document in piece]
            predicted = learn(part, parts / k, derive_seed(own_seed, k))
            counts[-1].append(sentence_counts(held_out, predicted))
            sizes_SK[draw, k - 1] = sum(weight[id(document)] for document in part)
            spent = time.perf_counter() - started
            left = spent / done * (seeds * parts - done)
            score = _f1(counts[-1][-1].sum(axis=0))
            watch(Event("round", round=done, dev_f1=score, seconds=spent, seconds_left=left))
    sizes = tuple(float(size) for size in sizes_SK.mean(axis=0))
    return Measured(np.array(counts), sizes, time.perf_counter() - started)


def _check(parts: int, seeds: int) -> None:
    if parts < LEAST_SIZES:
        raise DataError(
            "too few parts for a curve", expected=f"at least {LEAST_SIZES}", got=str(parts)
        )
    if seeds < 2:
        raise DataError(
            "one seed does not say how sure the curve is", expected="at least 2", got=str(seeds)
        )


def _f1(sums_3: NDArray[np.int64]) -> float:
    return f1(Count(*(int(number) for number in sums_3)))
