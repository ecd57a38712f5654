"""brat standoff: a text file and beside it an .ann file, or .a1, .a2 and .rel, that point into it.

Read here and written in `brat_write`. T lines are entities, R lines relations, N lines concepts,
A and M lines attributes, # lines notes. Events and equivalences have no class of their own:
an event's arguments are relations from its trigger with the attributes "event" and "argument",
members of an equivalence are chained by "Equiv" relations; both are written back as they were.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Document, Entity, Problem, Relation, Span
from confide.text.files import lines_of, read_text
from confide.text.formats.base import (
    Options,
    Reading,
    free_id,
    is_number,
    merged_fragments,
    reads,
    shown,
    shown_at,
)
from confide.text.formats.brat_write import CONFIDENCE, write

__all__ = ["ENDINGS", "read", "write"]

_CONCEPT = "a concept"  # with a blank: no attribute can be called so
ENDINGS = (".ann", ".a1", ".a2", ".rel")
"""Of annotations; BioNLP's shared tasks have given entities, events and relations apart."""
Line = tuple[str, list[str], str]
"""A line's place, its columns, and the first of them (its id)."""


def read(path: Path, options: Options) -> Reading:
    """Read a folder of brat files (with all folders in it), or one document of it.

    Documents are named by their path in the folder. Offsets count the characters of the text as it
    is in the file. If the annotations fit better without its byte order mark, or with each line end
    counted as one character, they are read that way, which is reported.

    Raises:
        MissingDataError: the text of an annotation file is missing, or nothing is there.
        FormatError: a line is not one of brat's.
        DataError: a type was not declared.
    """
    if not path.is_dir():
        documents, problems = _document(path.with_suffix(""), path.stem, options)
        return Reading([documents], problems, "brat", {"encoding": options.encoding or "utf-8"})
    stems = {file.with_suffix("") for file in path.rglob("*") if file.suffix in (*ENDINGS, ".txt")}
    if not stems:
        raise MissingDataError(
            "the folder holds no brat file", expected=".txt and .ann files", where=str(path)
        )
    reading = Reading([], [], "brat", {"encoding": options.encoding or "utf-8"})
    for stem in sorted(stems):
        with options.document(reading.problems, stem):
            document, problems = _document(stem, stem.relative_to(path).as_posix(), options)
            reading.documents.append(document)
            reading.problems.extend(problems)
    if not reading.documents:
        raise DataError("no document is left", where=str(path))
    return reading


def _document(stem: Path, name: str, options: Options) -> tuple[Document, list[Problem]]:
    """One document: `stem` is its path without an ending."""
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
    source = str(parts[0] if parts else text_file)
    reader = _Reader(Document(name, text, source=source), options)
    if not parts:
        reader.note("no-annotation-file", str(text_file), "no .ann file beside it", lost=False)
    return reader.run(lines), reader.problems


class _Reader:
    """Turns the lines of one document into entities and relations."""

    def __init__(self, document: Document, options: Options) -> None:
        self.document, self.options = document, options
        self.problems: list[Problem] = []
        self.entities: dict[str, Entity] = {}
        self.relations: dict[str, Relation] = {}
        self.triggers: dict[str, str] = {}
        self.said: dict[str, list[tuple[str, str]]] = {}
        self.concepts: dict[str, list[str]] = {}
        self.tried: dict[str, int] = {}
        self.tried_of_relations: dict[str, int] = {}
        self.groups = 0

    def note(self, kind: str, where: str, what: str, *, lost: bool = True) -> None:
        """Add a problem."""
        self.problems.append(Problem(kind, where, what, lost))

    def run(self, lines: list[Line]) -> Document:
        """The document with everything that the lines say; a line may point to a later one."""
        mentions = [
            (where, name, *_mention(columns, where))
            for where, columns, name in lines
            if name[:1] == "T"
        ]
        text = self._fitting_text([(spans, surface) for *_, spans, surface in mentions])
        self.document = replace(self.document, text=text)
        for where, name, kind, spans, surface in mentions:
            self._entity(where, name, (kind, spans, surface))
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
        entities = (
            replace(
                entity,
                concepts=tuple(self.concepts.get(name, ())),
                attributes=(*entity.attributes, *self.said.get(name, ())),
            )
            if name in self.said or name in self.concepts
            else entity
            for name, entity in self.entities.items()
        )
        relations = (
            relation
            if name in self.entities or name not in self.said  # an entity comes before a relation
            else replace(relation, attributes=(*relation.attributes, *self.said.get(name, ())))
            for name, relation in self.relations.items()
        )
        return replace(self.document, entities=tuple(entities), relations=tuple(relations))

    def _fitting_text(self, mentions: list[tuple[list[Span], str]]) -> str:
        """The text as the annotations count it: with or without a mark, CRLF as two or one."""
        text = self.document.text
        best, fewest = text, _misses(text, mentions)
        for variant, what in (
            (text.replace("\r\n", "\n"), "line ends counted as one character"),
            ("\ufeff" + text, "a byte order mark counted"),
        ):
            if fewest and variant != text and (count := _misses(variant, mentions)) < fewest:
                best, fewest, said = variant, count, what
        if best is not text:
            self.note("offsets-counted", self.document.source, said, lost=False)
        return best

    def _entity(self, where: str, name: str, mention: tuple[str, list[Span], str]) -> None:
        kind, spans, surface = mention
        self.options.require(kind, where)
        text = self.document.text
        for start, end in spans:
            if not start < end <= len(text):
                slug = "empty-span" if start >= end else "beyond-text"
                what = f"{kind} {name} {start}-{end} points nowhere in {len(text)} characters"
                self.note(slug, where, what)
                return
        fragments = merged_fragments(spans)
        if len(fragments) != len(spans):
            what = f"fragments of {kind} {name} touch or overlap: made one"
            self.note("fragments-merged", where, what, lost=False)
        if not _same(text, spans, surface):
            what = f"{kind} {name} is {shown(surface)} but {shown_at(text, spans)} in the text"
            self.note("text-mismatch", where, what, lost=False)
        if name in self.entities:
            self.note("duplicate-id", where, f"another entity is called {name}", lost=False)
            name = free_id(name, self.entities, self.tried)
        self.entities[name] = Entity(name, kind, fragments)

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
            tail = self.triggers.get(target, target)
            if tail not in self.entities:
                self.note("dangling-relation", where, f"{role} of event {event}: no {target}")
                continue
            attributes = [("event", event)]
            attributes += [("argument", target)] if tail != target else []
            self._add(
                Relation(
                    f"{event}.{number}",
                    role,
                    self.triggers[event],
                    tail,
                    attributes=tuple(attributes),
                ),
                where,
            )

    def _relation(self, where: str, name: str, words: list[str]) -> None:
        """Type Arg1:T1 Arg2:T2; other names of arguments are kept."""
        roles, ends = zip(*(word.rpartition(":")[::2] for word in words[1:3]), strict=True)
        if any(end not in self.entities and end not in self.triggers for end in ends):
            self.note("dangling-relation", where, f"{words[0]} {name}: no {' or '.join(ends)}")
            return
        attributes = () if roles == ("Arg1", "Arg2") else (("roles", " ".join(roles)),)
        head, tail = (self.triggers.get(end, end) for end in ends)
        self._add(Relation(name, words[0], head, tail, attributes=attributes), where)

    def _equivalence(self, where: str, words: list[str]) -> None:
        """Equiv T1 T2 T3: a chain of relations that share the attribute "equivalence"."""
        members = [self.triggers.get(word, word) for word in words[1:]]
        members = list(dict.fromkeys(members))
        known = [member for member in members if member in self.entities]
        if len(known) < len(members):
            self.note("dangling-relation", where, f"{words[0]}: a member is missing")
        number = self.groups + 1
        for place, (head, tail) in enumerate(zip(known, known[1:], strict=False), 1):
            group = (("equivalence", f"*{number}"),)
            self._add(Relation(f"*{number}.{place}", words[0], head, tail, attributes=group), where)
            self.groups += 1

    def _add(self, relation: Relation, where: str) -> None:
        if relation.id in self.relations:
            self.note(
                "duplicate-id", where, f"another relation is called {relation.id}", lost=False
            )
            name = free_id(relation.id, self.relations, self.tried_of_relations)
            relation = replace(relation, id=name)
        self.relations[relation.id] = relation

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
        ends = part.split(" ")
        if len(ends) != 2 or not all(map(is_number, ends)):
            raise FormatError(
                "offsets of an entity",
                expected="start end, or start end;start end",
                got=shown(offsets),
                where=where,
            )
        spans.append((int(ends[0]), int(ends[1])))
    return words[0], spans, "\t".join(columns[2:])


def _same(text: str, spans: list[Span], surface: str) -> bool:
    """Whether a surface equals the text apart from white space, which brat writes as a blank."""
    return not surface or reads(text, spans, surface)


def _misses(text: str, mentions: list[tuple[list[Span], str]]) -> int:
    """How many mentions are not what the text has at their place."""
    return sum(not _same(text, spans, surface) for spans, surface in mentions)


def _is_fraction(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False
