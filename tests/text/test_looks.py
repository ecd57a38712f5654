"""A file that is not read says what it looks like, and what to do."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import zipfile
import zlib

import pytest

from cases import each
from confide.errors import ConfideError, FormatError
from confide.text.checking import check
from confide.text.files import looks_like, text_looks_like
from confide.text.formats import detect, read
from text.generated import put


def archive(*names, content=b"x"):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as packed:
        for name in names:
            packed.writestr(name, content)
    return held.getvalue()


def database(path):
    connection = sqlite3.connect(path)
    connection.execute("create table t (a)")
    connection.close()
    return path.read_bytes()


FILES = {
    "a.png": (b"\x89PNG\r\n\x1a\n" + bytes(200), "a PNG image", "reads no images"),
    "a.jpg": (b"\xff\xd8\xff\xe0" + bytes(200), "a JPEG image", "reads no images"),
    "a.dcm": (bytes(128) + b"DICM" + bytes(90), "a DICOM image", "reads no images"),
    "a.7z": (b"7z\xbc\xaf\x27\x1c" + bytes(90), "a 7-Zip archive", "unpack it"),
    "a.zst": (b"\x28\xb5\x2f\xfd" + bytes(90), "a Zstandard file", "unpack it"),
    "a.npy": (b"\x93NUMPY\x01\x00" + bytes(90), "a NumPy array", "JSON Lines or CSV"),
    "a.pkl": (pickle.dumps({"text": "ü" * 50}), "a Python pickle", "a pickle can run code"),
    "a.bin": (bytes(range(32)) * 40 + b"\xff", "a binary file", "name the text itself"),
    "a.zlib": (zlib.compress(b"hello " * 50), "a spaCy DocBin", "docbin"),
    "a.zip": (archive("a/b.parquet", "a/c.parquet"), "a zip archive of parquet", "a.zip! for all"),
    "b.zip": (archive("a/b.ann", "a/b.txt"), "a zip archive of ann and txt", "b.zip! for all"),
    "a.html": (b"<!DOCTYPE html><html><body>x</body></html>", "a web page (HTML)", ".txt"),
    "a.xml": (b"<?xml version='1.0'?><corpus><x/></corpus>", "the root <corpus>", "brat or JSON"),
    "f.xml": (b'<Bundle xmlns="http://hl7.org/fhir"><id/></Bundle>', "FHIR as XML", "as JSON"),
    "a.dat": (b"Name,Age\nAda,5\nBob,6\n", "the columns Name, Age", "state its columns"),
    "b.dat": (b"The patient was well.\n", "running text", ".txt"),
}  # fmt: skip


@each("name", FILES)
def test_what_it_looks_like_and_what_to_do(tmp_path, name):
    raw, what, fix = FILES[name]
    with pytest.raises(FormatError) as caught:
        detect(put(tmp_path, name, raw))
    said = str(caught.value)
    assert what in said and fix in said and "byte 0x" not in said


def test_an_sqlite_database(tmp_path):
    with pytest.raises(FormatError, match=r"SQLite database.*export the table of notes as CSV"):
        read(put(tmp_path, "b.db", database(tmp_path / "a.db")))


def test_json_without_a_text_names_its_keys(tmp_path):
    row = json.dumps({"sentence": "a", "spans2": []})
    with pytest.raises(ConfideError, match=r'a document without "text".*sentence, spans2'):
        check(put(tmp_path, "a.json", row))


def test_another_encoding_says_which_and_never_a_byte(tmp_path):
    with pytest.raises(FormatError, match="windows-1252") as caught:
        check(put(tmp_path, "a.txt", "Fièvre élevée".encode("latin-1")))
    assert "byte 0x" not in str(caught.value)


def test_text_is_never_taken_for_something_else():
    for text in ("A rash.", "\x1b[0m note", "x", "PKW fahren", "MZ", "BM"):
        assert text == "MZ" or looks_like(text.encode()) is None
    assert looks_like("Fever in UTF-16".encode("utf-16-le")) is None


def test_keys_and_columns_of_a_stranger_are_cut():
    assert len(text_looks_like('{"' + "k" * 9999 + '": 1}').what) < 200
    assert len(text_looks_like(",".join(["column"] * 99) + "\n1\n2\n").what) < 200
    assert text_looks_like("{" * 9999).what == "running text"


def test_packed_files_are_looked_into(tmp_path):
    with pytest.raises(FormatError, match="a PNG image"):
        read(put(tmp_path, "a.gz", gzip.compress(b"\x89PNG\r\n\x1a\n" + bytes(99))))
