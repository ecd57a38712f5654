"""JSON Lines: one document per line, in our own full form or in the forms of doccano and others.

docs/formats/jsonl.md lists what is understood. A file with one JSON list of such objects, or a
single object, is read too; so are the exports of the tools in `tools`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from confide.errors import DataError, FormatError
from confide.files import Tree
from confide.text.document import PAIR, Document, Problem, Sentence, Span, pack_spans
from confide.text.draft import Draft, Source, open_source
from confide.text.files import write_parts
from confide.text.formats.tools import LeftOut, RecordProblems, records_in, tool_records
from confide.text.places import CHARACTERS, UTF16
from confide.text.reading import (
    Options,
    Reading,
    Version,
    choose_versions,
    clean,
    malformed,
    mend_surrogates,
    no_document,
    quoted,
    whole_number,
)
from confide.text.rows import Value, json_values, parse_json

# --- Documents from JSON objects ------------------------------------------------------------------
#
# Our own full form, and the forms that annotation tools write.

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

    def document(
        self, row: Tree, name: str, where: str, *, units: tuple[str, ...] = (CHARACTERS, UTF16)
    ) -> Document:
        """One document.

        Args:
            row: the object.
            name: the document's id if the object has no "id".
            where: "file:line", for problems and errors.
            units: how its offsets may be counted if nothing in it tells, its own rule first.

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
            raise malformed('"text"', "a string", text, where=self._where)
        text = mend_surrogates(text, where, self.problems)
        given = row.get("id")
        called = clean(str(given)) if isinstance(given, str | int) else name
        draft = Draft(called, text, where, self.options, self.problems, units=units, keep=True)
        self._entities(row, draft)
        self._relations(row, draft)
        draft.sentences = self._sentences(row, text)
        draft.attributes = self._attributes(row)
        return draft.document()

    def _note(self, kind: str, what: str, *, lost: bool = True) -> None:
        self.problems.append(Problem(kind, self._where, what, lost))

    # --- entities ---------------------------------------------------------------------

    def _entities(self, row: Tree, draft: Draft) -> None:
        items = [item for key in _ENTITIES if key in row for item in self._list(row, key)]
        for item in items:
            if isinstance(item, list) and len(item) >= 3:
                item = {"start": item[0], "end": item[1], "type": item[2]}
            if not isinstance(item, dict):
                raise malformed(
                    "an entity", "[start, end, type] or an object", item, where=self._where
                )
            self._entity(item, draft)

    def _list(self, row: Tree, key: str) -> list[Any]:
        value = row.get(key)
        if value is None or (key == "label" and isinstance(value, str)):
            return []
        if not isinstance(value, list):
            raise malformed(f'"{key}"', "a list", value, where=self._where)
        return value

    def _entity(self, item: Tree, draft: Draft) -> None:
        kind = first_of(item, _TYPE)
        if not isinstance(kind, str) or not kind:
            raise malformed(
                "an entity's type", "a string that is not empty", kind, where=self._where
            )
        kind = clean(kind)
        given = first_of(item, ("fragments", "offsets"))
        if given is None:
            given = [[first_of(item, _START), first_of(item, _END)]]
        else:
            draft.units = (CHARACTERS,)  # our own form, and that of Python's libraries
        spans = self._spans(given, f"the offsets of {kind}")
        if not spans:
            raise malformed(
                f"the offsets of {kind}", "at least one fragment", None, where=self._where
            )
        surface = item.get("text")
        if isinstance(surface, list):
            surface = " ".join(map(str, surface))
        name = item.get("id")
        draft.entity(
            kind,
            spans,
            given=clean(str(name)) if isinstance(name, str | int) else "",
            surface=surface,
            confidence=self._confidence(item),
            concepts=tuple(self._strings(item, "concepts")),
            attributes=self._pairs(item.get("attributes")),
        )

    def _spans(self, value: object, what: str) -> list[Span]:
        if not isinstance(value, list):
            raise malformed(what, "[[start, end], ...]", value, where=self._where)
        return [self._span(pair, what) for pair in value]

    def _span(self, pair: object, what: str) -> Span:
        if type(pair) is list and len(pair) == 2 and type(pair[0]) is type(pair[1]) is int:
            return pair[0], pair[1]  # as nearly always
        ends = [whole_number(end) for end in pair] if isinstance(pair, list) else []
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            raise malformed(what, "whole numbers, a start and an end", pair, where=self._where)
        return ends[0], ends[1]

    def _confidence(self, item: Tree) -> float | None:
        value = first_of(item, ("confidence", "score"))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise malformed("a confidence", "a number from 0 to 1", value, where=self._where)
        return float(value)

    def _strings(self, item: Tree, key: str) -> list[str]:
        values = self._list(item, key)
        for value in values:
            if not isinstance(value, str | int | float):
                raise malformed(f'"{key}"', "a list of strings", value, where=self._where)
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
            raise malformed(
                '"attributes"', "an object or a list of pairs of strings", value, where=self._where
            )
        return tuple((clean(str(key)), clean(str(content))) for key, content in pairs)

    # --- everything else --------------------------------------------------------------

    def _relations(self, row: Tree, draft: Draft) -> None:
        for number, item in enumerate(self._list(row, "relations"), 1):
            if not isinstance(item, dict):
                raise malformed("a relation", "an object", item, where=self._where)
            kind = first_of(item, ("type", "label"))
            ends = [first_of(item, keys) for keys in (_HEAD, _TAIL)]
            if not isinstance(kind, str) or not all(isinstance(end, str | int) for end in ends):
                raise malformed("a relation", '"type", "head" and "tail"', item, where=self._where)
            head, tail = (clean(str(end)) for end in ends)
            draft.relation(
                clean(kind),
                head,
                tail,
                given=clean(str(item.get("id", f"R{number}"))),
                concepts=item.get("level") == "concept",
                confidence=self._confidence(item),
                attributes=self._pairs(item.get("attributes")),
            )

    def _sentences(self, row: Tree, text: str) -> tuple[Sentence, ...]:
        sentences = []
        last = 0
        for item in self._list(row, "sentences"):
            if not isinstance(item, dict):
                raise malformed("a sentence", "an object", item, where=self._where)
            start, end = self._span([item.get("start"), item.get("end")], "a sentence")
            tokens = self._spans(item.get("tokens"), "the tokens of a sentence")
            borders = [last, start, *(offset for token in tokens for offset in token), end]
            if borders != sorted(borders) or end > len(text) or any(a >= b for a, b in tokens):
                raise malformed(
                    "sentences or tokens out of order", "ascending offsets", item, where=self._where
                )
            sentences.append(Sentence(start, end, pack_spans(tokens)))
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
                self._note("key-ignored", f"{quoted(key)} is not understood, here and below")
        return tuple(pairs)


def read_jsonl(path: Path, options: Options) -> Reading:
    """Read JSON Lines, or a JSON list of documents.

    Raises:
        FormatError: a line is not JSON or not a document (no text, an offset that is not a number).
        DataError: there is no document, or a type was not declared.
    """
    source = open_source(path, options)
    text, source.text = source.text, ""
    return annotated(source, json_values(text, path), format="jsonl")


def annotated(source: Source, values: Iterable[Value], *, format: str) -> Reading:
    """The documents of JSON values, in our own form or in those of tools, and whose they are.

    Raises:
        FormatError: a value is not a document.
        DataError: there is no document, or a type was not declared.
    """
    options, problems = source.options, source.problems
    reader, left = RecordReader(options, problems), LeftOut()
    versions: list[Version] = []
    tools: set[str] = set()

    def add(value: object, name: str, where: str) -> None:
        if value is None:
            left.count("cancelled", where)
            return
        tool, found = tool_records(value, RecordProblems(where, problems, left, options.bare_type))
        tools.add(tool)
        for who, record, units in found:
            versions.append(Version(who, reader.document(record, name, where, units=units)))

    for where, name, given in values:
        try:
            value = parse_json(given, where) if isinstance(given, str) else given
            parts = records_in(value)
            if len(parts) == 1:
                add(parts[0], name, where)
                continue
        except (DataError, FormatError) as error:
            options.skip(error, problems, where)
            continue
        for number, part in enumerate(parts, 1):
            with options.document(problems, f"{where}#{number}"):
                add(part, f"{name}:{number}", f"{where}#{number}")
    problems += left.problems()
    if not versions:
        raise _nothing(left, problems, source.path)
    if "Prodigy" in tools:  # its records have no ids: the text says which belong together
        versions = _named_alike(versions)
    chosen = choose_versions(
        versions, options.annotators, where=str(source.path), problems=problems
    )
    details = {"encoding": source.encoding, **chosen.details}
    if any(tools):
        details["written by"] = " and ".join(sorted(tools - {""}))
    return Reading(chosen.documents, problems, format, details, chosen.versions)


def _nothing(left: LeftOut, problems: Sequence[Problem], path: Path) -> DataError:
    """The error for a file without a document, with what was left out of it."""
    out = ", ".join(f"{count} {kind}" for kind, (count, _) in left.counts.items())
    if out:
        return DataError(f"no document was accepted: {out}", where=str(path))
    return no_document(path, problems, "the file is empty")


def _named_alike(versions: list[Version]) -> list[Version]:
    """The versions, those of one text by different people under the id of the first."""
    first: dict[str, Version] = {}
    alike: list[Version] = []
    for version in versions:
        other = first.setdefault(version.document.text, version)
        if other is not version and other.annotator != version.annotator:
            document = replace(version.document, id=other.document.id)
            version = Version(version.annotator, document)
        alike.append(version)
    return alike


def write_jsonl(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents in our own full form, which holds everything; `scheme` is not used."""
    lines = (
        json.dumps(document_record(document), ensure_ascii=False) + "\n" for document in documents
    )
    write_parts(path, lines)
    return []


def document_record(document: Document) -> Tree:
    """A document in our own full form; empty parts are left out, except the entities."""
    row: Tree = {"id": document.id, "text": document.text}
    row["entities"] = [
        _filled(
            {
                "id": entity.id,
                "type": entity.type,
                "fragments": entity.fragments,
                "confidence": entity.confidence,
                "concepts": entity.concepts,
                "attributes": entity.attributes,
            }
        )
        for entity in document.entities
    ]
    row["relations"] = [
        _filled(
            {
                "id": relation.id,
                "type": relation.type,
                "head": relation.head,
                "tail": relation.tail,
                "level": "concept" if relation.level == "concept" else None,
                "confidence": relation.confidence,
                "attributes": relation.attributes,
            }
        )
        for relation in document.relations
    ]
    row["sentences"] = [
        {"start": sentence.start, "end": sentence.end, "tokens": tuple(sentence.tokens)}
        for sentence in document.sentences
    ]
    row["attributes"] = document.attributes
    return {key: value for key, value in row.items() if value or key in ("id", "text", "entities")}


def _filled(row: Tree) -> Tree:
    return {key: value for key, value in row.items() if value is not None and value != ()}
