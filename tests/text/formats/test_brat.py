"""brat standoff: every kind of line, offsets counted in several ways, and round trips."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Document, Entity, Relation
from confide.text.formats import read, write
from text.generated import TEXTS, any_documents, kinds, put

TEXT = "Severe chest\nand back pain after aspirin 100 mg.\n"
ANN = """T1\tSymptom 7 12;22 26\tchest pain
T2\tSymptom 17 26\tback pain
T3\tDrug 33 40\taspirin
T4\tCause 27 32\tafter
R1\tTreats Arg1:T3 Arg2:T1\t
E1\tCause:T4 Theme:T2 Agent:T3
A1\tSeverity T1 severe
A2\tNegated T2
M1\tSpeculation E1
N1\tReference T3 ATC:N02BA01\tacetylsalicylic acid
#1\tAnnotatorNotes T3\tan old\tdrug
*\tEquiv T1 T2
"""


def one(folder, text=TEXT, ann=ANN):
    put(folder, "notes/a.txt", text)
    put(folder, "notes/a.ann", ann)
    return folder / "notes"


def test_every_kind_of_line(tmp_path):
    folder = one(tmp_path)
    reading = read(folder)
    (document,) = reading.documents
    assert (reading.format, document.id, document.text) == ("brat", "a", TEXT)
    assert document.source == str(folder / "a.ann")
    chest, back, aspirin, after = document.entities
    assert chest == Entity(
        "T1", "Symptom", ((7, 12), (22, 26)), attributes=(("Severity", "severe"),)
    )
    assert document.surface(chest) == "chest pain"
    assert back.attributes == (("Negated", ""),)
    assert aspirin.concepts == ("ATC:N02BA01",)
    assert aspirin.attributes == (
        ("N ATC:N02BA01", "acetylsalicylic acid"),
        ("#AnnotatorNotes", "an old\tdrug"),
    )
    assert after.attributes == (("event", "E1"), ("Speculation", ""))
    assert [(r.id, r.type, r.head, r.tail, r.attributes) for r in document.relations] == [
        ("E1.1", "Theme", "T4", "T2", (("event", "E1"),)),
        ("E1.2", "Agent", "T4", "T3", (("event", "E1"),)),
        ("R1", "Treats", "T3", "T1", ()),
        ("*1.1", "Equiv", "T1", "T2", (("equivalence", "*1"),)),
    ]
    assert kinds(reading.problems) == ["attribute-moved"]


def test_everything_is_written_back(tmp_path):
    document = read(one(tmp_path)).documents[0]
    assert write([document], tmp_path / "out", "brat") == []
    again = read(tmp_path / "out")
    assert again.documents[0].entities == document.entities
    assert set(again.documents[0].relations) == set(document.relations)
    assert again.problems == []
    lines = (tmp_path / "out" / "a.ann").read_text().splitlines()
    for line in ANN.splitlines():
        if line[0] in "TRE*":
            assert line.strip() in lines


@given(st.lists(any_documents(), min_size=1, max_size=3))
def test_round_trip(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("brat")
    documents = [replace(document, id=f"d{n}") for n, document in enumerate(documents)]
    assert write(documents, folder / "out", "brat") == []
    reading = read(folder / "out", "brat")
    assert {"text-mismatch", "beyond-text"} & set(kinds(reading.problems)) == set()
    found = [replace(document, source="") for document in reading.documents]
    assert found == documents


@each("key", ["N", "event", "equivalence", "argument", "roles", "#x"])
def test_attributes_that_are_called_like_lines(tmp_path, key):
    entity = Entity("T1", "A", ((0, 1),), attributes=((key, "w"),))
    relation = Relation("R1", "A", "T1", "T1", attributes=((key, "w"),))
    document = Document("d", "00", (entity,), (relation,))
    write([document], tmp_path, "brat")
    assert replace(read(tmp_path).documents[0], source="") == document


@given(TEXTS)
def test_any_text_comes_back_as_it_was(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("brat")
    write([Document("d", text)], folder, "brat")
    assert read(folder).documents[0].text == text.removeprefix("\ufeff")


def test_nested_folders_single_files_and_missing_parts(tmp_path):
    folder = one(tmp_path)
    put(folder, "ward/b.txt", "no notes")
    put(folder, "ward/c.a1", "T1\tDrug 0 2\tno\n")
    put(folder, "ward/c.a2", "R1\tSame Arg1:T1 Arg2:T1\n")
    put(folder, "ward/c.txt", "no notes")
    put(folder, "annotation.conf", "[entities]")
    reading = read(folder)
    assert [document.id for document in reading.documents] == ["a", "ward/b", "ward/c"]
    assert len(reading.documents[2].relations) == 1
    missing = [p for p in reading.problems if p.kind == "no-annotation-file"]
    assert [p.where for p in missing] == [str(folder / "ward" / "b.txt")]
    for name in ("a.ann", "a.txt"):
        assert read(folder / name).documents == reading.documents[:1]
    put(folder, "d.ann", "T1\tDrug 0 2\tno\n")
    with pytest.raises(MissingDataError, match=r"d\.txt"):
        read(folder)


@each(
    ("line", "kind", "lost"),
    [
        ("T1\tDrug 40 49\tx", "beyond-text", True),
        ("T1\tDrug 5 5\t", "empty-span", True),
        ("T1\tDrug 0 4\tMore", "text-mismatch", False),
        ("T1\tDrug 0 2;2 4\tSe ve", "fragments-merged", False),
        ("T1\tDrug 0 4\tSeve\nT1\tDrug 0 2\tSe", "duplicate-id", False),
        ("T1\tDrug 0 4\tSeve\nR1\tSame Arg1:T1 Arg2:T9", "dangling-relation", True),
        ("E1\tDrug:T9 Theme:T9", "dangling-event", True),
        ("T1\tDrug 0 4\tSeve\nE1\tDrug:T1 Theme:T9", "dangling-relation", True),
        ("T1\tDrug 0 4\tSeve\nE1\tOther:T1", "event-type", True),
        ("A1\tNegated T9", "dangling-attribute", True),
        ("N1\tReference T9 A:1\tx", "dangling-attribute", True),
        ("#1\tAnnotatorNotes T9\tx", "dangling-attribute", True),
        ("T1\tDrug 0 4\tSeve\n*\tEquiv T1 T9", "dangling-relation", True),
        ("X1\tSomething else", "unknown-line", True),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(tmp_path, line, kind, lost):
    folder = one(tmp_path, "Severe pain", f"{line}\n")
    reading = read(folder)
    assert [(p.kind, p.lost) for p in reading.problems] == [(kind, lost)]
    number = line.count("\n") + 1
    assert reading.problems[0].where == f"{folder / 'a.ann'}:{number}"


@each(
    "line",
    [
        "T1\tDrug",
        "T1\tDrug 1",
        "T1\tDrug a b\tx",
        "T1\tDrug 1 2;3\tx",
        "T1\tDrug -1 2\tx",
        "T1",
        "T1 Drug 0 1 x",
        "R1\tSame Arg1:T1",
        "E1\t",
        "A1\tNegated",
        "*\tEquiv T1",
        "#1\t",
        f"T1\tDrug 0 {'9' * 5000}\tx",
    ],
)
def test_a_line_that_is_no_brat_is_an_error_with_its_line(tmp_path, line):
    folder = one(tmp_path, "Severe pain", f"\n{line}\n")
    with pytest.raises(FormatError) as caught:
        read(folder)
    assert caught.value.where == f"{folder / 'a.ann'}:2"


@each(
    ("text", "start"),
    [
        (b"one\r\ntwo\r\nthree", 8),  # counted with one character for each line end
        (b"\xef\xbb\xbfone two three", 9),  # counted with the byte order mark
    ],
)
def test_offsets_that_were_counted_another_way(tmp_path, text, start):
    folder = one(tmp_path, text, f"T1\tN {start} {start + 5}\tthree\n")
    reading = read(folder)
    document = reading.documents[0]
    assert document.surface(document.entities[0]) == "three"
    assert kinds(reading.problems) == ["offsets-counted"]


def test_offsets_over_two_characters_of_a_line_end(tmp_path):
    reading = read(one(tmp_path, b"one\r\ntwo three", "T1\tN 0 8\tone two\nT2\tN 9 14\tthree\n"))
    assert reading.problems == []
    assert reading.documents[0].text == "one\r\ntwo three"


def test_declared_types(tmp_path):
    folder = one(tmp_path)
    with pytest.raises(DataError, match="not declared") as caught:
        read(folder, types={"Drug", "Cause"})
    assert caught.value.where.startswith(f"{folder / 'a.ann'} [")


def test_what_brat_cannot_hold_is_named(tmp_path):
    entity = Entity("x", "A type", ((0, 3),), confidence=0.25)
    documents = [
        Document(
            "../../etc/pass wd",
            "one",
            (entity,),
            (Relation("r", "is", "C1", "C2", level="concept"),),
            attributes=(("domain", "x"),),
        ),
        Document("etc/pass_wd", "two"),
    ]
    problems = write(documents, tmp_path / "out", "brat")
    assert sorted(kinds(problems)) == [
        "document-attributes-unheld", "relation-unheld", "type-changed",
    ]  # fmt: skip
    files = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert files == [f"out/etc/pass_wd{suffix}" for suffix in ("-2.ann", "-2.txt", ".ann", ".txt")]
    found = read(tmp_path / "out").documents[0].entities[0]
    assert (found.type, found.confidence) == ("A_type", 0.25)
