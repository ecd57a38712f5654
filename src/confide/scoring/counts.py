"""Gold and predicted documents -> counts that add up over documents and sites.

- **Strict**: the same type and exactly the same characters.
- **Relaxed**: the same type and at least one shared character; predictions and gold entities are
  paired one to one, as many as possible.
- Mode `"n2c2"` counts like the script of the 2018 n2c2 shared task: a discontinuous entity becomes
  its hull; a prediction that touches an already matched gold entity is deleted and so no false
  positive; one prediction over two gold entities is one true positive and one false negative.

By default an entity that occurs twice in a document (same type, same characters) counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple

from confide.errors import DataError
from confide.scoring.calibration import Sure, count_sure, sum_sure
from confide.scoring.matching import Fragments, maximum_pairs
from confide.text.document import Document

Mode = Literal["default", "n2c2"]
MODES: tuple[Mode, ...] = ("default", "n2c2")


class Count(NamedTuple):
    """The correct predictions, all predictions and all gold entities of one type."""

    true: int = 0
    predicted: int = 0
    gold: int = 0

    def plus(self, other: Count) -> Count:
        """The count over both."""
        return Count(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """Counts by entity type; `malformed` is how many tags had to be repaired before scoring.

    `sure` counts predictions by type and confidence, and how many of them are exactly right.
    """

    strict: dict[str, Count]
    relaxed: dict[str, Count]
    sentences: int = 0
    malformed: int = 0
    sure: Sure = field(default_factory=dict)

    def __add__(self, other: EntityCounts) -> EntityCounts:
        return sum_counts((self, other))


class Match(NamedTuple):
    """The strict and relaxed counts of one type in one document."""

    type: str
    strict: Count
    relaxed: Count


def sum_counts(parts: Iterable[EntityCounts]) -> EntityCounts:
    """The counts over all parts, types in alphabetical order; nothing gives empty counts."""
    parts = list(parts)
    return EntityCounts(
        _sum_by_type(chain.from_iterable(part.strict.items() for part in parts)),
        _sum_by_type(chain.from_iterable(part.relaxed.items() for part in parts)),
        sum(part.sentences for part in parts),
        sum(part.malformed for part in parts),
        sum_sure(part.sure for part in parts),
    )


def count_entities(
    gold: Sequence[Document],
    predicted: Sequence[Document],
    *,
    mode: Mode = "default",
    malformed: int = 0,
) -> EntityCounts:
    """Count the entities of documents that are paired by position.

    `sentences` counts the gold documents' sentences, or the predicted ones' if only those are
    segmented. Raises DataError if the two sides are not the same documents.

    >>> from confide.text.document import Document, Entity
    >>> gold = Document("d", "fever and cough", (Entity("1", "Sign", ((0, 5),)),))
    >>> seen = Document("d", "fever and cough", (Entity("1", "Sign", ((0, 9),)),))
    >>> counts = count_entities([gold], [seen])
    >>> counts.strict["Sign"], counts.relaxed["Sign"]
    (Count(true=0, predicted=1, gold=1), Count(true=1, predicted=1, gold=1))
    """
    matches = list(chain.from_iterable(match_documents(gold, predicted, mode=mode)))
    return EntityCounts(
        _sum_by_type((match.type, match.strict) for match in matches),
        _sum_by_type((match.type, match.relaxed) for match in matches),
        sum(len(g.sentences or p.sentences) for g, p in zip(gold, predicted, strict=True)),
        malformed,
        count_sure(chain.from_iterable(map(_finds, gold, predicted))),
    )


def _finds(gold: Document, predicted: Document) -> Iterator[tuple[str, float | None, bool]]:
    """Type and confidence of each find of a document, once, and whether it is exactly right."""
    right = {(one.type, one.fragments) for one in gold.entities}
    finds = {(one.type, one.fragments): one.confidence for one in predicted.entities}
    for found, confidence in finds.items():
        yield found[0], confidence, found in right


def match_documents(
    gold: Sequence[Document], predicted: Sequence[Document], *, mode: Mode = "default"
) -> Iterator[list[Match]]:
    """Each document's counts by type. Raises DataError as `count_entities` does."""
    if mode not in MODES:
        raise DataError("unknown way of counting", expected=" or ".join(MODES), got=repr(mode))
    count = _count_once if mode == "default" else _count_as_n2c2
    for one, other in paired(gold, predicted):
        if one.entities or other.entities:
            yield list(count(_spans_by_type(one), _spans_by_type(other)))
        else:
            yield []


def paired(
    gold: Sequence[Document], predicted: Sequence[Document]
) -> Iterator[tuple[Document, Document]]:
    """The documents in pairs. Raises DataError if their number or ids differ."""
    if len(gold) != len(predicted):
        raise DataError(
            "gold and predicted are not the same documents",
            expected=f"{len(gold)} documents",
            got=f"{len(predicted)}",
        )
    for position, (one, other) in enumerate(zip(gold, predicted, strict=True)):
        if one.id != other.id:
            raise DataError(
                f"gold and predicted documents differ at position {position}",
                expected=f"the id {one.id!r}",
                got=repr(other.id),
                fix="give both sides in the same order",
            )
        yield one, other


def _spans_by_type(document: Document) -> dict[str, list[Fragments]]:
    spans: dict[str, list[Fragments]] = {}
    for entity in document.entities:
        if not all(start < end for start, end in entity.fragments):
            raise DataError(
                f"the entity {entity.id!r} has an empty fragment",
                where=document.source or document.id,
                got=str(entity.fragments),
            )
        spans.setdefault(entity.type, []).append(entity.fragments)
    return spans


def _count_once(
    gold: dict[str, list[Fragments]], predicted: dict[str, list[Fragments]]
) -> Iterator[Match]:
    for type_ in gold.keys() | predicted.keys():
        ours, theirs = set(gold.get(type_, ())), set(predicted.get(type_, ()))
        strict = len(ours & theirs)
        relaxed = len(ours) if ours == theirs else len(maximum_pairs(list(ours), list(theirs)))
        sizes = len(theirs), len(ours)
        yield Match(type_, Count(strict, *sizes), Count(relaxed, *sizes))


def _count_as_n2c2(
    gold: dict[str, list[Fragments]], predicted: dict[str, list[Fragments]]
) -> Iterator[Match]:
    for type_ in gold.keys() | predicted.keys():
        ours = [(span[0][0], span[-1][1]) for span in gold.get(type_, ())]
        theirs = [(span[0][0], span[-1][1]) for span in predicted.get(type_, ())]
        equal = [[i for i, span in enumerate(ours) if span == other] for other in theirs]
        touching = [
            [i for i, (start, end) in enumerate(ours) if start < other_end and other_start < end]
            for other_start, other_end in theirs
        ]
        strict, relaxed = _keep_first_touch(equal), _keep_first_touch(touching)
        yield Match(type_, Count(*strict, len(ours)), Count(*relaxed, len(ours)))


def _keep_first_touch(matched: Sequence[Sequence[int]]) -> tuple[int, int]:
    """(true positives, predictions kept), given the gold entities that each prediction matches."""
    taken: set[int] = set()
    true = kept = 0
    for gold in matched:
        if taken.isdisjoint(gold):
            true += bool(gold)
            kept += 1
        taken.update(gold)
    return true, kept


def _sum_by_type(counts: Iterable[tuple[str, Count]]) -> dict[str, Count]:
    sums: dict[str, list[int]] = {}
    for type_, (true, predicted, gold) in counts:
        total = sums.setdefault(type_, [0, 0, 0])
        total[0] += true
        total[1] += predicted
        total[2] += gold
    return {type_: Count(*sums[type_]) for type_ in sorted(sums)}
