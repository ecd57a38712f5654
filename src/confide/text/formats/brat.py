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
from itertools import count
from pathlib import Path

from confide.errors import FormatError, MissingDataError
from confide.text import reading
from confide.text.document import Document, Entity, Relation, Span
from confide.text.files import lines_of, read_text, write_text
from confide.text.reading import Draft, Format, Options, Output, Reading, Source, Supports
from confide.text.rows import quoted, whole_numbers

MARKS = frozenset((".ann", ".a1", ".a2"))
ENDINGS = (*sorted(MARKS, reverse=True), ".rel")
"""Of annotations; BioNLP's shared tasks have given entities, events and relations apart."""
_BIONLP = re.compile(rb"(?:[TREMNA#]\d+|\*)\t")
_CONCEPT = "a concept"  # with a blank: no attribute can be called so
CONFIDENCE = "Confidence"
"""The attribute that is a confidence."""


def _is_brat(path: Path, raw: bytes) -> bool:
    """Return whether a file is one of brat's, or the text of one."""
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return any(path.with_suffix(mark).is_file() for mark in MARKS)
    return suffix in MARKS or (suffix == ".rel" and _BIONLP.match(raw) is not None)


def _read(path: Path, options: Options) -> Reading:
    """Read a folder of brat files (with all folders in it), or one document of it.

    Documents are named by their path in the folder.

    Raises:
        MissingDataError: the text of an annotation file is missing, or nothing is there.
        FormatError: a line is not one of brat's.
    """
    source = Source(path, options, encoding=options.encoding or "utf-8")
    rows = [(str(path), path.stem, path.with_suffix(""))]
    if path.is_dir():
        found = (file for file in path.rglob("*") if file.suffix in (*ENDINGS, ".txt"))
        stems = sorted({file.with_suffix("") for file in found})
        rows = [(str(stem), stem.relative_to(path).as_posix(), stem) for stem in stems]
    if not rows:
        raise MissingDataError(
            "the folder holds no brat file", expected=".txt and .ann files", where=str(path)
        )
    return source.read(rows, _document, format="brat")


def _document(source: Source, where: str, name: str, stem: Path) -> Document:
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
    text, _ = read_text(text_file, source.options.encoding)
    draft = Draft(source, name, text, str(parts[0] if parts else text_file))
    draft.keep = True
    if not parts:
        draft.note("no-annotation-file", "no .ann file beside it")
    lines: list[_Line] = []
    for part in parts:
        content, _ = read_text(part, source.options.encoding)
        for number, line in enumerate(lines_of(content), 1):
            if line.strip():
                lines.append(_Line(line.split("\t"), f"{part}:{number}"))
    return _Reader(draft).run(lines)


class _Line:
    """A line of annotation: its columns, the first of which is its id, and where it stands."""

    def __init__(self, columns: list[str], where: str) -> None:
        self.name, self.where, self.columns = columns[0].strip(), where, columns
        self.rest = "\t".join(columns[2:])

    def words(self, least: int) -> list[str]:
        """The words of the second column. Raises FormatError if they are too few."""
        words = self.columns[1].split() if len(self.columns) > 1 else []
        if len(words) < least:
            raise FormatError(
                f"a line {self.name!r} of too few parts",
                expected=f"at least {least} after its id and a tab",
                got=str(len(words)),
                where=self.where,
            )
        return words


class _Reader:
    """Turns the lines of one document into entities and relations; a line may point to a later."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.roles = draft, draft.source.roles
        self.entities, self.relations = draft.entities, draft.relations
        self.triggers: dict[str, str] = {}
        self.said: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        self.concepts: defaultdict[str, list[str]] = defaultdict(list)
        self.groups = 0

    def run(self, lines: Sequence[_Line]) -> Document:
        """The document with everything that the lines say."""
        for line in lines:
            if line.name[:1] == "T":
                kind, *offsets = line.words(1)
                spans = _spans(" ".join(offsets), line.where)
                self.draft.entity(kind, spans, given=line.name, surface=line.rest, where=line.where)
        self.draft.place()
        events = [line for line in lines if line.name[:1] == "E"]
        for line in events:
            self._trigger(line)
        for line in events:
            self._arguments(line)
        for line in lines:
            if line.name[:1] == "R":
                self._relation(line)
            elif line.name[:1] == "*":
                self._equivalence(line)
        for line in lines:
            self._property(line)
        for name, concepts in self.concepts.items():
            self.entities[name] = replace(self.entities[name], concepts=tuple(concepts))
        for name, said in self.said.items():
            if name in self.entities:  # an entity comes before a relation
                self.entities[name] = replace(self.entities[name], attributes=tuple(said))
            else:
                more = (*self.relations[name].attributes, *said)
                self.relations[name] = replace(self.relations[name], attributes=more)
        return self.draft.document()

    def _trigger(self, line: _Line) -> None:
        """An event's first word, Type:T1."""
        kind, _, target = line.words(1)[0].partition(":")
        entity = self.entities.get(target)
        if entity is None:
            what = f"event {line.name}: no entity {target}"
            self.draft.lost("dangling-event", what, where=line.where)
            return
        if kind != entity.type:
            what = f"event {line.name} is {kind} but its trigger {target} is {entity.type}"
            self.draft.lost("event-type", what, where=line.where)
        self.triggers[line.name] = target
        self.said[target].append(("event", line.name))

    def _arguments(self, line: _Line) -> None:
        """An event's arguments, Role:T2 or Role:E2, as relations from its trigger."""
        if line.name not in self.triggers:
            return
        for number, word in enumerate(line.words(1)[1:], 1):
            role, _, target = word.partition(":")
            ends = self.triggers[line.name], self.triggers.get(target, target)
            said = [("event", line.name), *([("argument", target)] if ends[1] != target else [])]
            name = f"{line.name}.{number}"
            self.draft.relation(role, *ends, given=name, where=line.where, attributes=tuple(said))

    def _relation(self, line: _Line) -> None:
        """Type Arg1:T1 Arg2:T2, in whichever order; other names of arguments are kept."""
        kind, *arguments = line.words(3)
        roles, ends = zip(*(word.rpartition(":")[::2] for word in arguments[:2]), strict=True)
        if not reading.head_first(roles, self.roles):
            roles, ends = roles[::-1], ends[::-1]
        said = () if roles == _ROLES else (("roles", " ".join(roles)),)
        ends = [self.triggers.get(end, end) for end in ends]
        self.draft.relation(kind, *ends, given=line.name, where=line.where, attributes=said)

    def _equivalence(self, line: _Line) -> None:
        """Equiv T1 T2 T3: a chain of relations that share the attribute "equivalence"."""
        kind, *words = line.words(3)
        members = list(dict.fromkeys(self.triggers.get(word, word) for word in words))
        known = [member for member in members if member in self.entities]
        if len(known) < len(members):
            self.draft.lost("dangling-relation", f"{kind}: a member is missing", where=line.where)
        number = self.groups + 1
        for place, (head, tail) in enumerate(zip(known, known[1:], strict=False), 1):
            said, name = (("equivalence", f"*{number}"),), f"*{number}.{place}"
            self.draft.relation(kind, head, tail, given=name, where=line.where, attributes=said)
            self.groups += 1

    def _property(self, line: _Line) -> None:
        """A, M, N and # lines: what is said about an entity or a relation."""
        letter = line.name[:1]
        if letter in ("T", "E", "R", "*"):
            return
        if letter in ("A", "M"):
            key, target, *rest = line.words(2)
            value = " ".join(rest)
        elif letter == "#":
            key, target = line.words(2)[:2]
            key, value = f"#{key}", line.rest
        elif letter == "N":
            key, (target, value) = _CONCEPT, line.words(3)[1:3]
            if target in self.entities and line.rest:
                self.said[target].append((f"N {value}", line.rest))
        else:
            what = f"a line that begins with {quoted(line.name)}"
            self.draft.lost("unknown-line", what, where=line.where)
            return
        if target in self.triggers:
            what = f"{key} of event {target} is kept on its trigger"
            self.draft.note("attribute-moved", what, where=line.where)
            target = self.triggers[target]
        fraction = key == CONFIDENCE and _is_fraction(value)
        if key == _CONCEPT and target in self.entities:
            self.concepts[target].append(value)
        elif fraction and target in self.entities:
            self.entities[target] = replace(self.entities[target], confidence=float(value))
        elif fraction and target in self.relations:
            self.relations[target] = replace(self.relations[target], confidence=float(value))
        elif key != _CONCEPT and (target in self.entities or target in self.relations):
            self.said[target].append((key, value))
        else:
            what = f"{key}: nothing here is called {target}"
            self.draft.lost("dangling-attribute", what, where=line.where)


def _spans(offsets: str, where: str) -> list[Span]:
    """The fragments of a T line."""
    spans: list[Span] = []
    for part in offsets.split(";"):
        ends = whole_numbers(part.split(" "))
        if ends is None or len(ends) != 2:
            raise FormatError(
                "offsets of an entity",
                expected="start end, or start end;start end",
                got=quoted(offsets),
                where=where,
            )
        spans.append((ends[0], ends[1]))
    return spans


def _is_fraction(value: str) -> bool:
    try:
        return 0 <= float(value) <= 1
    except ValueError:
        return False


# --- Documents to brat standoff -------------------------------------------------------------------
#
# A .txt and an .ann file for each, in one folder.

_GROUPS = re.compile(r"event E\d+|equivalence \*\d+")
_ROLES = ("Arg1", "Arg2")
_WORD = re.compile(r"[\s:;]+")


def _write(documents: Sequence[Document], out: Output) -> None:
    """Write documents into a folder. A confidence becomes an attribute line ``Confidence``."""
    for document in documents:
        path = out.file_for(document)
        lines = _Writer(document, out).lines()
        write_text(path.with_name(f"{path.name}.txt"), document.text)
        write_text(path.with_name(f"{path.name}.ann"), "".join(f"{line}\n" for line in lines))


class _Writer:
    """The lines of one document's .ann file."""

    def __init__(self, document: Document, out: Output) -> None:
        self.document, self.problems = document, out.problems
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
            ends = [self.names[end] for end in (relation.head, relation.tail)]
            if group in events:
                target = dict(relation.attributes).get("argument", ends[1])
                events[group].append(f"{_word(relation.type)}:{target}")
            elif group.startswith("*"):
                chains[group] += [end for end in ends if end not in chains[group]]
            else:
                lines += self._relation(relation, ends)
        lines += [f"{event}\t{' '.join(words)}" for event, words in events.items()]
        return lines + [f"*\tEquiv {' '.join(members)}" for members in chains.values()]

    def _type(self, kind: str) -> str:
        safe = _word(kind)
        if safe != kind:
            where = self.document.where
            self.problems.note("type-changed", where, f"{kind!r} is written as {safe}")
        return safe

    def _entity(self, entity: Entity) -> list[str]:
        name = self.names[entity.id]
        offsets = ";".join(f"{start} {end}" for start, end in entity.fragments)
        surface = " ".join(self.document.surface(entity).split())
        lines = [f"{name}\t{self._type(entity.type)} {offsets}\t{surface}"]
        surfaces = {key[2:]: value for key, value in entity.attributes if key.startswith("N ")}
        for concept in entity.concepts:
            one_word = re.sub(r"\s+", "_", concept) or "_"
            line = f"N{next(self._numbers['N'])}\tReference {name} {one_word}\t"
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
        roles = named[0] if named and len(named[0]) == 2 else None
        arguments = map(":".join, zip(roles or _ROLES, ends, strict=True))
        line = f"{name}\t{self._type(relation.type)} {' '.join(arguments)}"
        others = [pair for pair in relation.attributes if pair[0] != "roles" or not roles]
        return [line, *self._said(name, others, relation.confidence)]

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
    pairs = relation.attributes
    return next((value for key, value in pairs if _GROUPS.fullmatch(f"{key} {value}")), "")


def _numbered(letter: str, ids: Sequence[str]) -> dict[str, str]:
    """Names for brat: the ids themselves if they have its form, otherwise numbers."""
    form = re.compile(rf"{letter}\d+")
    if len(set(ids)) == len(ids) and all(form.fullmatch(name) for name in ids):
        return {name: name for name in ids}
    return {name: f"{letter}{number}" for number, name in enumerate(ids, 1)}


def _word(text: str) -> str:
    """Text as one word of a line."""
    return _WORD.sub("_", text) or "_"


def _line(text: str) -> str:
    return re.sub(r"[\r\n\0]+", " ", text)


BRAT = Format(
    "brat",
    "brat standoff, and BioNLP's",
    "",
    _read,
    _write,
    Supports(fragments=True, relations=True, confidences=True, concepts="all", said=True),
    by_bytes=_is_brat,
    whole=True,
)
