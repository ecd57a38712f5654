"""Gold and predicted relations -> counts that add up over documents and sites -> scores.

One label is compared for each pair of entities, `NO_RELATION` if nothing holds. That label is never
scored: a prediction is true if it is the pair's relation and not `NO_RELATION`. A gold relation
whose pair was never looked at (`missed`) counts as gold that was not found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from confide.errors import DataError
from confide.scoring.bootstrap import Table
from confide.scoring.calibration import Sure, count_sure, sum_sure
from confide.scoring.counts import Count
from confide.scoring.scores import Scored, micro, rate_of
from confide.text.document import NO_RELATION

Labels = tuple[str, str]
_DIRECTED = re.compile(r"(.+)\((?:e1,e2|e2,e1)\)")


@dataclass(frozen=True, slots=True)
class RelationCounts:
    """How often which gold relation was predicted as which. Numbers only, no text.

    `confusion` counts the (gold, predicted) labels of pairs, `NO_RELATION` included; `missed`
    counts, by relation, gold relations whose pair was never looked at; `sure` counts predicted
    relations by name and confidence, and how many of them are right.
    """

    confusion: dict[Labels, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    sure: Sure = field(default_factory=dict)

    def __add__(self, other: RelationCounts) -> RelationCounts:
        return sum_relation_counts((self, other))

    @property
    def examples(self) -> int:
        """How many pairs were scored."""
        return sum(self.confusion.values())

    @property
    def relations(self) -> dict[str, Count]:
        """True, predicted and gold of each relation but `NO_RELATION`, in alphabetical order."""
        return _by_relation(self, {})

    def to_json(self) -> Scored:
        """`{"confusion": {gold: {predicted: n}}, "missed": {relation: n}}`."""
        rows: dict[str, dict[str, int]] = {}
        for (gold, predicted), count in self.confusion.items():
            rows.setdefault(gold, {})[predicted] = count
        return {"confusion": rows, "missed": dict(self.missed)}


def count_relations(
    gold: Sequence[str],
    predicted: Sequence[str],
    *,
    missed: Mapping[str, int] | None = None,
    confidences: Sequence[float] = (),
) -> RelationCounts:
    """Count labels that are paired by position; `missed` is as in `RelationCounts`.

    `confidences` are those of the predicted labels, if they are known.

    Raises DataError if the two differ in length or a number missed is negative.

    >>> counts = count_relations(["a", "no-relation", "a"], ["a", "a", "no-relation"])
    >>> counts.relations
    {'a': Count(true=1, predicted=2, gold=2)}
    """
    _must_pair(gold, predicted)
    finds = zip(gold, predicted, confidences, strict=True) if confidences else ()
    sure = count_sure((name, c, g == name) for g, name, c in finds if name != NO_RELATION)
    return _sorted(Counter(zip(gold, predicted, strict=True)), Counter(missed or {}), sure)


def sum_relation_counts(parts: Iterable[RelationCounts]) -> RelationCounts:
    """The counts over all parts, labels in alphabetical order; nothing gives empty counts."""
    confusion: Counter[Labels] = Counter()
    missed: Counter[str] = Counter()
    parts = list(parts)
    for part in parts:
        confusion.update(part.confusion)
        missed.update(part.missed)
    return _sorted(confusion, missed, sum_sure(part.sure for part in parts))


def _sorted(
    confusion: Mapping[Labels, int], missed: Mapping[str, int], sure: Sure
) -> RelationCounts:
    if any(count < 0 for count in (*confusion.values(), *missed.values())):
        raise DataError("a count is negative", expected="counts from 0")
    return RelationCounts(
        {labels: count for labels, count in sorted(confusion.items()) if count},
        {kind: count for kind, count in sorted(missed.items()) if count},
        sure,
    )


def _by_relation(counts: RelationCounts, base: Mapping[str, str]) -> dict[str, Count]:
    """Counts by relation; labels with the same name in `base` are merged.

    A prediction is true only if the whole label is right, even where `base` merges labels.
    """
    sums: dict[str, Count] = {}

    def add(label: str, count: Count) -> None:
        if label != NO_RELATION:
            name = base.get(label, label)
            sums[name] = sums.get(name, Count()).plus(count)

    for (gold, predicted), count in counts.confusion.items():
        add(gold, Count(count if gold == predicted else 0, 0, count))
        add(predicted, Count(0, count, 0))
    for label, count in counts.missed.items():
        add(label, Count(0, 0, count))
    return dict(sorted(sums.items()))


def relation_scores(counts: RelationCounts) -> Scored:
    """The JSON form of counts; every rate is a fraction from 0 to 1.

    `{"micro": rates, "macro": rates, "examples": n, "confusion": ..., "missed": ...}`. `micro` has
    `f1`, `precision` and `recall` over all relations but `NO_RELATION`, `support` (gold relations,
    missed ones included), `true`, `predicted` and, under `types`, the same by relation. `macro` has
    `f1`, `precision` and `recall`, each the mean over the relations that occur. The rest is as in
    `RelationCounts`.
    """
    relations = counts.relations
    return _scores(counts, relations, list(relations))


def directed_scores(counts: RelationCounts) -> Scored:
    """As `relation_scores`, with the two directions of a relation merged.

    This is the official score of SemEval-2010 task 8, "(9+1)-way evaluation with directionality
    taken into account"; its number is `["macro"]["f1"]`. ``R(e1,e2)`` and ``R(e2,e1)`` are one
    relation R in the denominators of precision and recall, but a prediction is true only in the
    right direction. As there, `macro` is the mean over the relations that occur in the gold.
    """
    labels = {label for pair in counts.confusion for label in pair} | counts.missed.keys()
    base = {label: match[1] for label in labels if (match := _DIRECTED.fullmatch(label))}
    found = _by_relation(counts, base)
    return _scores(counts, found, [name for name, count in found.items() if count.gold])


def _scores(
    counts: RelationCounts, relations: Mapping[str, Count], averaged: Sequence[str]
) -> Scored:
    """All rates; the macro-average covers the relations in `averaged`."""
    types = {name: rate_of(count) for name, count in relations.items()}
    many = max(len(averaged), 1)
    macro = {
        rate: sum(types[name][rate] for name in averaged) / many
        for rate in ("f1", "precision", "recall")
    }
    return {
        "micro": {**rate_of(micro(relations)), "types": types},
        "macro": macro,
        "examples": counts.examples,
        **counts.to_json(),
    }


def relation_table(
    gold: Sequence[str],
    predicted: Sequence[str],
    *,
    units: Sequence[Hashable] | None = None,
    missed: int = 0,
) -> Table:
    """(true, predicted, gold) over all relations, for `bootstrap_interval` and `paired_bootstrap`.

    Args:
        gold: the label of each pair.
        predicted: the predicted label of each, in the same order.
        units: what each pair is drawn with (its sentence or document); None: each pair by itself.
        missed: gold relations whose pair was never looked at; each is a unit of its own.

    Returns:
        int64, shape (units, 3), units in the order of their first pair.

    Raises:
        DataError: the arguments differ in length.
    """
    _must_pair(gold, predicted)
    places = range(len(gold)) if units is None else units
    if len(places) != len(gold):
        raise DataError(
            "there is not one unit for each pair", expected=str(len(gold)), got=str(len(places))
        )
    sums: dict[Hashable, list[int]] = {}
    for unit, one, other in zip(places, gold, predicted, strict=True):
        row = sums.setdefault(unit, [0, 0, 0])
        row[0] += one == other != NO_RELATION
        row[1] += other != NO_RELATION
        row[2] += one != NO_RELATION
    rows = [*sums.values(), *([0, 0, 1] for _ in range(missed))]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _must_pair(gold: Sequence[str], predicted: Sequence[str]) -> None:
    if len(gold) != len(predicted):
        raise DataError(
            "gold and predicted are not labels of the same pairs",
            expected=f"{len(gold)} labels",
            got=str(len(predicted)),
        )
