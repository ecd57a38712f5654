"""Which column of a CoNLL file holds the token and which the tag, judged by evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from confide.errors import DataError, FormatError
from confide.text.schemes import parse_tag

_COMMENT = re.compile(r"#($|\s|\w+\s*=|newdoc|newpar|begin |end )")
_BLANKS = re.compile(r"[ \t]+")
_AFFIX = re.compile(r"(^[bieslumo][-_:])|([-_:][BIESLUM]$)")
_SAMPLE, _WIDEST = 5000, 64
_CELL = r"[^\t\n]*+"
_VALUE = (  # all characters but white space and byte order marks; \S would take thrice as long
    r"[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]++"
)
_STRETCH, _STRETCHES = 1 << 13, 64


@dataclass(frozen=True, slots=True)
class Layout:
    """How the lines of one file are split: at tabs or blanks, into how many columns, and which."""

    tabs: bool
    width: int
    token: int
    tag: int | None
    doubt: str = ""

    def fields(self, line: str) -> list[str]:
        """The columns of a line."""
        if self.tabs:
            return line.split("\t")
        line = line.strip(" \t")
        return _BLANKS.split(line) if "  " in line or "\t" in line else line.split(" ")

    def plain_rows(self) -> re.Pattern[str]:
        """What matches lines of these columns and nothing else: no comment, mark or odd value.

        Tokens and tags are not empty and have no white space in them.
        """
        columns = [_CELL if self.tabs else _VALUE] * self.width
        for column in (self.token, self.tag):
            if column is not None:
                columns[column] = _VALUE
        row = "(?!#|-DOCSTART-)" + ("\t" if self.tabs else " ").join(columns)
        return re.compile(f"(?:{row}\n)*+{row}")

    @property
    def is_token_and_tag(self) -> bool:
        """Whether each line is a token and its tag, and nothing else (`joined` may cut them)."""
        return (self.width, self.token, self.tag) == (2, 0, 1)

    def describe(self) -> str:
        """The layout in words, with columns counted from 0 as in the option."""
        cut = "tab" if self.tabs else "space"
        tag = "no tag" if self.tag is None else f"tag {self.tag}"
        return f"{self.width} by {cut}: token {self.token}, {tag}"


def joined(block: str, cut: str, lines: int) -> tuple[str, list[str]] | None:
    r"""The tokens of a sentence of two columns joined by blanks, and its tags, none if all are O.

    Several times as fast as cutting every line: nearly all tags are O. None if there is white space
    in a token, or if a line is not a token, `cut` (a tab or a blank) and a tag; a tag other than O
    stands behind a tab. `lines` is how many lines follow the first; none begins with "-" or "#".

    >>> joined("took\tO\nvarelozil\tB-Drug\n.\tO", "\t", 2)
    ('took varelozil .', ['O', 'B-Drug', 'O'])
    """
    if block[:1] in ("-", "#"):
        return None
    text = block.replace("\tO\n" if cut == "\t" else " O\n", " ")
    tags: list[str] = []
    if "\n" not in text and text[-1:] == "O" and text[-2:-1] == cut:
        text = text[:-2]
    elif cut == " ":
        return None  # or a line of one column could make up for a line of three
    else:
        parts = []
        for piece in text.split("\n"):  # lines with O, and one with another tag
            words, _, tag = piece.rpartition("\t")
            if tag.split() != [tag]:
                return None
            parts.append(words)
            if " " in words:
                tags += ["O"] * words.count(" ")
            tags.append(tag)
        text = " ".join(parts)
    plain = text.count(" ") == lines and text.isprintable() and "  " not in text
    return (text, tags) if plain and text and text[0] != " " != text[-1] else None


def looks_like_comment(line: str) -> bool:
    """Whether a line may be a comment; a token that begins with # may look like one, too."""
    return line.startswith("#") and _COMMENT.match(line) is not None


def is_document_mark(line: str) -> bool:
    """Whether a line is CoNLL's mark of a new document."""
    return line.startswith("-DOCSTART-")


def is_affixed(value: str) -> bool:
    """Whether a value looks like a tag without being one: empty, ``b-per``, ``PER-B``."""
    return not value or _AFFIX.search(value) is not None


def sampled(text: str) -> list[str]:
    """The lines of a text; of a long one, those of stretches of it, from its beginning on."""
    if len(text) <= 4 * _STRETCH * _STRETCHES:
        return text.split("\n")
    lines: list[str] = []
    for number in range(_STRETCHES):
        start = number * len(text) // _STRETCHES
        whole = text[start : start + _STRETCH].split("\n")
        lines += whole[1 if start else 0 : -1] if len(whole) > 2 else whole
    return lines


def find_layout(lines: Sequence[str], stated: tuple[int, int | None] | None, where: str) -> Layout:
    """The layout of a file's lines; `stated` columns win over evidence.

    At least half of the lines must have the same width. The tag column is the last one whose
    every value is a tag (or nearly every: the rest are errors to be named later), else the last
    that holds an ``O`` and few other values. The token column is the first that is not the tag's,
    not a running number and not all ``_`` or ``-``.

    Raises:
        FormatError: no column of tags can be told, or a stated column does not exist.
        DataError: there is no line.
    """
    content = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line
        and not line.isspace()
        and (line[0] not in "#-" or not (looks_like_comment(line) or is_document_mark(line)))
    ]
    if not content:  # maybe every token is a "#"
        content = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not content:
        raise DataError("the file is empty", where=where)
    tabs = 2 * sum("\t" in line for _, line in content) >= len(content)
    cut = Layout(tabs, 0, 0, None)
    step = max(1, len(content) // _SAMPLE)
    rows = [cut.fields(line) for _, line in content[::step]]
    width, usual = Counter(map(len, rows)).most_common(1)[0]
    even = 2 * usual >= len(rows) and width <= _WIDEST
    rows = [row for row in rows if len(row) == width]
    if stated is not None:
        return _stated(stated, tabs, width, f"{where}:{content[0][0]}")
    columns = [[row[index] for row in rows] for index in range(width)] if even else []
    tag, doubt = _tag_column(columns)
    if tag is None:
        raise FormatError(
            "no column of tags",
            expected="CoNLL columns: a token, a tag such as B-Disease or O, cut by tab or space",
            got=f"{width} column{'s' * (width > 1)} on most lines",
            where=f"{where}:{content[0][0]}",
            fix="state the columns of token and tag, counted from 0: --columns 0,3, or "
            "columns = [0, 3] under [data]",
        )
    return Layout(tabs, width, _token_column(columns, tag), tag, doubt)


def _stated(stated: tuple[int, int | None], tabs: bool, width: int, where: str) -> Layout:
    token, tag = (None if column is None else column + width * (column < 0) for column in stated)
    if token is None or not 0 <= token < width or tag == token or not (
        tag is None or 0 <= tag < width
    ):  # fmt: skip
        raise FormatError(
            "the stated columns do not exist, or are the same",
            expected=f"columns from 0 to {width - 1}",
            got=f"token {stated[0]}, tag {stated[1]}; the lines have {width} "
            f"column{'s' * (width != 1)}",
            where=where,
        )
    return Layout(tabs, width, token, tag)


def _tag_column(columns: Sequence[Sequence[str]]) -> tuple[int | None, str]:
    """The column of tags, and a doubt in words if two qualify."""
    if len(columns) < 2:
        return None, ""
    counts = [Counter(value.strip() for value in column) for column in columns]
    tagged = [
        index
        for index, values in enumerate(counts)
        if all(map(_prefixed, values)) and any(v == "O" or len(v) > 1 for v in values)
    ]
    if not tagged:
        tagged = [
            index
            for index, values in enumerate(counts)
            if values["O"]
            and sum(n for value, n in values.items() if _prefixed(value)) * 5 > values.total() * 4
            and any(parse_tag(value)[0] not in ("", "O") for value in values)
        ]
    if not tagged:
        tagged = [index for index, values in enumerate(counts) if _plain_types(values)]
    others = [index for index in tagged[:-1] if counts[index].keys() - {"O"}]
    doubt = ""
    if others and len(columns) > 2:
        doubt = (
            f"columns {', '.join(map(str, [*others, tagged[-1]]))} all hold tags; the last is read"
        )
    return (tagged[-1] if tagged else None), doubt


def _prefixed(value: str) -> bool:
    return parse_tag(value)[0] != ""


def _plain_types(values: Counter[str]) -> bool:
    """Whether values are types without prefixes: mostly O, few others, no punctuation."""
    others = [value for value in values if value != "O"]
    return (
        values["O"] > 0
        and len(others) <= max(2, values.total() // 5)
        and len(others) <= 500
        and all(value[:1].isalpha() and not is_affixed(value) for value in others)
    )


def _token_column(columns: Sequence[Sequence[str]], tag: int) -> int:
    rest = [index for index in range(len(columns)) if index != tag]
    wordy = [
        index
        for index in rest
        if not set(columns[index]) <= {"_", "-", ""} and not _running_number(columns[index])
    ]
    return (wordy or rest)[0]


def _running_number(column: Sequence[str]) -> bool:
    """Whether a column only numbers the tokens (1, 2-3, 4.1, ...)."""
    return all(value[:1].isdigit() and not value.strip("0123456789.-") for value in column)
