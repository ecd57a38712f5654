"""What trained models say of themselves, and what a site keeps of what they get wrong."""

from __future__ import annotations

from typing import Any

from cases import each
from confide.kinds.bags.site import BagExtractor
from confide.kinds.bags.site import _worst as bags_worst
from confide.kinds.entities import EntityExtractor
from confide.kinds.protocol import WORST, as_many_of_both, fingerprint
from confide.kinds.relations.site import RelationExtractor
from confide.kinds.relations.site import _worst as relations_worst
from confide.text.document import NO_RELATION, Document, Entity, Relation


def test_each_says_what_it_finds() -> None:
    found = [one.finds for one in (EntityExtractor, RelationExtractor, BagExtractor)]
    assert found == ["entities", "relations", "facts"]


@each(
    ("said", "silent", "kept"),
    [(0, 0, (0, 0)), (30, 30, (10, 10)), (30, 3, (17, 3)), (4, 30, (4, 16)), (30, 0, (20, 0))],
)
def test_as_many_of_both_as_there_are(said: int, silent: int, kept: tuple[int, int]) -> None:
    cases = as_many_of_both(["said"] * said, ["silent"] * silent)
    assert (cases.count("said"), cases.count("silent")) == kept
    assert len(cases) <= WORST


def test_relations_are_in_a_fingerprint_only_where_they_are_learnt() -> None:
    ends = (Entity("1", "Drug", ((0, 1),)), Entity("2", "Drug", ((2, 3),)))
    plain = Document("d", "a b", ends)
    linked = Document("d", "a b", ends, (Relation("R1", "treats", "1", "2"),))
    assert fingerprint([plain]) == fingerprint([linked])
    assert fingerprint([plain], relations=True) != fingerprint([linked], relations=True)


def test_reports_list_the_most_confident_mistakes_first() -> None:
    sure = [("a", 0.2), ("b", 0.9), (NO_RELATION, 0.3), (NO_RELATION, 0.8), ("c", 0.5)]
    found = bags_worst([(n, label, sureness) for n, (label, sureness) in enumerate(sure)])
    assert [case[0] for case in found] == [1, 4, 0, 3, 2]
    example: Any = object()
    wrong = relations_worst([(example, label, sureness) for label, sureness in sure])
    assert [case[1:] for case in wrong[:3]] == [("b", 0.9), ("c", 0.5), ("a", 0.2)]
    assert {case[1] for case in wrong[3:]} == {NO_RELATION}
