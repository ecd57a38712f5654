"""Relations under their common names."""

from __future__ import annotations

from confide.text.checking import retag
from confide.text.document import Document, Entity, Problem, Relation

ENTITIES = (Entity("T1", "Drug", ((0, 4),)), Entity("T2", "Effect", ((5, 7),)))


def document(*types: str, source: str = "a.tsv:3") -> Document:
    links = tuple(Relation(f"R{n}", kind, "T1", "T2") for n, kind in enumerate(types, 1))
    return Document("d", "took no", ENTITIES, links, source=source)


def test_relations_are_renamed_and_dropped() -> None:
    given = [document("causes", "CPR:9", "treats"), document()]
    names = {"causes": "adverse-effect", "CPR:9": "", "spelt": "x"}
    (first, second), problems = retag(given, {}, relations=names)
    assert [(one.id, one.type) for one in first.relations] == [
        ("R1", "adverse-effect"), ("R3", "treats"),
    ]  # fmt: skip
    assert first.entities == ENTITIES
    assert second is given[1]
    assert problems == [
        Problem(
            "relation-dropped",
            "a.tsv:3",
            "CPR:9 R2 is of a type that the map of relations drops",
            lost=True,
        ),
        Problem(
            "relation-not-found",
            "a.tsv",
            "the map of relations names 'spelt', which no relation has",
        ),
    ]


def test_names_may_be_swapped() -> None:
    (changed,), problems = retag([document("a", "b")], {}, relations={"a": "b", "b": "a"})
    assert [one.type for one in changed.relations] == ["b", "a"]
    assert problems == []


def test_a_relation_that_goes_with_its_entity_is_there_under_its_name() -> None:
    (changed,), problems = retag([document("a")], {"Effect": ""}, relations={"a": "b"})
    assert changed.relations == ()
    assert [problem.kind for problem in problems] == ["relation-dropped"]


def test_without_documents() -> None:
    changed, problems = retag([], {}, relations={"a": "b"})
    assert (changed, [problem.kind for problem in problems]) == ([], ["relation-not-found"])
    assert retag([document("a")], {}) == ([document("a")], [])
