"""JSON Lines: our own full form, doccano's, Label Studio's and their relatives."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError, FormatError
from confide.text.document import Document, Entity, Relation, Sentence
from confide.text.formats import Options, read, write
from text.generated import any_documents, kinds, put, tokenised

TEXT = "Aspirin helps pain"


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def found(reading):
    (document,) = reading.documents
    return [(entity.type, document.surface(entity)) for entity in document.entities]


VARIANTS = [
    {"label": [[0, 7, "Drug"], [14, 18, "Effect"]]},
    {"labels": [[0, 7, "Drug"], [14, 18, "Effect"]], "Comments": []},
    {"entities": [[0, 7, "Drug"], [14, 18, "Effect"]]},
    {
        "entities": [
            {"id": 3, "label": "Drug", "start_offset": 0, "end_offset": 7},
            {"id": 9, "label": "Effect", "start_offset": 14, "end_offset": 18},
        ]
    },
    {
        "spans": [
            {"start": 0, "end": 7, "label": "Drug"},
            {"start": 14, "end": 18, "label": "Effect"},
        ]
    },
    {
        "entities": [
            {"type": "Drug", "offsets": [[0, 7]], "text": ["Aspirin"]},
            {"type": "Effect", "fragments": [[14, 18]], "text": "pain"},
        ]
    },
]


@each("variant", VARIANTS)
@each("form", ["lines", "list", "pretty", "pretty list"])
def test_variants(tmp_path, variant, form):
    row = {"id": 5, "text": TEXT, **variant}
    content = json.dumps([row] if "list" in form else row, indent=2 if "pretty" in form else None)
    reading = read(put(tmp_path, "a.json", content))
    assert (reading.format, reading.problems) == ("jsonl", [])
    assert found(reading) == [("Drug", "Aspirin"), ("Effect", "pain")]
    assert reading.documents[0].id == "5"


def test_values_over_several_lines(tmp_path):
    """As `jq .` writes JSON Lines."""
    ten = [{"id": str(n), "text": TEXT, "entities": [[0, 7, "Drug"]]} for n in range(10)]
    pretty = [json.dumps(row, indent=1) for row in ten]
    for content in ("\n".join(pretty), "".join(pretty), "\n\n".join(
        one.replace("{\n", "{ ", 1) for one in pretty
    )):  # fmt: skip
        path = put(tmp_path, "a.jsonl", "\n" + content)
        documents = read(path).documents
        assert [one.id for one in documents] == [row["id"] for row in ten]
        for one in documents:
            line = int(one.source.rpartition(":")[2])
            text = path.read_text().split("\n", line - 1)[-1]
            assert f'"id": "{one.id}"' in text[: text.index(TEXT)]
    pairs = [json.dumps([TEXT, {"entities": [[0, 7, "Drug"]]}], indent=1)] * 2
    assert len(read(put(tmp_path, "b.json", "\n".join(pairs))).documents) == 2
    path = put(tmp_path, "c.jsonl", f"{pretty[0]}\n{pretty[1][:-5]}")
    lines_of_one = pretty[0].count("\n") + 1
    with pytest.raises(FormatError, match=f"c.jsonl:{lines_of_one + 1}: not JSON"):
        read(path)
    path = put(tmp_path, "d.jsonl", '{"text": "cut",\n' + lines(*ten))  # broken, and lines go on
    assert len(read(path, options=Options(skip_broken=True)).documents) == 10


def test_names_sources_attributes_and_relations(tmp_path):
    row = {
        "text": TEXT,
        "entities": [{"id": 3, "label": "D", "start": 0, "end": 7}, [14, 18, "E"]],
        "relations": [{"id": 1, "from_id": 3, "to_id": "T2", "type": "treats"}],
        "meta": {"ward": ["b", 2, 0.5], "deep": {}},
        "domain": "x",
        "tags": ["a"],
    }  # fmt: skip
    path = put(tmp_path, "a.jsonl", "\n" + lines(row, row))
    reading = read(path)
    first, second = reading.documents
    assert (first.id, first.source, second.id) == ("a:2", f"{path}:2", "a:3")
    assert first.attributes == (
        ("domain", "x"), ("ward", "b"), ("ward", "2"), ("ward", "0.5"),
    )  # fmt: skip
    assert first.relations == (Relation("1", "treats", "3", "T2"),)
    assert kinds(reading.problems) == ["key-ignored"]


def test_label_studio(tmp_path):
    region = {"start": 0, "end": 7, "text": "Aspirin", "labels": ["Drug", "Brand"]}
    other = {"start": 14, "end": 18, "text": "pain", "labels": ["Effect"]}
    result = [
        {"id": "a", "type": "labels", "value": region},
        {"id": "b", "type": "labels", "value": other},
        {"type": "relation", "from_id": "a", "to_id": "b", "labels": ["treats"]},
        {"type": "choices", "value": {"choices": ["x"]}},
    ]
    task = {"id": 7, "data": {"text": TEXT, "ward": "b"}, "annotations": [{"result": result}, {}]}
    reading = read(put(tmp_path, "a.json", json.dumps([task])))
    assert found(reading) == [("Drug", "Aspirin"), ("Brand", "Aspirin"), ("Effect", "pain")]
    document = reading.documents[0]
    assert [(r.type, r.head, r.tail) for r in document.relations] == [("treats", "a", "b")]
    assert (document.id, document.attributes) == ("7", (("ward", "b"),))
    assert kinds(reading.problems) == ["key-ignored", "annotators-ignored"]


@given(st.lists(any_documents() | tokenised(), min_size=1, max_size=3))
def test_our_form_holds_everything(tmp_path_factory, documents):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    documents = [replace(d, attributes=(("k", "a"), ("k", "b"))) for d in documents]
    assert write(documents, path, "jsonl") == []
    reading = read(path)
    assert reading.problems == []
    assert [replace(document, source="") for document in reading.documents] == documents


@given(tokenised())
def test_doccano_round_trip(tmp_path_factory, document):
    path = tmp_path_factory.mktemp("doccano") / "a.jsonl"
    ids = [entity.id for entity in document.entities]
    relations = (Relation("R1", "to", ids[0], ids[-1]),) if ids else ()
    attributes = (("ward", "b"), ("year", "1"))
    document = replace(document, relations=relations, attributes=attributes)
    assert kinds(write([document], path, "doccano")) == ["segmentation-unheld"]
    (again,) = read(path, "doccano").documents
    assert again.text == document.text
    assert [(e.type, e.fragments) for e in again.entities] == [
        (e.type, e.fragments) for e in document.entities
    ]
    assert [r.type for r in again.relations] == [r.type for r in relations]
    assert again.attributes == attributes


def test_attributes_with_several_values_or_names_of_doccanos_own(tmp_path):
    names = ("label", "labels", "meta", "text", "id", "entities", "answer", "tokens", "data", "k")
    attributes = (*((name, "a") for name in names), ("k", "b"), ("labels", "b"), ("ward", "7"))
    document = Document("d", TEXT, (Entity("T1", "A", ((0, 7),)),), attributes=attributes)
    for format in ("doccano", "prodigy", "labelstudio", "pubannotation"):
        path = tmp_path / f"{format}.json"
        lost = kinds(write([document], path, format))
        (again,) = read(path, format).documents
        left = {*attributes} - {*again.attributes}
        assert lost == ["document-attributes-unheld"] * bool(left), format
        assert {key for key, _ in left} == {
            "labelstudio": {"text"}, "pubannotation": {"text", "id", "answer", "data"}
        }.get(format, set())  # fmt: skip


def test_what_doccano_cannot_hold_is_named(tmp_path):
    entities = (
        Entity("T1", "A", ((0, 7),), confidence=0.5, concepts=("C",)),
        Entity("T2", "A", ((0, 7), (14, 18))),
    )
    relations = (Relation("R1", "to", "T1", "T2"), Relation("R2", "to", "C", "D", level="concept"))
    problems = write([Document("d", TEXT, entities, relations)], tmp_path / "a.jsonl", "doccano")
    assert kinds(problems) == [
        "discontinuous",
        "relation-unheld",
        "relation-unheld",
        "confidences-unheld",
        "attributes-unheld",
    ]


@each(
    ("entity", "kind", "lost"),
    [
        ([0, 19, "X"], "beyond-text", True),
        ([-1, 4, "X"], "beyond-text", True),
        ([4, 4, "X"], "empty-span", True),
        ({"start": 0, "end": 7, "label": "X", "text": "aspirin"}, "text-mismatch", False),
        ({"fragments": [[0, 3], [3, 7]], "type": "X"}, "fragments-merged", False),
    ],
)
def test_entities_that_do_not_fit_are_named(tmp_path, entity, kind, lost):
    path = put(tmp_path, "a.jsonl", "\n" + lines({"text": TEXT, "label": [entity]}))
    (problem,) = read(path).problems
    assert (problem.kind, problem.lost, problem.where) == (kind, lost, f"{path}:2")


def test_names_that_clash_and_relations_that_dangle(tmp_path):
    entity = {"id": 1, "start": 0, "end": 7, "label": "X"}
    row = {
        "text": TEXT,
        "entities": [entity, entity, {"start": 0, "end": 1, "label": "Y"}],
        "relations": [{"head": 1, "tail": 5, "type": "to"}],
    }
    reading = read(put(tmp_path, "a.jsonl", lines(row)))
    names = [entity.id for entity in reading.documents[0].entities]
    assert len(set(names)) == 3
    assert kinds(reading.problems) == ["duplicate-id", "dangling-relation"]


@each(
    "line",
    [
        '{"text": "x"',
        '{"id": 1}',
        '{"text": 5}',
        '{"text": "x", "label": 5}',
        '{"text": "x", "label": ["pos"]}',
        '{"text": "x", "label": [[0, 1]]}',
        '{"text": "x", "label": [[0, 1, ""]]}',
        '{"text": "x", "label": [[0, 1.5, "X"]]}',
        '{"text": "x", "label": [[false, true, "X"]]}',
        '{"text": "x", "label": [[0, "one", "X"]]}',
        '{"text": "x", "entities": [{"type": "X"}]}',
        '{"text": "x", "entities": [{"type": "X", "fragments": []}]}',
        '{"text": "x", "entities": [{"type": "X", "start": 0, "end": 1, "confidence": 2}]}',
        '{"text": "x", "entities": [{"type": "X", "start": 0, "end": 1, "confidence": NaN}]}',
        '{"text": "x", "relations": [5]}',
        '{"text": "x", "relations": [{"head": 1}]}',
        '{"text": "x", "sentences": [{"start": 0, "end": 2, "tokens": []}]}',
        '{"text": "x", "sentences": [{"start": 0, "end": 1, "tokens": [[0, 0]]}]}',
        '{"text": "x", "attributes": [1]}',
        '{"data": {}, "annotations": 5}',
        "[1]",
        '"x"',
        "x",
        '{"x": ' + "[" * 100_000,
        '{"text": ' + "9" * 5000 + "}",
    ],
)
def test_what_is_no_document_is_an_error_with_its_line(tmp_path, line):
    path = put(tmp_path, "a.jsonl", f'{{"text": "y"}}\n{line}\n')
    with pytest.raises(FormatError) as caught:
        read(path, "jsonl")
    assert caught.value.where == f"{path}:2"


def test_halves_of_characters(tmp_path):
    content = '{"text": "a\\ud83d b \\ud83d\\ude00", "label": [[2, 4, "X\\udc00"]]}\n'
    reading = read(put(tmp_path, "a.jsonl", content))
    (document,) = reading.documents
    assert document.text == "a\ufffd b 😀"
    assert document.entities[0].type == "X?"
    assert kinds(reading.problems) == ["lone-surrogate"]


def test_empty_and_undeclared(tmp_path):
    with pytest.raises(DataError, match="empty"):
        read(put(tmp_path, "a.jsonl", "\n"), "jsonl")
    with pytest.raises(DataError, match="empty"):
        read(put(tmp_path, "b.json", "[]"))
    path = put(tmp_path, "c.jsonl", lines({"text": TEXT, "label": [[0, 7, "X"]]}))
    with pytest.raises(DataError, match="not declared") as caught:
        read(path, types=["Y"])
    assert caught.value.where == f"{path}:1 [0:7]"


def test_many_entities_take_linear_time(tmp_path):
    row = {"text": "a" * 30_000, "label": [[n, n + 1, "X"] for n in range(30_000)]}
    started = time.process_time()
    (document,) = read(put(tmp_path, "a.jsonl", lines(row))).documents
    assert len({entity.id for entity in document.entities}) == 30_000
    assert time.process_time() - started < 5


def test_given_sentences_are_kept(tmp_path):
    row = {"text": "a b", "sentences": [{"start": 0, "end": 3, "tokens": [[0, 1], [2, 3]]}]}
    (document,) = read(put(tmp_path, "a.jsonl", lines(row))).documents
    assert document.sentences == (Sentence(0, 3, ((0, 1), (2, 3))),)
