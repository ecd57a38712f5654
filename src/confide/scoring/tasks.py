"""What the tasks have in common: counts that add up, and scores of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from confide.scoring.bags import BagCounts, bag_scores, sum_bag_counts
from confide.scoring.counts import EntityCounts, sum_counts
from confide.scoring.relations import RelationCounts, relation_scores, sum_relation_counts
from confide.scoring.scores import scores
from confide.scoring.texts import TextCounts, sum_text_counts, text_scores

Counts = EntityCounts | RelationCounts | BagCounts | TextCounts
"""One site's counts, of whichever task."""


@dataclass(frozen=True)
class Scoring:
    """How the counts of a task are added up, and what they come to.

    `kinds` are the kinds of scores: the first is meant where none is named. Each has one number
    that stands for it: the kind itself where that is a number, else what it has under `number`.
    `unit` is the key of how much was scored; `rates` the key of the rates with their `types`.
    """

    kinds: tuple[str, ...]
    unit: str
    nothing: Counts
    sum: Callable[[Iterable[Any]], Any]
    scores: Callable[[Any], dict[str, Any]]
    rates: str
    number: str = "f1"

    def value(self, found: Mapping[str, Any], kind: str) -> float | None:
        """The number that stands for a kind of these scores; None where they lack it."""
        scored = found.get(kind)
        return scored.get(self.number) if isinstance(scored, Mapping) else scored

    def values(self, found: Mapping[str, Any]) -> dict[str, float]:
        """The number of each kind. Raises KeyError where one is missing."""
        each = {kind: found[kind] for kind in self.kinds}
        return {kind: self.value(each, kind) or 0.0 for kind in each}


SCORING = MappingProxyType(
    {
        "ner": Scoring(
            ("strict", "relaxed"), "sentences", EntityCounts({}, {}), sum_counts, scores, "strict"
        ),
        "re": Scoring(
            ("micro", "macro"),
            "examples",
            RelationCounts(),
            sum_relation_counts,
            relation_scores,
            "micro",
        ),
        "bags": Scoring(
            ("auc", "auc_2000", "precision_at"),
            "bags",
            BagCounts(),
            sum_bag_counts,
            bag_scores,
            "micro",
            number="mean",
        ),
        "text": Scoring(
            ("likelihood", "right", "hidden"),
            "pieces",
            TextCounts(),
            sum_text_counts,
            text_scores,
            "micro",
        ),
    }
)
"""By task."""


def scoring_of(found: Mapping[str, Any]) -> Scoring:
    """How scores of this form are made: as those of the task whose kinds they have."""
    known = (one for one in SCORING.values() if all(kind in found for kind in one.kinds))
    return next(known, SCORING["ner"])
