"""Plain sentences of a CoNLL file are cut all at once: never another answer than line by line."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from cases import each
from confide.errors import ConfideError
from confide.text.formats import Options, Reading, read
from confide.text.formats.conll import ColumnLayout, find_layout, sample_lines

NOTHING = re.compile("(?!)")
ODD = (
    *(
        "#",
        "# id = 3",
        "#tag\tO",
        "#\tO",
        "# newdoc id = x",
        "-DOCSTART- -X- O O",
        "-DOCSTART-",
        "-",
    ),
    *("-DOCSTART-\tO", "-DOCSTART- O", " ", "\t", "a", "\tO", "a\t", "a b\tO", "a  O", "a\tB-A "),
    *(" a\tO", "\ufeffa\tO", "a\x0bb\tO"),
    *("\xa0\tO", "a\u2028b\tO", "-D\tO", "a\tO\tO", "O\tO"),
    *("a\tB-A x", "a\tB-A\x85", "b c\tB-A", "a\tb\tB-A", "-\tB-A", "#\tB-A", "a O\tB-A"),
    *("é\tI-B", "\u200d\tO", "a O", "a\tb O", "\x1c\tO", "a\tO\r"),
)
EMPTY = ("\tO", "\tO", "a b\tO", "-DOCSTART-\tO")


def _lines(draw: random.Random, columns: int, cut: str) -> str:
    def row() -> str:
        middle = [draw.choice(("NN", "-", "_", "", "x y") if cut == "\t" else ("NN", "-", "_"))
                  for _ in range(columns - 2)]  # fmt: skip
        tag = draw.choice(tags)
        return cut.join([draw.choice(("a", "bc", "-", "ünd", "#1", ".", "O")), *middle, tag])

    tags = draw.choice((("O",), ("O", "O", "O", "O", "B-A", "I-A", "B-Bb", "I-Bb")))
    odd, which = draw.choice((0.0, 0.02, 0.2)), draw.choice((ODD, EMPTY))
    lines = [draw.choice(which) if draw.random() < odd else row() if draw.random() < 0.8 else ""
             for _ in range(draw.randint(1, 40))]  # fmt: skip
    return draw.choice(("\n", "\n", "\r\n", "\r")).join(lines) + draw.choice(("", "\n", "\n\n"))


def _read(path: Path, options: Options) -> Reading | str:
    try:
        return read(path, "conll", options=options)
    except ConfideError as error:
        return str(error)


def test_plain_sentences_are_read_as_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, path = random.Random(7), tmp_path / "a.conll"
    read_well = 0
    for _ in range(600):
        columns, cut = draw.choice((2, 2, 2, 3, 4)), draw.choice("\t ")
        path.write_text(_lines(draw, columns, cut), encoding="utf-8", newline="")
        options = Options(
            columns=draw.choice((None, None, (0, columns - 1), (0, None), (columns - 1, 0))),
            skip_broken=False,
        )
        found = _read(path, options)
        with monkeypatch.context() as slow:
            slow.setattr(ColumnLayout, "plain_rows", lambda self: NOTHING)
            assert _read(path, options) == found, path.read_text()
        read_well += isinstance(found, Reading)
    assert read_well > 120


@each(
    ("text", "said"),
    [
        ("a\tO\nb\tO\n\nc\tB-A\nd\tO\n", [("a b", ()), ("c d", ((0, 1),))]),
        ("a\tO\nb c\tO\n\nd\tO\n", [("a b c", ()), ("d", ())]),
        ("#\tO\nb\tO\n", [("# b", ())]),
        ("-\tO\nb\tO\n", [("- b", ())]),
    ],
)
def test_what_is_read(tmp_path: Path, text: str, said: list[object]) -> None:
    (tmp_path / "a.conll").write_text(text)
    documents = read(tmp_path / "a.conll", "conll", columns=(0, 1)).documents
    assert [
        (one.text, one.entities[0].fragments if one.entities else ()) for one in documents
    ] == said
    assert [one.source.rpartition(":")[2] for one in documents] == ["1", "4"][: len(documents)]


def test_a_blank_in_a_token_is_no_border(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("a\tO\nb c\tB-A\nd\tO\n")
    (document,) = read(tmp_path / "a.conll", "conll").documents
    assert document.token_texts(document.sentences[0]) == ("a", "b c", "d")
    assert document.surface(document.entities[0]) == "b c"


def test_of_a_long_text_stretches_are_looked_at() -> None:
    """They begin with the first line, hold whole lines, and come from all of the text."""
    rows = [f"w{number} B-A" for number in range(400_000)]
    lines = sample_lines("\n".join(rows))
    assert lines[0] == rows[0]
    assert set(lines) <= set(rows)
    assert 10_000 < len(lines) < 100_000
    assert int(lines[-1].split()[0][1:]) > 390_000
    assert find_layout(lines, None, "x") == ColumnLayout(False, 2, 0, 1)
    assert sample_lines("a O\nb O") == ["a O", "b O"]
    assert sample_lines("x" * 5_000_000)[0] == "x" * 8192
