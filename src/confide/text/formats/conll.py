"""CoNLL columns: one token per line, a tag beside it, a blank line between sentences.

The text of a document is its tokens joined by spaces and its sentences joined by newlines. Without
document marks, every sentence is a document of its own, named "<file stem>:<line>".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import DataError, FormatError, SchemeError, SettingsError
from confide.text.document import Document, Entity, Problem, Sentence, Span
from confide.text.files import lines_of, read_text
from confide.text.formats.base import Columns, Options, Reading
from confide.text.formats.columns import (
    Layout,
    find_layout,
    is_affixed,
    is_document_mark,
    looks_like_comment,
)
from confide.text.schemes import (
    SchemeGuess,
    contradiction,
    detect_scheme,
    parse_tag,
    scheme_named,
    spans_from_tags,
)

PLACEHOLDER = "\ufffd"
_NEW_DOCUMENT = re.compile(r"#\s*(?:newdoc(?:\s+id)?|doc_id|doc id|document)\s*(?:=\s*(.*))?$")
_DOCSTART = re.compile(r"-DOCSTART-\s*\(([^)]*)\)")
_BEGIN = re.compile(r"#\s*begin document\s*(.*)$")
_KEY_VALUE = re.compile(r"(?<![\w.-])([\w.-]+)[ \t]*=[ \t]*([^\t]*)")


@dataclass(slots=True)
class _Rows:
    """One sentence of the file: tokens, tags and their line numbers."""

    tokens: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    attributes: list[tuple[str, str]] = field(default_factory=list)
    document: int = -1
    """The number of the document mark above it; -1 before the first."""


@dataclass(slots=True)
class _Mark:
    """A mark of a new document."""

    id: str
    attributes: list[tuple[str, str]] = field(default_factory=list)


class _Scan:
    """One pass over the lines of a file."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.layout = path, layout
        self.file, self.stem = str(path), path.stem
        self.sentences: list[_Rows] = []
        self.marks: list[_Mark] = []
        self.problems: list[Problem] = []
        self._now = _Rows()

    def run(self, lines: Sequence[str]) -> None:
        """Sort every line into rows, marks and comments."""
        for number, line in enumerate(lines, 1):
            if not line or line.isspace():
                self._close()
            elif line[0] == "-" and is_document_mark(line):
                named = _DOCSTART.match(line)
                self._mark(named.group(1).strip() if named else "", number)
            elif line[0] == "#" and looks_like_comment(line) and not self._is_row(line):
                self._comment(line, number)
            else:
                self._row(line, number)
        self._close()

    def _close(self) -> None:
        if self._now.tokens:
            self._now.document = len(self.marks) - 1
            self.sentences.append(self._now)
            self._now = _Rows()

    def _mark(self, name: str, number: int) -> None:
        self._close()
        self.marks.append(_Mark(name or f"{self.stem}:{number}", self._now.attributes))
        self._now = _Rows()

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
        if self._now.tokens:
            self._note("comment-in-sentence", number, "a comment between the tokens of a sentence")
        words = line.lstrip("# \t")
        pairs = [(key, value.strip()) for key, value in _KEY_VALUE.findall(words)]
        if words.startswith("id "):
            pairs = [("id", words[3:].split("\t")[0].split(" ")[0]), *pairs]
        self._now.attributes += pairs

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
        now = self._now
        now.tokens.append(token)
        now.tags.append("O" if layout.tag is None else fields[layout.tag].strip())
        now.lines.append(number)

    def _misfits(self, width: int) -> bool:
        """Whether a line whose width differs from the others cannot be read safely."""
        needed = max(self.layout.token, self.layout.tag or 0)
        return width <= needed or not self.layout.tabs or self.layout.width == 2

    def _note(self, kind: str, number: int, what: str) -> None:
        self.problems.append(Problem(kind, f"{self.path}:{number}", what))


def read(path: Path, options: Options) -> Reading:
    """Read a CoNLL file.

    Raises:
        FormatError: a line's columns differ from the rest, or there is no column of tags.
        SchemeError: a value is not a tag, or the tags contradict the stated scheme.
        DataError: there is no token in the file, or a type was not declared.
    """
    text, encoding = read_text(path, options.encoding)
    lines = lines_of(text)
    if not text.strip():
        raise DataError("the file is empty", where=str(path))
    layout = find_layout(lines, _numbered(options.columns, str(path)), str(path))
    scan = _Scan(path, layout)
    scan.run(lines)
    if not scan.sentences:
        raise DataError("the file holds no token", where=str(path))
    problems = scan.problems
    if layout.doubt:
        problems.append(Problem("doubtful-columns", str(path), layout.doubt))
    guess = _scheme(scan.sentences, options, path, problems)
    details = {"scheme": guess.scheme, "encoding": encoding, "columns": layout.describe()}
    details["evidence"] = ", ".join(f"{key} {count}" for key, count in guess.evidence.items())
    documents = _documents(scan, guess.scheme, options)
    return Reading(documents, problems, "conll", details)


def _numbered(columns: Columns | None, where: str) -> tuple[int, int | None] | None:
    """The stated columns, which have numbers here. Raises SettingsError for names."""
    if columns is None:
        return None
    token, tag = columns
    if not isinstance(token, int) or isinstance(tag, str):
        raise SettingsError(
            "the columns of a CoNLL file have no names",
            expected="numbers from 0, or from -1 at the end, such as 0,3 or 0,-1",
            got=f"{token},{tag}",
            where=where,
        )
    return token, tag


def _scheme(
    sentences: Sequence[_Rows], options: Options, path: Path, problems: list[Problem]
) -> SchemeGuess:
    """The scheme, stated or detected; values that are not tags, and contradictions, are errors."""
    sequences = [rows.tags for rows in sentences]
    guess = detect_scheme(sequences)
    _refuse_untaglike(sentences, guess, path)
    if options.scheme is not None:
        stated = scheme_named(options.scheme)
        wrong = contradiction(sequences, stated)
        if wrong is not None:
            raise SchemeError(
                f"the tags are not {stated.upper()}: {wrong.malformed.why}",
                expected=stated.upper(),
                got=repr(wrong.malformed.tag),
                where=f"{path}:{sentences[wrong.sequence].lines[wrong.malformed.position]}",
                fix=f"leave the scheme out or state {wrong.better!r}, which fits better"
                if wrong.better != stated
                else "repair the file, which mixes schemes",
            )
        return SchemeGuess(stated, guess.evidence, True)
    if not guess.certain and any(key != "breaks iob2" for key in guess.evidence):
        problems.append(Problem("doubtful-scheme", str(path), _doubt(guess)))
    return guess


def _refuse_untaglike(sentences: Sequence[_Rows], guess: SchemeGuess, path: Path) -> None:
    """Raise SchemeError for the first value that is not a tag: empty, or lacking a prefix."""
    prefixed = bool(guess.evidence.keys() & set("BIESLUMW"))
    distinct = {tag for rows in sentences for tag in rows.tags}
    wrong = {tag for tag in distinct if not parse_tag(tag)[0] and (prefixed or is_affixed(tag))}
    for rows in sentences if wrong else ():
        for tag, line in zip(rows.tags, rows.lines, strict=True):
            if tag in wrong:
                raise SchemeError(
                    "not a tag",
                    expected="O, or a prefix and a type as in B-Disease",
                    got=repr(tag),
                    where=f"{path}:{line}",
                    fix="repair the line, or state the columns",
                )


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


def _documents(scan: _Scan, scheme: str, options: Options) -> list[Document]:
    """Group sentences under their marks; without marks, each is one document."""
    groups: list[list[_Rows]] = []
    for rows in scan.sentences:
        if not scan.marks or not groups or rows.document != groups[-1][0].document:
            groups.append([rows])
        else:
            groups[-1].append(rows)
    documents = []
    for group in groups:
        first = group[0]
        name = f"{scan.stem}:{first.lines[0]}"
        attributes = list(first.attributes) if len(group) == 1 else []
        if first.document >= 0:
            mark = scan.marks[first.document]
            name, attributes = mark.id, mark.attributes + attributes
        documents.append(_document(scan, group, (name, tuple(attributes)), scheme, options))
    return documents


def _document(
    scan: _Scan,
    group: Sequence[_Rows],
    head: tuple[str, tuple[tuple[str, str], ...]],
    scheme: str,
    options: Options,
) -> Document:
    sentences: list[Sentence] = []
    spans: list[list[tuple[int, int, str]]] = []
    offset = 0
    for rows in group:
        tokens: list[Span] = []
        start = offset
        for token in rows.tokens:
            end = offset + len(token)
            tokens.append((offset, end))
            offset = end + 1
        sentences.append(Sentence(start, offset - 1, tuple(tokens)))
        spans.append(_spans(scan, rows, scheme, options))
    found = [
        (kind, sentence.tokens[first][0], sentence.tokens[last - 1][1])
        for sentence, row in zip(sentences, spans, strict=True)
        for first, last, kind in row
    ]
    return Document(
        id=head[0],
        text="\n".join([" ".join(rows.tokens) for rows in group]),
        entities=tuple(
            Entity(f"T{number}", kind, ((start, end),))
            for number, (kind, start, end) in enumerate(found, 1)
        ),
        sentences=tuple(sentences),
        attributes=head[1],
        source=f"{scan.file}:{group[0].lines[0]}",
    )


def _spans(scan: _Scan, rows: _Rows, scheme: str, options: Options) -> list[tuple[int, int, str]]:
    """The entities of one sentence; malformed tags become problems."""
    if rows.tags.count("O") == len(rows.tags):
        return []
    spans, malformed = spans_from_tags(rows.tags, scheme)
    for position, tag, why in malformed:
        where = f"{scan.file}:{rows.lines[position]}"
        scan.problems.append(Problem("malformed-tag", where, f"{tag}: {why}"))
    named = [(start, end, kind or options.bare_type) for start, end, kind in spans]
    for start, _, kind in named:
        options.require(kind, f"{scan.file}:{rows.lines[start]}")
    return named
