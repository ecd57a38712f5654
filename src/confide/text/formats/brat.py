"""brat standoff: a text file and beside it an .ann file, or .a1, .a2 and .rel, that point into it.

Read here and written in `brat_write`. T lines are entities, R lines relations, N lines concepts,
A and M lines attributes, # lines notes. Events and equivalences have no class of their own:
an event's arguments are relations from its trigger with the attributes "event" and "argument",
members of an equivalence are chained by "Equiv" relations; both are written back as they were.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from confide.errors import FormatError, MissingDataError
from confide.text.document import Document, Span
from confide.text.files import lines_of, read_text
from confide.text.formats.base import Options, Reading, shown, whole
from confide.text.formats.brat_write import CONFIDENCE, write
from confide.text.formats.draft import Draft, Source, gathered, head_first

__all__ = ["ENDINGS", "read", "write"]

_CONCEPT = "a concept"  # with a blank: no attribute can be called so
ENDINGS = (".ann", ".a1", ".a2", ".rel")
"""Of annotations; BioNLP's shared tasks have given entities, events and relations apart."""
Line = tuple[str, list[str], str]
"""A line's place, its columns, and the first of them (its id)."""


def read(path: Path, options: Options) -> Reading:
    """Read a folder of brat files (with all folders in it), or one document of it.

    Documents are named by their path in the folder.

    Raises:
        MissingDataError: the text of an annotation file is missing, or nothing is there.
        FormatError: a line is not one of brat's.
        DataError: a type was not declared.
    """
    if not path.is_dir():
        source = Source(path, options, "", options.encoding or "utf-8")
        rows = [(str(path), path.stem, path.with_suffix(""))]
        return gathered(source, rows, partial(_document, source), format="brat")
    stems = {file.with_suffix("") for file in path.rglob("*") if file.suffix in (*ENDINGS, ".txt")}
    if not stems:
        raise MissingDataError(
            "the folder holds no brat file", expected=".txt and .ann files", where=str(path)
        )
    source = Source(path, options, "", options.encoding or "utf-8")
    rows = [(str(stem), stem.relative_to(path).as_posix(), stem) for stem in sorted(stems)]
    return gathered(source, rows, partial(_document, source), format="brat")


def _document(source: Source, where: str, name: str, stem: Path) -> Document:
    """One document: `stem` is its path without an ending."""
    options = source.options
    parts = [stem.parent / f"{stem.name}{ending}" for ending in ENDINGS]
    parts = [part for part in parts if part.is_file()]
    text_file = stem.parent / f"{stem.name}.txt"
    if not text_file.is_file():
        raise MissingDataError(
            "the text of the annotations is missing" if parts else "there is no such file",
            where=str(text_file),
            fix="put the .txt file beside the .ann file",
        )
    text, _ = read_text(text_file, options.encoding)
    lines: list[Line] = []
    for part in parts:
        content, _ = read_text(part, options.encoding)
        for number, line in enumerate(lines_of(content), 1):
            if line.strip():
                columns = line.split("\t")
                lines.append((f"{part}:{number}", columns, columns[0].strip()))
    draft = source.draft(name, text, str(parts[0] if parts else text_file))
    draft.keep = True
    if not parts:
        draft.note("no-annotation-file", "no .ann file beside it", lost=False)
    return _Reader(draft, source.roles).run(lines)


class _Reader:
    """Turns the lines of one document into entities and relations."""

    def __init__(self, draft: Draft, roles: dict[frozenset[str], str]) -> None:
        self.draft, self.roles = draft, roles
        self.entities, self.relations = draft.entities, draft.relations
        self.triggers: dict[str, str] = {}
        self.said: dict[str, list[tuple[str, str]]] = {}
        self.concepts: dict[str, list[str]] = {}
        self.groups = 0

    def note(self, kind: str, where: str, what: str, *, lost: bool = True) -> None:
        """Add a problem."""
        self.draft.note(kind, what, lost=lost, where=where)

    def run(self, lines: list[Line]) -> Document:
        """The document with everything that the lines say; a line may point to a later one."""
        for where, columns, name in lines:
            if name[:1] == "T":
                kind, spans, surface = _mention(columns, where)
                self.draft.entity(kind, spans, given=name, surface=surface, where=where)
        self.draft.place()
        events = [line for line in lines if line[2][:1] == "E"]
        for where, columns, name in events:
            self._trigger(where, name, _words(columns, where, 1))
        for where, columns, name in events:
            self._arguments(where, name, _words(columns, where, 1)[1:])
        for where, columns, name in lines:
            if name[:1] == "R":
                self._relation(where, name, _words(columns, where, 3))
            elif name[:1] == "*":
                self._equivalence(where, _words(columns, where, 3))
        for where, columns, name in lines:
            self._property(where, columns, name)
        for name, concepts in self.concepts.items():
            self.entities[name] = replace(self.entities[name], concepts=tuple(concepts))
        for name, said in self.said.items():
            if name in self.entities:  # an entity comes before a relation
                self.entities[name] = replace(self.entities[name], attributes=tuple(said))
            else:
                more = (*self.relations[name].attributes, *said)
                self.relations[name] = replace(self.relations[name], attributes=more)
        return self.draft.document()

    def _trigger(self, where: str, name: str, words: list[str]) -> None:
        """An event's first word, Type:T1."""
        kind, _, target = words[0].partition(":")
        entity = self.entities.get(target)
        if entity is None:
            self.note("dangling-event", where, f"event {name}: no entity {target}")
            return
        if kind != entity.type:
            what = f"event {name} is {kind} but its trigger {target} is {entity.type}"
            self.note("event-type", where, what)
        self.triggers[name] = target
        self._attribute(target, "event", name)

    def _arguments(self, where: str, event: str, words: list[str]) -> None:
        """An event's arguments, Role:T2 or Role:E2, as relations from its trigger."""
        if event not in self.triggers:
            return
        for number, word in enumerate(words, 1):
            role, _, target = word.partition(":")
            ends = self.triggers[event], self.triggers.get(target, target)
            said = [("event", event), *([("argument", target)] if ends[1] != target else [])]
            name = f"{event}.{number}"
            self.draft.relation(role, *ends, given=name, where=where, attributes=tuple(said))

    def _relation(self, where: str, name: str, words: list[str]) -> None:
        """Type Arg1:T1 Arg2:T2, in whichever order; other names of arguments are kept."""
        roles, ends = zip(*(word.rpartition(":")[::2] for word in words[1:3]), strict=True)
        if not head_first(roles, self.roles):
            roles, ends = roles[::-1], ends[::-1]
        said = () if roles == ("Arg1", "Arg2") else (("roles", " ".join(roles)),)
        ends = [self.triggers.get(end, end) for end in ends]
        self.draft.relation(words[0], *ends, given=name, where=where, attributes=said)

    def _equivalence(self, where: str, words: list[str]) -> None:
        """Equiv T1 T2 T3: a chain of relations that share the attribute "equivalence"."""
        members = [self.triggers.get(word, word) for word in words[1:]]
        members = list(dict.fromkeys(members))
        known = [member for member in members if member in self.entities]
        if len(known) < len(members):
            self.note("dangling-relation", where, f"{words[0]}: a member is missing")
        number = self.groups + 1
        for place, (head, tail) in enumerate(zip(known, known[1:], strict=False), 1):
            said, name = (("equivalence", f"*{number}"),), f"*{number}.{place}"
            self.draft.relation(words[0], head, tail, given=name, where=where, attributes=said)
            self.groups += 1

    def _property(self, where: str, columns: list[str], name: str) -> None:
        """A, M, N and # lines: what is said about an entity or a relation."""
        letter = name[:1]
        if letter in ("T", "E", "R", "*"):
            return
        if letter in ("A", "M"):
            words = _words(columns, where, 2)
            key, target, value = words[0], words[1], " ".join(words[2:])
        elif letter == "#":
            words = _words(columns, where, 2)
            key, target, value = f"#{words[0]}", words[1], "\t".join(columns[2:])
        elif letter == "N":
            words = _words(columns, where, 3)
            key, target, value = _CONCEPT, words[1], words[2]
            surface = "\t".join(columns[2:])
            if target in self.entities and surface:
                self._attribute(target, f"N {value}", surface)
        else:
            self.note("unknown-line", where, f"a line that begins with {shown(name)}")
            return
        self._say(where, key, target, value)

    def _say(self, where: str, key: str, target: str, value: str) -> None:
        """Put an attribute, a note or a concept where it belongs."""
        if target in self.triggers:
            what = f"{key} of event {target} is kept on its trigger"
            self.note("attribute-moved", where, what, lost=False)
            target = self.triggers[target]
        if key == _CONCEPT and target in self.entities:
            self.concepts.setdefault(target, []).append(value)
        elif key == CONFIDENCE and target in self.entities and _is_fraction(value):
            self.entities[target] = replace(self.entities[target], confidence=float(value))
        elif key == CONFIDENCE and target in self.relations and _is_fraction(value):
            self.relations[target] = replace(self.relations[target], confidence=float(value))
        elif key != _CONCEPT and (target in self.entities or target in self.relations):
            self._attribute(target, key, value)
        else:
            self.note("dangling-attribute", where, f"{key}: nothing here is called {target}")

    def _attribute(self, target: str, key: str, value: str) -> None:
        """Add something to the entity of this name or, if there is none, to the relation."""
        self.said.setdefault(target, []).append((key, value))


def _words(columns: list[str], where: str, least: int) -> list[str]:
    """The words of a line's second column."""
    words = columns[1].split() if len(columns) > 1 else []
    if len(words) < least:
        raise FormatError(
            f"a line {columns[0].strip()!r} of too few parts",
            expected=f"at least {least} after its id and a tab",
            got=str(len(words)),
            where=where,
        )
    return words


def _mention(columns: list[str], where: str) -> tuple[str, list[Span], str]:
    """Type, fragments and text of a T line."""
    words = _words(columns, where, 1)
    offsets = " ".join(words[1:])
    spans: list[Span] = []
    for part in offsets.split(";"):
        ends = [whole(end) for end in part.split(" ")]
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            raise FormatError(
                "offsets of an entity",
                expected="start end, or start end;start end",
                got=shown(offsets),
                where=where,
            )
        spans.append((ends[0], ends[1]))
    return words[0], spans, "\t".join(columns[2:])


def _is_fraction(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False
