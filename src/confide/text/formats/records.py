"""JSON objects to documents: our own full form, and the forms that annotation tools write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeGuard

from confide.errors import FormatError
from confide.text.document import Document, Entity, Problem, Relation, Sentence, Span
from confide.text.formats.base import (
    Options,
    entity_id,
    merged_fragments,
    reads,
    shown,
    shown_at,
    whole_text,
)
from confide.text.pairs import PAIR
from confide.text.tokens import packed
from confide.userfiles import Tree

_ENTITIES = ("entities", "spans", "label", "labels")
_START = ("start", "start_offset", "begin")
_END = ("end", "end_offset")
_TYPE = ("type", "label", "tag", "entity")
_HEAD = ("head", "from_id", "from")
_TAIL = ("tail", "to_id", "to")
_KNOWN = frozenset((*_ENTITIES, "id", "text", "relations", "sentences", "attributes", "Comments"))

_PARTS = _KNOWN - {"attributes"}


def first_of(row: Tree, keys: Iterable[str]) -> Any:
    """The value of the first of `keys` that is present and not null, or None."""
    return next((row[key] for key in keys if row.get(key) is not None), None)


class RecordReader:
    """Makes documents of the JSON objects of one file; what does not fit goes to `problems`."""

    def __init__(self, options: Options, problems: list[Problem]) -> None:
        self.options, self.problems = options, problems
        self._ignored: set[str] = set()
        self._where = ""

    def document(self, row: Tree, name: str, where: str) -> Document:
        """One document.

        Args:
            row: the object.
            name: the document's id if the object has no "id".
            where: "file:line", for problems and errors.

        Raises:
            FormatError: there is no text, or a part has the wrong form.
            DataError: a type was not declared.
        """
        self._where = where
        text = row.get("text")
        if text is None:
            raise FormatError(
                'a document without "text"',
                expected='a "text", or the keys of another form, such as "tokens" and "ner_tags"',
                got=f"the keys {', '.join(map(clean, row))[:200]}" if row else "no key",
                where=where,
                fix="rename the key of its text, or state the format",
            )
        if not isinstance(text, str):
            raise self._odd('"text"', "a string", text)
        text = whole_text(text, where, self.problems)
        given = row.get("id")
        entities = self._entities(row, text)
        return Document(
            clean(str(given)) if isinstance(given, str | int) else name,
            text,
            tuple(entities.values()),
            self._relations(row, entities) if "relations" in row else (),
            self._sentences(row, text) if "sentences" in row else (),
            self._attributes(row),
            where,
        )

    def _odd(self, what: str, expected: str, got: object) -> FormatError:
        shape = "nothing" if got is None else type(got).__name__
        return FormatError(what, expected=expected, got=shape, where=self._where)

    def _note(self, kind: str, what: str, *, lost: bool = True) -> None:
        self.problems.append(Problem(kind, self._where, what, lost))

    # --- entities ---------------------------------------------------------------------

    def _entities(self, row: Tree, text: str) -> dict[str, Entity]:
        """The entities by the id that the file gives them (or that they get), in order."""
        items = [item for key in _ENTITIES if key in row for item in self._list(row, key)]
        if not items:
            return {}
        items = self._counted_in_characters(items, text)
        taken = {str(item["id"]) for item in items if isinstance(item, dict) and "id" in item}
        found: dict[str, Entity] = {}
        for number, item in enumerate(items, 1):
            if isinstance(item, list) and len(item) >= 3:
                item = {"start": item[0], "end": item[1], "type": item[2]}
            if not isinstance(item, dict):
                raise self._odd("an entity", "[start, end, type] or an object", item)
            given = item.get("id")
            name = str(given) if isinstance(given, str | int) else entity_id(number)
            if given is None or name in found:
                if given is not None:
                    self._note("duplicate-id", f"two entities are called {name}", lost=False)
                name = _free(entity_id(number), taken)
            taken.add(name)
            entity = self._entity(item, clean(name), text)
            if entity is not None:
                found[name] = entity
        return found

    def _counted_in_characters(self, items: list[Any], text: str) -> list[Any]:
        """The items with offsets in characters, where a browser's tool counted UTF-16 units.

        That is so if their own texts say it: they fit better with a character beyond U+FFFF as two.
        """
        if text.isascii() or len(text.encode("utf-16-le")) == 2 * len(text):
            return items
        places = [0]
        for number, character in enumerate(text):
            places += [number + 1] * (1 + (character > "\uffff"))
        moved = [_moved(item, places) for item in items]
        if _misses(moved, text) >= _misses(items, text):
            return items
        self._note("offsets-counted", "offsets counted in UTF-16 units", lost=False)
        return moved

    def _list(self, row: Tree, key: str) -> list[Any]:
        value = row.get(key)
        if value is None or (key == "label" and isinstance(value, str)):
            return []
        if not isinstance(value, list):
            raise self._odd(f'"{key}"', "a list", value)
        return value

    def _entity(self, item: Tree, name: str, text: str) -> Entity | None:
        kind = first_of(item, _TYPE)
        if not isinstance(kind, str) or not kind:
            raise self._odd("an entity's type", "a string that is not empty", kind)
        kind = clean(kind)
        self.options.require(kind, self._where)
        given = first_of(item, ("fragments", "offsets"))
        if given is None:
            given = [[first_of(item, _START), first_of(item, _END)]]
        spans = self._spans(given, f"the offsets of {kind}")
        if not spans:
            raise self._odd(f"the offsets of {kind}", "at least one fragment", None)
        for start, end in spans:
            if not 0 <= start < end <= len(text):
                slug = "empty-span" if start >= end else "beyond-text"
                what = f"{kind} {start}-{end} points nowhere in {len(text)} characters"
                self._note(slug, what)
                return None
        fragments = merged_fragments(spans)
        if len(fragments) != len(spans):
            self._note(
                "fragments-merged", f"fragments of {kind} {name} touch or overlap", lost=False
            )
        entity = Entity(
            name,
            kind,
            fragments,
            confidence=self._confidence(item),
            concepts=tuple(self._strings(item, "concepts")),
            attributes=self._pairs(item.get("attributes")),
        )
        self._compare(item.get("text"), entity, text)
        return entity

    def _compare(self, surface: object, entity: Entity, text: str) -> None:
        """Report an entity whose own text differs from the text at its offsets."""
        if isinstance(surface, list):
            surface = " ".join(map(str, surface))
        if isinstance(surface, str) and not reads(text, entity.fragments, surface):
            found = shown_at(text, entity.fragments)
            what = f"{entity.type} {entity.id} is {shown(surface)} but {found} in the text"
            self._note("text-mismatch", what, lost=False)

    def _spans(self, value: object, what: str) -> list[Span]:
        if not isinstance(value, list):
            raise self._odd(what, "[[start, end], ...]", value)
        return [self._span(pair, what) for pair in value]

    def _span(self, pair: object, what: str) -> Span:
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_count, pair)):
            raise self._odd(what, "whole numbers, a start and an end", pair)
        return pair[0], pair[1]

    def _confidence(self, item: Tree) -> float | None:
        value = first_of(item, ("confidence", "score"))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self._odd("a confidence", "a number from 0 to 1", value)
        return float(value)

    def _strings(self, item: Tree, key: str) -> list[str]:
        values = self._list(item, key)
        for value in values:
            if not isinstance(value, str | int | float):
                raise self._odd(f'"{key}"', "a list of strings", value)
        return [clean(str(value)) for value in values]

    def _pairs(self, value: object) -> tuple[tuple[str, str], ...]:
        """Attributes, from a list of pairs or an object."""
        pairs = list(value.items()) if isinstance(value, dict) else value or []
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and all(isinstance(part, str | int | float) for part in pair)
            for pair in pairs
        ):
            raise self._odd('"attributes"', "an object or a list of pairs of strings", value)
        return tuple((clean(str(key)), clean(str(content))) for key, content in pairs)

    # --- everything else --------------------------------------------------------------

    def _relations(self, row: Tree, entities: dict[str, Entity]) -> tuple[Relation, ...]:
        names = {key: entity.id for key, entity in entities.items()}
        relations = []
        for number, item in enumerate(self._list(row, "relations"), 1):
            if not isinstance(item, dict):
                raise self._odd("a relation", "an object", item)
            kind = first_of(item, ("type", "label"))
            ends = [first_of(item, keys) for keys in (_HEAD, _TAIL)]
            if not isinstance(kind, str) or not all(isinstance(end, str | int) for end in ends):
                raise self._odd("a relation", '"type", "head" and "tail"', item)
            head, tail = map(str, ends)
            level: Literal["entity", "concept"] = "entity"
            if item.get("level") == "concept":
                level = "concept"
            elif head in names and tail in names:
                head, tail = names[head], names[tail]
            else:
                self._note("dangling-relation", f"{kind} from {head} to {tail}: no such entity")
                continue
            relations.append(
                Relation(
                    clean(str(item.get("id", f"R{number}"))),
                    clean(kind),
                    clean(head),
                    clean(tail),
                    level=level,
                    confidence=self._confidence(item),
                    attributes=self._pairs(item.get("attributes")),
                )
            )
        return tuple(relations)

    def _sentences(self, row: Tree, text: str) -> tuple[Sentence, ...]:
        sentences = []
        last = 0
        for item in self._list(row, "sentences"):
            if not isinstance(item, dict):
                raise self._odd("a sentence", "an object", item)
            start, end = self._span([item.get("start"), item.get("end")], "a sentence")
            tokens = self._spans(item.get("tokens"), "the tokens of a sentence")
            borders = [last, start, *(offset for token in tokens for offset in token), end]
            if borders != sorted(borders) or end > len(text) or any(a >= b for a, b in tokens):
                raise self._odd("sentences or tokens out of order", "ascending offsets", item)
            sentences.append(Sentence(start, end, packed(tokens)))
            last = end
        return tuple(sentences)

    def _attributes(self, row: Tree) -> tuple[tuple[str, str], ...]:
        """Our "attributes", then "meta" and every other key that holds one plain value."""
        if _PARTS.issuperset(row) and not isinstance(row.get("label"), str):
            return ()
        pairs = list(self._pairs(row.get("attributes")))
        meta = row.get("meta")
        others = {key: value for key, value in row.items() if key not in _KNOWN}
        if isinstance(meta, dict):
            others |= meta
            del others["meta"]
        if isinstance(row.get("label"), str):
            others["label"] = row["label"]
        for key, value in others.items():
            listed = key == PAIR or (isinstance(meta, dict) and key in meta)
            if (
                listed
                and isinstance(value, list)
                and all(isinstance(one, str | int | float) for one in value)
            ):
                pairs += [(clean(key), clean(str(one))) for one in value]
            elif isinstance(value, str | int | float):
                pairs.append((clean(key), clean(str(value))))
            elif value and key not in self._ignored:
                self._ignored.add(key)
                self._note("key-ignored", f"{shown(key)} is not understood, here and below")
        return tuple(pairs)


def _moved(item: object, places: list[int]) -> object:
    """An object with a start and an end, in other units; anything else as it is."""
    if not isinstance(item, dict):
        return item
    moved = dict(item)
    for key in (*_START, *_END):
        if _is_count(item.get(key)) and 0 <= item[key] < len(places):
            moved[key] = places[item[key]]
    return moved


def _misses(items: list[Any], text: str) -> int:
    """How many objects with a text of their own are not what the text has at their place."""
    count = 0
    for item in items:
        surface = item.get("text") if isinstance(item, dict) else None
        if isinstance(surface, str):
            span = first_of(item, _START), first_of(item, _END)
            count += not all(map(_is_count, span)) or not reads(text, [span], surface)
    return count


def clean(text: str) -> str:
    """Text without lone surrogates, which no file can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _free(name: str, taken: set[str]) -> str:
    """`name`, or the first of name-2, name-3, ... that is not taken."""
    number, wanted = 2, name
    while wanted in taken:
        wanted = f"{name}-{number}"
        number += 1
    return wanted
