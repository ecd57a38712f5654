"""Mentions of several fragments: kept where a format can, or else named; never widened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cases import each
from confide.text.checking import check, convert
from confide.text.document import Document, Entity, Relation
from confide.text.formats import FORMATS, read, write
from confide.text.segment import segmented
from confide.text.tagging import flat_spans

KEPT = ("brat", "jsonl", "pubannotation", "bioc")
NO_ENTITIES = ("notes", "text")
"""Formats without entities: they name all of them, `entities-unheld`."""
OTHERS = [name for name, one in FORMATS.items()
          if one.write and name not in (*KEPT, *NO_ENTITIES, "table", "note-nlp")]  # fmt: skip
TEXT = "Chest and back pain after aspirin."
MENTIONS = (
    Entity("T1", "Symptom", ((0, 5), (15, 19)), concepts=("C1",)),
    Entity("T2", "Symptom", ((10, 19),)),
    Entity("T3", "Drug", ((26, 33),)),
)
NOTE = Document("n", TEXT, MENTIONS, (Relation("R1", "after", "T1", "T3"),))


def _there_and_back(
    documents: list[Document], name: str, folder: Path
) -> tuple[list[Document], list[str]]:
    path = folder / f"out{FORMATS[name].suffix}"
    problems = write(documents, path, name)
    reading = read(path, name)
    return reading.documents, [one.kind for one in (*problems, *reading.problems) if one.lost]


def _shapes(documents: list[Document]) -> list[tuple[str, str, tuple[tuple[int, int], ...]]]:
    return sorted(
        (one.text, entity.type, entity.fragments) for one in documents for entity in one.entities
    )


@each("name", KEPT)
def test_these_formats_keep_all_fragments(name: str, tmp_path: Path) -> None:
    (again,), lost = _there_and_back([NOTE], name, tmp_path)
    assert _shapes([again]) == _shapes([NOTE])
    assert [
        (one.type, again.surface({e.id: e for e in again.entities}[one.head]))
        for one in again.relations
    ] == [("after", "Chest pain")]
    assert "discontinuous" not in lost


@each("name", OTHERS)
def test_all_others_leave_them_out_by_name(name: str, tmp_path: Path) -> None:
    (again,), lost = _there_and_back([NOTE], name, tmp_path)
    assert lost.count("discontinuous") == 1
    whole = [("Chest" in again.surface(one), again.surface(one)) for one in again.entities]
    assert not any(begins for begins, _ in whole), "a mention was widened"
    assert (False, "back pain") in whole and (False, "aspirin") in whole


def test_a_strict_conversion_says_so(tmp_path: Path) -> None:
    write([NOTE], tmp_path / "in.jsonl", "jsonl")
    done = convert(tmp_path / "in.jsonl", "conll", tmp_path / "out.conll")
    assert [one.kind for one in done.problems if one.kind == "discontinuous"] == ["discontinuous"]
    found = check(tmp_path / "in.jsonl")
    assert found.counts["trainable"] == 2
    assert found.kinds == {"discontinuous": 1}


def test_a_concept_with_a_comma_is_named_by_bioc(tmp_path: Path) -> None:
    odd = replace(NOTE, entities=(replace(MENTIONS[0], concepts=("a,b", "c")),), relations=())
    (again,), lost = _there_and_back([odd], "bioc", tmp_path)
    assert lost == ["concepts-unheld"]
    assert again.entities[0].concepts == ("c",)


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "count"),
    [
        pytest.param("psytar/PsyTAR_dataset.xlsx", 412, marks=pytest.mark.slow),
        ("ddi2013/DDICorpus-2013.zip!/DDICorpus/Test", 11),
    ],
)
def test_of_corpora_none_is_lost_in_silence(
    file: str, count: int, corpora: Path, tmp_path: Path
) -> None:
    documents = [
        replace(one, source="")
        for number, one in enumerate(read(corpora / file).documents)
        if number < 30 or any(len(entity.fragments) > 1 for entity in one.entities)
    ]
    many = [one for document in documents for one in document.entities if len(one.fragments) > 1]
    assert len(many) == count
    named = [one for document in documents for one in flat_spans(segmented(document))[1]]
    assert sum(one.kind == "discontinuous" for one in named) == count
    for name in (*KEPT, "xmi", "pubtator", "conll", "docbin"):
        (tmp_path / name).mkdir()
        again, lost = _there_and_back(documents, name, tmp_path / name)
        kept = sum(len(one.fragments) > 1 for document in again for one in document.entities)
        assert (kept, lost.count("discontinuous")) == (
            (count, 0) if name in KEPT else (0, count)
        ), name
