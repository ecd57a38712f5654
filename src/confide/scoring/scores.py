"""Counts -> precision, recall and F1, in the form that `result.json` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confide.scoring.counts import Count, EntityCounts

Scored = dict[str, Any]
"""Scores as `result.json` holds them: objects of numbers, nested; each task has its own keys."""


def precision(count: Count) -> float:
    """True / predicted, as a fraction; 0 if nothing was predicted."""
    return count.true / count.predicted if count.predicted else 0.0


def recall(count: Count) -> float:
    """True / gold, as a fraction; 0 if there was nothing to find."""
    return count.true / count.gold if count.gold else 0.0


def f1(count: Count) -> float:
    """The harmonic mean of precision and recall; 0 if nothing was predicted or to be found."""
    both = count.predicted + count.gold
    return 2 * count.true / both if both else 0.0


def micro(counts: Mapping[str, Count]) -> Count:
    """The count over all types."""
    total = Count()
    for count in counts.values():
        total = total.plus(count)
    return total


def scores(counts: EntityCounts) -> Scored:
    """The JSON form of counts; every rate is a fraction from 0 to 1.

    `{"strict": rates, "relaxed": rates, "sentences": n, "malformed": n}`, where rates are `f1`,
    `precision`, `recall` (micro-averaged), `support` (gold entities), `true`, `predicted` and, by
    type, the same under `types`.
    """
    return {
        "strict": _rates(counts.strict),
        "relaxed": _rates(counts.relaxed),
        "sentences": counts.sentences,
        "malformed": counts.malformed,
    }


def _rates(counts: Mapping[str, Count]) -> Scored:
    types = {type_: rate_of(count) for type_, count in sorted(counts.items())}
    return {**rate_of(micro(counts)), "types": types}


def rate_of(count: Count) -> dict[str, float | int]:
    """F1, precision and recall with the counts behind them, as result.json has them."""
    return {
        "f1": f1(count),
        "precision": precision(count),
        "recall": recall(count),
        "support": count.gold,
        "true": count.true,
        "predicted": count.predicted,
    }
