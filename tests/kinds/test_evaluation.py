"""Counts leave a site, and come back as the same counts; counts that cannot be are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import GuardError
from confide.federation.guards import check_reply
from confide.federation.messages import decode, encode
from confide.kinds.protocol import SCORE
from confide.kinds.relations.site import RelationSiteModel
from confide.kinds.steps import (
    OTHER,
    SCORING,
    BagsScored,
    Scored,
    bag_counts_of,
    bags_scored,
    counts_of,
    relations_scored,
    score_documents,
)
from confide.scoring import Count, count_entities, sum_counts
from confide.scoring.relations import BINS, BagCounts, RelationCounts, count_ranked, count_relations
from confide.text.document import Document, Entity


def note(*entities: tuple[str, int, int]) -> Document:
    marks = tuple(Entity(f"T{n}", t, ((a, b),)) for n, (t, a, b) in enumerate(entities))
    return Document("d", "x" * 40, marks)


def checked(task: Any, reply: object) -> None:
    scoring = SCORING[task]
    step = replace(SCORE, reply=scoring.reply, check=scoring.check)
    check_reply(step, None, reply)


GOLD = [note(("Drug", 0, 5), ("Effect", 10, 20)), note(("Drug", 1, 3)), note()]
FOUND = [note(("Drug", 0, 5), ("Effect", 11, 20)), note(("Dose", 1, 3)), note(("Drug", 7, 9))]


def test_counts_come_back_as_they_were() -> None:
    reply = score_documents(GOLD, FOUND)
    checked("ner", reply)
    assert reply.types == ["Dose", "Drug", "Effect"]
    assert reply.strict_Y3.tolist() == [[0, 1, 0], [1, 2, 2], [0, 1, 1]]
    assert reply.relaxed_Y3.tolist() == [[0, 1, 0], [1, 2, 2], [1, 1, 1]]
    assert counts_of(decode(Scored, encode(reply))) == count_entities(GOLD, FOUND)


def test_tables_of_the_models_labels_give_the_same_scores() -> None:
    """A label that occurs nowhere has no score, nor has what stands for all that are unknown."""
    of_bags = BagCounts(*np.zeros((2, BINS), np.int64), 1, 1, {"Drug": Count(1, 1, 2)})
    of_pairs = count_relations(["Drug", "Effect"], ["Dose", "Dose"])
    every = ["Drug", "Effect", "Rare", "Dose"]

    def summed(task: Any, reply: object, labels: list[str]) -> Any:
        tables = SCORING[task].tables
        return SCORING[task].counts(tables.back(tables.of(reply, labels), labels))

    entities = score_documents(GOLD, FOUND)
    assert summed("ner", entities, every) == counts_of(entities)
    assert summed("re", relations_scored(of_pairs), every) == of_pairs
    assert summed("bags", bags_scored(of_bags), every).relations == of_bags.relations
    found = summed("ner", entities, ["Drug"]).strict
    assert found == {"Drug": Count(1, 2, 2), OTHER: Count(0, 2, 1)}  # where it does occur


def test_a_site_without_held_out_text_adds_nothing() -> None:
    empty = score_documents([], [])
    checked("ner", decode(Scored, encode(empty)))
    full = counts_of(score_documents(GOLD, FOUND))
    assert sum_counts([full, counts_of(empty)]) == full


@each(
    "changes",
    [
        {"strict_Y3": np.zeros((3, 2), np.int64)},
        {"strict_Y3": np.zeros((2, 3), np.int64)},
        {"relaxed_Y3": np.zeros(3, np.int64)},
        {"relaxed_Y3": np.zeros((3, 3), np.float64)},
        {"strict_Y3": np.array([[0, 0, 0], [-1, 0, 0], [0, 0, 0]])},
        {"strict_Y3": np.array([[2, 1, 2], [0, 0, 0], [0, 0, 0]])},
        {"relaxed_Y3": np.array([[2, 2, 1], [0, 0, 0], [0, 0, 0]])},
        {"types": ["Drug", "Drug", "Dose"]},
        {"sentences": -1},
        {"malformed": -1},
    ],
)
def test_counts_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(GuardError):
        checked("ner", replace(score_documents(GOLD, FOUND), **changes))


SURE = [replace(one, entities=tuple(replace(e, confidence=0.9) for e in one.entities))
        for one in FOUND]  # fmt: skip
"""The same finds, each with a confidence."""


def test_counts_by_confidence_come_back_as_they_were() -> None:
    reply = score_documents(GOLD, SURE)
    checked("ner", reply)
    assert reply.sure_N4[:, 0].tolist() == [0, 1, 2]
    assert reply.sure_N4[:, 2:].tolist() == [[0, 1], [1, 2], [0, 1]]
    assert counts_of(decode(Scored, encode(reply))).sure == count_entities(GOLD, SURE).sure


@each(
    ("rows", "said"),
    [
        ([[0, 40, 0, 1], [0, 40, 0, 1]], "not in order"),
        ([[1, 40, 0, 1], [0, 40, 0, 1]], "not in order"),
        ([[3, 40, 0, 1]], "impossible"),
        ([[-1, 40, 0, 1]], "impossible"),
        ([[1, 64, 0, 1]], "impossible"),
        ([[1, -1, 0, 1]], "impossible"),
        ([[1, 40, 2, 1]], "impossible"),
        ([[1, 40, -1, 1]], "impossible"),
        ([[1, 40, 0, 0]], "impossible"),
        ([[1, 40, 0, 2], [1, 41, 0, 1]], "more predicted"),
        ([[2, 40, 1, 1]], "more right"),
        ([[1, 40, 0]], "malformed"),
    ],
)
def test_counts_by_confidence_that_cannot_be_are_refused(rows: list[list[int]], said: str) -> None:
    reply = score_documents(GOLD, SURE)
    checked("ner", replace(reply, sure_N4=np.array([[1, 40, 1, 1]], np.int32)))
    with pytest.raises(GuardError, match=said):
        checked("ner", replace(reply, sure_N4=np.array(rows, np.int32)))
    with pytest.raises(GuardError, match="malformed"):
        checked("ner", replace(reply, sure_N4=np.array([[1, 40, 1, 1]], np.int64)))


def test_a_model_is_worth_nothing_known_where_nothing_was_scored() -> None:
    site_model = RelationSiteModel.__new__(RelationSiteModel)
    gold, found = ["causes", "eases", "no-relation"], ["causes", "causes", "no-relation"]
    counts = relations_scored(count_relations(gold, found))
    assert site_model.worth(counts, "micro") == 0.5
    assert site_model.worth(relations_scored(RelationCounts()), "micro") is None


# --- bags -------------------------------------------------------------------------------------


def bag_reply() -> BagsScored:
    scores = np.array([[0.2, 0.7, 0.1], [0.8, 0.1, 0.1], [0.1, 0.3, 0.6]])
    facts = [frozenset({"causes"}), frozenset(), frozenset({"eases", "unknown"})]
    return bags_scored(count_ranked(scores, ["no-relation", "causes", "eases"], facts))


def test_counts_of_bags_round_trip() -> None:
    reply = bag_reply()
    checked("bags", reply)
    again = decode(BagsScored, encode(reply))
    assert bag_counts_of(again) == bag_counts_of(reply)
    assert (reply.facts, reply.bags, int(reply.candidates_B.sum())) == (3, 3, 6)
    assert reply.labels == ["causes", "eases", "unknown"]
    assert reply.best_Y3.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 1]]
    none = bags_scored(BagCounts())
    checked("bags", none)
    assert bag_counts_of(none) == BagCounts()


@each(
    "changes",
    [
        {"candidates_B": np.zeros(BINS, np.int64)},
        {"candidates_B": np.zeros(BINS - 1, np.int64)},
        {"true_B": np.full(BINS, -1, np.int64)},
        {"true_B": np.zeros(BINS, np.float64)},
        {"facts": 1},
        {"facts": -1},
        {"bags": -1},
        {"labels": ["causes", "causes", "eases"]},
        {"labels": ["causes"]},
        {"best_Y3": np.array([[2, 1, 1]] * 3)},
    ],
)
def test_counts_of_bags_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(GuardError):
        checked("bags", replace(bag_reply(), **changes))
