"""Scoring is a step too: a site scores its own held-out text and replies with counts.

What leaves a site: per entity type how many entities were right, predicted and gold, strict and
relaxed, and the number of sentences; of relations, the confusion matrix, and how many relations no
candidate pair covers; of bags, histograms of the scores of candidates and facts, and by relation
how many bags were right. Also how many predictions of each type have about which confidence, and
how many of these were right.
What never leaves: a prediction, a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.guards import MOST_NAMES, check_names
from confide.federation.messages import carries
from confide.scoring import Count, EntityCounts, RelationCounts, calibration, count_entities
from confide.scoring.bags import BINS, BagCounts
from confide.scoring.calibration import Right, Sure
from confide.text.document import Document

MOST_SURE = calibration.BINS * MOST_NAMES


@dataclass(frozen=True)
class Scored:
    """Entity counts of one part of a site's held-out text.

    Y types; 3: right, predicted, gold. N pairs of a type and a bin of confidence, in order; 4: the
    type's place, the bin, right, predicted.
    """

    types: list[str] = carries("names of the entity types (not text)")
    strict_Y3: NDArray[np.int64] = carries(
        "exact entities: right, predicted, gold, by type", most=MOST_NAMES
    )
    relaxed_Y3: NDArray[np.int64] = carries(
        "overlapping entities: right, predicted, gold, by type", most=MOST_NAMES
    )
    sentences: int = carries("number of sentences scored")
    malformed: int = carries("number of malformed tags that were repaired")
    sure_N4: NDArray[np.int32] = carries(
        "predicted entities by type and confidence: right, predicted", most=MOST_SURE
    )


def score_documents(gold: Sequence[Document], predicted: Sequence[Document]) -> Scored:
    """The reply to `score`: these predictions against the gold documents."""
    counts = count_entities(gold, predicted)
    types = sorted({*counts.strict, *counts.relaxed})
    return Scored(
        types=types,
        strict_Y3=_table(counts.strict, types),
        relaxed_Y3=_table(counts.relaxed, types),
        sentences=counts.sentences,
        malformed=counts.malformed,
        sure_N4=_sure_table(counts.sure, types),
    )


def check_scored(ask: object, reply: Scored) -> None:
    """Raise GuardError if counts are malformed, negative, or more right than predicted or gold."""
    for name, table in (("strict_Y3", reply.strict_Y3), ("relaxed_Y3", reply.relaxed_Y3)):
        _check_table(name, table, (len(reply.types), 3))
        if (table[:, :1] > table[:, 1:]).any():
            raise GuardError(f"{name} holds impossible counts")
    if reply.sentences < 0 or reply.malformed < 0:
        raise GuardError("sentences and malformed must be at least 0")
    check_names("types", reply.types)
    _check_sure(reply.sure_N4, reply.strict_Y3)


def counts_of(reply: Scored) -> EntityCounts:
    """The counts in a reply to `score`."""
    return EntityCounts(
        strict=_by_type(reply.types, reply.strict_Y3),
        relaxed=_by_type(reply.types, reply.relaxed_Y3),
        sentences=reply.sentences,
        malformed=reply.malformed,
        sure=_sure(reply.types, reply.sure_N4),
    )


def _check_sure(sure_N4: NDArray[np.int32], counts_Y3: NDArray[np.int64]) -> None:
    """Raise GuardError if these are not counts by confidence that agree with the counts by type."""
    many = len(counts_Y3)
    if sure_N4.dtype != np.int32 or sure_N4.ndim != 2 or sure_N4.shape[1:] != (4,):
        raise GuardError("sure_N4 is malformed", got=f"{sure_N4.dtype.name} {sure_N4.shape}")
    type_N, bin_N, right_N, found_N = sure_N4.astype(np.int64).T
    fits = (type_N >= 0) & (type_N < many) & (bin_N >= 0) & (bin_N < calibration.BINS)
    if not (fits & (right_N >= 0) & (right_N <= found_N) & (found_N > 0)).all():
        raise GuardError("sure_N4 holds impossible counts")
    if (np.diff(type_N * calibration.BINS + bin_N) <= 0).any():
        raise GuardError("sure_N4 is not in order")
    for name, counted_N, all_Y in (
        ("right", right_N, counts_Y3[:, 0]), ("predicted", found_N, counts_Y3[:, 1])
    ):  # fmt: skip
        if (np.bincount(type_N, counted_N, minlength=many) > all_Y).any():
            raise GuardError(f"sure_N4 has more {name} than the counts by type")


def _sure_table(sure: Sure, types: Sequence[str]) -> NDArray[np.int32]:
    place = {name: number for number, name in enumerate(types)}
    rows = [(place[name], bin, *count) for (name, bin), count in sure.items()]
    return np.array(sorted(rows), np.int32).reshape(len(rows), 4)


def _sure(types: Sequence[str], sure_N4: NDArray[np.int32]) -> Sure:
    return {
        (types[place], bin): Right(right, found) for place, bin, right, found in sure_N4.tolist()
    }


def _check_table(name: str, table: NDArray[np.int64], shape: tuple[int, ...]) -> None:
    """Raise GuardError if these are not counts of this shape."""
    if table.dtype != np.int64 or table.shape != shape:
        raise GuardError(f"{name} is malformed", got=f"{table.dtype.name} {table.shape}")
    if (table < 0).any():
        raise GuardError(f"{name} holds impossible counts")


def _table(counts: dict[str, Count], types: list[str]) -> NDArray[np.int64]:
    rows = [counts.get(name, Count()) for name in types]
    return np.array([tuple(row) for row in rows], np.int64).reshape(len(types), 3)


def _by_type(types: list[str], table_Y3: NDArray[np.int64]) -> dict[str, Count]:
    return {name: Count(*(int(n) for n in row)) for name, row in zip(types, table_Y3, strict=True)}


@dataclass(frozen=True)
class RelationsScored:
    """Relation counts of one part of a site's held-out text. Y labels, `NO_RELATION` among them.

    N pairs of a label and a bin of confidence, in order; 4: the label's place, the bin, right,
    predicted.
    """

    labels: list[str] = carries("names of the relations (not text)")
    confusion_YY: NDArray[np.int64] = carries(
        "pairs of entities by gold label, then predicted label", most=MOST_NAMES
    )
    missed_Y: NDArray[np.int64] = carries(
        "relations by label that no candidate pair covers", most=MOST_NAMES
    )
    sure_N4: NDArray[np.int32] = carries(
        "predicted relations by label and confidence: right, predicted", most=MOST_SURE
    )


def relations_scored(counts: RelationCounts) -> RelationsScored:
    """The reply to `score` with these counts."""
    labels = sorted({one for pair in counts.confusion for one in pair} | counts.missed.keys())
    place = {label: number for number, label in enumerate(labels)}
    confusion_YY = np.zeros((len(labels), len(labels)), np.int64)
    for (gold, predicted), count in counts.confusion.items():
        confusion_YY[place[gold], place[predicted]] = count
    missed_Y = np.array([counts.missed.get(label, 0) for label in labels], np.int64)
    return RelationsScored(labels, confusion_YY, missed_Y, _sure_table(counts.sure, labels))


def check_relations_scored(ask: object, reply: RelationsScored) -> None:
    """Raise GuardError if counts have the wrong type or shape, or are negative."""
    many = len(reply.labels)
    _check_table("confusion_YY", reply.confusion_YY, (many, many))
    _check_table("missed_Y", reply.missed_Y, (many,))
    counts_YY = reply.confusion_YY
    _check_sure(reply.sure_N4, np.stack([counts_YY.diagonal(), counts_YY.sum(0)], 1))
    check_names("labels", reply.labels)


def relation_counts_of(reply: RelationsScored) -> RelationCounts:
    """The counts in a reply to `score`."""
    confusion = {
        (gold, predicted): int(reply.confusion_YY[row, column])
        for row, gold in enumerate(reply.labels)
        for column, predicted in enumerate(reply.labels)
        if reply.confusion_YY[row, column]
    }
    missed = dict(zip(reply.labels, reply.missed_Y.tolist(), strict=True))
    known = {label: count for label, count in missed.items() if count}
    return RelationCounts(confusion, known, _sure(reply.labels, reply.sure_N4))


@dataclass(frozen=True)
class BagsScored:
    """Bag counts of one part of a site's held-out text. B bins of scores, Y relations."""

    candidates_B: NDArray[np.int64] = carries("candidate facts by bin of their score", most=BINS)
    true_B: NDArray[np.int64] = carries("true facts by bin of their score", most=BINS)
    facts: int = carries("number of facts")
    bags: int = carries("number of bags scored")
    labels: list[str] = carries("names of the relations (not text)")
    best_Y3: NDArray[np.int64] = carries(
        "bags by best label: right, predicted, gold, by relation", most=MOST_NAMES
    )


def bags_scored(counts: BagCounts) -> BagsScored:
    """The reply to `score` with these counts."""
    labels = sorted(counts.relations)
    return BagsScored(
        candidates_B=counts.candidates_B,
        true_B=counts.true_B,
        facts=counts.facts,
        bags=counts.bags,
        labels=labels,
        best_Y3=_table(counts.relations, labels),
    )


def check_bags_scored(ask: object, reply: BagsScored) -> None:
    """Raise GuardError if counts are malformed, negative or contradict themselves."""
    _check_table("candidates_B", reply.candidates_B, (BINS,))
    _check_table("true_B", reply.true_B, (BINS,))
    _check_table("best_Y3", reply.best_Y3, (len(reply.labels), 3))
    if (reply.true_B > reply.candidates_B).any() or reply.true_B.sum() > reply.facts:
        raise GuardError("true_B has more facts than candidates_B or facts")
    if (reply.best_Y3[:, :1] > reply.best_Y3[:, 1:]).any():
        raise GuardError("best_Y3 has more right than predicted or gold")
    check_names("labels", reply.labels)
    if reply.bags < 0 or reply.facts < 0:
        raise GuardError("bags and facts must be at least 0")


def bag_counts_of(reply: BagsScored) -> BagCounts:
    """The counts in a reply to `score`."""
    return BagCounts(
        candidates_B=reply.candidates_B,
        true_B=reply.true_B,
        facts=reply.facts,
        bags=reply.bags,
        relations=_by_type(reply.labels, reply.best_Y3),
    )
