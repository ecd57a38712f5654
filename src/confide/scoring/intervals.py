"""Uncertainty of scores: bootstrap, tests of two systems, learning curves, attackers' success.

Legend: `counts_N3` holds, for N sentences, (true, predicted, gold).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError
from confide.scoring.counts import Mode, by_sentence, match_documents, micro
from confide.text.document import Document

Table = NDArray[np.int64]
T = TypeVar("T")
MOST_DRAWN = 1 << 20  # drawn numbers held in memory at once


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
    drawn = np.concatenate([micro_f1(sums[0]) for sums in _resampled([counts_N3], samples, seed)])
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
            micro_f1(second) - micro_f1(first)
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
    first: Sequence[T],
    second: Sequence[T],
    value: Callable[[Sequence[T]], float],
    *,
    samples: int = 1000,
    seed: int = 0,
) -> float:
    """The probability of so large a difference if each unit's two results are exchanged.

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
    at_once = max(1, MOST_DRAWN // len(kinds_K))
    for start in range(0, samples, at_once):
        draws = min(at_once, samples - start)
        times_DK = generator.multinomial(size, counts_K / size, size=draws)
        yield np.split(times_DK @ kinds_K, len(tables), axis=1)


def micro_f1(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Micro-F1 from (true, predicted, gold) in the last axis; 0 if there is nothing to find."""
    ratio: NDArray[np.float64] = 2 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)
    return ratio


def _point(counts_N3: Table) -> float:
    return float(micro_f1(counts_N3.sum(axis=0)))


# --- Learning curves
#
# The growth of F1 with the amount of text, and the gain from more.
#
# The curve is the inverse power law f(x) = a - b (x / full)^-c with 0 <= b and a <= 1, which the
# scores of many models follow (Hestness et al. 2017, arXiv 1712.00409; Viering & Loog 2023). `a`
# is the F1 that unlimited text would give; `b` is how far the text at hand falls short of it.
#
# Legend: S seeds, K sizes, N sentences scored, B replicates, C exponents on the grid.


Floats = NDArray[np.float64]

EXPONENTS_C: Floats = np.geomspace(0.02, 3.0, 80)
LEAST_SIZES = 4
REPLICATES_AT_ONCE = 100  # replicates drawn at once


@dataclass(frozen=True, slots=True)
class Curve:
    """F1 as a function of size: `ceiling - shortfall * (size / full) ** -exponent`."""

    ceiling: float
    shortfall: float
    exponent: float
    full: float

    def at(self, size: float) -> float:
        """The F1 that the curve expects of this much text."""
        return self.ceiling - self.shortfall * float((size / self.full) ** -self.exponent)

    def gain(self, factor: float) -> float:
        """The gain of F1 with `factor` times as much text."""
        return self.at(self.full * factor) - self.at(self.full)


def fit_curve(sizes_K: Sequence[float], f1_K: Sequence[float]) -> Curve:
    """Fit the curve by least squares; the exponent is searched on a grid.

    Falling scores are fitted by a flat curve. Raises DataError for fewer than 4 sizes.
    """
    sizes = _checked(sizes_K)
    a, b, c = _fit(sizes, np.asarray(f1_K, dtype=np.float64)[None])[0].tolist()
    return Curve(a, b, c, float(sizes[-1]))


def resampled_curves(
    counts_SKN3: NDArray[np.int64], sizes_K: Sequence[float], *, samples: int = 1000, seed: int = 0
) -> list[Curve]:
    """Fit curves to resampled scores: what else the curve could have been.

    `counts_SKN3` holds (true, predicted, gold) of each held-out sentence, for each seed and size. A
    replicate draws held-out sentences with replacement, the same ones for all sizes, then moves the
    mean of each size as far as a mean over S seeds may be off. The scatter among seeds is pooled
    over the sizes and itself uncertain, so the moves follow Student's t with K (S - 1) degrees of
    freedom. (Drawing a few seeds with replacement instead would give far too narrow intervals.)

    Raises DataError for fewer than 2 seeds.
    """
    sizes = _checked(sizes_K)
    seeds = len(counts_SKN3)
    if seeds < 2:
        raise DataError("one seed cannot show how certain a curve is", expected="at least 2 seeds")
    if not counts_SKN3.shape[2]:
        raise DataError("there is no held-out sentence to draw from", expected="at least one")
    f1_SK = micro_f1(counts_SKN3.sum(axis=2))
    freedom = len(sizes) * (seeds - 1)
    scatter = float(np.sqrt(((f1_SK - f1_SK.mean(axis=0)) ** 2).sum() / freedom / seeds))
    generator = np.random.default_rng(seed)
    found = []
    for start in range(0, samples, REPLICATES_AT_ONCE):
        draws = min(REPLICATES_AT_ONCE, samples - start)
        mean_BK = _drawn_f1(counts_SKN3, draws, generator).mean(axis=1)
        doubt_B1 = np.sqrt(freedom / generator.chisquare(freedom, size=(draws, 1)))
        off_BK = generator.normal(size=mean_BK.shape) * doubt_B1 * scatter
        found.append(_fit(sizes, np.clip(mean_BK + off_BK, 0, 1)))
    full = float(sizes[-1])
    return [Curve(a, b, c, full) for a, b, c in np.concatenate(found).tolist()]


def _checked(sizes: Sequence[float]) -> Floats:
    sizes_K = np.asarray(sizes, dtype=np.float64)
    if len(sizes_K) < LEAST_SIZES or (sizes_K <= 0).any() or (np.diff(sizes_K) <= 0).any():
        raise DataError(
            "no curve can be fitted to these sizes",
            expected=f"at least {LEAST_SIZES} growing amounts of text",
            got=str([float(size) for size in sizes_K]),
        )
    return sizes_K


def _drawn_f1(counts_SKN3: NDArray[np.int64], draws: int, generator: np.random.Generator) -> Floats:
    """Micro-F1 over resampled sentences: (draws, S, K)."""
    seeds, sizes, sentences, _ = counts_SKN3.shape
    even_N = np.full(sentences, 1 / sentences)
    times_BN = generator.multinomial(sentences, even_N, size=draws).astype(np.float64)
    flat = counts_SKN3.transpose(2, 0, 1, 3).reshape(sentences, -1).astype(np.float64)
    return micro_f1((times_BN @ flat).reshape(draws, seeds, sizes, 3))


def _fit(sizes_K: Floats, f1_BK: Floats) -> Floats:
    """(ceiling, shortfall, exponent) of each row; for each exponent, fit a line in x^-c."""
    x_CK = (sizes_K / sizes_K[-1]) ** -EXPONENTS_C[:, None]
    mean_C, mean_B = x_CK.mean(axis=1), f1_BK.mean(axis=1)
    centred_CK = x_CK - mean_C[:, None]
    slope_BC = -(f1_BK @ centred_CK.T) / (centred_CK**2).sum(axis=1)
    b_BC = np.maximum(slope_BC, 0)
    a_BC = mean_B[:, None] + b_BC * mean_C
    capped_BC = a_BC > 1
    at_one_BC = ((1 - f1_BK) @ x_CK.T) / (x_CK**2).sum(axis=1)
    a_BC, b_BC = np.where(capped_BC, 1.0, a_BC), np.where(capped_BC, at_one_BC, b_BC)
    off_BCK = f1_BK[:, None] - (a_BC[:, :, None] - b_BC[:, :, None] * x_CK)
    best_B = (off_BCK**2).sum(axis=2).argmin(axis=1)
    rows_B = np.arange(len(f1_BK))
    return np.stack([a_BC[rows_B, best_B], b_BC[rows_B, best_B], EXPONENTS_C[best_B]], axis=1)


# --- Success of an attacker
#
# Telling members from others, with intervals; no dependency.
#
# Steinke, Nasr & Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023 (arXiv
# 2305.08846), for `least_epsilon`; Carlini et al., "The Secret Sharer", USENIX Security 2019
# (arXiv 1802.08232), for `exposures`.
#
# Shapes: M members, O others, K distinct scores of both, C canaries.


LOOKS = (0.1, 0.25, 0.5, 1.0)
"""Shares of all canaries that are guessed; each look pays for its part of the level."""


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Side:
    """Scores of units (the higher, the likelier a member), and the document of each.

    Units of one document are drawn together: they resemble each other.
    """

    scores: Floats
    documents: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.scores)


class Guessed(NamedTuple):
    """Guesses of canaries, how many are right, and the ε that they refute."""

    guesses: int
    right: int
    epsilon: float


def membership_auc(
    members: Side, others: Side, *, false: float = 0.01, samples: int = 1000, seed: int = 0
) -> tuple[Estimate, Estimate]:
    """The AUC, and the share of members found at this share of false accusations.

    Intervals are the middle 95 % of a bootstrap over documents, threshold included. That of the
    share is at least as wide as the exact one of independent units (Clopper & Pearson 1934), which
    also holds where nothing was found.
    """
    ranked = _Ranked.of(members.scores, others.scores)
    draws, found = np.random.default_rng(seed), []
    for _ in range(samples):
        weights = _drawn(members, draws), _drawn(others, draws)
        found.append((ranked.auc(*weights), ranked.found(*weights, false)))
    ones = np.ones(len(members)), np.ones(len(others))
    value, share = ranked.auc(*ones), ranked.found(*ones, false)
    (low, least), (high, most) = np.quantile(found, (0.025, 0.975), axis=0).tolist()
    exact = clopper_pearson(round(share * len(members)), len(members))
    return (
        Estimate(value, min(low, value), max(high, value)),
        Estimate(share, min(least, exact[0]), max(most, exact[1])),
    )


def _drawn(side: Side, draws: np.random.Generator) -> Floats:
    """Counts of each unit's draws if as many documents are drawn as there are, with repeats."""
    names, owners = np.unique(side.documents, return_inverse=True)
    times = draws.multinomial(len(names), np.full(len(names), 1 / len(names)))
    found: Floats = times[owners].astype(np.float64)
    return found


@dataclass(frozen=True)
class _Ranked:
    """Members and others by the rank of their score, the lowest first."""

    members: NDArray[np.int64]
    others: NDArray[np.int64]
    ranks: int

    @staticmethod
    def of(members: Sequence[float] | Floats, others: Sequence[float] | Floats) -> _Ranked:
        both = np.concatenate([np.asarray(members, float), np.asarray(others, float)])
        scores_K, ranks = np.unique(both, return_inverse=True)
        return _Ranked(ranks[: len(members)], ranks[len(members) :], len(scores_K))

    def _masses(self, members: Floats, others: Floats) -> tuple[Floats, Floats]:
        ours_K = np.bincount(self.members, members, minlength=self.ranks)
        theirs_K = np.bincount(self.others, others, minlength=self.ranks)
        return ours_K / max(ours_K.sum(), 1e-12), theirs_K / max(theirs_K.sum(), 1e-12)

    def auc(self, members: Floats, others: Floats) -> float:
        ours_K, theirs_K = self._masses(members, others)
        below_K = np.cumsum(theirs_K) - theirs_K
        return min(1.0, float((ours_K * (below_K + theirs_K / 2)).sum()))  # shares of a sum round

    def found(self, members: Floats, others: Floats, false: float) -> float:
        ours_K, theirs_K = self._masses(members, others)
        passing_K = np.cumsum(theirs_K[::-1])[::-1]
        accused_K = passing_K <= false + 1e-9  # of the others that score as much or more
        return min(1.0, float(ours_K[accused_K].sum()))


def clopper_pearson(hits: int, of: int, *, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper & Pearson 1934)."""
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else _root(lambda p: at_least(hits, of, p) < tail)
    high = 1.0 if hits == of else _root(lambda p: at_least(hits + 1, of, p) < 1 - tail)
    return low, high


def at_least(hits: int, of: int, p: float) -> float:
    """P[Binomial(of, p) >= hits]."""
    return min(1.0, math.fsum(_chance(one, of, p) for one in range(hits, of + 1)))


# --- canaries ---------------------------------------------------------------------------------


def exposures(members: Sequence[float], others: Sequence[float]) -> Floats:
    """Each member canary's exposure in bits: log2 of how many there are by its rank among others.

    By chance half of them have at most 1 bit; the most is log2(others + 1).
    """
    ranked = np.sort(np.asarray(others, float))
    above = len(ranked) - np.searchsorted(ranked, np.asarray(members, float), "left")
    found: Floats = np.log2((len(ranked) + 1) / (above + 1))
    return found


def guessed(
    scores: Sequence[float], within: Sequence[bool], *, delta: float = 0.0, level: float = 0.95
) -> Guessed:
    """Guess which canaries a coin let in, by their scores, and what that refutes.

    Half of the guesses are the highest scores ("in"), half the lowest ("out"); the rest are left
    open. Of several numbers of guesses (`LOOKS`) the best is taken, each at its share of the level,
    so the ε holds at `level` whichever that is.
    """
    order, inside = np.argsort(np.asarray(scores, float), kind="stable"), np.asarray(within, bool)
    best = Guessed(0, 0, 0.0)
    for share in LOOKS:
        half = int(share * len(order)) // 2
        right = int(inside[order[len(order) - half :]].sum() + (~inside[order[:half]]).sum())
        own = 1 - (1 - level) / len(LOOKS)
        epsilon = least_epsilon(right, 2 * half, len(order), delta=delta, level=own)
        if epsilon >= best.epsilon and half:
            best = Guessed(2 * half, right, epsilon)
    return best


def least_epsilon(
    right: int, guesses: int, canaries: int, *, delta: float = 0.0, level: float = 0.95
) -> float:
    """The largest ε that N right guesses of canaries refute (Steinke et al. 2023, Thm. 5.2).

    Each canary is let in by a fair coin of its own, and the guesses were made without the coins.
    """

    def refuted(epsilon: float) -> bool:
        p = 1 / (1 + math.exp(-epsilon))
        beta = at_least(right, guesses, p)
        alpha = total = 0.0
        for number in range(1, right + 1 if delta else 1):
            total += _chance(right - number, guesses, p)
            alpha = max(alpha, total / number)
        return beta + 2 * alpha * delta * canaries < 1 - level

    return 0.0 if not refuted(0.0) else _root(refuted, 50.0)


def _chance(hits: int, of: int, p: float) -> float:
    if p in (0.0, 1.0):
        return float(hits == of * p)
    ways = math.lgamma(of + 1) - math.lgamma(hits + 1) - math.lgamma(of - hits + 1)
    return math.exp(ways + hits * math.log(p) + (of - hits) * math.log1p(-p))


def _root(below: Callable[[float], bool], high: float = 1.0) -> float:
    """The place up to which `below` holds."""
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low
