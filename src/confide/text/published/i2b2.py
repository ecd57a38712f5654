"""i2b2's corpora: concepts and relations of 2010, medications of 2009, the XML of 2012 and 2014."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError, os_errors_as
from confide.text import reading
from confide.text.document import Document, Sentence, Span
from confide.text.files import Element, lines_of, parse_xml, read_text, root_name
from confide.text.reading import NO_DATA, Draft, Format, Options, Reading, Sample, Source
from confide.text.rows import clean, quoted, whole_numbers

# --- i2b2/VA 2010 ---------------------------------------------------------------------------------
#
# Notes as lines of tokens, and beside them concepts, assertions and relations.
#
# A note is ``name.txt``; ``name.con``, ``name.ast`` and ``name.rel`` point into it by position,
# ``line:token``. Lines count from 1, tokens (runs without white space) from 0, and the last token
# is inclusive. Concepts are in lower case. The files of a note are in one folder or, as published,
# in sibling folders called txt, concept, ast and rel.
#
#     c="chest pain" 3:4 3:5||t="problem"
#     c="chest pain" 3:4 3:5||t="problem"||a="present"
#     c="aspirin" 3:0 3:0||r="TrAP"||c="chest pain" 3:4 3:5

CONCEPTS, ASSERTIONS, RELATIONS = ".con", ".ast", ".rel"
ENDINGS = (".txt", CONCEPTS, ASSERTIONS, RELATIONS)
FOLDERS = frozenset(("txt", "concept", "concepts", "con", "ast", "assertion", "rel", "relation"))
_CONCEPT_PLACE = r'c="(.*?)" (\d{1,9}):(\d{1,9}) (\d{1,9}):(\d{1,9})'
_FORMS = {
    CONCEPTS: re.compile(rf'{_CONCEPT_PLACE}\|\|t="([^"]+)"', re.ASCII),
    ASSERTIONS: re.compile(rf'{_CONCEPT_PLACE}\|\|t="([^"]+)"\|\|a="([^"]+)"', re.ASCII),
}
_KIND = re.compile(r'\|\|r="([^"]+)"\|\|c="')
_TAIL = re.compile(r'" (\d{1,9}):(\d{1,9}) (\d{1,9}):(\d{1,9})\Z', re.ASCII)
_LONGEST_TAIL = 44
_EXPECTED_FORMS = {
    CONCEPTS: 'c="text" line:token line:token||t="type"',
    ASSERTIONS: 'c="text" line:token line:token||t="problem"||a="assertion"',
    RELATIONS: 'c="text" line:token line:token||r="type"||c="text" line:token line:token',
}
_SLACK = 200
_TOKEN = re.compile(r"[^ \t\f\v\r]+")
Place = tuple[int, int, int, int]
"""Line and token of the first word, line and token of the last."""


@dataclass(slots=True)
class _Note:
    """A note in the making.

    `lines` are its tokens, line by line, as offsets into the text; `at` has the ids of entities by
    their places.
    """

    draft: Draft
    lines: list[list[Span]]
    at: dict[tuple[object, ...], str] = field(default_factory=dict)

    def span(self, place: Place, kind: str, surface: str, *, where: str) -> Span | None:
        """The characters of a place; None, and a problem, if the note does not have it."""
        line, token, last_line, last_token = place
        if 1 <= line <= last_line <= len(self.lines) and place[:2] <= place[2:]:
            first, last = self.lines[line - 1], self.lines[last_line - 1]
            if token < len(first) and last_token < len(last):
                return first[token][0], last[last_token][1]
        what = f"{kind} {quoted(surface)} points to a line or token that the note has not"
        self.draft.lost("beyond-text", what, where=where)
        return None


def _read_2010(path: Path, options: Options) -> Reading:
    """Read all notes below a folder, or the note that one file belongs to.

    Every line with a token is a sentence. A concept's assertion becomes its attribute "assertion".
    Relations go to the concept at exactly their position.

    Raises:
        MissingDataError: annotation without its text, or nothing there.
        FormatError: a line does not belong into its file.
        DataError: a note occurs twice.
    """
    notes = _notes(path if path.is_dir() else _note_folder(path))
    if not path.is_dir():
        notes = {name: files for name, files in notes.items() if path in files.values()}
    if not notes:
        raise MissingDataError(
            "there is no note", expected=".txt, .con and .rel files", where=str(path)
        )
    source = Source(path, options, encoding=options.encoding or "utf-8")
    rows = ((str(next(iter(files.values()))), name, files) for name, files in sorted(notes.items()))
    return source.read(rows, _document_2010, format="i2b2")


def is_note_file(path: Path) -> bool:
    """True if a file is one of a note's: a .con or .ast file, or a text that has a .con file."""
    ending = path.suffix.lower()
    if ending != ".txt":
        return ending in (CONCEPTS, ASSERTIONS)
    places = [path.parent]
    if path.parent.name.lower() in FOLDERS:
        places += [path.parent.parent / name for name in sorted(FOLDERS)]
    return any((place / f"{path.stem}{CONCEPTS}").is_file() for place in places)


def _note_folder(path: Path) -> Path:
    """The folder that holds all files of a note, given one of them."""
    return path.parent.parent if path.parent.name.lower() in FOLDERS else path.parent


def _notes(folder: Path) -> dict[str, dict[str, Path]]:
    """The files of each note by their ending; notes are named by their path in the folder."""
    notes: dict[str, dict[str, Path]] = {}
    with os_errors_as(DataError, "the folder cannot be read", where=folder):
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)
    for file in files:
        if file.name.startswith(".") or not file.is_file():
            continue
        inside = _note_folder(file)
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
    return {
        name: parts
        for name, parts in notes.items()
        if parts.keys() != {".txt"} or not NO_DATA.search(parts[".txt"].name)
    }


def _document_2010(source: Source, where: str, name: str, files: dict[str, Path]) -> Document:
    if ".txt" not in files:
        raise MissingDataError(
            "the text of the annotations is missing", expected=f"{name}.txt", where=where
        )
    note = _note(source, name, files[".txt"])
    if CONCEPTS not in files:
        note.draft.note("no-annotation-file", "no .con file beside it: read without annotation")
    for ending, add in ((CONCEPTS, _concept), (ASSERTIONS, _assertion), (RELATIONS, _relation)):
        if ending not in files:
            continue
        text, _ = read_text(files[ending], source.options.encoding)
        for number, line in enumerate(lines_of(text), 1):
            at, parts = f"{files[ending]}:{number}", _parts(line.strip(), ending)
            if parts:
                add(note, parts, at)
            elif line.strip():
                what, wanted = f"not a line of a {ending} file", _EXPECTED_FORMS[ending]
                raise FormatError(what, expected=wanted, where=at)
    return note.draft.document()


def _note(source: Source, name: str, file: Path) -> _Note:
    """A note without its annotation; every line with a token is a sentence."""
    rows = lines_of(read_text(file, source.options.encoding)[0])
    lines: list[list[Span]] = []
    offset = 0
    for row in rows:
        tokens = (match.span() for match in _TOKEN.finditer(row))
        lines.append([(start + offset, end + offset) for start, end in tokens])
        offset += len(row) + 1
    sentences = tuple(Sentence(line[0][0], line[-1][1], tuple(line)) for line in lines if line)
    return _Note(Draft(source, name, "\n".join(rows), str(file), sentences=sentences), lines)


def _parts(line: str, ending: str) -> Sequence[str]:
    """Its one or two concepts, each a text and four numbers, and its values; empty if malformed.

    Of a relation: head, tail, type.
    """
    if ending != RELATIONS:
        match = _FORMS[ending].fullmatch(line)
        return match.groups() if match else ()
    tail = _tail(line, len(line))
    if tail is None or not line.startswith('c="'):
        return ()
    for kind in _KIND.finditer(line):
        head = _tail(line, kind.start())
        if head is not None and head.start() >= 3 and kind.end() <= tail.start():
            first, second = line[3 : head.start()], line[kind.end() : tail.start()]
            return (first, *head.groups(), second, *tail.groups(), kind[1])
    return ()


def _tail(line: str, end: int) -> re.Match[str] | None:
    """The four numbers before `end`, behind a quotation mark."""
    return _TAIL.search(line, max(0, end - _LONGEST_TAIL), end)


def _place(numbers: Sequence[str]) -> Place:
    line, token, last_line, last_token = map(int, numbers)
    return line, token, last_line, last_token


def _concept(note: _Note, parts: Sequence[str], where: str) -> None:
    surface, *numbers, kind = parts
    place, draft = _place(numbers), note.draft
    span = note.span(place, kind, surface, where=where)
    if span is None:
        return
    if found := _differs(draft.text, span, surface):
        what = f"{kind} {quoted(surface)} is {found} in the text"
        draft.note("text-mismatch", what, where=where)
    same = draft.entities.get(note.at.get(place, ""))
    if same is not None:
        what = f"{kind} {quoted(surface)} stands where {same.type} {same.id} does"
        if same.type == kind:
            draft.note("duplicate-mention", what, where=where)
            return
        what += ", which the relations of this place go to"
        draft.note("ambiguous-mention", what, where=where)
    key = draft.entity(kind, [span], where=where)
    note.at.setdefault(place, draft.names[key])


def _differs(text: str, span: Span, surface: str) -> str:
    """A quotation from a text, if it differs from a surface by more than case and blanks."""
    near = span[1] - span[0] <= 2 * len(surface) + _SLACK
    if near and text[slice(*span)].lower().split() == surface.lower().split():
        return ""
    return reading.quoted_at(text, [span])


def _assertion(note: _Note, parts: Sequence[str], where: str) -> None:
    surface, *numbers, _, value = parts
    name = note.at.get(_place(numbers))
    if name is None:
        what = f"{value}: no concept stands at the place of {quoted(surface)}"
        note.draft.lost("dangling-attribute", what, where=where)
        return
    entity = note.draft.entities[name]
    said = (*entity.attributes, ("assertion", value))
    note.draft.entities[name] = replace(entity, attributes=said)


def _relation(note: _Note, parts: Sequence[str], where: str) -> None:
    kind, draft, ends = parts[10], note.draft, []
    for surface, *numbers in (parts[:5], parts[5:10]):
        name = note.at.get(_place(numbers))
        if name is None:
            what = f"{kind}: no concept stands at the place of {quoted(surface)}"
            draft.lost("dangling-relation", what, where=where)
            return
        if found := _differs(draft.text, draft.entities[name].fragments[0], surface):
            what = f"{kind} of {quoted(surface)} goes to {found}, which stands there"
            draft.note("text-mismatch", what, where=where)
        ends.append(name)
    draft.relation(kind, *ends, where=where)


I2B2 = Format(
    "i2b2",
    "i2b2/VA 2010",
    "",
    _read_2010,
    by_bytes=lambda path, raw: is_note_file(path),
    by_text=lambda sample: bool(_parts(sample.rows[0].strip(), RELATIONS)),
    whole=True,
)

# --- i2b2 2009 ------------------------------------------------------------------------------------
#
# Medications in notes, an entry for each with its dose, mode, frequency and so on.
#
# An entry stands on a line of a file beside the note; places are those of 2010, and a field of
# several pieces has several places, cut by commas:
#
#     m="aspirin" 12:3 12:3||do="81 mg" 12:4 12:5||mo="nm"||f="daily" 12:6 12:6||ln="list"

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
_ENTRY_FORM = 'm="medication" line:token line:token||do="..."||mo="..."||f="..."||ln="list"'


def _has_entries(sample: Sample) -> bool:
    """Return whether the first lines of a file are entries."""
    first = [line.strip() for line in sample.rows[:_SAMPLE]]
    return all(_ENTRY.match(line) and "||" in line for line in first)


def _read_2009(path: Path, options: Options) -> Reading:
    """Read all notes of a folder that have entries, or the note of one file of entries.

    A medication is linked to each of its fields by a relation of the field's type. Events,
    temporality, certainty and "listed" (list or narrative) are attributes of the medication.

    Raises:
        MissingDataError: a note's text is missing, or there are no entries.
        FormatError: a line is no entry.
    """
    entries: dict[Path, list[str]] = {}
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and not file.name.startswith(".") and not NO_DATA.search(file.name):
            lines = lines_of(read_text(file, options.encoding)[0])
            if any(_ENTRY.match(line.strip()) for line in lines):
                entries[file] = lines
    if not entries:
        raise MissingDataError("there are no entries", expected=_ENTRY_FORM, where=str(path))
    source = Source(path, options, encoding=options.encoding or "utf-8")
    rows = ((str(file), _stem(file.name), (file, lines)) for file, lines in entries.items())
    return source.read(rows, _document_2009, format="i2b2-2009")


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


def _document_2009(
    source: Source, where: str, name: str, entries: tuple[Path, list[str]]
) -> Document:
    file, lines = entries
    note = _note(source, name, _text_of(file))
    for number, line in enumerate(lines, 1):
        if line.strip():
            _entry(note, line.strip(), f"{file}:{number}")
    return note.draft.document()


def _fields(line: str, where: str) -> Iterator[tuple[str, str, str]]:
    place = 0
    while place < len(line):
        match = _FIELD.match(line, place)
        if match is None:
            raise FormatError(
                "not an entry", expected=_ENTRY_FORM, got=quoted(line[place:]), where=where
            )
        yield match[1], match[2], match[3]
        place = match.end()


def _entry(note: _Note, line: str, where: str) -> None:
    drug, draft = "", note.draft
    said: list[tuple[str, str]] = []
    parts: list[tuple[str, str]] = []
    for key, surface, places in _fields(line, where):
        if key in _OTHERS:
            if surface != _NOT_MENTIONED:
                said.append((_OTHERS[key], surface))
        elif key not in TYPES:
            draft.lost("key-ignored", f"the field {key} is not known", where=where)
        elif places.strip():
            name = _medication(note, TYPES[key], surface, places, where=where)
            if key == "m":
                drug = name
            elif name:
                parts.append((TYPES[key], name))
    for kind, tail in parts if drug else ():
        draft.relation(kind, drug, tail, where=where)
    if parts and not drug:
        what = f"{len(parts)} fields of a medication without a place"
        draft.lost("dangling-relation", what, where=where)
    if drug:
        entity = draft.entities[drug]
        pairs = tuple(dict.fromkeys((*entity.attributes, *said)))
        draft.entities[drug] = replace(entity, attributes=pairs)


def _medication(note: _Note, kind: str, surface: str, places: str, *, where: str) -> str:
    """The id of the entity at some places; empty if one is not there."""
    spans: list[Span] = []
    for match in _PLACE.finditer(places):
        span = note.span(_place(match.groups()), kind, surface, where=where)
        if span is None:
            return ""
        spans.append(span)
    draft, fragments = note.draft, reading.merge_fragments(spans)
    words = surface.replace(" ... ", " ")
    if len(fragments) == 1 and (found := _differs(draft.text, fragments[0], words)):
        what = f"{kind} {quoted(surface)} is {found} in the text"
        draft.note("text-mismatch", what, where=where)
    if (kind, fragments) not in note.at:
        key = draft.entity(kind, fragments, where=where)
        note.at[kind, fragments] = draft.names[key]
    return note.at[kind, fragments]


I2B2_2009 = Format(
    "i2b2-2009", "i2b2 2009, medications", "", _read_2009, by_text=_has_entries, whole=True
)

# --- i2b2's XML of 2012 and 2014, and its relatives such as MEDDOCAN ------------------------------
#
# A TEXT, and TAGS beside it.
#
# A tag with a start and an end is an entity, one with `fromID` and `toID` a relation. The type of
# an entity is its TYPE (2014) or type (2012), or the tag's name; other attributes are kept.

_HEAD = 1 << 20
_KNOWN = frozenset(("id", "start", "end", "text", "TYPE", "fromID", "toID", "fromText", "toText"))
_LINKS = {"TLINK": "type", "LINK": "TYPE"}


def _is_i2b2_xml(path: Path, raw: bytes) -> bool:
    """Return whether the bytes of an XML file have a TEXT and TAGS."""
    return root_name(raw) != "" and b"<TEXT>" in raw[:_HEAD] and b"<TAGS" in raw


def _read_xml(path: Path, options: Options) -> Reading:
    """Read a file as one document, called as the file.

    Raises:
        FormatError: there is no TEXT, or a tag points nowhere because it has no numbers.
    """
    root, encoding = parse_xml(path, options.encoding)
    held, tags = root.find("TEXT"), root.find("TAGS")
    if held is None or tags is None:
        raise FormatError("not i2b2's XML", expected="<TEXT> and <TAGS>", where=str(path))
    source = Source(path, options, encoding=encoding)
    name = path.name.partition(".")[0] or path.name
    draft = Draft(source, name, clean(held.text or ""), str(path))
    if len(held):
        draft.lost("key-ignored", "elements inside the text are not read")
    links: list[Element] = []
    bare = 0
    for tag in tags:
        if "fromID" in tag.attrib and "toID" in tag.attrib:
            links.append(tag)
        elif "start" in tag.attrib and "end" in tag.attrib:
            _add_tag(draft, tag)
        else:
            bare += 1
    if bare:
        draft.lost("tags-without-place", f"{bare} tags about the whole document are not read")
    for tag in links:
        key = _LINKS.get(tag.tag, "type")
        kind = clean(tag.get(key, "").strip() or tag.tag)
        ends = clean(tag.get("fromID", "")), clean(tag.get("toID", ""))
        draft.relation(kind, *ends, attributes=_said(tag, key))
    return Reading([draft.document()], source.problems, "i2b2-xml", {"encoding": encoding})


def _said(tag: Element, named: str) -> tuple[tuple[str, str], ...]:
    """The attributes of a tag that are no place and not its type."""
    return tuple(
        (clean(key), clean(value))
        for key, value in tag.attrib.items()
        if key not in (*_KNOWN, named) and value
    )


def _add_tag(draft: Draft, tag: Element) -> None:
    named = next((key for key in ("TYPE", "type") if tag.get(key, "").strip()), "")
    kind = clean(tag.get(named, "").strip() or tag.tag)
    ends = whole_numbers([tag.get("start"), tag.get("end")])
    if ends is None:
        raise FormatError(
            "a tag's start and end",
            expected="whole numbers",
            got=quoted(f"{tag.get('start')} {tag.get('end')}"),
            where=draft.where,
        )
    said = _said(tag, named)
    if tag.tag not in ("TAG", kind):
        said = (("tag", clean(tag.tag)), *said)
    draft.entity(
        kind,
        [(ends[0], ends[1])],
        given=clean(tag.get("id", "")),
        surface=tag.get("text"),
        attributes=said,
    )


I2B2_XML = Format(
    "i2b2-xml", "i2b2's XML of 2012 and 2014", "", _read_xml, by_bytes=_is_i2b2_xml, instead="brat"
)
