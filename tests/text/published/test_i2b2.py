"""i2b2/VA 2010, in files written here to the published rules: lines from 1, tokens from 0."""

from __future__ import annotations

import pytest

from cases import each
from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Relation
from confide.text.formats import detect, group_corpora, read
from text.generated import kinds, put

NOTE = "Admission Date :\n2010-01-02\n\nHe took  Aspirin 81 mg for Chest\npain .\nNo fever ."
CON = (
    'c="aspirin 81 mg" 4:2 4:4||t="treatment"\n'
    'c="chest pain" 4:6 5:0||t="problem"\n'
    'c="fever" 6:1 6:1||t="problem"\n'
)
REL = 'c="aspirin 81 mg" 4:2 4:4||r="TrAP"||c="chest pain" 4:6 5:0\n'
AST = 'c="fever" 6:1 6:1||t="problem"||a="absent"\n'


def note(folder, con=CON, rel=REL, ast=AST, text=NOTE):
    for name, content in (("txt", text), ("con", con), ("rel", rel), ("ast", ast)):
        if content is not None:
            put(folder, f"n1.{name}", content)
    return folder


def test_positions(tmp_path):
    reading = read(note(tmp_path))
    (found,) = reading.documents
    assert (reading.format, reading.problems, found.id) == ("i2b2", [], "n1")
    assert found.text == NOTE
    assert [(e.type, found.surface(e)) for e in found.entities] == [
        ("treatment", "Aspirin 81 mg"),
        ("problem", "Chest\npain"),  # from one line to the next
        ("problem", "fever"),
    ]
    assert found.relations == (Relation("R1", "TrAP", "T1", "T2"),)
    assert found.entities[2].attributes == (("assertion", "absent"),)
    assert [len(sentence.tokens) for sentence in found.sentences] == [3, 1, 7, 2, 3]
    assert found.token_texts(found.sentences[2])[2] == "Aspirin"


def test_line_ends_of_windows_count_as_one(tmp_path):
    (found,) = read(note(tmp_path, text=NOTE.replace("\n", "\r\n"))).documents
    assert found.text == NOTE
    assert [found.surface(e) for e in found.entities][2] == "fever"


def test_folders_beside_each_other(tmp_path):
    for site in ("beth", "partners"):
        for folder, ending, content in (
            ("txt", "txt", NOTE), ("concept", "con", CON), ("rel", "rel", REL),
        ):  # fmt: skip
            put(tmp_path, f"{site}/{folder}/n1.{ending}", content)
    assert detect(tmp_path) == "i2b2"
    reading = read(tmp_path)
    assert [d.id for d in reading.documents] == ["beth/n1", "partners/n1"]
    assert [len(d.relations) for d in reading.documents] == [1, 1]
    assert set(group_corpora([tmp_path])) == {"beth", "partners"}
    for name in ("txt/n1.txt", "concept/n1.con", "rel/n1.rel"):
        one = read(tmp_path / "beth" / name)
        assert (one.format, [d.id for d in one.documents]) == ("i2b2", ["n1"])


def test_a_folder_of_relations_is_not_the_ade_corpus(tmp_path):
    put(tmp_path, "a.rel", REL)
    assert detect(tmp_path / "a.rel") == "i2b2"
    with pytest.raises(MissingDataError, match=r"text of the annotations is missing.*a\.txt"):
        read(tmp_path / "a.rel")


@each(
    ("parts", "kind", "lost", "where"),
    [
        ({"con": CON + 'c="x" 9:0 9:0||t="test"'}, "beyond-text", True, "con:4"),
        ({"con": CON + 'c="x" 6:0 6:9||t="test"'}, "beyond-text", True, "con:4"),
        ({"con": CON + 'c="x" 0:0 1:0||t="test"'}, "beyond-text", True, "con:4"),
        ({"con": CON + 'c="x" 6:1 6:0||t="test"'}, "beyond-text", True, "con:4"),
        ({"con": CON + 'c="nofever" 6:2 6:2||t="test"'}, "text-mismatch", False, "con:4"),
        ({"con": CON + 'c="fever" 6:1 6:1||t="problem"'}, "duplicate-mention", False, "con:4"),
        ({"con": CON + 'c="fever" 6:1 6:1||t="test"'}, "ambiguous-mention", False, "con:4"),
        ({"rel": REL.replace("5:0", "5:1")}, "dangling-relation", True, "rel:1"),
        ({"rel": REL.replace("chest", "breast")}, "text-mismatch", False, "rel:1"),
        ({"ast": AST.replace("6:1 6:1", "6:0 6:0")}, "dangling-attribute", True, "ast:1"),
        ({"con": None, "rel": None, "ast": None}, "no-annotation-file", False, "txt"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, parts, kind, lost, where):
    reading = read(note(tmp_path, **parts), "i2b2")
    (problem,) = reading.problems
    assert (problem.kind, problem.lost, problem.where) == (kind, lost, f"{tmp_path}/n1.{where}")


@each(
    ("parts", "where"),
    [
        ({"con": 'c="x" 1:0 1||t="test"'}, "con:1"),
        ({"con": CON + REL}, "con:4"),
        ({"rel": "TrAP"}, "rel:1"),
        ({"ast": CON}, "ast:1"),
    ],
)
def test_lines_of_another_form_are_errors(tmp_path, parts, where):
    with pytest.raises(FormatError) as caught:
        read(note(tmp_path, **parts))
    assert caught.value.where == f"{tmp_path}/n1.{where}"


def test_a_readme_is_no_note(tmp_path):
    put(note(tmp_path), "README.txt", "about")
    put(tmp_path, "n2.txt", "No annotation .")
    assert [found.id for found in read(tmp_path).documents] == ["n1", "n2"]


def test_surfaces_may_hold_quotation_marks(tmp_path):
    text = 'He said " no " to x||y .'
    con = 'c="" no "" 1:2 1:4||t="problem"\nc="x||y" 1:6 1:6||t="test"\n'
    rel = 'c="x||y" 1:6 1:6||r="TeRP"||c="" no "" 1:2 1:4\n'
    reading = read(note(tmp_path, con=con, rel=rel, ast=None, text=text))
    assert kinds(reading.problems) == []
    assert reading.documents[0].relations == (Relation("R1", "TeRP", "T2", "T1"),)


def test_notes_that_are_there_twice_or_nowhere(tmp_path):
    note(tmp_path / "a")
    put(tmp_path, "a/txt/n1.txt", NOTE)
    with pytest.raises(DataError, match="twice"):
        read(tmp_path / "a", "i2b2")
    (tmp_path / "b").mkdir()
    with pytest.raises(MissingDataError):
        read(tmp_path / "b", "i2b2")
    with pytest.raises(DataError, match="not declared"):
        read(note(tmp_path / "c"), types=["problem"])
