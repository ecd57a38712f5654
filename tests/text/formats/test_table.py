"""The table of relations: one line each, whatever the text, and nothing left out in silence."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.errors import FormatError
from confide.text.document import Document, Entity, Relation, Sentence
from confide.text.formats import read, write
from confide.text.formats.notes import COLUMNS
from text.generated import any_documents, kinds


def rows(path):
    text = io.StringIO(path.read_text(encoding="utf-8"), newline="")
    return list(csv.DictReader(text, delimiter="\t"))


def test_one_line_for_each_relation(tmp_path):
    text = 'Rash after "Asp"\tirin.\nChest and back pain went on. It was mild.'
    entities = (
        Entity("T1", "AE", ((0, 4),), confidence=0.98765),
        Entity("T2", "Drug", ((11, 21),)),
        Entity("T3", "Symptom", ((23, 28), (38, 42)), confidence=1.0),
        Entity("T4", "Symptom", ((33, 42),)),
    )
    relations = (
        Relation("R1", "caused by", "T1", "T2", confidence=2 / 3),
        Relation("R2", "before", "T3", "T1"),
    )
    starts = ((0, 22), (23, 51), (52, 64))
    sentences = tuple(Sentence(start, end, ()) for start, end in starts)
    document = Document("n/1", text, entities, relations, sentences)
    problems = write([document], tmp_path / "out.tsv", "table")
    assert [(one.kind, one.lost) for one in problems] == [("entities-unheld", True)]
    assert problems[0].what.startswith("1 entities")
    first, second = rows(tmp_path / "out.tsv")
    assert tuple(first) == COLUMNS
    assert list(first.values()) == [
        "Rash", "AE", "caused by", '"Asp" irin', "Drug", 'Rash after "Asp" irin.', "0.6667",
        "0.9877", "", "n/1", "0 4", "11 21",
    ]  # fmt: skip
    assert second["head"] == "Chest pain" and second["head_offsets"] == "23 28;38 42"
    whole = 'Rash after "Asp" irin. Chest and back pain went on.'
    assert (second["sentence"], second["confidence"]) == (whole, "")


def test_what_a_table_cannot_hold_is_named(tmp_path):
    entity = Entity("T1", "A", ((0, 1),), concepts=("C1",))
    concepts = Relation("R1", "r", "C1", "C2", level="concept")
    dangling = Relation("R2", "r", "T1", "T9")
    problems = write(
        [Document("d", "a b", (entity,), (concepts, dangling))], tmp_path / "t", "table"
    )
    assert kinds(problems) == ["relation-unheld", "relation-unheld", "entities-unheld"]
    assert rows(tmp_path / "t") == []
    assert (tmp_path / "t").read_text() == "\t".join(COLUMNS) + "\n"


def test_a_table_is_not_read_again(tmp_path):
    write([], tmp_path / "t.tsv", "table")
    with pytest.raises(FormatError, match=r"t\.tsv: .*only written.*JSON Lines"):
        read(tmp_path / "t.tsv", "table")


@given(st.lists(any_documents(), min_size=1, max_size=3))
def test_any_document_has_a_line_for_each_relation(tmp_path_factory, documents):
    path = tmp_path_factory.mktemp("table") / "out.tsv"
    write(documents, path, "table")
    found = rows(path)
    links = [
        (one, relation)
        for one in documents
        for relation in one.relations
        if relation.level == "entity"
    ]
    assert len(path.read_text(encoding="utf-8").split("\n")) == len(found) + 2
    assert [row["relation"].split() for row in found] == [link.type.split() for _, link in links]
    for row, (document, relation) in zip(found, links, strict=True):
        head = next(one for one in document.entities if one.id == relation.head)
        spans = [tuple(map(int, part.split())) for part in row["head_offsets"].split(";")]
        assert tuple(spans) == head.fragments
        assert row["head"].split() == document.surface(head).replace("\0", "").split()
        assert row["head"] in row["sentence"] or len(spans) > 1
        assert None not in row.values() and None not in row
