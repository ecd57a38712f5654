"""Readers against anything: bytes, files that are nearly right. Only our own errors come out."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from cases import each
from confide.errors import ConfideError
from confide.text.checking import check
from confide.text.formats import FORMATS, Options, read, write
from text.generated import put, tokenised

CONLL = ["B-X", "I-X", "E-", "O", "B", "-DOCSTART-", "#", "# id 1", "# newdoc id = a"]
BLANKS = ["\ufeff", "\u2028", "\t", " ", "\n", "\r\n", "\r", "\x0c", "\xa0", "\0"]
BRAT = [
    *("T1", "T1\tX 0 2\tab", "R1\tr Arg1:T1 Arg2:T1", "E1\tX:T1 a:E1", "*\tEquiv T1 T1"),
    *("A1\tn E1", "N1\tReference T1 a:b\tc", "#1\tNote R1\tn", ";", ":"),
]
PUBTATOR = ["7|t|ab", "7|a|cd", "7\t0\t2\tab\tX\t1", "7\tr\t1\t2\tn", "|"]
JSON = [
    *'{}[]",',
    *('{"text": "ab", "label": [[0, 1, "X"]]}', '{"data": {"text": "a"}}', "null", "1e999"),
]
WORDS = ["ab", "é", "\ud7ff", "😀", "1", "2", "-1", "9" * 20]
PIECES = st.sampled_from(CONLL + BLANKS * 2 + BRAT + PUBTATOR + JSON + WORDS)
SCRAPS = st.lists(PIECES, max_size=25).map("".join)
NAMES = """text id label labels entities spans start end type fragments relations head tail
sentences tokens attributes meta data result annotations value from_id to_id level confidence
concepts"""
KEYS = st.sampled_from(NAMES.split())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


def survives(path, format=None, **options):
    """Read and, where that works, check and write in every format; only our errors may come."""
    try:
        reading = read(path, format, options=Options(**options))
    except ConfideError as error:
        assert str(error)
        return
    for document in reading.documents:
        length = len(document.text)
        for entity in document.entities:
            borders = [place for fragment in entity.fragments for place in fragment]
            assert borders == sorted(set(borders)) and borders[0] >= 0 and borders[-1] <= length
        names = {entity.id for entity in document.entities}
        assert len(names) == len(document.entities)
        assert all(
            {relation.head, relation.tail} <= names
            for relation in document.relations
            if relation.level == "entity"
        )
    report = check(path, format=format, options=Options(**options))
    assert report.counts["entities"] >= report.counts["trainable"]
    for name in (name for name, kind in FORMATS.items() if kind.write):
        write(reading.documents, path.parent / f"out-{name}", name)


@given(st.binary(max_size=200), st.sampled_from([*FORMATS, None]))
@example(b"\xff\xfe\x00\xd8", None)
@example(b"\xff\xfe\x41", None)
@example(b"\x1f\x8b\x08\x00", None)
@example(b"{", None)
def test_bytes(tmp_path_factory, content, format):
    survives(put(tmp_path_factory.mktemp("fuzz"), "a.txt", content), format)


@given(SCRAPS, st.sampled_from(["conll", "pubtator", "jsonl", "text", None]))
def test_scraps(tmp_path_factory, content, format):
    survives(put(tmp_path_factory.mktemp("fuzz"), "a.txt", content), format)


@given(SCRAPS, SCRAPS)
def test_scraps_of_brat(tmp_path_factory, text, ann):
    folder = tmp_path_factory.mktemp("fuzz")
    put(folder, "a.txt", text)
    survives(put(folder, "a.ann", ann))


@given(st.dictionaries(KEYS, VALUES), st.booleans())
def test_json(tmp_path_factory, row, named):
    row = {"text": "some text", **row} if named else row
    path = put(tmp_path_factory.mktemp("fuzz"), "a.jsonl", json.dumps(row))
    survives(path, "jsonl")


@given(st.data(), tokenised())
def test_conll_with_a_line_changed(tmp_path_factory, data, document):
    path = tmp_path_factory.mktemp("fuzz") / "a.conll"
    write([document], path, "conll")
    lines = path.read_bytes().decode().split("\n")
    lines[data.draw(st.integers(0, len(lines) - 1))] = data.draw(SCRAPS)
    put(path.parent, "a.conll", "\n".join(lines))
    options = {
        "scheme": data.draw(st.sampled_from([None, "iob1", "iobes"])),
        "columns": data.draw(st.sampled_from([None, (0, 1), (1, 0), (0, None)])),
    }
    survives(path, "conll", **options)


@each("encoding", ["utf-7", "idna", "undefined", "hex", "unicode_escape", "\0"])
def test_strange_encodings(tmp_path, encoding):
    path = put(tmp_path, "a.conll", b"a+2D0-\\ud800\tO\n\xff\tB-X\n")
    survives(path, "conll", encoding=encoding)
