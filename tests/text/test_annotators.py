"""Which of several annotators' versions of a document is read."""

from __future__ import annotations

import json

import pytest

from confide.text.checking import check
from confide.text.document import Document, Entity, Problems, Relation
from confide.text.formats import Options, read
from confide.text.reading import Reading, Version, choose_versions
from text.generated import kinds, put

TEXT = "Rash after aspirin."
RASH, DRUG, ALL = ((0, 4),), ((11, 18),), ((0, 18),)


def version(who, *spans, relation=False, id="d"):
    entities = tuple(Entity(f"{who}{n}", kind, span) for n, (kind, span) in enumerate(spans))
    relations = (Relation("R", "causes", entities[1].id, entities[0].id),) if relation else ()
    return Version(who, Document(id, TEXT, entities, relations, source="f:1"))


ANN = version("ann", ("ADE", RASH), ("Drug", DRUG), relation=True)
BOB = version("bob", ("ADE", RASH), ("Drug", DRUG), relation=True)
EVE = version("eve", ("ADE", ALL))


def chosen(rule, *versions):
    problems = Problems()
    found = choose_versions(versions, rule, where="f", problems=problems)
    return Reading(found[0], problems, "", *found[1:]), problems


def test_the_first_is_read_and_the_others_are_lost_unless_that_was_wanted():
    for rule, lost in ((None, True), ("first", False)):
        found, problems = chosen(rule, ANN, EVE, BOB)
        assert found.documents == [ANN.document]
        assert [(p.kind, p.lost) for p in problems] == [("annotators-ignored", lost)]
        assert "eve (1), bob (1)" in problems[0].what
        assert found.details == {"annotators": "first of ann (1), eve (1), bob (1)"}
        assert [one.annotator for one in found.versions] == ["ann", "eve", "bob"]


def test_the_majority_needs_more_than_half():
    found, problems = chosen("majority", EVE, ANN, BOB)
    (document,) = found.documents
    assert [(e.id, e.type, e.fragments) for e in document.entities] == [
        ("T1", "ADE", RASH), ("T2", "Drug", DRUG),
    ]  # fmt: skip
    assert document.relations == (Relation("R1", "causes", "T2", "T1"),)
    assert [(p.kind, p.lost) for p in problems] == [("annotators-disagree", False)]
    found, _ = chosen("majority", ANN, EVE)
    assert found.documents[0].entities == found.documents[0].relations == ()
    found, _ = chosen("majority", ANN)
    assert found.documents == [ANN.document]


def test_one_by_name_and_documents_that_this_one_has_not():
    found, problems = chosen("bob", ANN, BOB, version("ann", id="other"))
    assert found.documents == [BOB.document]
    assert [(p.kind, p.lost) for p in problems] == [("annotator-missing", True)]
    assert "1 documents that bob did not annotate" in problems[0].what


def test_documents_without_annotators_are_never_joined():
    bare = Version("", Document("d", TEXT))
    for rule in (None, "first", "majority", "ann"):
        found, problems = chosen(rule, bare, bare)
        assert (len(found.documents), problems, found.versions) == (2, [], [])
    twice, _ = chosen("first", ANN, ANN)
    assert len(twice.documents) == 2


@pytest.fixture
def task(tmp_path):
    def result(*spans):
        return [
            {"id": f"{kind}{a}", "type": "labels",
             "value": {"start": a, "end": b, "text": TEXT[a:b], "labels": [kind]}}
            for kind, a, b in spans
        ]  # fmt: skip

    done = [
        {"was_cancelled": True, "completed_by": 9, "result": result(("ADE", 0, 18))},
        {"completed_by": {"id": 1, "email": "ann"}, "result": result(("ADE", 0, 4))},
        {"completed_by": 2, "result": result(("ADE", 0, 4), ("Drug", 11, 18))},
    ]
    return put(
        tmp_path, "t.json", json.dumps([{"id": 1, "data": {"text": TEXT}, "annotations": done}])
    )


def test_a_cancelled_annotation_is_never_read_and_check_shows_the_rule(task):
    """The cancelled one stood first and replaced the others."""
    report = check(task)
    assert [e.fragments for e in report.documents[0].entities] == [RASH]
    assert kinds(report.problems) == ["cancelled", "annotators-ignored"]
    assert [problem.lost for problem in report.problems] == [False, True]
    assert "annotators first of ann (1), 2 (1)" in report.details[str(task)]
    assert len(report.versions) == 2
    by_name = read(task, options=Options(annotators="2"))
    assert [e.type for e in by_name.documents[0].entities] == ["ADE", "Drug"]
