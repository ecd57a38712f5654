"""BioC, XML and JSON: passages, document offsets, relations of mentions and of concepts."""

from __future__ import annotations

import json

import pytest

from cases import each
from confide.errors import DataError, FormatError
from confide.text.document import Entity, Relation
from confide.text.formats import detect, read, write
from text.generated import kinds, put

XML = """<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE collection SYSTEM "BioC.dtd">
<collection><source>s</source><date/><key/><document><id>7</id>
<passage><infon key="type">title</infon><offset>0</offset><text>Aspirin &amp; pain</text>
<annotation id="a"><infon key="type">Chemical</infon><infon key="identifier">D1,D9</infon>
<location offset="0" length="7"/><text>Aspirin</text></annotation></passage>
<passage><offset>100</offset><text>Chest and back pain.</text>
<annotation id="b"><infon key="type">Disease</infon><infon key="identifier">-</infon>
<location offset="100" length="5"/><location offset="115" length="4"/><text>Chest pain</text>
</annotation></passage>
<relation id="R0"><infon key="type">Treats</infon><node refid="a" role="drug"/>
<node refid="b" role="target"/></relation>
<relation id="R1"><infon key="type">Bind</infon><infon key="entity1">D1</infon>
<infon key="entity2">D9</infon><infon key="novel">Novel</infon></relation>
<relation id="R2"><infon key="relation">CID</infon><infon key="Chemical">D1</infon>
<infon key="Disease">D5</infon></relation>
</document></collection>
"""


def as_json():
    """What BioC's JSON has for the same collection."""

    def mention(id, kind, concept, places, text):
        locations = [{"offset": offset, "length": length} for offset, length in places]
        infons = {"type": kind, "identifier": concept}
        return {"id": id, "infons": infons, "locations": locations, "text": text}

    title = {
        "offset": 0, "infons": {"type": "title"}, "text": "Aspirin & pain",
        "annotations": [mention("a", "Chemical", "D1,D9", [(0, 7)], "Aspirin")],
    }  # fmt: skip
    body = {
        "offset": 100, "infons": {}, "text": "Chest and back pain.",
        "annotations": [mention("b", "Disease", "-", [(100, 5), (115, 4)], "Chest pain")],
    }  # fmt: skip
    relations = [
        {"id": "R0", "infons": {"type": "Treats"},
         "nodes": [{"refid": "a", "role": "drug"}, {"refid": "b", "role": "target"}]},
        {"id": "R1", "infons": {"type": "Bind", "role1": {"identifier": "D1", "type": "X"},
                                "role2": "Gene|D9", "novel": "Novel"}},
        {"id": "R2", "infons": {"relation": "CID", "Chemical": "D1", "Disease": "D5"}},
    ]  # fmt: skip
    return {"id": "7", "passages": [title, body], "relations": relations}


def content(document):
    return document.id, document.text, document.entities, document.relations


def test_xml(tmp_path):
    path = put(tmp_path, "a.xml", XML)
    reading = read(path)
    (found,) = reading.documents
    assert (reading.format, reading.problems, found.source) == ("bioc", [], f"{path}#7")
    assert found.text == "Aspirin & pain\nChest and back pain."
    assert found.entities == (
        Entity("T1", "Chemical", ((0, 7),), concepts=("D1", "D9")),
        Entity("T2", "Disease", ((15, 20), (30, 34))),
    )
    assert found.relations == (
        Relation("R1", "Treats", "T1", "T2", attributes=(("roles", "drug target"),)),
        Relation("R2", "Bind", "D1", "D9", "concept", attributes=(("novelty", "Novel"),)),
        Relation("R3", "CID", "D1", "D5", "concept"),
    )


@each("wrap", ["documents", "PubTator3", None])
@each("indent", [None, 1])
def test_json_is_the_same(tmp_path, wrap, indent):
    (expected,) = read(put(tmp_path, "a.xml", XML)).documents
    row = {"source": "s", wrap: [as_json()]} if wrap else as_json()
    reading = read(put(tmp_path, "a.json", json.dumps(row, indent=indent)))
    assert (reading.format, reading.problems) == ("bioc", [])
    assert content(reading.documents[0]) == content(expected)


def test_sentences_of_a_passage_stay_sentences(tmp_path):
    parts = [
        {"offset": 10, "text": "Dr. No came.", "annotations": [
            {"id": "1", "infons": {"type": "P"}, "text": "No",
             "locations": [{"offset": 14, "length": 2}]}]},
        {"offset": 25, "text": "He left.", "annotations": []},
    ]  # fmt: skip
    row = {"id": "x", "passages": [{"offset": 10, "infons": {}, "sentences": parts}]}
    (found,) = read(put(tmp_path, "a.json", json.dumps(row))).documents
    assert found.text == "Dr. No came.   He left."
    assert [found.text[s.start : s.end] for s in found.sentences] == ["Dr. No came.", "He left."]
    assert found.surface(found.entities[0]) == "No"


def test_our_json_lines_hold_it(tmp_path):
    documents = read(put(tmp_path, "a.xml", XML)).documents
    assert write(documents, tmp_path / "b.jsonl", "jsonl") == []
    assert detect(tmp_path / "b.jsonl") == "jsonl"
    assert content(read(tmp_path / "b.jsonl").documents[0]) == content(documents[0])


@each(
    ("old", "new", "kind", "lost"),
    [
        ('offset="0" length="7"', 'offset="90" length="7"', "beyond-text", True),
        ('offset="0" length="7"', 'offset="0" length="6"', "text-mismatch", False),
        ('<location offset="0" length="7"/>', "", "empty-span", True),
        ('id="b"', 'id="a"', "duplicate-id", False),
        ('offset="115" length="4"', 'offset="105" length="4"', "fragments-merged", False),
        ('refid="b"', 'refid="z"', "dangling-relation", True),
        ('<infon key="Disease">D5</infon>', "", "dangling-relation", True),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, old, new, kind, lost):
    assert old in XML
    path = put(tmp_path, "a.xml", XML.replace(old, new))
    problem = read(path).problems[0]
    assert (problem.kind, problem.lost, problem.where) == (kind, lost, f"{path}#7")


@each(
    "text",
    [
        XML.replace("</collection>", ""),
        XML.replace('offset="0" length="7"', 'offset="-1" length="7"'),
        XML.replace('offset="0" length="7"', 'length="7"'),
        XML.replace("<offset>100</offset>", "<offset>many</offset>"),
        '{"passages": 3}',
        '{"passages": [{"text": 1}]}',
        '{"documents": [3]}',
        "<document/>",
    ],
)
def test_files_that_are_not_bioc_are_errors(tmp_path, text):
    with pytest.raises(FormatError):
        read(put(tmp_path, "a.xml", text), "bioc")


def test_empty_and_undeclared(tmp_path):
    with pytest.raises(DataError, match="no document"):
        read(put(tmp_path, "a.xml", "<collection/>"))
    with pytest.raises(DataError, match="not declared"):
        read(put(tmp_path, "b.xml", XML), types=["Chemical"])
    assert kinds(read(put(tmp_path, "c.xml", XML)).problems) == []
