"""The DDI corpus' XML: inclusive ends, discontinuous drugs, pairs that were looked at."""

from __future__ import annotations

import pytest

from cases import each
from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Entity, Relation, stated_pairs
from confide.text.formats import detect, group_corpora, read, write
from text.generated import kinds, put

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def entity(number, offsets, text, sentence=0, kind="drug"):
    return (
        f'<entity id="d1.s{sentence}.e{number}" charOffset="{offsets}" type="{kind}"'
        f' text="{text}"/>'
    )


def pair(first, second, answer, sentence=0):
    ends = f'e1="d1.s{sentence}.e{first}" e2="d1.s{sentence}.e{second}"'
    return f'<pair id="d1.s{sentence}.p" {ends} {answer}/>'


def document(*sentences):
    parts = (f'<sentence id="d1.s{n}" text="{t}">{inside}</sentence>'
             for n, (t, inside) in enumerate(sentences))  # fmt: skip
    return f'{HEAD}<document id="d1">{"".join(parts)}</document>'


# "Aspirin" 0-6, "loop" 13-16 and "thiazide diuretics": loop diuretics is 13-16;31-39
TEXT = "Aspirin with loop or thiazide  diuretics. "
ENTITIES = (
    entity(0, "0-6", "Aspirin"),
    entity(1, "13-16;31-39", "loop diuretics", kind="group"),
    entity(2, "21-28;31-39", "thiazide diuretics", kind="group"),
)
ALL = pair(0, 1, 'ddi="true" type="effect"') + pair(0, 2, 'ddi="false"') + pair(2, 1, 'ddi="false"')


def one(inside, tmp_path):
    return read(put(tmp_path, "d1.xml", document((TEXT, inside))))


def test_offsets_relations_and_sentences(tmp_path):
    second = (
        "Aspirin &lt; Q.\r\nYes",
        entity(0, "0-6", "Aspirin", 1) + entity(1, "10-10", "Q", 1, "brand")
        + pair(0, 1, 'ddi="true" type="int"', 1),
    )  # fmt: skip
    path = put(tmp_path, "d1.xml", document((TEXT, "".join(ENTITIES) + ALL), ("", ""), second))
    reading = read(path)
    (found,) = reading.documents
    assert (reading.format, reading.problems, found.id) == ("ddi", [], "d1")
    assert found.entities[:2] == (
        Entity("d1.s0.e0", "drug", ((0, 7),)),
        Entity("d1.s0.e1", "group", ((13, 17), (31, 40))),
    )
    assert [found.surface(e) for e in found.entities] == [
        "Aspirin", "loop diuretics", "thiazide diuretics", "Aspirin", "Q",
    ]  # fmt: skip
    assert found.relations == (
        Relation("R1", "effect", "d1.s0.e0", "d1.s0.e1"),
        Relation("R2", "int", "d1.s1.e0", "d1.s1.e1"),
    )
    assert len(found.sentences) == 2  # the empty one has no token; the second is not cut in two
    assert stated_pairs(found) is None  # the file lists all pairs of each sentence


def test_pairs_are_stated_where_not_all_are_listed(tmp_path):
    (found,) = one("".join(ENTITIES) + pair(2, 0, 'ddi="false"'), tmp_path).documents
    assert stated_pairs(found) == [("d1.s0.e2", "d1.s0.e0")]
    (found,) = one("".join(ENTITIES), tmp_path).documents
    assert stated_pairs(found) == []


def test_an_interaction_without_a_type_is_left_out_and_named(tmp_path):
    rest = pair(0, 2, 'ddi="false"') + pair(1, 2, 'ddi="false"')
    reading = one("".join(ENTITIES) + pair(0, 1, 'ddi="true"') + rest, tmp_path)
    (found,) = reading.documents
    assert [(p.kind, p.lost) for p in reading.problems] == [("relation-without-type", True)]
    assert found.relations == ()
    assert stated_pairs(found) == [("d1.s0.e0", "d1.s0.e2"), ("d1.s0.e1", "d1.s0.e2")]


@each(
    ("inside", "expected"),
    [
        (entity(0, "0-99", "Aspirin"), [("beyond-text", True)]),
        (entity(0, "5-3", "x"), [("empty-span", True)]),
        (entity(0, "0-5", "Aspirin"), [("text-mismatch", False)]),
        (entity(0, "0-2;3-6", "Asp irin"), [("fragments-merged", False)]),
        (entity(0, "0-6", "Aspirin") * 2, [("duplicate-id", False)]),
        (pair(0, 1, 'ddi="false"'), [("dangling-relation", True)]),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, inside, expected):
    reading = one(inside, tmp_path)
    assert [(p.kind, p.lost) for p in reading.problems] == expected
    assert all(p.where == f"{tmp_path / 'd1.xml'}#d1.s0" for p in reading.problems)


@each(
    "content",
    [
        document((TEXT, entity(0, "0", "x"))),
        document((TEXT, entity(0, "0-1", "x", kind=""))),
        document((TEXT, "".join(ENTITIES) + pair(0, 1, 'ddi="maybe"'))),
        f"{HEAD}<document><sentence></document>",
        f'{HEAD}<!DOCTYPE document [<!ENTITY a "b">]><document>&a;</document>',
        f"{HEAD}<collection/>",
    ],
)
def test_files_that_are_not_the_corpus_are_errors(tmp_path, content):
    path = put(tmp_path, "d1.xml", content)
    with pytest.raises(FormatError) as caught:
        read(path, "ddi")
    assert str(caught.value.where).startswith(str(path))


def test_a_folder_of_folders_is_read_as_one(tmp_path):
    for name in ("DrugBank", "MedLine"):
        put(tmp_path, f"{name}/a.xml", document((TEXT, ENTITIES[0])).replace("d1", name))
        put(tmp_path, f"{name}/.DS_Store", b"\0\1")
    assert detect(tmp_path) == "ddi"
    reading = read(tmp_path)
    assert [found.id for found in reading.documents] == ["DrugBank", "MedLine"]
    assert reading.details["files"] == "2"
    groups = group_corpora([tmp_path])
    assert {name: parts["train"] for name, parts in groups.items()} == {
        "DrugBank": [tmp_path / "DrugBank"],
        "MedLine": [tmp_path / "MedLine"],
    }
    (tmp_path / "none").mkdir()
    with pytest.raises(MissingDataError):
        read(tmp_path / "none", "ddi")


def test_declared_types_and_another_encoding(tmp_path):
    path = put(tmp_path, "a.xml", document((TEXT, "".join(ENTITIES))))
    with pytest.raises(DataError, match="not declared"):
        read(path, types=["drug"])
    latin = document(("Caf\xe9", "")).replace("UTF-8", "ISO-8859-1").encode("latin-1")
    reading = read(put(tmp_path, "b.xml", latin))
    assert reading.documents[0].text == "Caf\xe9"
    assert reading.details["encoding"] == "iso-8859-1"


def test_brat_holds_it(tmp_path):
    reading = one("".join(ENTITIES) + ALL, tmp_path)
    problems = write(reading.documents, tmp_path / "brat", "brat")
    assert [p for p in problems if p.lost and "relation" in p.kind] == []
    (again,) = read(tmp_path / "brat").documents
    assert [(e.type, e.fragments) for e in again.entities] == [
        (e.type, e.fragments) for e in reading.documents[0].entities
    ]
    assert kinds(reading.problems) == []
    assert [relation.type for relation in again.relations] == ["effect"]
