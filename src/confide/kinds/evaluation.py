"""Scoring is a step too: a site scores its own held-out text and replies with counts.

What leaves a site: per entity type how many entities were right, predicted and gold, strict and
relaxed, and the number of sentences; of relations, the confusion matrix, and how many relations no
candidate pair covers; of bags, histograms of the scores of candidates and facts, and by relation
how many bags were right.
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
from confide.scoring import Count, EntityCounts, RelationCounts, count_entities
from confide.scoring.bags import BINS, BagCounts
from confide.text.document import Document


@dataclass(frozen=True)
class Scored:
    """Entity counts of one part of a site's held-out text. Y types; 3: right, predicted, gold."""

    types: list[str] = carries("names of the entity types (not text)")
    strict_Y3: NDArray[np.int64] = carries(
        "exact entities: right, predicted, gold, by type", most=MOST_NAMES
    )
    relaxed_Y3: NDArray[np.int64] = carries(
        "overlapping entities: right, predicted, gold, by type", most=MOST_NAMES
    )
    sentences: int = carries("number of sentences scored")
    malformed: int = carries("number of malformed tags that were repaired")


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


def counts_of(reply: Scored) -> EntityCounts:
    """The counts in a reply to `score`."""
    return EntityCounts(
        strict=_by_type(reply.types, reply.strict_Y3),
        relaxed=_by_type(reply.types, reply.relaxed_Y3),
        sentences=reply.sentences,
        malformed=reply.malformed,
    )


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
    """Relation counts of one part of a site's held-out text. Y labels, `NO_RELATION` among them."""

    labels: list[str] = carries("names of the relations (not text)")
    confusion_YY: NDArray[np.int64] = carries(
        "pairs of entities by gold label, then predicted label", most=MOST_NAMES
    )
    missed_Y: NDArray[np.int64] = carries(
        "relations by label that no candidate pair covers", most=MOST_NAMES
    )


def relations_scored(counts: RelationCounts) -> RelationsScored:
    """The reply to `score` with these counts."""
    labels = sorted({one for pair in counts.confusion for one in pair} | counts.missed.keys())
    place = {label: number for number, label in enumerate(labels)}
    confusion_YY = np.zeros((len(labels), len(labels)), np.int64)
    for (gold, predicted), count in counts.confusion.items():
        confusion_YY[place[gold], place[predicted]] = count
    missed_Y = np.array([counts.missed.get(label, 0) for label in labels], np.int64)
    return RelationsScored(labels, confusion_YY, missed_Y)


def check_relations_scored(ask: object, reply: RelationsScored) -> None:
    """Raise GuardError if counts have the wrong type or shape, or are negative."""
    many = len(reply.labels)
    _check_table("confusion_YY", reply.confusion_YY, (many, many))
    _check_table("missed_Y", reply.missed_Y, (many,))
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
    return RelationCounts(confusion, {label: count for label, count in missed.items() if count})


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
