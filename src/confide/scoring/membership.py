"""How well an attacker tells members from others, with intervals; no dependency.

Steinke, Nasr & Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023
(arXiv 2305.08846), for `least_epsilon`; Carlini et al., "The Secret Sharer", USENIX Security 2019
(arXiv 1802.08232), for `exposures`.

Shapes: M members, O others, K distinct scores of both, C canaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
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


def auc(members: Sequence[float], others: Sequence[float]) -> float:
    """The chance that a member scores above another; a tie counts half."""
    return _Ranked.of(members, others).auc(np.ones(len(members)), np.ones(len(others)))


def found_at(members: Sequence[float], others: Sequence[float], *, false: float = 0.01) -> float:
    """The share of members above a threshold that at most this share of others pass."""
    ranked = _Ranked.of(members, others)
    return ranked.found(np.ones(len(members)), np.ones(len(others)), false)


def told_apart(
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
    """How often each unit is drawn if as many documents are drawn as there are, with repeats."""
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
    """The largest ε that so many right guesses of canaries refute (Steinke et al. 2023, Thm. 5.2).

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
