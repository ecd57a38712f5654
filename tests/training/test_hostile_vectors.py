"""Vectors and knowledge bases that attack their reader: refused by an error of ours, at once."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cases import each
from confide.corpora.distant import read_knowledge
from confide.errors import ConfideError, DataError, FormatError, MissingDataError
from confide.text.files import FREE
from confide.training.vocabulary import LONGEST_LINE, ClearVocabulary, read_vectors

WORDS = ClearVocabulary(("rash", "pain"))


def vectors(path: Path) -> object:
    return read_vectors(path, WORDS)


def refused(act: Callable[[], object], kind: type[ConfideError] = FormatError) -> str:
    start = time.process_time()
    with pytest.raises(kind) as caught:
        act()
    assert time.process_time() - start < 6.0  # on a busy machine
    return str(caught.value)


@each("reader", [vectors, read_knowledge])
def test_what_is_no_file(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name, said in (("pipe", "a named pipe"), ("zero", "a device"), (".", "a folder")):
        assert f"{said}, not a file" in refused(lambda name=name: reader(tmp_path / name))
    refused(lambda: reader(tmp_path / "none"), MissingDataError)
    refused(lambda: reader(tmp_path / "loop"), DataError)
    refused(lambda: reader(tmp_path / "a\0b"), DataError)


def test_a_line_of_vectors_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(b"rash 1 2\n" + b"x" * (LONGEST_LINE + 1))
    assert f"v.txt:2: a line of more than {LONGEST_LINE:,} bytes" in refused(lambda: vectors(path))


@each("dims", ["0", "70000", "9" * 20, "9" * 5000])
def test_a_number_of_dimensions_that_no_vector_has(tmp_path: Path, dims: str) -> None:
    """5,000 digits ended in a ValueError, 20 in an OverflowError."""
    path = tmp_path / "v.txt"
    path.write_text(f"2 {dims}\nrash 1 2\n")
    assert "v.txt:1: the first line states vectors of another size" in refused(
        lambda: vectors(path)
    )


def test_a_packed_table_that_holds_far_more_than_it_weighs(tmp_path: Path) -> None:
    path = tmp_path / "k.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tr\tb\n" * (FREE // 6 + 9)))
    assert "holds more than 4 MiB" in refused(lambda: read_knowledge(path))
    path.write_bytes(gzip.compress(b"a\tr\tb\nb\tr\tc\n" * 1000))
    assert len(read_knowledge(path)) == 2


def test_a_table_without_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confide.text.files.read_text.__kwdefaults__", {"longest": 1000})
    path = tmp_path / "k.tsv"
    path.write_text("a\tr\tb\n" + "a\t" * 1000)
    assert "k.tsv:2: a line of more than 1,000 characters" in refused(lambda: read_knowledge(path))
