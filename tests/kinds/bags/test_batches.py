"""Bags: which sentences are together, in training and held out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from confide.errors import DataError
from confide.kinds.bags.batches import Bags, Same, held_out_bags, identity, training_bags
from confide.kinds.relations.batches import NO_RELATION, candidates
from confide.text.document import Document, Entity, Relation, pair_attributes


def document(
    number: int, head: str, tail: str, *relations: str, concepts: tuple[str, str] = ("", "")
) -> Document:
    text = f"{head} and {tail} ."
    start = len(head) + 5
    own = [(one,) if one else () for one in concepts]
    return Document(
        id=str(number),
        text=text,
        entities=(
            Entity("T1", "a", ((0, len(head)),), concepts=own[0]),
            Entity("T2", "b", ((start, start + len(tail)),), concepts=own[1]),
        ),
        relations=tuple(Relation(f"R{n}", one, "T1", "T2") for n, one in enumerate(relations)),
        attributes=pair_attributes([("T1", "T2")]),
    )


DOCUMENTS = [
    document(0, "Ada", "Paris", "born"),
    document(1, "Paris", "Ada"),
    document(2, "ada", "PARIS"),
    document(3, "Ada", "Paris", "born"),
    document(4, "Ada", "Paris", "died", "born"),
]


def bags(kind: str, documents: list[Document], same: Same = "concept") -> Bags:
    examples = candidates(documents).examples
    make = training_bags if kind == "train" else held_out_bags
    return make(examples, documents, same=same)


def test_training_bags_are_of_triples() -> None:
    found = bags("train", DOCUMENTS)
    names = [(pair, relation) for pair, relation in zip(found.pairs, found.relations, strict=True)]
    assert names == [
        (("ada", "paris"), "born"),
        (("paris", "ada"), NO_RELATION),
        (("ada", "paris"), NO_RELATION),
        (("ada", "paris"), "died"),
    ]
    assert [group.tolist() for group in found.groups] == [[0, 3, 5], [1], [2], [4]]
    assert [found.examples[row].document for row in (0, 3, 4, 5)] == [0, 3, 4, 4]
    for group, relation in zip(found.groups, found.relations, strict=True):
        assert {found.examples[row].relation for row in group} == {relation}


def test_held_out_bags_are_of_pairs_with_all_their_facts() -> None:
    found = bags("test", DOCUMENTS)
    assert found.pairs == [("ada", "paris"), ("paris", "ada")]
    assert [group.tolist() for group in found.groups] == [[0, 2, 3, 4], [1]]
    assert found.facts == [frozenset({"born", "died"}), frozenset()]
    assert len(found) == 2


def test_concepts_make_one_of_two_names_and_two_of_one() -> None:
    documents = [
        document(0, "aspirin", "pain", concepts=("D1", "")),
        document(1, "ASA", "Pain", concepts=("D1", "")),
        document(2, "aspirin", "pain", concepts=("D2", "")),
    ]
    assert bags("test", documents).pairs == [("D1", "pain"), ("D2", "pain")]
    assert bags("test", documents, "letters").pairs == [("aspirin", "pain"), ("asa", "pain")]


def test_relations_between_concepts() -> None:
    one = document(0, "aspirin", "pain", concepts=("D1", "D2"))
    both = tuple(Relation(f"R{n}", kind, "D1", "D2", "concept") for n, kind in enumerate("xy"))
    found = bags("train", [replace(one, relations=both)])
    assert found.relations == ["x", "y"]


def test_white_space_and_case_do_not_make_two() -> None:
    one = document(0, "New\n York", "x")
    assert identity(one, "T1", "letters") == "new york"


def test_bad_input_is_named() -> None:
    with pytest.raises(DataError, match="T9"):
        identity(DOCUMENTS[0], "T9", "concept")


def test_no_example_is_no_bag() -> None:
    assert len(bags("train", [])) == len(bags("test", [])) == 0
