"""Documents to brat standoff: a .txt and an .ann file for each, in one folder."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from confide.text.document import Document, Entity, Problem, Relation
from confide.text.files import write_text
from confide.text.formats.base import file_name, unheld

CONFIDENCE = "Confidence"
_GROUPS = re.compile(r"event E\d+|equivalence \*\d+")
_ROLES = ("Arg1", "Arg2")
_WORD = re.compile(r"[\s:;]+")


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
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
