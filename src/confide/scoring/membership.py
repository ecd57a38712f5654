"""How well an attacker tells members from others, with exact intervals; no dependency.

Steinke, Nasr & Jagielski 2023, "Privacy Auditing with One (1) Training Run", for `least_epsilon`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float
    high: float


def auc(members: Sequence[float], others: Sequence[float]) -> float:
    """The chance that a member scores above another; a tie counts half."""
    ranked = np.sort(np.asarray(others, float))
    below = np.searchsorted(ranked, members, "left")
    upto = np.searchsorted(ranked, members, "right")
    return float((below + upto).mean() / (2 * len(ranked)))


def auc_between(
    members: Sequence[float], others: Sequence[float], *, samples: int = 1000, seed: int = 0
) -> Estimate:
    """The AUC, with the middle 95 % of a bootstrap over members and over others."""
    draws = np.random.default_rng(seed)
    ours, theirs = np.asarray(members, float), np.asarray(others, float)
    found = [
        auc(draws.choice(ours, len(ours)).tolist(), draws.choice(theirs, len(theirs)).tolist())
        for _ in range(samples)
    ]
    low, high = np.quantile(found, (0.025, 0.975))
    return Estimate(auc(members, others), float(low), float(high))


def found_at(members: Sequence[float], others: Sequence[float], *, false: float = 0.01) -> Estimate:
    """The share of members above a threshold that at most this share of others pass.

    The interval (95 %, Clopper & Pearson 1934) takes the threshold as given.
    """
    ranked = sorted(others, reverse=True)
    threshold = ranked[int(false * len(ranked))]
    hits = sum(score > threshold for score in members)
    return Estimate(hits / len(members), *clopper_pearson(hits, len(members)))


def clopper_pearson(hits: int, of: int, *, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper & Pearson 1934)."""
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else _root(lambda p: at_least(hits, of, p) < tail)
    high = 1.0 if hits == of else _root(lambda p: at_least(hits + 1, of, p) < 1 - tail)
    return low, high


def at_least(hits: int, of: int, p: float) -> float:
    """P[Binomial(of, p) >= hits]."""
    return min(1.0, math.fsum(_chance(one, of, p) for one in range(hits, of + 1)))


def least_epsilon(
    right: int, guesses: int, canaries: int, *, delta: float = 0.0, level: float = 0.95
) -> float:
    """The largest ε that so many right guesses of canaries refute (Steinke et al. 2023)."""

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
