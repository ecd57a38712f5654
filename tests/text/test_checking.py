"""`check`, `convert`, `retag`, and telling a file's format."""

from __future__ import annotations

import pytest

from cases import each
from confide.errors import DataError, FormatError, MissingDataError, SettingsError
from confide.text.checking import check, convert, retag
from confide.text.document import Document, Entity, Problem, Relation
from confide.text.formats import FORMATS, Options, detect, read, write
from confide.text.reading import check_types
from text.generated import kinds, put

CONLL = "Mild\tB-AE\nrash\tI-AE\n.\tO\n\nNo\tO\nfever\tB-AE\n"
PUBTATOR = "1|t|A rash.\n1\t2\t6\trash\tAE\t-1\n"
JSON = '{"id": "j", "text": "A rash.", "label": [[2, 6, "AE"]]}\n'


# --- check --------------------------------------------------------------------------------


def test_check_counts(tmp_path):
    paths = [put(tmp_path, "a.conll", CONLL), put(tmp_path, "b.pubtator", PUBTATOR)]
    report = check(paths)
    assert report.counts == {
        "documents": 3,
        "sentences": 3,
        "tokens": 8,
        "entities": 3,
        "relations": 0,
        "trainable": 3,
        "lost": 0,
        "changed": 0,
    }
    assert (report.types, report.format) == ({"AE": 3}, "conll, pubtator")
    assert report.details[str(paths[0])] == (
        "CoNLL columns, scheme iob2, encoding utf-8, columns 2 by tab: token 0, tag 1"
    )
    assert [document.id for document in report.documents] == ["a:1", "a:5", "1"]


def test_check_says_how_text_would_be_held_out(tmp_path):
    marked = put(tmp_path, "m.conll", f"-DOCSTART- O\n\n{CONLL}\n-DOCSTART- O\n\n{CONLL}")
    bare, spoken = put(tmp_path, "a.conll", CONLL), put(tmp_path, "b.pubtator", PUBTATOR)
    blocks = "no document marks: cut by blocks of neighbouring sentences (2 sentences)"
    assert check([marked, spoken]).held_out == "by document (3 documents)"
    assert check(bare).held_out == blocks
    assert check([marked, bare]).held_out == f"by document (2 documents); {blocks}"
    words = "1\tMild\t_\t_\t_\t_\t_\t_\t_\tNER=O\n\n"
    plain = put(tmp_path, "a.conllu", words * 2)
    assert check(plain).held_out == blocks
    new = put(tmp_path, "b.conllu", f"# newdoc id = x\n{words}{words}")
    assert check(new).held_out == "by document (1 documents)"


def test_check_names_what_a_flat_tagger_must_leave_out(tmp_path):
    put(tmp_path, "n/a.txt", "Pain in chest and arm. It began\n\nin May.")
    path = put(
        tmp_path,
        "n/a.ann",
        "T1\tP 0 4;18 21\tPain arm\nT2\tP 0 13\tPain in chest\nT3\tP 8 13\tchest\n"
        "T4\tP 26 35\tbegan in\nT5\tP 9 15\thest a\nT6\tP 90 95\tx\n",
    )
    report = check(tmp_path / "n")
    assert [(p.kind, p.lost) for p in report.problems] == [
        ("beyond-text", True),
        ("discontinuous", True),
        ("nested", True),
        ("crosses-sentence", True),
        ("overlapping", True),
    ]
    assert report.problems[0].where == f"{path}:6"
    assert report.problems[1].where == f"{path} [0:21]"
    assert (report.counts["entities"], report.counts["trainable"]) == (5, 1)
    assert (report.counts["lost"], report.counts["changed"]) == (5, 0)
    assert report.kinds["nested"] == 1


def test_check_names_documents_of_the_same_name(tmp_path):
    path = put(tmp_path, "a.jsonl", JSON + JSON)
    report = check([path])
    assert kinds(report.problems) == ["duplicate-document"]
    assert report.problems[0].where == f"{path}:2"
    assert f"{path}:1" in report.problems[0].what


def test_check_passes_its_options_on(tmp_path):
    path = put(tmp_path, "a.conll", CONLL)
    with pytest.raises(DataError, match="declared"):
        check(path, options=Options(types=frozenset(["Drug"])))
    with pytest.raises(FormatError):
        check(path, options=Options(scheme="iobes"))
    assert check(path, options=Options(columns=(0, None))).counts["entities"] == 0
    with pytest.raises(SettingsError):
        check([])


# --- convert ------------------------------------------------------------------------------


@each("to", ["conll", "brat", "jsonl", "doccano", "pubtator"])
def test_convert_keeps_entities(tmp_path, to):
    source = put(tmp_path, "a.conll", CONLL)
    out = tmp_path / "out" / "there"
    report = convert(source, to, out)
    assert report.paths == [out]

    def entities(path):
        return [
            (entity.type, document.surface(entity))
            for document in read(path, to if path == out else None).documents
            for entity in document.entities
        ]

    assert entities(out) == entities(source)
    changed = {"conll": [], "jsonl": []}.get(to)
    assert changed is None or kinds(report.problems) == changed


def test_convert_to_another_scheme(tmp_path):
    source = put(tmp_path, "a.conll", CONLL)
    convert(source, "conll", tmp_path / "b.conll", to_scheme="bilou")
    assert (tmp_path / "b.conll").read_text() == (
        "Mild\tB-AE\nrash\tL-AE\n.\tO\n\nNo\tO\nfever\tU-AE\n\n"
    )


def test_convert_several_files_into_a_folder(tmp_path):
    paths = [put(tmp_path, "a.conll", CONLL), put(tmp_path, "b.pubtator", PUBTATOR)]
    report = convert(paths, "jsonl", tmp_path / "out")
    assert [path.name for path in report.paths] == ["a.jsonl", "b.jsonl"]
    one = convert(paths[0], "jsonl", tmp_path / "out")
    assert one.paths == [tmp_path / "out" / "a.jsonl"]
    twice = convert(paths, "brat", tmp_path / "notes")
    assert all(path.is_dir() for path in twice.paths)


def test_convert_overwrites_no_input_and_no_other_output(tmp_path):
    source = put(tmp_path, "a.conll", CONLL)
    with pytest.raises(SettingsError, match="overwrite"):
        convert(source, "conll", source)
    other = put(tmp_path, "x/a.tsv", CONLL)
    with pytest.raises(SettingsError, match="overwrite"):
        convert([source, other], "jsonl", tmp_path / "out")
    with pytest.raises(SettingsError):
        convert(source, "xml", tmp_path / "out")
    with pytest.raises(DataError, match="cannot be written"):
        convert(source, "brat", source / "deeper")
    assert source.read_text() == CONLL


# --- retag --------------------------------------------------------------------------------


def test_retag_renames_and_drops():
    entities = (
        Entity("T1", "ADR", ((0, 4),)),
        Entity("T2", "Noise", ((5, 7),)),
        Entity("T3", "Drug", ((5, 7),)),
    )
    relations = (Relation("R1", "to", "T1", "T2"), Relation("R2", "to", "T1", "T3"))
    document = Document("d", "rash no", entities, relations, source="a.conll:3")
    (mapped,), problems = retag([document], {"ADR": "ADE", "Noise": "", "Wrong": "X"})
    assert [(e.id, e.type) for e in mapped.entities] == [("T1", "ADE"), ("T3", "Drug")]
    assert [r.id for r in mapped.relations] == ["R2"]
    assert problems == [
        Problem(
            "relation-dropped",
            "a.conll:3",
            "to R1 links an entity that the tag map drops",
            lost=True,
        ),
        Problem("tag-not-found", "a.conll", "the tag map names 'Wrong', which no entity has"),
    ]
    assert retag([document], {}) == ([document], [])
    assert retag([], {"A": "B"})[0] == []
    check_types([mapped], ["ADE", "Drug"])
    with pytest.raises(DataError, match="not declared") as caught:
        check_types([mapped], ["ADE"])
    assert caught.value.where == "a.conll:3 [5:7]"


# --- detect -------------------------------------------------------------------------------


@each(
    ("name", "content", "format"),
    [
        ("a.txt", CONLL, "conll"),
        ("a.tsv", CONLL, "conll"),
        ("a", CONLL, "conll"),
        ("a.conll", "[\tO\n{\tO\n", "conll"),
        ("a.conll", '{\tO\n"\tO\n', "conll"),
        ("a.txt", "\n\n" + PUBTATOR, "pubtator"),
        ("a.txt", JSON, "jsonl"),
        ("a.json", f"[{JSON}]", "jsonl"),
        ("a.json", '{\n"text": "x"}', "jsonl"),
        ("a.json", '{"text": ', "jsonl"),
        ("a.txt", "The patient was well.\n", "text"),
        ("a.txt", "word\n", "text"),
        ("a.ann", "", "brat"),
    ],
)
def test_detect(tmp_path, name, content, format):
    assert detect(put(tmp_path, name, content)) == format


def test_detect_long_files_by_their_beginning(tmp_path):
    assert detect(put(tmp_path, "a.tsv", CONLL * 20_000)) == "conll"
    with pytest.raises(FormatError):
        detect(put(tmp_path, "b.tsv", ("w" * 300_000) + "\tO\n"))


def test_detect_folders_and_errors(tmp_path):
    put(tmp_path, "brat/deep/a.txt", "x")
    put(tmp_path, "brat/deep/a.ann", "")
    assert detect(tmp_path / "brat") == detect(tmp_path / "brat" / "deep" / "a.txt") == "brat"
    put(tmp_path, "mixed/a.conll", CONLL)
    put(tmp_path, "mixed/b.jsonl", JSON)
    with pytest.raises(FormatError, match="several formats"):
        detect(tmp_path / "mixed")
    with pytest.raises(FormatError, match="not known") as caught:
        detect(put(tmp_path, "a.doc", "The patient was well."))
    assert "CoNLL" in str(caught.value)
    with pytest.raises(DataError, match="empty"):
        detect(put(tmp_path, "empty.txt", " \n"))
    with pytest.raises(MissingDataError):
        detect(tmp_path / "nothing")


def test_raw_text(tmp_path):
    path = put(tmp_path, "note.txt", "\r\nThe patient\r\nwas well.")
    (document,) = read(path).documents
    assert (document.id, document.text) == ("note", "\r\nThe patient\r\nwas well.")
    document = Document(
        "d", "a", (Entity("T1", "X", ((0, 1),)),), (Relation("R", "r", "T1", "T1"),)
    )
    problems = write([document], tmp_path / "out.txt", "text")
    assert sorted(kinds(problems)) == ["entities-unheld", "relations-unheld"]
    with pytest.raises(DataError, match="empty"):
        read(put(tmp_path, "b.txt", " "), "text")


@each(
    ("name", "instead"),
    [
        ("conllu", "conll"), ("labelstudio-min", "labelstudio"), ("i2b2-xml", "brat"),
        ("spert", "gliner"), ("dygie", "jsonl"), ("tacred", "jsonl"), ("fewrel", "jsonl"),
        ("docred", "jsonl"), ("semeval", "jsonl"), ("opennre", "jsonl"),
    ],
)  # fmt: skip
def test_formats_that_are_only_read_say_what_to_write(tmp_path, name, instead):
    source = put(tmp_path, "a.jsonl", '{"text": "a"}\n')
    with pytest.raises(SettingsError, match=rf"only read.*to fix it, write {instead}\b"):
        convert(source, name, tmp_path / "out")
    assert FORMATS[instead].write is not None
