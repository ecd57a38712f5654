"""Files that attack their reader: each is refused with an error of ours, and at once."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import socket
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cases import each
from confide.errors import ConfideError, DataError, FormatError, SettingsError
from confide.text import files
from confide.text.checking import check
from confide.text.files import FREE, read_bytes, read_member, read_text
from confide.text.formats import FORMATS, detect, read
from text.generated import put
from text.published.test_psytar import book

SECONDS = 4.0  # on a busy machine; each took far longer


def refused(act: Callable[[], object], kind: type[ConfideError] = FormatError) -> str:
    """What the refusal says; it takes less than two seconds of the processor."""
    start = time.process_time()
    with pytest.raises(kind) as caught:
        act()
    assert time.process_time() - start < SECONDS
    return str(caught.value)


def test_nested_xml(tmp_path: Path) -> None:
    """It ended in a RecursionError."""
    deep = "<infon>" * 500 + "</infon>" * 500
    path = put(tmp_path, "c.xml", f"<collection><document>{deep}</document></collection>")
    assert "nested deeper than 64" in refused(lambda: read(path, "bioc"))


@each("name", ["jsonl", "chemprot", "opennre", "bioc"])
def test_nested_json(tmp_path: Path, name: str) -> None:
    for row in ("[" * 100_000, '{"text": "a", "x": ' + "[" * 500 + "]" * 500 + "}"):
        path = put(tmp_path, "a.jsonl", row + "\n")
        refused(lambda path=path: read(path, name))


def test_damaged_lzma_in_a_zip(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", b"A rash. " * 50)
    raw = bytearray(buffer.getvalue())
    raw[40:60] = b"\xff" * 20
    put(tmp_path, "a.zip", bytes(raw))
    said = refused(lambda: read_member(tmp_path / "a.zip!" / "a.txt"))
    assert "cannot be unpacked" in said


def test_damaged_xz_in_a_tar(tmp_path: Path) -> None:
    packed = bytearray(lzma.compress(bytes(20_000)))
    packed[30:40] = b"\xff" * 10
    put(tmp_path, "a.tar", bytes(packed))
    assert "damaged" in refused(lambda: read_member(tmp_path / "a.tar!" / "a.txt"))


def test_gzip_that_holds_far_more_than_it_weighs(tmp_path: Path) -> None:
    """A file of 1.6 MB gave 1 GiB, and took 3.1 GB of memory."""
    path = put(tmp_path, "a.conll.gz", gzip.compress(bytes(FREE + 1)))
    assert "holds more than 4 MiB" in refused(lambda: read_bytes(path))
    path = put(tmp_path, "b.conll.gz", gzip.compress(b"a\tO\n" * 1000))
    assert len(read_bytes(path)) == 4000


@each("encoding", ["punycode", "idna", "hex", "unicode_escape", "utf-7", "x" * 99])
def test_encodings_that_take_long_or_are_none(tmp_path: Path, encoding: str) -> None:
    """360 kB in punycode took 15.5 s."""
    head = f'<?xml version="1.0" encoding="{encoding}"?>'
    path = put(tmp_path, "c.xml", f"{head}<collection>{'a' * 360_000}</collection>")
    assert "is not read" in refused(lambda: read(path))
    assert "not known" in refused(lambda: read(path, encoding=encoding), SettingsError)
    assert "not known" in refused(lambda: read_text(path, encoding), SettingsError)


def test_what_is_no_file(tmp_path: Path) -> None:
    """A named pipe was waited for, and /dev/zero read, for ever."""
    os.mkfifo(tmp_path / "pipe.conll")
    (tmp_path / "zero.conll").symlink_to("/dev/zero")
    (tmp_path / "folder.conll").mkdir()
    (tmp_path / "loop.conll").symlink_to("loop.conll")
    with socket.socket(socket.AF_UNIX) as plug:
        plug.bind(str(tmp_path / "plug.conll"))
        for name, said in (
            ("pipe", "a named pipe"), ("zero", "a device"), ("plug", "a socket"),
            ("folder", "a folder"),
        ):  # fmt: skip
            path = tmp_path / f"{name}.conll"
            assert f"{path}: {said}, not a file" in refused(lambda path=path: read_bytes(path))
            (tmp_path / f"{name}.zip").symlink_to(path)
            refused(lambda path=path: read_bytes(path.with_suffix(".zip!") / "a"))
        for name in ("pipe", "zero", "plug"):
            refused(lambda name=name: read(tmp_path / f"{name}.conll"))
            refused(lambda name=name: check(tmp_path / f"{name}.conll"))
    for act in (read, detect, check):
        refused(lambda act=act: act(tmp_path / "loop.conll"), DataError)
        refused(lambda act=act: act(tmp_path / ("x" * 300)), DataError)


@each("name", FORMATS)
def test_no_format_reads_a_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "a.ann")
    refused(lambda: read(tmp_path / "a.ann", name), ConfideError)


def test_a_line_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 200 MB took 55 s and 6.2 GB."""
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    path = put(tmp_path, "a.conll", "a\tO\n\n" + "x" * 1001 + "\tO\n")
    said = refused(lambda: read(path, "conll"))
    assert "a.conll:3: a line of more than 1,000 characters" in said
    assert read(put(tmp_path, "b.conll", "x" * 900 + "\tO\n"), "conll").documents


def test_many_equal_ids_in_brat(tmp_path: Path) -> None:
    """6,000 took 3.8 s, four times as many sixteen times as long."""
    put(tmp_path, "a.txt", "A rash.")
    put(tmp_path, "a.ann", "T1\tAE 2 6\trash\n" * 12_000 + "R1\tr Arg1:T1 Arg2:T1\n" * 6_000)
    start = time.process_time()
    (found,) = read(tmp_path).documents
    assert time.process_time() - start < SECONDS
    assert len({entity.id for entity in found.entities}) == 12_000


FAR = b'<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'
MANY = b"".join(b'<row r="%d">' % row + b"<c/>" * 500 + b"</row>" for row in range(9, 900))


@each("more", [FAR, MANY])
def test_a_workbook_of_a_million_cells(tmp_path: Path, more: bytes) -> None:
    """It took more than 25 s; one cell in the last corner makes as many."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(book())) as old, zipfile.ZipFile(buffer, "w") as new:
        for item in old.infolist():
            raw = old.read(item)
            if item.filename == "xl/worksheets/sheet1.xml":
                raw = raw.replace(b"</sheetData>", more + b"</sheetData>")
            new.writestr(item, raw)
    path = put(tmp_path, "p.xlsx", buffer.getvalue())
    assert "more than 250,000 " in refused(lambda: read(path))


def test_a_tar_whose_header_has_an_endless_number(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        item = tarfile.TarInfo("a.txt")
        item.pax_headers = {"comment": "1" * 100_000}
        archive.addfile(item)
    put(tmp_path, "a.tar", buffer.getvalue())
    refused(lambda: read_member(tmp_path / "a.tar!" / "a.txt"))


def test_numbers_that_python_would_not_write(tmp_path: Path) -> None:
    row = json.dumps({"text": "A rash", "label": [[0, 1, "X"]]}).replace("0,", "9" * 5000 + ",")
    refused(lambda: read(put(tmp_path, "a.jsonl", row), "jsonl"))


@each(
    "inside", ["f'" + "{a}" * 60_000 + "'", "lambda:" * 30_000 + "1", "1if 1else " * 20_000 + "1",
               "b'x'", "[x for x in ()]", "rb'x'", "a.b"],
)  # fmt: skip
def test_what_is_no_literal_is_not_parsed(tmp_path: Path, inside: str) -> None:
    """300 kB of braces in a string with f before it took more than a minute."""
    path = put(tmp_path, "a.txt", "{'text': 'a b', 'h': {}, 't': " + inside + "}\n")
    assert "neither JSON nor a Python dict" in refused(lambda: read(path, "opennre"))


def test_what_is_a_literal_is_read(tmp_path: Path) -> None:
    row = {"text": 'it\'s "a" \\ b\u2028', "h": {"name": "a", "pos": [6, 7]}, "t": {"name": "b"}}
    line = repr({**row, "relation": None, "x": -1.5e-7, "y": True, "z": (1, 2)})
    (found,) = read(put(tmp_path, "a.txt", line + "\n"), "opennre").documents
    assert found.text == row["text"]
    put(tmp_path, "a.txt", "{u'text': u'a b', 'h': {'name': 'a'}, 't': {'name': 'b'}}\n")
    assert read(tmp_path / "a.txt", "opennre").documents[0].text == "a b"


def test_a_region_of_too_many_labels(tmp_path: Path) -> None:
    region = {"value": {"start": 0, "end": 2, "labels": ["X"] * 101}}
    task = {"data": {"text": "abc"}, "annotations": [{"result": [region]}]}
    path = put(tmp_path, "a.json", json.dumps(task))
    assert "at most 100; got 101" in refused(lambda: read(path, "jsonl"))
