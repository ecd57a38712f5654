"""OpenNRE's JSON Lines (Han et al. 2019): a text or its tokens, head, tail, and a relation.

``{"text": ..., "h": {"name": ..., "id": ..., "pos": [0, 4]}, "t": {...}, "relation": ...}``. With
"text", positions are characters; with "token", a list of strings, they are tokens; their ends are
exclusive. Lines that are Python's dicts, in single quotes, are read, too, and never evaluated.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from confide.errors import FormatError
from confide.text.document import Document, Entity, Problem, Relation, Sentence, Span
from confide.text.files import write_text
from confide.text.formats.base import Options, Reading, shown, unheld, whole_text
from confide.text.formats.draft import Source, gathered, opened
from confide.text.formats.jsonl import rows_of
from confide.text.formats.literals import value_of
from confide.text.formats.one_pair import End, Line, document_of, find_names, map_problems
from confide.text.formats.placing import Effort
from confide.text.formats.records import clean
from confide.text.pairs import NO_RELATION, PAIR, stated_pairs
from confide.text.segment import segmented
from confide.userfiles import Tree

NOTHING = "NA"
"""What a pair without a relation is labelled when it is written."""
_KNOWN = frozenset(("id", "text", "token", "h", "t", "relation"))
_OF_END = frozenset(("name", "id", "pos", "type"))
_SAMPLE = 5


def read(path: Path, options: Options) -> Reading:
    """Read the lines: a document for each, of one sentence, that asks about its pair.

    An end without a type has `options.bare_type`; its id becomes its concept. An end without a
    position is looked for by its name. ``NA`` is no relation. Other keys with a plain value are
    attributes. The given tokens are kept; a text gets its own.

    Raises:
        FormatError: a line is neither JSON nor a Python dict, or a part of it is not of its form.
        DataError: there is no line, or a type was not declared.
    """
    source = opened(path, options)
    reader = _Reader(source, Effort(str(path)))
    reading = gathered(source, _rows(source), reader.document, format="opennre")
    if reader.bare:
        count = f"{len(reader.bare)} of {len(reading.documents)}"
        what = f"{count} lines have no relation: read without one"
        source.problems.append(Problem("no-label", reader.bare[0], what))
    source.problems.extend(map_problems(path, reader.labels))
    return reading


def is_opennre(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file are such lines."""
    first = [line.strip() for line in lines if line.strip()][:_SAMPLE]
    return bool(first) and all(map(_is_row, first))


def _is_row(line: str) -> bool:
    if not line.startswith("{") or not line.endswith("}"):
        return False
    try:
        row = _load(line, "")
    except FormatError:
        return False
    return isinstance(row.get("h"), dict) and isinstance(row.get("t"), dict)


def _rows(source: Source) -> Iterator[tuple[str, str, Tree | str]]:
    """Every object or line of a file, where it stands, and a name for it."""
    if source.text.lstrip()[:1] == "[":
        yield from rows_of(
            source.text, source.path, options=source.options, problems=source.problems
        )
        return
    yield from ((where, name, line.strip()) for where, name, line in source.lines())


def _load(line: str, where: str) -> Tree:
    """A line as a dict, from JSON or else from a Python literal."""
    try:
        row = value_of(line)
    except ValueError as error:
        raise FormatError(
            "a line that is neither JSON nor a Python dict",
            expected='{"text": ..., "h": {...}, "t": {...}, "relation": ...}',
            got=shown(line),
            where=where,
        ) from error
    if not isinstance(row, dict):
        raise FormatError("not an object", expected='{"text": ...}', where=where)
    return row


class _Reader:
    """Makes documents of the objects of one file."""

    def __init__(self, source: Source, effort: Effort) -> None:
        self.options, self.problems, self.effort = source.options, source.problems, effort
        self.labels: list[tuple[str, str]] = []
        self.bare: list[str] = []
        self._ignored: set[str] = set()

    def document(self, where: str, name: str, given: Tree | str) -> Document:
        """One document; `name` stands in where the object has no id."""
        row = _load(given, where) if isinstance(given, str) else given
        text, tokens = self._text(row, where)
        ends = self._ends(row, text, tokens, where=where)
        label = row.get("relation")
        if label is None:
            self.bare.append(where)
        elif not isinstance(label, str) or not label.strip():
            raise _odd("the relation", "a string that is not empty", label, where=where)
        else:
            label = clean(label.strip())
            self.labels.append((label, where))
        own = row.get("id")
        line = Line(
            clean(str(own)) if isinstance(own, str | int) else name,
            where,
            text,
            ends,
            label,
            attributes=tuple(self._attributes(row, where)),
            sentences=_sentence(text, tokens),
        )
        return document_of(line, self.options, self.problems)

    def _text(self, row: Tree, where: str) -> tuple[str, list[Span] | None]:
        """The text, and where its tokens stand if the file has them."""
        if "text" in row:
            if not isinstance(row["text"], str):
                raise _odd("the text", "a string", row["text"], where=where)
            return whole_text(row["text"], where, self.problems), None
        tokens = row.get("token")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise _odd("a line without text", '"text" or a list "token"', tokens, where=where)
        tokens = [whole_text(token, where, self.problems) for token in tokens]
        spans: list[Span] = []
        for token in tokens:
            start = spans[-1][1] + 1 if spans else 0
            spans.append((start, start + len(token)))
        return " ".join(tokens), spans

    def _ends(
        self, row: Tree, text: str, tokens: list[Span] | None, *, where: str
    ) -> tuple[End, End]:
        ends: list[End] = []
        for side in ("h", "t"):
            item = row.get(side)
            if not isinstance(item, dict):
                raise _odd(f"{side!r}, an end of the pair", "an object", item, where=where)
            self._note_keys((f"{side}.{key}" for key in item.keys() - _OF_END), where)
            taken = ends[0].fragments if ends else None
            ends.append(self._end(item, text, tokens, taken=taken or (), where=where))
        return ends[0], ends[1]

    def _end(
        self,
        item: Tree,
        text: str,
        tokens: list[Span] | None,
        *,
        taken: Sequence[Span],
        where: str,
    ) -> End:
        name, kind, given = item.get("name"), item.get("type"), item.get("id")
        if not isinstance(name, str | None) or not isinstance(kind, str | None):
            raise _odd("name or type of an end", "strings", item, where=where)
        concept = clean(str(given).strip()) if isinstance(given, str | int) else ""
        wanted = clean(name or "")
        fragments: tuple[Span, ...] | None
        if item.get("pos") is None:
            (fragments,) = find_names(
                text,
                [wanted],
                where=where,
                problems=self.problems,
                effort=self.effort,
                taken=taken,
            )
        else:
            fragments = self._position(item["pos"], text, tokens, name=wanted, where=where)
        return End(wanted, clean(kind or "") or self.options.bare_type, concept, fragments)

    def _position(
        self, given: Any, text: str, tokens: list[Span] | None, *, name: str, where: str
    ) -> tuple[Span, ...] | None:
        """The characters of the text, or None and a problem if there are none."""
        whole = isinstance(given, list | tuple) and len(given) == 2
        if not whole or not all(type(place) is int for place in given):
            raise _odd('"pos"', "[start, end], whole numbers", given, where=where)
        start, end = given
        known = len(text) if tokens is None else len(tokens)
        unit = "characters" if tokens is None else "tokens"
        if not 0 <= start < end <= known:
            slug = "empty-span" if start >= end else "beyond-text"
            what = f"{shown(name)} {start}-{end} points nowhere in {known} {unit}"
            self.problems.append(Problem(slug, where, what, lost=True))
            return None
        if tokens is not None:
            start, end = tokens[start][0], tokens[end - 1][1]
        start += len(text[start:end]) - len(text[start:end].lstrip())
        found = text[start:end].strip()
        if not found:
            what = f"{shown(name)} is white space in the text"
            self.problems.append(Problem("empty-span", where, what, lost=True))
            return None
        if name and _letters(name) != _letters(found):
            what = f"{shown(name)} is {shown(found)} in the text"
            self.problems.append(Problem("text-mismatch", where, what))
        return ((start, start + len(found)),)

    def _attributes(self, row: Tree, where: str) -> Iterator[tuple[str, str]]:
        for key, value in row.items():
            if key in _KNOWN or value is None:
                continue
            if key != PAIR and isinstance(value, str | int | float):
                yield clean(str(key)), clean(str(value))
            else:
                self._note_keys([str(key)], where)

    def _note_keys(self, keys: Iterator[str] | Sequence[str], where: str) -> None:
        """Report keys that are not read, each once."""
        for key in sorted(set(keys) - self._ignored):
            self._ignored.add(key)
            what = f"{shown(key)} is not read, here and further on"
            self.problems.append(Problem("key-ignored", where, what, lost=True))


def _odd(what: str, expected: str, got: object, *, where: str) -> FormatError:
    shape = "nothing" if got is None else type(got).__name__
    return FormatError(what, expected=expected, got=shape, where=where)


def _letters(text: str) -> str:
    """Letters and digits in lower case: names are written with other blanks than the text."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _sentence(text: str, tokens: list[Span] | None) -> tuple[Sentence, ...]:
    """The given tokens as one sentence; a token with blanks in it is several, an empty one none."""
    if tokens is None:
        return ()
    spans: list[Span] = []
    for start, end in tokens:
        for word in text[start:end].split():
            start = text.index(word, start)
            spans.append((start, start + len(word)))
            start += len(word)
    return (Sentence(spans[0][0], spans[-1][1], tuple(spans)),) if spans else ()


# --- writing ------------------------------------------------------------------------------


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a line for every relation between two mentions; `scheme` is not used.

    A pair that a document states and that has no relation is labelled ``NA``. The text is that of
    the sentences from the first to the last that the two touch. An end has its type, and its first
    concept as id. The document's id and attributes are further keys.

    Raises:
        DataError: the file cannot be written.
    """
    problems: list[Problem] = []
    counts = dict.fromkeys(("alone", "concepts", "pieces"), 0)
    lines = []
    for document in map(segmented, documents):
        entities = {entity.id: entity for entity in document.entities}
        linked: set[str] = set()
        for head, tail, label in _labelled(document, entities, problems):
            linked |= {head.id, tail.id}
            row = _row(document, (head, tail), label)
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        used = [entities[name] for name in linked]
        counts["alone"] += len(entities) - len(used)
        counts["concepts"] += sum(len(entity.concepts) > 1 for entity in used)
        counts["pieces"] += sum(len(entity.fragments) > 1 for entity in used)
    write_text(path, "".join(lines))
    alone = "entities are in no pair: they have no line"
    concepts = "entities have several concepts: the first is written"
    pieces = "entities of several fragments are written as one stretch"
    return [
        *problems,
        *unheld(path, alone, counts["alone"], kind="entities-unheld"),
        *unheld(path, concepts, counts["concepts"], kind="concepts-unheld"),
        *unheld(path, pieces, counts["pieces"], kind="fragments-unheld"),
    ]


def _labelled(
    document: Document, entities: Mapping[str, Entity], problems: list[Problem]
) -> Iterator[tuple[Entity, Entity, str]]:
    """Head, tail and label of every line of a document: its pairs, then what no pair covers."""
    related: dict[tuple[str, str], list[Relation]] = {
        (head, tail): []
        for head, tail in stated_pairs(document) or ()
        if head in entities and tail in entities
    }
    for relation in document.relations:
        ends = relation.head, relation.tail
        if relation.level == "concept" or not set(ends) <= entities.keys():
            what = f"{relation.type} {relation.id} does not link two mentions"
            where = document.source or document.id
            problems.append(Problem("relation-unheld", where, what, lost=True))
        else:
            related.setdefault(ends, []).append(relation)
    for (head, tail), relations in related.items():
        labels = dict.fromkeys(relation.type for relation in relations)
        for label in labels or (NO_RELATION,):
            yield entities[head], entities[tail], label


def _row(document: Document, ends: tuple[Entity, Entity], label: str) -> Tree:
    start, end = _window(document, ends)
    row: Tree = {"id": document.id, "text": document.text[start:end]}
    for side, entity in zip(("h", "t"), ends, strict=True):
        row[side] = {"name": document.surface(entity)}
        if entity.concepts:
            row[side]["id"] = entity.concepts[0]
        row[side] |= {"pos": [entity.start - start, entity.end - start], "type": entity.type}
    row["relation"] = NOTHING if label == NO_RELATION else label
    return row | {key: value for key, value in document.attributes if key not in {*_KNOWN, PAIR}}


def _window(document: Document, ends: tuple[Entity, Entity]) -> Span:
    """The characters of all sentences that two entities touch; all of a text of one sentence."""
    if len(document.sentences) < 2:
        return 0, len(document.text)
    start, end = min(one.start for one in ends), max(one.end for one in ends)
    starts = [sentence.start for sentence in document.sentences]
    first, last = bisect_right(starts, start) - 1, bisect_right(starts, end - 1) - 1
    start = min(start, starts[max(first, 0)])
    return start, max(end, document.sentences[max(last, 0)].end)
