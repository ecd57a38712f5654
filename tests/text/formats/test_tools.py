"""Records of annotation tools: what was accepted, and nothing else."""

from __future__ import annotations

import json

import pytest

from cases import each
from confide.errors import DataError, FormatError
from confide.text.document import Document, Entity, Relation
from confide.text.formats import read, write
from text.formats import published
from text.formats.samples import links, mentions
from text.generated import kinds, put


def rows(folder, *records):
    return put(folder, "p.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def test_prodigy_reads_what_was_accepted(tmp_path):
    """Rejected and ignored answers became gold, silently."""
    reading = read(put(tmp_path, "p.jsonl", published.PRODIGY))
    (document,) = reading.documents
    assert mentions(document) == [("ADE", "Rash"), ("Drug", "aspirin")]
    assert links(document) == [("causes", "aspirin", "Rash")]
    assert document.attributes == (("source", "note 1"),)
    assert [(p.kind, p.lost) for p in reading.problems] == [("rejected", False), ("ignored", False)]
    assert reading.details["written by"] == "Prodigy"


def test_what_a_model_found_goes_to_label_studio_as_predictions(tmp_path):
    """Not as somebody's annotation, and it is no gold when it is read."""
    marks = (Entity("T1", "ADE", ((0, 4),), 0.9), Entity("T2", "ADE", ((9, 13),), 0.4),
             Entity("T3", "ADE", ((0, 4), (9, 13)), 0.1))  # fmt: skip
    links = (Relation("R1", "with", "T1", "T2", confidence=0.7),)
    documents = [Document("a", "Rash and pain", marks, links), Document("b", "Well.")]
    problems = write(documents, tmp_path / "a.json", "labelstudio", predicted=True)
    assert kinds(problems) == ["discontinuous"]
    first, second = json.loads((tmp_path / "a.json").read_text())
    (found,) = first.pop("predictions")
    assert first == {"id": "a", "data": {"text": "Rash and pain"}}
    assert [one.get("score") for one in found["result"]] == [0.9, 0.4, None]
    assert found["score"] == 0.4, "of the least sure entity that is there"
    assert second["predictions"] == [{"result": [], "score": 1.0}]
    reading = read(tmp_path / "a.json")
    assert [one.entities for one in reading.documents] == [(), ()]
    assert {one.kind for one in reading.problems} == {"not-annotated"}


def test_prodigy_leaves_out_rejected_spans_and_counts_them(tmp_path):
    spans = [{"start": 0, "end": 4, "label": "ADE", "answer": answer}
             for answer in ("reject", "reject", "accept")]  # fmt: skip
    reading = read(rows(tmp_path, {"text": "Rash", "spans": spans, "_task_hash": 1}))
    assert mentions(reading.documents[0]) == [("ADE", "Rash")]
    assert reading.problems[0].what.startswith("2 rejected")


def test_prodigy_relations_tell_spans_of_one_place_by_their_labels(tmp_path):
    spans = [{"start": 0, "end": 4, "label": label} for label in "AB"]
    relation = {"head": 0, "child": 0, "label": "r", "head_span": spans[1], "child_span": spans[0]}
    token = {"head": 7, "child": 0, "label": "s", "head_span": None, "child_span": spans[0]}
    path = rows(tmp_path, {"text": "Rash", "spans": spans, "answer": "accept",
                           "relations": [relation, token]})  # fmt: skip
    reading = read(path)
    assert [(r.head, r.tail) for r in reading.documents[0].relations] == [("T2", "T1")]
    assert kinds(reading.problems) == ["dangling-relation"]


def test_prodigy_sessions_are_annotators_of_one_text(tmp_path):
    path = rows(tmp_path, *(
        {"text": "Rash", "spans": [{"start": 0, "end": 4, "label": label}], "answer": "accept",
         "_annotator_id": who}
        for who, label in (("ann", "A"), ("bob", "B"), ("eve", "B"))
    ))  # fmt: skip
    assert mentions(read(path).documents[0]) == [("A", "Rash")]
    from confide.text.formats import Options

    majority = read(path, options=Options(annotators="majority"))
    assert [mentions(one) for one in majority.documents] == [[("B", "Rash")]]


def test_nothing_accepted_is_an_error_that_says_so(tmp_path):
    with pytest.raises(DataError, match="no document was accepted: 1 rejected"):
        read(rows(tmp_path, {"text": "a", "answer": "reject"}))


def test_label_studio_min_has_a_row_for_each_annotation(tmp_path):
    reading = read(put(tmp_path, "m.json", published.LABEL_STUDIO_MIN))
    (document,) = reading.documents
    assert mentions(document) == [("ADE", "Rash"), ("Drug", "aspirin")]
    assert document.attributes == (("ward", "b"),)
    assert kinds(reading.problems) == ["annotators-ignored"]


def test_label_studio_offsets_of_a_browser(tmp_path):
    """A character beyond U+FFFF is two units in a browser; the regions' own texts tell."""
    text = "😀 Rash and 😀 fever"
    value = {"start": 3, "end": 7, "text": "Rash", "labels": ["ADE"]}
    other = {"start": 15, "end": 20, "text": "fever", "labels": ["ADE"]}
    results = [{"type": "labels", "value": one} for one in (value, other)]
    task = {"data": {"text": text}, "annotations": [{"result": results}]}
    reading = read(put(tmp_path, "t.json", json.dumps([task])))
    assert mentions(reading.documents[0]) == [("ADE", "Rash"), ("ADE", "fever")]
    assert kinds(reading.problems) == ["offsets-counted"]
    value |= {"start": 2, "end": 6}
    other |= {"start": 13, "end": 18}
    reading = read(put(tmp_path, "t.json", json.dumps([task])))
    assert mentions(reading.documents[0]) == [("ADE", "Rash"), ("ADE", "fever")]
    assert reading.problems == []


def test_a_task_that_nobody_annotated_is_named(tmp_path):
    reading = read(
        put(tmp_path, "t.json", json.dumps([{"data": {"text": "a"}, "annotations": []}]))
    )
    assert [(p.kind, p.lost) for p in reading.problems] == [("not-annotated", False)]


def test_pubannotation(tmp_path):
    reading = read(put(tmp_path, "p.json", published.PUBANNOTATION))
    (document,) = reading.documents
    assert document.id == "PubMed:25314077"
    assert mentions(document) == [("Protein", "IRF-4"), ("Protein", "IFN-α"), ("X", "CML therapy")]
    assert links(document) == [("regulates", "IFN-α", "IRF-4")]
    assert document.entities[0].attributes == (("certain", "yes"),)
    assert reading.problems == []


def test_pubannotation_chains_of_fragments_and_tracks(tmp_path):
    def track(project, kind):
        spans = [("T1", 0, 1, kind), ("T2", 4, 5, "_FRAGMENT")]
        return {
            "project": project,
            "denotations": [{"id": n, "span": {"begin": a, "end": b}, "obj": k}
                            for n, a, b, k in spans],
            "relations": [{"id": "R1", "subj": "T2", "pred": "_lexicallyChainedTo", "obj": "T1"}],
        }  # fmt: skip

    row = {"text": "a b c", "tracks": [track("one", "X"), track("two", "Y")]}
    reading = read(put(tmp_path, "p.json", json.dumps(row)))
    assert mentions(reading.documents[0]) == [("X", "a c")]
    assert reading.documents[0].relations == ()
    assert kinds(reading.problems) == ["annotators-ignored"]


@each("row", [
    {"text": "a", "answer": "accept", "spans": "x"},
    {"text": "a", "denotations": [{"span": 5, "obj": "X"}]},
    {"annotation_id": 1, "text": "a", "label": [{"labels": "x"}]},
    {"data": {"text": "a"}, "annotations": [5]},
])  # fmt: skip
def test_parts_of_another_form_are_refused(tmp_path, row):
    with pytest.raises(FormatError):
        read(rows(tmp_path, row))
