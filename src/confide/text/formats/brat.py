"""brat standoff: a text file and beside it an .ann file, or .a1, .a2 and .rel, that point into it.

T lines are entities, R lines relations, N lines concepts,
A and M lines attributes, # lines notes. Events and equivalences have no class of their own:
an event's arguments are relations from its trigger with the attributes "event" and "argument",
members of an equivalence are chained by "Equiv" relations; both are written back as they were.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from confide.errors import FormatError, MissingDataError
from confide.text.document import Document, Entity, Problem, Relation, Span
from confide.text.draft import Draft, Source, head_first, read_documents
from confide.text.files import lines_of, read_text, write_text
from confide.text.reading import Options, Reading, file_name, quoted, unheld, whole_number

__all__ = ["ENDINGS", "read_brat", "write_brat"]

_CONCEPT = "a concept"  # with a blank: no attribute can be called so
ENDINGS = (".ann", ".a1", ".a2", ".rel")
"""Of annotations; BioNLP's shared tasks have given entities, events and relations apart."""
Line = tuple[str, list[str], str]
"""A line's place, its columns, and the first of them (its id)."""


def read_brat(path: Path, options: Options) -> Reading:
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
        return read_documents(source, rows, partial(_document, source), format="brat")
    stems = {file.with_suffix("") for file in path.rglob("*") if file.suffix in (*ENDINGS, ".txt")}
    if not stems:
        raise MissingDataError(
            "the folder holds no brat file", expected=".txt and .ann files", where=str(path)
        )
    source = Source(path, options, "", options.encoding or "utf-8")
    rows = [(str(stem), stem.relative_to(path).as_posix(), stem) for stem in sorted(stems)]
    return read_documents(source, rows, partial(_document, source), format="brat")


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
            self.note("unknown-line", where, f"a line that begins with {quoted(name)}")
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
        ends = [whole_number(end) for end in part.split(" ")]
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            raise FormatError(
                "offsets of an entity",
                expected="start end, or start end;start end",
                got=quoted(offsets),
                where=where,
            )
        spans.append((ends[0], ends[1]))
    return words[0], spans, "\t".join(columns[2:])


def _is_fraction(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


# --- Documents to brat standoff -------------------------------------------------------------------
#
# A .txt and an .ann file for each, in one folder.

CONFIDENCE = "Confidence"
_GROUPS = re.compile(r"event E\d+|equivalence \*\d+")
_ROLES = ("Arg1", "Arg2")
_WORD = re.compile(r"[\s:;]+")


def write_brat(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents into a folder, and return what brat cannot hold; `scheme` is not used.

    A confidence becomes an attribute line ``Confidence``.

    Raises:
        DataError: the files cannot be written.
    """
    problems: list[Problem] = []
    taken: set[str] = set()
    for document in documents:
        name = file_name(document.id, taken)
        writer = _Writer(document, problems)
        lines = writer.lines()
        write_text(path / f"{name}.txt", document.text)
        write_text(path / f"{name}.ann", "".join(f"{line}\n" for line in lines))
    cut = sum(bool(document.sentences) for document in documents)
    described = sum(bool(document.attributes) for document in documents)
    return [
        *problems,
        *unheld(path, "documents lose sentences and tokens", cut, kind="segmentation-unheld"),
        *unheld(path, "documents lose attributes", described, kind="attributes-unheld"),
    ]


class _Writer:
    """The lines of one document's .ann file."""

    def __init__(self, document: Document, problems: list[Problem]) -> None:
        self.document, self.problems = document, problems
        self.names = _numbered("T", [entity.id for entity in document.entities])
        plain = [relation.id for relation in document.relations if not _group(relation)]
        self.names |= _numbered("R", plain)
        self._numbers = {letter: count(1) for letter in "AN#"}

    def lines(self) -> list[str]:
        """T, E, R and * lines, each followed by what is said about it."""
        lines: list[str] = []
        events: dict[str, list[str]] = {}
        for entity in self.document.entities:
            lines += self._entity(entity)
            for key, event in entity.attributes:
                if _GROUPS.fullmatch(f"{key} {event}"):
                    events[event] = [f"{_word(entity.type)}:{self.names[entity.id]}"]
        chains: defaultdict[str, list[str]] = defaultdict(list)
        for relation in self.document.relations:
            group = _group(relation)
            ends = [self.names.get(end) for end in (relation.head, relation.tail)]
            if relation.level == "concept" or None in ends:
                what = f"{relation.type} {relation.id} does not link two mentions"
                self._note("relation-unheld", what, lost=True)
            elif group in events:
                target = dict(relation.attributes).get("argument", ends[1])
                events[group].append(f"{_word(relation.type)}:{target}")
            elif group.startswith("*"):
                chains[group] += [end for end in ends if end and end not in chains[group]]
            else:
                lines += self._relation(relation, [str(end) for end in ends])
        lines += [f"{event}\t{' '.join(words)}" for event, words in events.items()]
        return lines + [f"*\tEquiv {' '.join(members)}" for members in chains.values()]

    def _note(self, kind: str, what: str, *, lost: bool = False) -> None:
        where = self.document.source or self.document.id
        self.problems.append(Problem(kind, where, what, lost))

    def _type(self, kind: str) -> str:
        safe = _word(kind)
        if safe != kind:
            self._note("type-changed", f"{kind!r} is written as {safe}")
        return safe

    def _entity(self, entity: Entity) -> list[str]:
        name = self.names[entity.id]
        offsets = ";".join(f"{start} {end}" for start, end in entity.fragments)
        surface = " ".join(self.document.surface(entity).split())
        lines = [f"{name}\t{self._type(entity.type)} {offsets}\t{surface}"]
        surfaces = {key[2:]: value for key, value in entity.attributes if key.startswith("N ")}
        for concept in entity.concepts:
            number = next(self._numbers["N"])
            line = f"N{number}\tReference {name} {_word(concept, ':')}\t"
            lines.append(line + _line(surfaces.get(concept, "")))
        others = [
            (key, value)
            for key, value in entity.attributes
            if not _GROUPS.fullmatch(f"{key} {value}") and not key.startswith("N ")
        ]
        return lines + self._said(name, others, entity.confidence)

    def _relation(self, relation: Relation, ends: list[str]) -> list[str]:
        name = self.names[relation.id]
        named = [value.split() for key, value in relation.attributes if key == "roles"]
        roles = named[0] if named and len(named[0]) == 2 else []
        arguments = " ".join(
            f"{role}:{end}" for role, end in zip(roles or _ROLES, ends, strict=True)
        )
        line = f"{name}\t{self._type(relation.type)} {arguments}\t"
        others = [pair for pair in relation.attributes if pair[0] != "roles" or not roles]
        return [line.rstrip("\t"), *self._said(name, others, relation.confidence)]

    def _said(
        self, name: str, pairs: Sequence[tuple[str, str]], confidence: float | None
    ) -> list[str]:
        """Attribute and note lines."""
        lines = []
        if confidence is not None:
            pairs = [*pairs, (CONFIDENCE, repr(float(confidence)))]
        for key, value in pairs:
            letter = "#" if key.startswith("#") else "A"
            head = f"{letter}{next(self._numbers[letter])}\t{_word(key.removeprefix('#'))} {name}"
            if letter == "#":
                lines.append(f"{head}\t{_line(value)}")
            else:
                lines.append(f"{head} {' '.join(value.split())}".rstrip())
        return lines


def _group(relation: Relation) -> str:
    """The event or equivalence that a relation is part of, or an empty text."""
    for key, value in relation.attributes:
        if _GROUPS.fullmatch(f"{key} {value}"):
            return value
    return ""


def _numbered(letter: str, ids: Sequence[str]) -> dict[str, str]:
    """Names for brat: the ids themselves if they have its form, otherwise numbers."""
    fitting = re.compile(rf"{letter}\d+")
    if len(set(ids)) == len(ids) and all(fitting.fullmatch(name) for name in ids):
        return {name: name for name in ids}
    return {name: f"{letter}{number}" for number, name in enumerate(ids, 1)}


def _word(text: str, keep: str = "") -> str:
    """Text as one word of a line."""
    if keep:
        return re.sub(r"\s+", "_", text) or "_"
    return _WORD.sub("_", text) or "_"


def _line(text: str) -> str:
    return re.sub(r"[\r\n\0]+", " ", text)
