"""What trained models say of themselves, and what a site keeps of what they get wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cases import each
from confide.kinds.bags.site import BagExtractor
from confide.kinds.entities import EntityExtractor
from confide.kinds.protocol import WORST, fingerprint, worst_cases
from confide.kinds.relations.site import RelationExtractor
from confide.text.document import NO_RELATION, Document, Entity, Relation


def test_each_says_what_it_finds() -> None:
    assert (EntityExtractor.finds, BagExtractor.finds) == ("entities", "facts")
    for attribute, finds in (("", "relations"), ("assertion", "attributes")):
        made: Any = RelationExtractor
        trainer = SimpleNamespace(form=SimpleNamespace(attribute=attribute))
        assert made(trainer, None, None, ()).finds == finds


@each(
    ("said", "silent", "kept"),
    [(0, 0, (0, 0)), (30, 30, (10, 10)), (30, 3, (17, 3)), (4, 30, (4, 16)), (30, 0, (20, 0))],
)
def test_as_many_of_both_as_there_are(said: int, silent: int, kept: tuple[int, int]) -> None:
    found = worst_cases([(0, "said", 0.5)] * said + [(0, NO_RELATION, None)] * silent)
    cases = [label for _, label, _ in found]
    assert (cases.count("said"), cases.count(NO_RELATION)) == kept
    assert len(cases) <= WORST


def test_relations_are_in_a_fingerprint_only_where_they_are_learnt() -> None:
    ends = (Entity("1", "Drug", ((0, 1),)), Entity("2", "Drug", ((2, 3),)))
    plain = Document("d", "a b", ends)
    linked = Document("d", "a b", ends, (Relation("R1", "treats", "1", "2"),))
    assert fingerprint([plain]) == fingerprint([linked])
    assert fingerprint([plain], relations=True) != fingerprint([linked], relations=True)


def test_reports_list_the_most_confident_mistakes_first() -> None:
    sure = [("a", 0.2), ("b", 0.9), (NO_RELATION, 0.3), (NO_RELATION, 0.8), ("c", 0.5)]
    found = worst_cases([(n, label, sureness) for n, (label, sureness) in enumerate(sure)])
    assert [case[0] for case in found] == [1, 4, 0, 3, 2]
