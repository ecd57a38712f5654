"""i2b2 2009: medications in notes, an entry for each with its dose, mode, frequency and so on.

An entry stands on a line of a file beside the note; places are those of `i2b2`, and a field of
several pieces has several places, cut by commas:

    m="aspirin" 12:3 12:3||do="81 mg" 12:4 12:5||mo="nm"||f="daily" 12:6 12:6||ln="list"
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Document, Entity, Problem, Relation, Sentence, Span
from confide.text.files import lines_of, read_text
from confide.text.formats.base import NO_DATA, Options, Reading, merged_fragments, shown, shown_at
from confide.text.formats.i2b2 import agree, span_of, tokens_of_lines

TYPES = {
    "m": "medication", "do": "dosage", "mo": "mode", "f": "frequency", "du": "duration",
    "r": "reason",
}  # fmt: skip
"""Fields with a place, and the types of their entities."""
_OTHERS = {"e": "event", "t": "temporal", "c": "certainty", "ln": "listed"}
_NOT_MENTIONED = "nm"
_ENTRY = re.compile(r'm="')
_FIELD = re.compile(
    r'([a-z]{1,2})="((?:(?!\|\|[a-z]{1,2}=").)*?)"'  # a field never runs into the next one
    r"((?:[ ,]{1,2}\d{1,9}:\d{1,9} \d{1,9}:\d{1,9})*+)(?:\|\||\Z)",
    re.ASCII,
)
_PLACE = re.compile(r"(\d+):(\d+) (\d+):(\d+)", re.ASCII)
_STEM = re.compile(r"(.+?)(?:[._](?:i2b2|gold|entries|m|annotations?|txt|text|deid).*)?")
_SAMPLE = 5
_EXPECTED = 'm="medication" line:token line:token||do="..."||mo="..."||f="..."||ln="list"'


@dataclass(slots=True)
class _Note:
    """A note in the making."""

    text: str
    lines: list[tuple[Span, ...]]
    problems: list[Problem]
    entities: dict[tuple[str, tuple[Span, ...]], Entity] = field(default_factory=dict)
    relations: list[Relation] = field(default_factory=list)


def is_entries(lines: list[str]) -> bool:
    """Whether the first lines of a file are entries."""
    first = [line.strip() for line in lines if line.strip()][:_SAMPLE]
    return bool(first) and all(_ENTRY.match(line) and "||" in line for line in first)


def read(path: Path, options: Options) -> Reading:
    """Read all notes of a folder that have entries, or the note of one file of entries.

    A medication is linked to each of its fields by a relation of the field's type. Events,
    temporality, certainty and "listed" (list or narrative) are attributes of the medication.

    Raises:
        MissingDataError: a note's text is missing, or there are no entries.
        FormatError: a line is no entry.
        DataError: a type was not declared.
    """
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    pages = {file: _entries(file, options) for file in files if file.is_file() and _data(file)}
    entries = {file: lines for file, lines in pages.items() if lines is not None}
    if not entries:
        raise MissingDataError("there are no entries", expected=_EXPECTED, where=str(path))
    reading = Reading([], [], "i2b2-2009", {"encoding": options.encoding or "utf-8"})
    for file, lines in entries.items():
        with options.document(reading.problems, file):
            reading.documents.append(_document(file, lines, options, reading.problems))
    if not reading.documents:
        raise DataError("there is no note", where=str(path))
    return reading


def _data(file: Path) -> bool:
    return not file.name.startswith(".") and not NO_DATA.search(file.name)


def _entries(file: Path, options: Options) -> list[str] | None:
    text, _ = read_text(file, options.encoding)
    lines = lines_of(text)
    return lines if any(_ENTRY.match(line.strip()) for line in lines) else None


def _stem(name: str) -> str:
    match = _STEM.fullmatch(name)
    return match[1] if match else name


def _text_of(file: Path) -> Path:
    """The note of a file of entries, beside it or in a folder beside its own."""
    stem = _stem(file.name)
    places = [file.parent]
    if file.parent.parent != file.parent:
        places += sorted(one for one in file.parent.parent.iterdir() if one.is_dir())
    for place in places:
        for name in (stem, f"{stem}.txt", f"{stem}.text"):
            found = place / name
            if found.is_file() and found != file:
                return found
    raise MissingDataError(
        "the text of the entries is missing",
        expected=f"{stem} or {stem}.txt beside it",
        where=str(file),
    )


def _document(file: Path, lines: list[str], options: Options, problems: list[Problem]) -> Document:
    source = _text_of(file)
    rows = lines_of(read_text(source, options.encoding)[0])
    note = _Note("\n".join(rows), tokens_of_lines(rows), problems)
    for number, line in enumerate(lines, 1):
        if line.strip():
            _entry(note, line.strip(), f"{file}:{number}", options)
    return Document(
        _stem(file.name),
        note.text,
        tuple(note.entities.values()),
        tuple(note.relations),
        sentences=tuple(Sentence(row[0][0], row[-1][1], row) for row in note.lines if row),
        source=str(source),
    )


def _fields(line: str, where: str) -> Iterator[tuple[str, str, str]]:
    place = 0
    while place < len(line):
        match = _FIELD.match(line, place)
        if match is None:
            raise FormatError(
                "not an entry", expected=_EXPECTED, got=shown(line[place:]), where=where
            )
        yield match[1], match[2], match[3]
        place = match.end()


def _entry(note: _Note, line: str, where: str, options: Options) -> None:
    drug = ""
    said: list[tuple[str, str]] = []
    parts: list[tuple[str, str]] = []
    for key, surface, places in _fields(line, where):
        if key in _OTHERS:
            if surface != _NOT_MENTIONED:
                said.append((_OTHERS[key], surface))
        elif key not in TYPES:
            what = f"the field {key} is not known"
            note.problems.append(Problem("key-ignored", where, what, lost=True))
        elif places.strip():
            options.require(TYPES[key], where)
            name = _entity(note, TYPES[key], surface, places, where=where)
            if key == "m":
                drug = name
            elif name:
                parts.append((TYPES[key], name))
    for kind, tail in parts if drug else ():
        name = f"R{len(note.relations) + 1}"
        note.relations.append(Relation(name, kind, drug, tail))
    if parts and not drug:
        what = f"{len(parts)} fields of a medication without a place"
        note.problems.append(Problem("dangling-relation", where, what, lost=True))
    for at, entity in note.entities.items():
        if entity.id == drug and said:
            pairs = tuple(dict.fromkeys((*entity.attributes, *said)))
            note.entities[at] = Entity(drug, entity.type, entity.fragments, attributes=pairs)


def _entity(note: _Note, kind: str, surface: str, places: str, *, where: str) -> str:
    """The id of the entity at some places; empty if one is not there."""
    spans: list[Span] = []
    for match in _PLACE.finditer(places):
        line, token, last_line, last_token = (int(part) for part in match.groups())
        span = span_of(note.lines, (line, token, last_line, last_token))
        if span is None:
            what = f"{kind} {shown(surface)} points to a line or token that the note has not"
            note.problems.append(Problem("beyond-text", where, what, lost=True))
            return ""
        spans.append(span)
    fragments = merged_fragments(spans)
    words = surface.replace(" ... ", " ")
    if len(fragments) == 1 and not agree(note.text, fragments[0], words):
        what = f"{kind} {shown(surface)} is {shown_at(note.text, fragments)} in the text"
        note.problems.append(Problem("text-mismatch", where, what))
    known = note.entities.get((kind, fragments))
    if known is None:
        known = Entity(f"T{len(note.entities) + 1}", kind, fragments)
        note.entities[kind, fragments] = known
    return known.id
