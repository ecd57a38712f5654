"""What the two tasks have in common: counts that add up, and scores of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from confide.scoring.counts import EntityCounts, sum_counts
from confide.scoring.relations import RelationCounts, relation_scores, sum_relation_counts
from confide.scoring.scores import scores

Counts = EntityCounts | RelationCounts
"""One site's counts, of whichever task."""


@dataclass(frozen=True)
class Scoring:
    """How the counts of a task are added up, and what they come to.

    `kinds` are the kinds of scores, each with an `f1`: the first is meant where none is named.
    `unit` is the key of how much was scored.
    """

    kinds: tuple[str, ...]
    unit: str
    nothing: Counts
    sum: Callable[[Iterable[Any]], Any]
    scores: Callable[[Any], dict[str, Any]]

    def f1(self, found: dict[str, Any]) -> dict[str, float]:
        """The F1 of each kind."""
        return {kind: found[kind]["f1"] for kind in self.kinds}


SCORING = MappingProxyType(
    {
        "ner": Scoring(
            ("strict", "relaxed"), "sentences", EntityCounts({}, {}), sum_counts, scores
        ),
        "re": Scoring(
            ("micro", "macro"), "examples", RelationCounts(), sum_relation_counts, relation_scores
        ),
    }
)
"""By task."""


def scoring_of(found: Mapping[str, Any]) -> Scoring:
    """How scores of this form are made: as those of the task whose kinds they have."""
    known = (one for one in SCORING.values() if one.kinds[0] in found)
    return next(known, SCORING["ner"])
