"""UIMA CAS as XMI, against dkpro-cassis."""

from __future__ import annotations

import pytest

from cases import each
from confide.errors import FormatError
from confide.text.document import Document, Entity, Relation
from confide.text.formats import Options, detect, read, write
from confide.text.formats.inception import NAMED_ENTITY, RELATION
from confide.text.segment import segmented
from text.formats import published
from text.formats.samples import links, mentions
from text.generated import kinds, put

NOTE = segmented(Document("note 1", "😀 Rash after\taspirin.\nNo pain.", (
    Entity("T1", "ADE", ((2, 6),), concepts=("C1",)), Entity("T2", "Drug", ((13, 20),)),
    Entity("T3", "Event", ((2, 20),)),
), (Relation("R1", "causes", "T2", "T1"),)))  # fmt: skip


def test_sample(tmp_path):
    path = put(tmp_path, "note.xmi", published.XMI)
    assert detect(path) == "xmi"
    reading = read(path)
    (document,) = reading.documents
    assert (document.id, document.text) == ("admin", "😀 Rash after aspirin. Yes")
    assert mentions(document) == [
        ("ADE", "Rash"), ("Drug", "aspirin"), ("Dose", "Yes"), ("after", "after"),
    ]  # fmt: skip
    assert document.entities[0].concepts == ("C0015230",)
    assert document.entities[2].attributes == (("amount", "3"), ("unit", "mg"))
    assert links(document) == [
        ("of", "Yes", "aspirin"), ("causes", "aspirin", "Rash"), ("what", "after", "Rash"),
    ]  # fmt: skip
    assert [len(one.tokens) for one in document.sentences] == [6]
    assert [(p.kind, p.lost) for p in reading.problems] == [("layer-ignored", False)]


def test_a_list_is_of_elements(tmp_path):
    items = "<unit>mg</unit><unit/><unit> a </unit><of>21</of><unit>day</unit>"
    content = published.XMI.replace('unit="mg" of="21"/>', f">{items}</custom:Dose>")
    (document,) = read(put(tmp_path, "note.xmi", content)).documents
    assert document.entities[2].attributes == (("amount", "3"), ("unit", "mg a day"))
    assert ("of", "Yes", "aspirin") in links(document)


def test_a_type_system_tells_numbers_from_references(tmp_path):
    """Without one, the amount 20 is taken for the annotation 20."""
    content = published.XMI.replace('amount="3"', 'amount="20"')
    path = put(tmp_path, "a/note.xmi", content)
    assert ("amount", "Yes", "Rash") in links(read(path).documents[0])
    put(
        tmp_path,
        "a/TypeSystem.xml",
        """<typeSystemDescription><types><typeDescription>
        <name>webanno.custom.Dose</name><features><featureDescription><name>amount</name>
        <rangeTypeName>uima.cas.Integer</rangeTypeName></featureDescription><featureDescription>
        <name>of</name><rangeTypeName>uima.tcas.Annotation</rangeTypeName></featureDescription>
        </features></typeDescription></types></typeSystemDescription>""",
    )
    document = read(path).documents[0]
    assert ("amount", "20") in document.entities[2].attributes
    assert ("of", "Yes", "aspirin") in links(document)


def test_what_we_write_cassis_reads(tmp_path):
    cassis = pytest.importorskip("cassis")
    problems = write([NOTE], tmp_path / "out", "xmi")
    assert problems == []
    with open(tmp_path / "out" / "TypeSystem.xml", "rb") as file:
        types = cassis.load_typesystem(file)
    with open(tmp_path / "out" / "note_1.xmi", "rb") as file:
        cas = cassis.load_cas_from_xmi(file, typesystem=types)
    assert cas.sofa_string == NOTE.text
    found = [
        (one.value, one.get_covered_text(), one.identifier) for one in cas.select(NAMED_ENTITY)
    ]
    assert sorted(found, key=str) == sorted([
        ("ADE", "Rash", "C1"), ("Drug", "aspirin", None), ("Event", "Rash after\taspirin", None),
    ], key=str)  # fmt: skip
    (relation,) = cas.select(RELATION)
    assert (relation.label, relation.Governor.value, relation.Dependent.value) == (
        "causes", "Drug", "ADE",
    )  # fmt: skip
    token = "de.tudarmstadt.ukp.dkpro.core.api.segmentation.type.Token"
    assert [one.get_covered_text() for one in cas.select(token)] == [
        word for sentence in NOTE.sentences for word in NOTE.token_texts(sentence)
    ]


def test_what_cassis_writes_is_read(tmp_path):
    cassis = pytest.importorskip("cassis")
    types = cassis.TypeSystem()
    drug = types.create_type("webanno.custom.Drug")
    types.create_feature(drug, "name", "uima.cas.String")
    cas = cassis.Cas(types)
    cas.sofa_string, cas.sofa_mime = "😀 aspirin, 5 mg", "text/plain"
    cas.add(drug(begin=2, end=9, name="ASS"))
    cas.to_xmi(tmp_path / "a.xmi")
    (document,) = read(tmp_path / "a.xmi").documents
    assert mentions(document) == [("Drug", "aspirin")]
    assert document.entities[0].attributes == (("name", "ASS"),)


def test_round_trip(tmp_path):
    write([NOTE], tmp_path / "out", "xmi")
    reading = read(tmp_path / "out")
    (document,) = reading.documents
    assert (reading.format, document.id, document.text) == ("xmi", "note 1", NOTE.text)
    assert (document.entities, document.relations) == (NOTE.entities, NOTE.relations)
    assert document.sentences == NOTE.sentences


def test_a_folder_of_annotators(tmp_path):
    """INCEpTION exports a folder for each document, with a file for each annotator."""
    other = published.XMI.replace('value="Drug"', 'value="Medication"')
    for who, content in (("ann", published.XMI), ("bob", other), ("eve", other)):
        put(tmp_path, f"annotation/note.txt/{who}.xmi", content)
    reading = read(tmp_path)
    assert [one.id for one in reading.documents] == ["note.txt"]
    assert reading.documents[0].entities[1].type == "Drug"
    assert "annotators-ignored" in kinds(reading.problems)
    assert reading.details["annotators"] == "first of ann (1), bob (1), eve (1)"
    majority = read(tmp_path, options=Options(annotators="majority")).documents[0]
    assert {e.type for e in majority.entities} == {"ADE", "Medication", "Dose", "after"}


def test_characters_that_xml_cannot_hold(tmp_path):
    problems = write([Document("d", "a\x01b")], tmp_path / "out", "xmi")
    assert kinds(problems) == ["character-changed"]
    assert read(tmp_path / "out").documents[0].text == "a\ufffdb"


@each(("wrong", "said"), [
    (published.XMI.replace("sofaString", "sofaUri"), "without a text"),
    (published.XMI.replace('begin="3"', 'begin="x"', 1), "whole numbers"),
    ("<a/>", "not XMI"),
])  # fmt: skip
def test_other_files(tmp_path, wrong, said):
    with pytest.raises(FormatError, match=said):
        read(put(tmp_path, "a.xmi", wrong), "xmi")


def test_offsets_beyond_the_text(tmp_path):
    wrong = published.XMI.replace('begin="14" end="21" value', 'begin="14" end="99" value')
    reading = read(put(tmp_path, "a.xmi", wrong))
    assert "beyond-text" in kinds(reading.problems)
    assert ("Drug", "aspirin") not in mentions(reading.documents[0])
