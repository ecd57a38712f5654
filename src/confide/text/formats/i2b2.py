"""i2b2/VA 2010: notes as lines of tokens, and beside them concepts, assertions and relations.

A note is ``name.txt``; ``name.con``, ``name.ast`` and ``name.rel`` point into it by position,
``line:token``. Lines count from 1, tokens (runs without white space) from 0, and the last token is
inclusive. Concepts are in lower case. The files of a note are in one folder or, as published, in
sibling folders called txt, concept, ast and rel.

    c="chest pain" 3:4 3:5||t="problem"
    c="chest pain" 3:4 3:5||t="problem"||a="present"
    c="aspirin" 3:0 3:0||r="TrAP"||c="chest pain" 3:4 3:5
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Document, Entity, Problem, Relation, Sentence, Span
from confide.text.files import lines_of, read_text
from confide.text.formats.base import NO_DATA, Options, Reading, shown, shown_at

CONCEPTS, ASSERTIONS, RELATIONS = ".con", ".ast", ".rel"
ENDINGS = (".txt", CONCEPTS, ASSERTIONS, RELATIONS)
FOLDERS = frozenset(("txt", "concept", "concepts", "con", "ast", "assertion", "rel", "relation"))
_PLACE = r'c="(.*?)" (\d{1,9}):(\d{1,9}) (\d{1,9}):(\d{1,9})'
_FORMS = {
    CONCEPTS: re.compile(rf'{_PLACE}\|\|t="([^"]+)"', re.ASCII),
    ASSERTIONS: re.compile(rf'{_PLACE}\|\|t="([^"]+)"\|\|a="([^"]+)"', re.ASCII),
}
_KIND = re.compile(r'\|\|r="([^"]+)"\|\|c="')
_TAIL = re.compile(r'" (\d{1,9}):(\d{1,9}) (\d{1,9}):(\d{1,9})\Z', re.ASCII)
_LONGEST_TAIL = 44
_EXPECTED = {
    CONCEPTS: 'c="text" line:token line:token||t="type"',
    ASSERTIONS: 'c="text" line:token line:token||t="problem"||a="assertion"',
    RELATIONS: 'c="text" line:token line:token||r="type"||c="text" line:token line:token',
}
_SLACK = 200
_TOKEN = re.compile(r"[^ \t\f\v\r]+")
Place = tuple[int, int, int, int]
Parts = tuple[str, ...]
"""A line, and the groups of its pattern from 1 on."""


class _Mention(NamedTuple):
    """A concept in a line: its text in lower case, and (line, token, line, token)."""

    surface: str
    place: Place


@dataclass(slots=True)
class _Note:
    """A note in the making; `lines` are its tokens, line by line, as offsets into the text."""

    name: str
    text: str
    lines: list[tuple[Span, ...]]
    entities: dict[str, Entity] = field(default_factory=dict)
    relations: list[Relation] = field(default_factory=list)
    at: dict[Place, str] = field(default_factory=dict)
    assertions: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def read(path: Path, options: Options) -> Reading:
    """Read all notes below a folder, or the note that one file belongs to.

    Every line with a token is a sentence. A concept's assertion becomes its attribute "assertion".
    Relations go to the concept at exactly their position.

    Raises:
        MissingDataError: annotation without its text, or nothing there.
        FormatError: a line does not belong into its file.
        DataError: a note occurs twice, or a type was not declared.
    """
    folder = path if path.is_dir() else note_folder(path)
    notes = _notes(folder)
    if not path.is_dir():
        notes = {name: files for name, files in notes.items() if path in files.values()}
    if not notes:
        raise MissingDataError(
            "there is no note", expected=".txt, .con and .rel files", where=str(path)
        )
    reading = Reading([], [], "i2b2", {"encoding": options.encoding or "utf-8"})
    for name, files in sorted(notes.items()):
        with options.document(reading.problems, next(iter(files.values()))):
            reading.documents.append(_document(name, files, options, reading.problems))
    return reading


def belongs(path: Path) -> bool:
    """Whether a file is one of a note's: a .con or .ast file, or a text that has a .con file."""
    ending = path.suffix.lower()
    if ending != ".txt":
        return ending in (CONCEPTS, ASSERTIONS)
    places = [path.parent]
    if path.parent.name.lower() in FOLDERS:
        places += [path.parent.parent / name for name in sorted(FOLDERS)]
    return any((place / f"{path.stem}{CONCEPTS}").is_file() for place in places)


def note_folder(path: Path) -> Path:
    """The folder that holds all files of a note, given one of them."""
    return path.parent.parent if path.parent.name.lower() in FOLDERS else path.parent


def _notes(folder: Path) -> dict[str, dict[str, Path]]:
    """The files of each note by their ending; notes are named by their path in the folder."""
    notes: dict[str, dict[str, Path]] = {}
    try:
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error
    for file in files:
        if file.name.startswith(".") or not file.is_file():
            continue
        inside = note_folder(file)
        base = inside.relative_to(folder) if inside.is_relative_to(folder) else Path()
        parts = notes.setdefault((base / file.stem).as_posix(), {})
        ending = file.suffix.lower()
        if ending in parts:
            raise DataError(
                f"the note is there twice, in {parts[ending]} too",
                where=str(file),
                fix="keep one, or read the folders one by one",
            )
        parts[ending] = file
    annotated = {name: parts for name, parts in notes.items() if parts.keys() - {".txt"}}
    return {
        name: parts
        for name, parts in notes.items()
        if name in annotated or not NO_DATA.search(parts[".txt"].name)
    }


def _document(
    name: str, files: dict[str, Path], options: Options, problems: list[Problem]
) -> Document:
    if ".txt" not in files:
        raise MissingDataError(
            "the text of the annotations is missing",
            expected=f"{name}.txt",
            where=str(next(iter(files.values()))),
        )
    text, _ = read_text(files[".txt"], options.encoding)
    rows = lines_of(text)
    note = _Note(name, "\n".join(rows), tokens_of_lines(rows))
    if CONCEPTS not in files:
        what = "no .con file beside it: read without annotation"
        problems.append(Problem("no-annotation-file", str(files[".txt"]), what))
    for ending, add in ((CONCEPTS, _concept), (ASSERTIONS, _assertion), (RELATIONS, _relation)):
        for where, match in _matches(files.get(ending), ending, options):
            if ending == CONCEPTS:
                options.require(match[6], where)
            add(note, match, where, problems)
    for id, pairs in note.assertions.items():
        note.entities[id] = replace(note.entities[id], attributes=tuple(pairs))
    return Document(
        name,
        note.text,
        entities=tuple(note.entities.values()),
        relations=tuple(note.relations),
        sentences=tuple(Sentence(row[0][0], row[-1][1], row) for row in note.lines if row),
        source=str(files[".txt"]),
    )


def _matches(file: Path | None, ending: str, options: Options) -> Iterator[tuple[str, Parts]]:
    if file is None:
        return
    text, _ = read_text(file, options.encoding)
    for number, line in enumerate(lines_of(text), 1):
        if not line.strip():
            continue
        match = _parts(line.strip(), ending)
        if not match:
            raise FormatError(
                f"not a line of a {ending} file",
                expected=_EXPECTED[ending],
                where=f"{file}:{number}",
            )
        yield f"{file}:{number}", match


def is_relation_line(line: str) -> bool:
    """Whether a line is one of a ``.rel`` file."""
    return bool(_parts(line.strip(), RELATIONS))


def _parts(line: str, ending: str) -> Parts:
    """The line with its one or two places and its values; empty if it has another form."""
    if ending != RELATIONS:
        match = _FORMS[ending].fullmatch(line)
        return (line, *match.groups()) if match else ()
    tail = _tail(line, len(line))
    if tail is None or not line.startswith('c="'):
        return ()
    for kind in _KIND.finditer(line):
        head = _tail(line, kind.start())
        if head is not None and head.start() >= 3 and kind.end() <= tail.start():
            first, second = line[3 : head.start()], line[kind.end() : tail.start()]
            return (line, first, *head.groups(), kind[1], second, *tail.groups())
    return ()


def _tail(line: str, end: int) -> re.Match[str] | None:
    """The four numbers before `end`, behind a quotation mark."""
    return _TAIL.search(line, max(0, end - _LONGEST_TAIL), end)


def _mention(match: Parts, first: int) -> _Mention:
    """The concept whose five groups begin with group `first`."""
    line, token, last_line, last_token = (int(match[first + n]) for n in range(1, 5))
    return _Mention(match[first], (line, token, last_line, last_token))


def tokens_of_lines(lines: Sequence[str]) -> list[tuple[Span, ...]]:
    """The runs without white space of each line, as offsets into the lines joined by newlines."""
    found: list[tuple[Span, ...]] = []
    offset = 0
    for line in lines:
        tokens = [match.span() for match in _TOKEN.finditer(line)]
        found.append(tuple((start + offset, end + offset) for start, end in tokens))
        offset += len(line) + 1
    return found


def span_of(lines: Sequence[tuple[Span, ...]], place: Place) -> Span | None:
    """The characters from the first token to the last; None if one of them does not exist."""
    line, token, last_line, last_token = place
    if not 1 <= line <= last_line <= len(lines) or (line, token) > (last_line, last_token):
        return None
    rows = lines[line - 1], lines[last_line - 1]
    if token >= len(rows[0]) or last_token >= len(rows[1]):
        return None
    return rows[0][token][0], rows[1][last_token][1]


def _concept(note: _Note, match: Parts, where: str, problems: list[Problem]) -> None:
    (surface, place), kind = _mention(match, 1), match[6]
    span = span_of(note.lines, place)
    if span is None:
        what = f"{kind} {shown(surface)} points to a line or token that the note has not"
        problems.append(Problem("beyond-text", where, what, lost=True))
        return
    if not agree(note.text, span, surface):
        what = f"{kind} {shown(surface)} is {shown_at(note.text, [span])} in the text"
        problems.append(Problem("text-mismatch", where, what))
    same = note.entities.get(note.at.get(place, ""))
    if same is not None:
        what = f"{kind} {shown(surface)} stands where {same.type} {same.id} does"
        if same.type == kind:
            problems.append(Problem("duplicate-mention", where, what))
            return
        what += ", which the relations of this place go to"
        problems.append(Problem("ambiguous-mention", where, what))
    name = f"T{len(note.entities) + 1}"
    note.entities[name] = Entity(name, kind, (span,))
    note.at.setdefault(place, name)


def _assertion(note: _Note, match: Parts, where: str, problems: list[Problem]) -> None:
    (surface, place), value = _mention(match, 1), match[7]
    name = note.at.get(place)
    if name is None:
        what = f"{value}: no concept stands at the place of {shown(surface)}"
        problems.append(Problem("dangling-attribute", where, what, lost=True))
        return
    note.assertions.setdefault(name, []).append(("assertion", value))


def agree(text: str, span: Span, surface: str) -> bool:
    """Whether a stretch equals a surface apart from case and white space."""
    if span[1] - span[0] > 2 * len(surface) + _SLACK:
        return False
    return text[slice(*span)].lower().split() == surface.lower().split()


def _relation(note: _Note, match: Parts, where: str, problems: list[Problem]) -> None:
    ends, kind = (_mention(match, 1), _mention(match, 7)), match[6]
    names = [note.at.get(end.place) for end in ends]
    for end, name in zip(ends, names, strict=True):
        if name is None:
            what = f"{kind}: no concept stands at the place of {shown(end.surface)}"
            problems.append(Problem("dangling-relation", where, what, lost=True))
            return
        span = note.entities[name].fragments[0]
        if not agree(note.text, span, end.surface):
            found = shown_at(note.text, [span])
            what = f"{kind} of {shown(end.surface)} goes to {found}, which stands there"
            problems.append(Problem("text-mismatch", where, what))
    head, tail = map(str, names)
    note.relations.append(Relation(f"R{len(note.relations) + 1}", kind, head, tail))
