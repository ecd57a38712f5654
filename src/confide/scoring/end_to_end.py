"""Relations between entities that a model found itself: gold and predicted facts -> counts.

- **Strict**: the same relation, and both entities have the same type and exactly the same
  characters as those of a gold relation.
- **Relaxed**: the same relation and types, and each entity shares at least one character with its
  counterpart. Predicted and gold relations are paired one to one, as many as possible.

A fact that occurs twice in a document counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confide.errors import DataError
from confide.scoring.counts import Count, EntityCounts, sum_counts
from confide.scoring.matching import Fragments, maximum_matching, shared_characters


class Mention(NamedTuple):
    """What counts of an entity: its type and its characters."""

    type: str
    fragments: Fragments


class Fact(NamedTuple):
    """What counts of a relation: its name and its two ends."""

    relation: str
    head: Mention
    tail: Mention


def count_facts(
    gold: Sequence[Sequence[Fact]],
    predicted: Sequence[Sequence[Fact]],
    *,
    missed: Mapping[str, int] | None = None,
) -> EntityCounts:
    """Count the facts of documents by relation; the two sides are paired by position.

    `missed` counts, by relation, further gold relations that are in no document's facts.
    Raises DataError if the two sides differ in their number of documents.

    >>> drug = Mention("Drug", ((0, 7),))
    >>> whole, part = (Fact("causes", drug, Mention("AE", ((start, 20),))) for start in (8, 15))
    >>> counts = count_facts([[whole]], [[part]])
    >>> counts.strict["causes"], counts.relaxed["causes"]
    (Count(true=0, predicted=1, gold=1), Count(true=1, predicted=1, gold=1))
    """
    if len(gold) != len(predicted):
        raise DataError(
            "gold and predicted are not the same documents",
            expected=f"{len(gold)} documents",
            got=f"{len(predicted)}",
        )
    lost = {name: Count(0, 0, number) for name, number in (missed or {}).items()}
    parts = [EntityCounts(lost, lost)]
    parts += [_counted(set(a), set(b)) for a, b in zip(gold, predicted, strict=True)]
    return sum_counts(parts)


def _counted(gold: set[Fact], predicted: set[Fact]) -> EntityCounts:
    """One document's counts."""
    sizes = [Counter(fact.relation for fact in side) for side in (predicted, gold)]
    strict = Counter(fact.relation for fact in gold & predicted)
    relaxed: Counter[str] = Counter()
    for names in {_names(fact) for fact in gold} & {_names(fact) for fact in predicted}:
        ours = [fact for fact in gold if _names(fact) == names]
        theirs = [fact for fact in predicted if _names(fact) == names]
        touching = [[j for j, other in enumerate(theirs) if _touch(one, other)] for one in ours]
        relaxed[names[0]] += len(maximum_matching(touching, len(theirs)))
    kinds = sorted(sizes[0].keys() | sizes[1].keys())
    exact, near = (
        {kind: Count(true[kind], *(size[kind] for size in sizes)) for kind in kinds}
        for true in (strict, relaxed)
    )
    return EntityCounts(exact, near)


def _names(fact: Fact) -> tuple[str, str, str]:
    return fact.relation, fact.head.type, fact.tail.type


def _touch(one: Fact, other: Fact) -> bool:
    """Whether both ends share a character with their counterparts."""
    pairs = ((one.head, other.head), (one.tail, other.tail))
    return all(shared_characters(a.fragments, b.fragments) for a, b in pairs)
