"""CoNLL columns: one token per line, a tag beside it, a blank line between sentences.

The text of a document is its tokens joined by spaces and its sentences joined by newlines. Without
document marks, every sentence is a document of its own, named "<file stem>:<line>".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path

from confide.errors import DataError, FormatError, SchemeError
from confide.text.document import (
    Document,
    Entity,
    PackedSpans,
    Problem,
    Sentence,
    SpacedWords,
    Spans,
    pack_spans,
)
from confide.text.files import read_text, with_plain_ends, write_parts
from confide.text.reading import Columns, Options, Reading, entity_id, no_document, place, unheld
from confide.text.segment import segmented
from confide.text.tagging import (
    SchemeGuess,
    TokenSpan,
    contradiction,
    detect_scheme,
    flat_spans,
    parse_tag,
    scheme_named,
    spans_from_tags,
    tags_from_spans,
)

# --- Columns of a CoNLL file ----------------------------------------------------------------------
#
# The columns of tokens and of tags are found by evidence.

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
class ColumnLayout:
    """The layout of one file's lines: split at tabs or blanks, into how many columns, and which."""

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
        """A pattern of lines of these columns and nothing else: no comment, mark or odd value.

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
        """True if each line is a token and its tag, and nothing else (see `two_columns`)."""
        return (self.width, self.token, self.tag) == (2, 0, 1)

    def describe(self) -> str:
        """The layout in words, with columns counted from 0 as in the option."""
        cut = "tab" if self.tabs else "space"
        tag = "no tag" if self.tag is None else f"tag {self.tag}"
        return f"{self.width} by {cut}: token {self.token}, {tag}"


def two_columns(block: str, cut: str, lines: int) -> tuple[str, list[str]] | None:
    r"""The tokens of a sentence of two columns joined by blanks, and its tags, none if all are O.

    Several times as fast as cutting every line: nearly all tags are O. None if there is white space
    in a token, or if a line is not a token, `cut` (a tab or a blank) and a tag; a tag other than O
    stands behind a tab. `lines` is how many lines follow the first; none begins with "-" or "#".

    >>> two_columns("took\tO\nvarelozil\tB-Drug\n.\tO", "\t", 2)
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
    """True if a line may be a comment; a token that begins with # may look like one, too."""
    return line.startswith("#") and _COMMENT.match(line) is not None


def is_document_mark(line: str) -> bool:
    """Return whether a line is CoNLL's mark of a new document."""
    return line.startswith("-DOCSTART-")


def is_affixed(value: str) -> bool:
    """Return whether a value looks like a tag without being one: empty, ``b-per``, ``PER-B``."""
    return not value or _AFFIX.search(value) is not None


def sample_lines(text: str) -> list[str]:
    """The lines of a text; of a long one, those of stretches of it, from its beginning on."""
    if len(text) <= 4 * _STRETCH * _STRETCHES:
        return text.split("\n")
    lines: list[str] = []
    for number in range(_STRETCHES):
        start = number * len(text) // _STRETCHES
        whole = text[start : start + _STRETCH].split("\n")
        lines += whole[1 if start else 0 : -1] if len(whole) > 2 else whole
    return lines


def find_layout(
    lines: Sequence[str], stated: tuple[int, int | None] | None, where: str
) -> ColumnLayout:
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
    cut = ColumnLayout(tabs, 0, 0, None)
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
    return ColumnLayout(tabs, width, _token_column(columns, tag), tag, doubt)


def _stated(stated: tuple[int, int | None], tabs: bool, width: int, where: str) -> ColumnLayout:
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
    return ColumnLayout(tabs, width, token, tag)


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
    """Return whether values are types without prefixes: mostly O, few others, no punctuation."""
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
    """Return whether a column only numbers the tokens (1, 2-3, 4.1, ...)."""
    return all(value[:1].isdigit() and not value.strip("0123456789.-") for value in column)


PLACEHOLDER = "\ufffd"
_NEW_DOCUMENT = re.compile(r"#\s*(?:newdoc(?:\s+id)?|doc_id|doc id|document)\s*(?:=\s*(.*))?$")
_DOCSTART = re.compile(r"-DOCSTART-\s*\(([^)]*)\)")
_BEGIN = re.compile(r"#\s*begin document\s*(.*)$")
_KEY_VALUE = re.compile(r"(?<![\w.-])([\w.-]+)[ \t]*=[ \t]*([^\t]*)")


@dataclass(slots=True)
class _Rows:
    """One sentence of the file: its tokens joined by blanks, their tags and line numbers.

    `spans` are the tokens' places in `text` if one of them has a blank in it. `tags` are empty if
    all are O. `lines` are the tokens' lines if they do not follow each other from `line` on.
    """

    text: str = ""
    spans: PackedSpans | None = None
    tags: tuple[str, ...] = ()
    line: int = 0
    lines: list[int] | None = None
    attributes: Sequence[tuple[str, str]] = ()
    document: int = -1
    """The number of the document mark above it; -1 before the first."""

    def line_of(self, token: int) -> int:
        """The line of a token."""
        return self.line + token if self.lines is None else self.lines[token]


@dataclass(slots=True)
class _Mark:
    """A mark of a new document."""

    id: str
    attributes: list[tuple[str, str]] = field(default_factory=list)


class _Scan:
    """One pass over the text of a file."""

    def __init__(self, path: Path, layout: ColumnLayout, options: Options) -> None:
        self.path, self.layout, self.options = path, layout, options
        self.file, self.stem = str(path), path.stem
        self.sentences: list[_Rows] = []
        self.marks: list[_Mark] = []
        self.problems: list[Problem] = []
        self._broken: set[int] = set()
        self._names: dict[str, str] = {}
        self._attributes: list[tuple[str, str]] = []
        self._begin()

    def _begin(self) -> None:
        """Begin a sentence; the attributes of comments stay for it until it has a token."""
        self._tokens: list[str] = []
        self._tags: list[str] = []
        self._lines: list[int] = []
        self._left_out = False

    def run(self, text: str) -> None:
        """Sort everything into rows, marks and comments.

        Nearly all sentences are plain: rows of the usual columns and nothing else. They are cut all
        at once; any other is looked at line by line.
        """
        number, plain = 1, self.layout.plain_rows().fullmatch
        two, cut = self.layout.is_token_and_tag, "\t" if self.layout.tabs else " "
        marked = "\n-D" in text or "\n#" in text
        for block in text.removesuffix("\n").split("\n\n"):
            lines = block.count("\n")
            simple = two and not (marked and ("\n-D" in block or "\n#" in block))
            found = two_columns(block, cut, lines) if simple else None
            if found:
                words, tags = found
                self._add(_Rows(words, None, self._kept(tags) if tags else (), number))
            elif plain(block):
                self._block(block.replace("\n", cut).split(cut), number)
            else:
                for line_number, line in enumerate(block.split("\n"), number):
                    self._line(line, line_number)
                self._close()
            number += lines + 2

    def skip(self, error: FormatError, document: int) -> None:
        """Leave out the document (by its mark) of a broken sentence, or raise its error again."""
        self.options.skip(error, self.problems, error.where)
        self._broken.add(document)

    def whole(self) -> list[_Rows]:
        """The sentences of all documents that are not broken; each is one if there are no marks."""
        if not self._broken or not self.marks:
            return self.sentences
        return [rows for rows in self.sentences if rows.document not in self._broken]

    def _block(self, values: list[str], number: int) -> None:
        """Take the values of all columns of a plain sentence."""
        layout = self.layout
        tokens = values[layout.token :: layout.width]
        tags: Sequence[str] = () if layout.tag is None else values[layout.tag :: layout.width]
        self._add(_Rows(" ".join(tokens), None, self._named(tags), number))

    def _add(self, rows: _Rows) -> None:
        """Take a sentence, with the comments above it."""
        rows.document = len(self.marks) - 1
        if self._attributes:
            rows.attributes, self._attributes = self._attributes, []
        self.sentences.append(rows)

    def _named(self, tags: Sequence[str]) -> tuple[str, ...]:
        """The tags; none if all are O."""
        return () if tags.count("O") == len(tags) else self._kept(tags)

    def _kept(self, tags: Sequence[str]) -> tuple[str, ...]:
        """The tags, each distinct one stored once."""
        return tuple(map(self._names.setdefault, tags, tags))

    def _line(self, line: str, number: int) -> None:
        if not line or line.isspace():
            self._close()
        elif line[0] == "-" and is_document_mark(line):
            named = _DOCSTART.match(line)
            self._mark(named.group(1).strip() if named else "", number)
        elif line[0] == "#" and looks_like_comment(line) and not self._is_row(line):
            self._comment(line, number)
        elif not self._left_out:
            try:
                self._row(line, number)
            except FormatError as error:
                self.skip(error, len(self.marks) - 1)
                self._begin()
                self._left_out = True

    def _close(self) -> None:
        if not self._tokens:
            self._left_out = False
            return
        spans = None
        if any(" " in token for token in self._tokens):
            ends = list(accumulate(len(token) + 1 for token in self._tokens))
            spans = pack_spans(zip([0, *ends], [end - 1 for end in ends], strict=False))
        rows = _Rows(" ".join(self._tokens), spans, self._named(self._tags), self._lines[0])
        if self._lines[-1] - self._lines[0] >= len(self._lines):
            rows.lines = self._lines
        self._add(rows)
        self._begin()

    def _mark(self, name: str, number: int) -> None:
        self._close()
        self.marks.append(_Mark(name or f"{self.stem}:{number}", self._attributes))
        self._attributes = []

    def _is_row(self, line: str) -> bool:
        fields = self.layout.fields(line)
        if len(fields) != self.layout.width or not fields[self.layout.token]:
            return False
        tag = self.layout.tag
        if self.layout.tabs and not any(map(str.isspace, fields[0])):
            return True  # "#" and its tag: a comment has a blank after the #
        return tag is not None and parse_tag(fields[tag].strip())[0] != ""

    def _comment(self, line: str, number: int) -> None:
        begin, new = _BEGIN.match(line), _NEW_DOCUMENT.match(line)
        if begin or new:
            found = begin or new
            name = (found.group(1) or "").strip() if found else ""
            if begin or "newdoc" in line or not self.marks or self.marks[-1].id != name:
                self._mark(name, number)
            return
        if self._tokens:
            self._note("comment-in-sentence", number, "a comment between the tokens of a sentence")
        words = line.lstrip("# \t")
        pairs = [(key, value.strip()) for key, value in _KEY_VALUE.findall(words)]
        if words.startswith("id "):
            pairs = [("id", words[3:].split("\t")[0].split(" ")[0]), *pairs]
        self._attributes += pairs

    def _row(self, line: str, number: int) -> None:
        layout = self.layout
        fields = layout.fields(line)
        if len(fields) != layout.width and self._misfits(len(fields)):
            raise FormatError(
                f"a line of {len(fields)} column{'s' * (len(fields) != 1)}",
                expected=f"{layout.width} columns cut by {'tab' if layout.tabs else 'space'}",
                where=f"{self.path}:{number}",
                fix="repair the line, or state the columns",
            )
        token = fields[layout.token]
        if "\ufeff" in token:
            token = token.replace("\ufeff", "")
            self._note("byte-order-mark", number, "U+FEFF was removed from the token")
        if not token or token.isspace():
            token = PLACEHOLDER
            self._note("empty-token", number, "the token is empty; read as U+FFFD")
        self._tokens.append(token)
        self._tags.append("O" if layout.tag is None else fields[layout.tag].strip())
        self._lines.append(number)

    def _misfits(self, width: int) -> bool:
        """Return whether a line whose width differs from the others cannot be read safely."""
        needed = max(self.layout.token, self.layout.tag or 0)
        return width <= needed or not self.layout.tabs or self.layout.width == 2

    def _note(self, kind: str, number: int, what: str) -> None:
        self.problems.append(Problem(kind, f"{self.path}:{number}", what))


def read_conll(path: Path, options: Options) -> Reading:
    """Read a CoNLL file.

    Raises:
        FormatError: a line's columns differ from the rest, or there is no column of tags.
        SchemeError: a value is not a tag, or the tags contradict the stated scheme.
        DataError: there is no token in the file, or a type was not declared.
    """
    text, encoding = read_text(path, options.encoding)
    text = with_plain_ends(text)
    if not text or text.isspace():
        raise DataError("the file is empty", where=str(path))
    layout = find_layout(sample_lines(text), _numbered(options.columns, str(path)), str(path))
    scan = _Scan(path, layout, options)
    scan.run(text)
    del text
    problems = scan.problems
    if layout.doubt:
        problems.append(Problem("doubtful-columns", str(path), layout.doubt))
    guess = _scheme(scan, path)
    scan.sentences = scan.whole()
    if not scan.sentences:
        raise no_document(path, problems, "the file holds no token")
    details = {"scheme": guess.scheme, "encoding": encoding, "columns": layout.describe()}
    details["evidence"] = ", ".join(f"{key} {count}" for key, count in guess.evidence.items())
    documents = _documents(scan, guess.scheme)
    if not documents:
        raise no_document(path, problems, "no document is left")
    return Reading(documents, problems, "conll", details)


def _numbered(columns: Columns | None, where: str) -> tuple[int, int | None] | None:
    """The stated columns, which have numbers here. Raises FormatError for names."""
    if columns is None:
        return None
    token, tag = columns
    if not isinstance(token, int) or isinstance(tag, str):
        raise FormatError(
            "the columns of a CoNLL file have no names",
            expected="numbers from 0, or from -1 at the end, such as 0,3 or 0,-1",
            got=f"{token},{tag}",
            where=where,
        )
    return token, tag


def _scheme(scan: _Scan, path: Path) -> SchemeGuess:
    """The scheme, stated or detected; values that are not tags, and contradictions, are errors."""
    options = scan.options
    tagged = [rows for rows in scan.sentences if rows.tags]
    guess = detect_scheme([rows.tags for rows in tagged])
    wrong_ones = _refuse_untaglike(scan, tagged, guess)
    if wrong_ones:
        scan.sentences = [rows for rows in scan.sentences if id(rows) not in wrong_ones]
        tagged = [rows for rows in tagged if id(rows) not in wrong_ones]
    sequences = [rows.tags for rows in tagged]
    if options.scheme is not None:
        stated = scheme_named(options.scheme)
        wrong = contradiction(sequences, stated)
        if wrong is not None:
            raise SchemeError(
                f"the tags are not {stated.upper()}: {wrong.malformed.why}",
                expected=stated.upper(),
                got=repr(wrong.malformed.tag),
                where=f"{path}:{tagged[wrong.sequence].line_of(wrong.malformed.position)}",
                fix=f"leave the scheme out or state {wrong.better!r}, which fits better"
                if wrong.better != stated
                else "repair the file, which mixes schemes",
            )
        return SchemeGuess(stated, guess.evidence, True)
    if not guess.certain and any(key != "breaks iob2" for key in guess.evidence):
        scan.problems.append(Problem("doubtful-scheme", str(path), _doubt(guess)))
    return guess


def _refuse_untaglike(scan: _Scan, sentences: Sequence[_Rows], guess: SchemeGuess) -> set[int]:
    """Raise SchemeError for the first value that is not a tag: empty, or lacking a prefix.

    Where broken documents are left out, those are the sentences with such a value, by `id`.
    """
    left_out: set[int] = set()
    prefixed = bool(guess.evidence.keys() & set("BIESLUMW"))
    distinct = {tag for rows in sentences for tag in rows.tags}
    wrong = {tag for tag in distinct if not parse_tag(tag)[0] and (prefixed or is_affixed(tag))}
    for rows in sentences if wrong else ():
        place = next((place for place, tag in enumerate(rows.tags) if tag in wrong), None)
        if place is not None:
            error = SchemeError(
                "not a tag",
                expected="O, or a prefix and a type as in B-Disease",
                got=repr(rows.tags[place]),
                where=f"{scan.path}:{rows.line_of(place)}",
                fix="repair the line, or state the columns",
            )
            scan.skip(error, rows.document)
            left_out.add(id(rows))
    return left_out


def _doubt(guess: SchemeGuess) -> str:
    """Why a scheme is uncertain, in words."""
    evidence = ", ".join(f"{key}: {count}" for key, count in guess.evidence.items())
    breaks = {key: count for key, count in guess.evidence.items() if key.startswith("breaks")}
    if breaks[f"breaks {guess.scheme}"]:
        return f"no scheme explains every tag; read as {guess.scheme.upper()} ({evidence})"
    return (
        f"no B- tag: IOB1 or IO, read as {guess.scheme.upper()}; in IO neighbours of one type "
        f"cannot be told apart ({evidence})"
    )


def _documents(scan: _Scan, scheme: str) -> list[Document]:
    """Group sentences under their marks; without marks, each is one document."""
    options = scan.options
    if not scan.marks and options.types is None:  # nothing can be wrong with one any more
        return [_alone(scan, rows, scheme, options) for rows in scan.sentences]
    documents: list[Document] = []
    if not scan.marks:
        for rows in scan.sentences:
            with options.document(scan.problems, f"{scan.file}:{rows.line}"):
                documents.append(_alone(scan, rows, scheme, options))
        return documents
    for number, grouped in groupby(scan.sentences, key=attrgetter("document")):
        group = list(grouped)
        name = f"{scan.stem}:{group[0].line}"
        attributes = list(group[0].attributes) if len(group) == 1 else []
        if number >= 0:
            mark = scan.marks[number]
            name, attributes = mark.id, [*mark.attributes, *attributes]
        with options.document(scan.problems, f"{scan.file}:{group[0].line}"):
            documents.append(_document(scan, group, (name, tuple(attributes)), scheme, options))
    return documents


def _alone(scan: _Scan, rows: _Rows, scheme: str, options: Options) -> Document:
    """A document of one sentence, named after its line."""
    text, line, attributes = rows.text, rows.line, tuple(rows.attributes)
    name = f"{scan.stem}:{line}"
    if rows.spans is not None:
        made = _document(scan, (rows,), (name, attributes), scheme, options)
        return replace(made, unmarked=True)
    end = len(text)
    words = SpacedWords(text, 0, end)
    entities = tuple(_entities(scan, rows, words, scheme, options)) if rows.tags else ()
    sentences = (Sentence(0, end, words),)
    source = f"{scan.file}:{line}"
    return Document(name, text, entities, (), sentences, attributes, source, unmarked=True)


def _document(
    scan: _Scan,
    group: Sequence[_Rows],
    head: tuple[str, tuple[tuple[str, str], ...]],
    scheme: str,
    options: Options,
) -> Document:
    text = "\n".join([rows.text for rows in group])
    sentences: list[Sentence] = []
    entities: list[Entity] = []
    start = 0
    for rows in group:
        end = start + len(rows.text)
        tokens: Spans = SpacedWords(text, start, end)
        if rows.spans is not None:
            tokens = pack_spans((a + start, b + start) for a, b in rows.spans)
        sentences.append(Sentence(start, end, tokens))
        if rows.tags:
            entities += _entities(scan, rows, tokens, scheme, options, before=len(entities))
        start = end + 1
    source = f"{scan.file}:{group[0].line}"
    return Document(head[0], text, tuple(entities), (), tuple(sentences), head[1], source)


def _entities(
    scan: _Scan, rows: _Rows, tokens: Spans, scheme: str, options: Options, *, before: int = 0
) -> list[Entity]:
    """The entities of one sentence, numbered after `before`; malformed tags become problems."""
    spans, malformed = spans_from_tags(rows.tags, scheme)
    for position, tag, why in malformed:
        where = f"{scan.file}:{rows.line_of(position)}"
        scan.problems.append(Problem("malformed-tag", where, f"{tag}: {why}"))
    stretches = tokens.stretches((first, last) for first, last, _ in spans)
    entities: list[Entity] = []
    for (first, _, named), stretch in zip(spans, stretches, strict=True):
        kind = named or options.bare_type
        if options.types is not None:
            options.require(kind, f"{scan.file}:{rows.line_of(first)}")
        before += 1
        entities.append(Entity(entity_id(before), kind, (stretch,)))
    return entities


# --- Writing CoNLL --------------------------------------------------------------------------------
#
# Two columns, the token and the tag, separated by a tab.

_PLACEHOLDER = "\ufffd"
_BREAKS = re.compile(r"[\t\n\r\ufeff\0]")
_BLANK = re.compile(r"\s+")


def write_conll(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents as one CoNLL file, and return what it cannot hold.

    Documents without sentences are segmented first. Documents of several sentences follow a
    ``# newdoc id =`` line; attributes are comment lines ``# key = value``.

    Raises:
        SettingsError: there is no such scheme.
        DataError: the file cannot be written.
    """
    scheme = scheme_named(scheme)
    problems: list[Problem] = []
    ready = [segmented(document) for document in documents]
    marked = any(len(document.sentences) > 1 for document in ready)
    write_parts(path, (_part(document, marked, scheme, problems) for document in ready))
    return problems + _unheld(ready, path)


def _part(document: Document, marked: bool, scheme: str, problems: list[Problem]) -> str:
    """A segmented document as lines; what they cannot hold goes to `problems`."""
    if not document.sentences:
        what = "a document without a token has no line"
        problems.append(Problem("empty-document", document.source or document.id, what, True))
        return ""
    lines = _head(document, marked)
    spans, lost = flat_spans(document)
    problems += lost
    for sentence, (tokens, kept) in enumerate(
        zip(map(document.token_texts, document.sentences), spans, strict=True)
    ):
        start = document.sentences[sentence].start
        safe = [_token(token, document, start, problems) for token in tokens]
        tags = _tags(len(tokens), kept, scheme, (document, start), problems)
        lines += [f"{token}\t{tag}" for token, tag in zip(safe, tags, strict=True)]
        if tokens:
            lines.append("")
    return "\n".join(lines) + "\n" if lines else ""


def _head(document: Document, marked: bool) -> list[str]:
    """The comment lines above a document."""
    pairs = [("newdoc id", document.id)] if marked else []
    pairs += document.attributes
    return [f"# {key} = {_BLANK.sub(' ', value)}" for key, value in pairs]


def _token(token: str, document: Document, start: int, problems: list[Problem]) -> str:
    """A token in a form that fits a column."""
    safe = _BREAKS.sub(" ", token).strip(" ") if _BREAKS.search(token) else token
    if not safe or safe.isspace():
        safe = _PLACEHOLDER
    if is_document_mark(safe):
        safe = _PLACEHOLDER + safe
    if safe != token:
        where = place(document, start, start)
        what = "a token of this sentence cannot stand in a column as it is"
        problems.append(Problem("token-changed", where, what))
    return safe


def _tags(
    length: int,
    spans: Sequence[TokenSpan],
    scheme: str,
    where: tuple[Document, int],
    problems: list[Problem],
) -> list[str]:
    """The tags of a sentence; reports types that a column cannot hold, and neighbours in IO."""
    named = [(start, end, _BLANK.sub("_", kind)) for start, end, kind in spans]
    at = place(where[0], where[1], where[1])
    for kind in sorted({kind for _, _, kind in spans if _BLANK.search(kind)}):
        problems.append(Problem("type-changed", at, f"{kind!r} has blanks: written with _"))
    if scheme == "io":
        for before, now in zip(named, named[1:], strict=False):
            if before[1] == now[0] and before[2] == now[2]:
                what = f"two {now[2]} next to each other are one in IO"
                problems.append(Problem("neighbours-joined", at, what, True))
    return tags_from_spans(length, named, scheme)


def _unheld(documents: Sequence[Document], path: Path) -> list[Problem]:
    """Problems for what no CoNLL file can hold, counted over all documents."""
    entities = [entity for document in documents for entity in document.entities]
    relations = sum(len(document.relations) for document in documents)
    respaced = sum(document.text != _joined(document) for document in documents)
    return [
        *unheld(path, "relations: CoNLL has no relations", relations, kind="relations-unheld"),
        *unheld(
            path,
            "confidences: CoNLL has no place for them",
            sum(entity.confidence is not None for entity in entities),
            kind="confidences-unheld",
        ),
        *unheld(
            path,
            "entities with concepts or attributes: CoNLL holds types only",
            sum(bool(entity.concepts or entity.attributes) for entity in entities),
            kind="attributes-unheld",
        ),
        *unheld(
            path,
            "documents lose their white space: CoNLL holds tokens only",
            respaced,
            kind="white-space-unheld",
        ),
    ]


def _joined(document: Document) -> str:
    """The text that a reader will make of the document's tokens."""
    return "\n".join(" ".join(document.token_texts(sentence)) for sentence in document.sentences)
