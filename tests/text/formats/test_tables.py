"""Tables of notes, and FHIR's texts: text without annotation, for predict."""

from __future__ import annotations

import base64
import json

import pytest

from cases import each
from confide.errors import DataError, FormatError
from confide.text.document import Document
from confide.text.formats import Options, detect, read, write
from text.formats import published
from text.generated import kinds, put


def test_a_table_of_notes(tmp_path):
    path = put(tmp_path, "n.csv", published.NOTES_CSV)
    reading = read(path)
    first, second = reading.documents
    assert (detect(path), first.id, first.text) == ("notes", "1", 'He said "no",\nthen slept.')
    assert first.attributes == (("CATEGORY", "Nursing"),)
    assert second.id == "3"
    assert [(p.kind, p.lost) for p in reading.problems] == [("empty-document", False)]


@each(("columns", "ids"), [
    ((0, 2), ["7"]), (("k", "t"), ["7"]), (("t", "k"), ["a, b"]), ((None, -1), ["n:2"]),
])  # fmt: skip
def test_columns_by_number_and_name(tmp_path, columns, ids):
    path = put(tmp_path, "n.tsv", "k\tx\tt\n7\tz\ta, b\n")
    reading = read(path, "notes", options=Options(columns=columns))
    assert [one.id for one in reading.documents] == ids
    with pytest.raises(FormatError, match="state the columns"):
        read(path, "notes")
    with pytest.raises(FormatError, match="does not exist"):
        read(path, "notes", columns=("k", "nothing"))


def test_written_notes_come_back(tmp_path):
    documents = [Document("1", 'a "b",\nc', attributes=(("ward", "x"),)), Document("2", "d\te")]
    assert write(documents, tmp_path / "n.csv", "notes") == []
    again = read(tmp_path / "n.csv").documents
    assert [(one.id, one.text, one.attributes) for one in again] == [
        (one.id, one.text, one.attributes) for one in documents
    ]


def test_broken_tables(tmp_path):
    for content, said in (
        ("id,text\n1,a,b\n", "more cells"), ("id,text,id\n1,a,b\n", "one name"),
        ('id,text\n1,"a\n', "not a table"),
    ):  # fmt: skip
        with pytest.raises(FormatError, match=said):
            read(put(tmp_path, "n.csv", content), "notes")
    path = put(tmp_path, "n.csv", "id,text\n1,a,b\n2,c\n")
    reading = read(path, options=Options(skip_broken=True))
    assert [one.text for one in reading.documents] == ["c"]
    assert kinds(reading.problems) == ["broken-document"]
    with pytest.raises(DataError, match="no text"):
        read(put(tmp_path, "e.csv", "id,text\n1,\n"), "notes")


def test_fhir(tmp_path):
    path = put(tmp_path, "b.json", published.BUNDLE)
    reading = read(path)
    (document,) = reading.documents
    assert (detect(path), document.id) == ("fhir", "DocumentReference/r1")
    assert document.text == "Naïve patient, no rash."
    assert ("subject", "Patient/p1") in document.attributes
    assert ("type", "Summary") in document.attributes
    assert [(p.kind, p.lost) for p in reading.problems] == [
        ("not-plain-text", True), ("text-elsewhere", True), ("no-text", False),
    ]  # fmt: skip


@each("coding", [[], {}, {"display": "Summary"}, "Summary", ["Summary"], [{"display": 5}], 5])
def test_fhir_whose_type_has_another_form_is_read_without_it(tmp_path, coding):
    note = {**published.DOCUMENT_REFERENCE, "type": {"coding": coding}}
    (document,) = read(put(tmp_path, "a.json", json.dumps(note))).documents
    assert "type" not in dict(document.attributes)


def test_fhir_of_a_bulk_export(tmp_path):
    report = {"resourceType": "DiagnosticReport", "id": "d", "code": {"text": "CT"},
              "presentedForm": [{"contentType": "text/plain", "data":
                                 base64.b64encode("Müde".encode("latin-1")).decode()}]}  # fmt: skip
    lines = json.dumps(published.DOCUMENT_REFERENCE) + "\n" + json.dumps(report) + "\n"
    path = put(tmp_path, "a.ndjson", lines)
    with pytest.raises(FormatError, match="not utf-8"):
        read(path)
    report["presentedForm"][0]["contentType"] = "text/plain; charset=iso-8859-1"
    lines = json.dumps(published.DOCUMENT_REFERENCE) + "\n" + json.dumps(report) + "\n"
    assert [one.text for one in read(put(tmp_path, "a.ndjson", lines)).documents][1] == "Müde"
    report["presentedForm"][0]["data"] = "%%%"
    path = put(tmp_path, "c.json", json.dumps(report))
    with pytest.raises(FormatError, match="not base64"):
        read(path)
    with pytest.raises(DataError, match="no text in these resources"):
        read(put(tmp_path, "d.json", json.dumps({"resourceType": "Patient"})))
