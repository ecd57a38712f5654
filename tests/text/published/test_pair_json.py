"""TACRED, FewRel, KBP37: sentences about one pair."""

from __future__ import annotations

import json

import pytest

from cases import each
from confide.errors import FormatError
from confide.text.document import Document, Entity, Relation, pair_attributes, stated_pairs
from confide.text.formats import detect, read
from confide.text.segment import segmented
from text.formats import published
from text.formats.samples import links, mentions
from text.generated import kinds, put

SAMPLES = {"tacred": published.TACRED, "fewrel": published.FEWREL, "semeval": published.KBP37}
TEXT = "Rash after aspirin. No fever with ibuprofen."
PAIRS = segmented(Document("d", TEXT, (
    Entity("T1", "ADE", ((0, 4),), concepts=("C1",)), Entity("T2", "Drug", ((11, 18),)),
    Entity("T3", "ADE", ((23, 28),)), Entity("T4", "Drug", ((34, 43),)),
), (Relation("R1", "causes", "T2", "T1"), Relation("R2", "far", "T2", "T3")),
    attributes=pair_attributes([("T2", "T1"), ("T4", "T3")])))  # fmt: skip


@each("name", SAMPLES)
def test_samples_are_detected(tmp_path, name):
    path = put(tmp_path, "a.txt" if name == "semeval" else "a.json", SAMPLES[name])
    assert (detect(path), read(path).format) == (name, name)


def test_tacred(tmp_path):
    first, second = read(put(tmp_path, "a.json", SAMPLES["tacred"])).documents
    assert mentions(first) == [("PERSON", "Ada Lovelace"), ("TITLE", "chief of staff")]
    assert links(first) == [("per:title", "Ada Lovelace", "chief of staff")]
    assert (first.id, dict(first.attributes)["docid"]) == ("e1", "n1")
    assert (second.relations, stated_pairs(second)) == ((), [("T1", "T2")])


def test_fewrel(tmp_path):
    reading = read(put(tmp_path, "a.json", SAMPLES["fewrel"]))
    first, second = reading.documents
    assert links(first) == [("P106", "Ada Lovelace", "writer")]
    assert [entity.concepts for entity in first.entities] == [("Q7259",), ("Q36180",)]
    assert links(second) == [("P19", "She", "London")]
    assert kinds(reading.problems) == ["ambiguous-mention"]


def test_kbp37(tmp_path):
    """It was taken for SemEval, and refused."""
    first, second = read(put(tmp_path, "a.txt", SAMPLES["semeval"])).documents
    assert first.text == "Thom Yorke of Radiohead has a guitar ."
    assert links(first) == [("per:employee_of(e1,e2)", "Thom Yorke", "Radiohead")]
    assert second.relations == ()


def test_subjects_that_are_not_there(tmp_path):
    row = json.loads(SAMPLES["tacred"])[0] | {"obj_end": 99}
    reading = read(put(tmp_path, "a.json", json.dumps([row])))
    assert reading.documents[0].relations == ()
    assert kinds(reading.problems) == ["beyond-text"]
    with pytest.raises(FormatError, match="a whole number"):
        read(put(tmp_path, "a.json", json.dumps([row | {"obj_end": "four"}])))
    wrong = {"r": [{"tokens": ["a"], "h": ["a", "Q1", []], "t": ["a", "Q1", [[0]]]}]}
    with pytest.raises(FormatError, match="places"):
        read(put(tmp_path, "a.json", json.dumps(wrong)), "fewrel")


def test_half_of_a_character_in_a_label_reaches_no_document(tmp_path):
    """It went into the document's id, which no file could hold (UnicodeEncodeError)."""
    row = {"tokens": ["a", "b"], "h": ["a", "Q1", [[0]]], "t": ["b", "Q2", [[1]]]}
    file = tmp_path / "f.json"
    file.write_text(json.dumps({"ad\ud800verse": [row]}))
    (document,) = read(file, "fewrel").documents
    for said in (document.id, document.source, document.relations[0].type):
        assert said.encode("utf-8")
