"""How certain a score is: the bootstrap over sentences, and a randomisation test of two systems.

Legend: `counts_N3` holds, for N sentences, (true, predicted, gold).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError
from confide.scoring.counts import Count, Mode, match_documents
from confide.scoring.scores import f1, micro
from confide.scoring.units import by_sentence
from confide.text.document import Document

Table = NDArray[np.int64]
C = TypeVar("C")
CHUNK = 1 << 20  # drawn numbers held in memory at once


@dataclass(frozen=True, slots=True)
class Interval:
    """A micro-F1 and the percentile interval of its bootstrap, as fractions."""

    point: float
    low: float
    high: float
    level: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Second system minus first, in micro-F1 on the same sentences.

    `p` is two-sided: twice the share of resamples in which the difference has the other sign.
    """

    difference: float
    low: float
    high: float
    level: float
    p: float


def sentence_counts(
    gold: Sequence[Document],
    predicted: Sequence[Document],
    *,
    matching: Literal["strict", "relaxed"] = "strict",
    mode: Mode = "default",
) -> Table:
    """(true, predicted, gold) of each sentence over all types: int64, shape (sentences, 3).

    Documents are cut by `by_sentence`, so a relaxed match across a sentence border does not count.
    """
    matches = match_documents(*by_sentence(gold, predicted), mode=mode)
    rows = [
        micro({match.type: getattr(match, matching) for match in sentence}) for sentence in matches
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def bootstrap_interval(
    counts_N3: Table, *, level: float = 0.95, samples: int = 1000, seed: int = 0
) -> Interval:
    """The percentile interval of micro-F1 over resampled sentences (Efron 1979).

    Raises DataError if there is no sentence.
    """
    drawn = np.concatenate([_f1(sums[0]) for sums in _resampled([counts_N3], samples, seed)])
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(_point(counts_N3), float(low), float(high), level)


def paired_bootstrap(
    first_N3: Table, second_N3: Table, *, level: float = 0.95, samples: int = 1000, seed: int = 0
) -> Comparison:
    """Compare two systems on the same sentences, resampled together (Koehn 2004).

    Raises DataError if the two do not count the same sentences.
    """
    if first_N3.shape != second_N3.shape or not np.array_equal(first_N3[:, 2], second_N3[:, 2]):
        raise DataError(
            "the two systems were not scored on the same sentences",
            expected="equally many sentences with equal gold counts",
        )
    differences = np.concatenate(
        [
            _f1(second) - _f1(first)
            for first, second in _resampled([first_N3, second_N3], samples, seed)
        ]
    )
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    tail = min((differences <= 0).sum(), (differences >= 0).sum())
    return Comparison(
        _point(second_N3) - _point(first_N3),
        float(low),
        float(high),
        level,
        float(min(1.0, 2 * (tail + 1) / (samples + 1))),
    )


def exchange_test(
    first: Sequence[C],
    second: Sequence[C],
    value: Callable[[Sequence[C]], float],
    *,
    samples: int = 1000,
    seed: int = 0,
) -> float:
    """How likely the second system scores so much better if each unit's two results are exchanged.

    A one-sided randomisation test (Noreen 1989; Yeh, COLING 2000). If neither system is better, it
    is chance which of the two a result came from; the answer is the share of exchanges that give
    the second at least its gain. `value` scores the results of all units. All exchanges are tried
    if there are at most `samples`; then the answer is exact, and never below 1 / 2 ** units.

    >>> exchange_test([3, 5, 2, 4], [4, 6, 3, 5], sum), exchange_test([1], [9], sum)
    (0.0625, 0.5)
    """
    if len(first) != len(second):
        raise DataError(
            "the two systems were not scored on the same units",
            expected=f"{len(first)} units",
            got=str(len(second)),
        )
    size = len(first)
    gain = value(second) - value(first)

    def is_as_large(exchanged: Sequence[bool]) -> bool:
        triples = list(zip(first, second, exchanged, strict=True))
        ours = [b if swap else a for a, b, swap in triples]
        theirs = [a if swap else b for a, b, swap in triples]
        return bool(value(theirs) - value(ours) >= gain - 1e-12)

    if 2**size <= samples:
        return float(sum(map(is_as_large, product((False, True), repeat=size))) / 2**size)
    drawn_DU = np.random.default_rng(seed).integers(0, 2, size=(samples, size)).astype(bool)
    return (1 + sum(map(is_as_large, drawn_DU.tolist()))) / (1 + samples)


def _resampled(tables: Sequence[Table], samples: int, seed: int) -> Iterator[list[Table]]:
    """Sums over sentences drawn with replacement, the same draw for all tables: (draws, 3).

    Sentences with equal counts in all tables are drawn together: how often each kind comes up in
    a resample is multinomial, so the work grows with the kinds, not with the sentences.
    """
    size = len(tables[0])
    if not size:
        raise DataError("there is no sentence to draw from", expected="at least one")
    kinds_K, counts_K = np.unique(np.hstack(tables), axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    at_once = max(1, CHUNK // len(kinds_K))
    for start in range(0, samples, at_once):
        draws = min(at_once, samples - start)
        times_DK = generator.multinomial(size, counts_K / size, size=draws)
        yield np.split(times_DK @ kinds_K, len(tables), axis=1)


def _f1(sums_D3: Table) -> NDArray[np.float64]:
    both = sums_D3[:, 1] + sums_D3[:, 2]
    ratio: NDArray[np.float64] = 2 * sums_D3[:, 0] / np.maximum(both, 1)
    return ratio


def _point(counts_N3: Table) -> float:
    return f1(Count(*(int(total) for total in counts_N3.sum(axis=0))))
