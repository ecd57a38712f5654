"""How often answers are right by how sure the model was: counts in bins of confidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

from confide.scoring.counts import paired
from confide.text.document import Document

BINS = 10


@dataclass(frozen=True, slots=True, order=True)
class Bin:
    """Answers whose confidence lies in one range, from `lower` to the next bin's.

    `count` of them; `confidence`: the sum of their confidences; `correct`: how many are right.
    """

    lower: float
    count: int
    confidence: float
    correct: int


Answer = tuple[str, float, bool]
"""What was answered (a type), how sure the model was, and whether it is right."""


def bins_of(answers: Iterable[Answer]) -> dict[str, list[Bin]]:
    """The answers by type in ten bins of equal width; bins without an answer are left out.

    >>> bins_of([("DRUG", 0.95, True), ("DRUG", 0.9, False), ("DRUG", 1.0, True)])
    {'DRUG': [Bin(lower=0.9, count=3, confidence=2.85, correct=2)]}
    """
    found: dict[str, dict[int, Bin]] = {}
    for name, sure, right in answers:
        place = min(BINS - 1, max(0, int(sure * BINS)))
        own = found.setdefault(name, {})
        old = own.get(place, Bin(place / BINS, 0, 0.0, 0))
        own[place] = Bin(old.lower, old.count + 1, old.confidence + sure, old.correct + right)
    return {name: [own[place] for place in sorted(own)] for name, own in sorted(found.items())}


def as_rows(bins: Mapping[str, Sequence[Bin]]) -> dict[str, list[tuple[float, ...]]]:
    """The bins as sentences.json holds them."""
    return {name: [astuple(one) for one in own] for name, own in bins.items()}


def entity_bins(gold: Sequence[Document], predicted: Sequence[Document]) -> Mapping[str, list[Bin]]:
    """Bins of all predicted entities that have a confidence; right means an exact match.

    Raises DataError as `count_entities` does.
    """
    return bins_of(
        (one.type, one.confidence, (one.type, one.fragments) in marked)
        for ours, theirs in paired(gold, predicted)
        for marked in [{(one.type, one.fragments) for one in ours.entities}]
        for one in theirs.entities
        if one.confidence is not None
    )
