"""Folders are searched at any depth; one broken document need not stop a whole corpus."""

from __future__ import annotations

import io
import zipfile

import pytest

from confide.errors import DataError, FormatError, MissingDataError
from confide.text.checking import check
from confide.text.formats import Options, detect, files_under, read
from text.generated import kinds, put

CONLL = "a\tB-X\nb\tO\n"
SKIP = Options(skip_broken=True)


@pytest.fixture
def deep(tmp_path):
    put(tmp_path, "a.conll", CONLL)
    put(tmp_path, "x/y/b.conll", CONLL)
    put(tmp_path, "x/README.md", "# no data")
    put(tmp_path, "x/.hidden/c.conll", "no data")
    return tmp_path


def test_any_depth(deep):
    """Corpora one folder deeper were not found."""
    assert [file.name for file in files_under(deep)] == ["a.conll", "b.conll"]
    assert detect(deep) == "conll"
    assert len(read(deep).documents) == 2


def test_no_link_is_followed(deep):
    (deep / "x" / "loop").symlink_to(deep, target_is_directory=True)
    assert len(files_under(deep)) == 2


def test_a_folder_in_an_archive(tmp_path):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as packed:
        packed.writestr("c/a.conll", CONLL)
        packed.writestr("c/d/b.conll", CONLL)
        packed.writestr("__MACOSX/c/._a.conll", "x")
    put(tmp_path, "a.zip", held.getvalue())
    for place in ("a.zip!", "a.zip!/c"):
        reading = read(tmp_path / place)
        assert (reading.format, len(reading.documents)) == ("conll", 2)


def test_a_broken_file_is_named_and_left_out_if_that_is_wished(deep):
    put(deep, "x/broken.conll", "a\tB-X\nb\tO\tc\td\n")
    with pytest.raises(FormatError, match=r"broken\.conll:2"):
        read(deep)
    reading = read(deep, options=SKIP)
    assert len(reading.documents) == 2
    (problem,) = reading.problems
    assert (problem.kind, problem.lost) == ("broken-document", True)
    assert "broken.conll:2" in problem.what


def test_one_missing_text_of_a_brat_folder(tmp_path):
    """It stopped the whole folder."""
    put(tmp_path, "a.txt", "Rash")
    put(tmp_path, "a.ann", "T1\tADE 0 4\tRash\n")
    put(tmp_path, "b.ann", "T1\tADE 0 4\tRash\n")
    with pytest.raises(MissingDataError, match=r"b\.txt"):
        read(tmp_path)
    report = check(tmp_path, options=SKIP)
    assert (report.counts["documents"], report.counts["lost"]) == (1, 1)
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.ann").unlink()
    with pytest.raises(DataError, match="no document is left"):
        read(tmp_path, options=SKIP)


def test_files_that_a_folder_of_brat_leaves_unread(tmp_path):
    """A site's CoNLL files beside another one's brat were left out without a word."""
    put(tmp_path, "north/a.txt", "Rash")
    put(tmp_path, "north/a.ann", "T1\tADE 0 4\tRash\n")
    put(tmp_path, "annotation.conf", "[entities]\nADE\n")
    assert read(tmp_path).problems == []
    put(tmp_path, "south/b.conll", CONLL)
    (problem,) = read(tmp_path).problems
    assert (problem.kind, problem.lost) == ("files-not-read", True)
    assert problem.where.endswith("b.conll")


def test_one_broken_line_of_json(tmp_path):
    path = put(tmp_path, "a.jsonl", '{"text": "a"}\n{"text": 5}\n{broken\n{"text": "b"}\n')
    with pytest.raises(FormatError, match=r"a\.jsonl:2"):
        read(path)
    reading = read(path, options=SKIP)
    assert [one.text for one in reading.documents] == ["a", "b"]
    assert kinds(reading.problems) == ["broken-document"] * 2


def test_relations_of_bionlp_beside_its_entities(tmp_path):
    """Files that end in .rel were ignored, with their entities and relations."""
    put(tmp_path, "p/a.txt", "IRF-4 in a complex of proteins")
    put(tmp_path, "p/a.a1", "T1\tProtein 0 5\tIRF-4\n")
    put(tmp_path, "p/a.rel", "T2\tEntity 11 18\tcomplex\nR1\tSubunit-Complex Arg1:T1 Arg2:T2\n")
    for path in (tmp_path, tmp_path / "p/a.rel", tmp_path / "p/a.a1"):
        reading = read(path)
        (document,) = reading.documents
        assert (reading.format, len(document.entities)) == ("brat", 2)
        assert [(r.type, r.head, r.tail) for r in document.relations] == [
            ("Subunit-Complex", "T1", "T2")
        ]


def test_nothing_left(tmp_path):
    put(tmp_path, "a.conll", "x\n")
    with pytest.raises((FormatError, DataError)):
        read(tmp_path, options=SKIP)
