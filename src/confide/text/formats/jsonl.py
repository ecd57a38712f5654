"""JSON Lines: one document per line, in our own full form or in the forms of doccano and others.

docs/formats/jsonl.md lists what is understood. A file with one JSON list of such objects, or a
single object, is read too; so are the exports of the tools in `tools`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from confide.errors import DataError, FormatError
from confide.files import Tree
from confide.text import reading, rows
from confide.text.document import PAIR, Document, Sentence, Span, pack_spans
from confide.text.formats import tools
from confide.text.places import CHARACTERS, UTF16
from confide.text.reading import Draft, Format, Options, Reading, Source, Supports, Version
from confide.text.rows import clean, malformed

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


def _first_of(row: Tree, keys: Iterable[str]) -> Any:
    """The value of the first of `keys` that is present and not null, or None."""
    return next((row[key] for key in keys if row.get(key) is not None), None)


class RecordReader:
    """Makes documents of the JSON objects of one file."""

    def __init__(self, source: Source) -> None:
        self.source = source
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
            raise self._malformed('"text"', "a string", text)
        text = rows.mend_surrogates(text, where, self.source.problems)
        given = row.get("id")
        called = clean(str(given)) if isinstance(given, str | int) else name
        draft = Draft(self.source, called, text, where)
        draft.units, draft.keep = units, True
        for key in _ENTITIES:
            for item in self._list(row, key):
                self._entity(item, draft)
        for number, item in enumerate(self._list(row, "relations"), 1):
            self._relation(item, draft, number)
        draft.sentences = self._sentences(row, text)
        draft.attributes = self._attributes(row)
        return draft.document()

    def _malformed(self, what: str, expected: str, got: object) -> FormatError:
        return malformed(what, expected, got, where=self._where)

    def _list(self, row: Tree, key: str) -> list[Any]:
        value = row.get(key)
        if value is None or (key == "label" and isinstance(value, str)):
            return []
        if not isinstance(value, list):
            raise self._malformed(f'"{key}"', "a list", value)
        return value

    def _entity(self, item: object, draft: Draft) -> None:
        if isinstance(item, list) and len(item) >= 3:
            item = {"start": item[0], "end": item[1], "type": item[2]}
        if not isinstance(item, dict):
            raise self._malformed("an entity", "[start, end, type] or an object", item)
        kind = _first_of(item, _TYPE)
        if not isinstance(kind, str) or not kind:
            raise self._malformed("an entity's type", "a string that is not empty", kind)
        kind = clean(kind)
        given = _first_of(item, ("fragments", "offsets"))
        if given is None:
            given = [[_first_of(item, _START), _first_of(item, _END)]]
        else:
            draft.units = (CHARACTERS,)  # our own form, and that of Python's libraries
        spans = self._spans(given, f"the offsets of {kind}")
        if not spans:
            raise self._malformed(f"the offsets of {kind}", "at least one fragment", None)
        concepts = self._list(item, "concepts")
        if not all(isinstance(concept, str | int | float) for concept in concepts):
            raise self._malformed('"concepts"', "a list of strings", concepts)
        surface, name = item.get("text"), item.get("id")
        draft.entity(
            kind,
            spans,
            given=clean(str(name)) if isinstance(name, str | int) else "",
            surface=" ".join(map(str, surface)) if isinstance(surface, list) else surface,
            confidence=self._confidence(item),
            concepts=tuple(clean(str(concept)) for concept in concepts),
            attributes=self._pairs(item.get("attributes")),
        )

    def _spans(self, value: object, what: str) -> list[Span]:
        if not isinstance(value, list):
            raise self._malformed(what, "[[start, end], ...]", value)
        return [self._span(pair, what) for pair in value]

    def _span(self, pair: object, what: str) -> Span:
        if type(pair) is list and len(pair) == 2 and type(pair[0]) is type(pair[1]) is int:
            return pair[0], pair[1]  # as nearly always
        ends = rows.whole_numbers(pair)
        if ends is None or len(ends) != 2:
            raise self._malformed(what, "whole numbers, a start and an end", pair)
        return ends[0], ends[1]

    def _confidence(self, item: Tree) -> float | None:
        value = _first_of(item, ("confidence", "score"))
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self._malformed("a confidence", "a number from 0 to 1", value)
        return float(value)

    def _pairs(self, value: object) -> tuple[tuple[str, str], ...]:
        """Attributes, from a list of pairs or an object."""
        pairs = list(value.items()) if isinstance(value, dict) else value or []
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and all(isinstance(part, str | int | float) for part in pair)
            for pair in pairs
        ):
            expected = "an object or a list of pairs of strings"
            raise self._malformed('"attributes"', expected, value)
        return tuple((clean(str(key)), clean(str(content))) for key, content in pairs)

    def _relation(self, item: object, draft: Draft, number: int) -> None:
        if not isinstance(item, dict):
            raise self._malformed("a relation", "an object", item)
        kind = _first_of(item, ("type", "label"))
        ends = [_first_of(item, keys) for keys in (_HEAD, _TAIL)]
        if not isinstance(kind, str) or not all(isinstance(end, str | int) for end in ends):
            raise self._malformed("a relation", '"type", "head" and "tail"', item)
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
                raise self._malformed("a sentence", "an object", item)
            start, end = self._span([item.get("start"), item.get("end")], "a sentence")
            tokens = self._spans(item.get("tokens"), "the tokens of a sentence")
            borders = [last, start, *(offset for token in tokens for offset in token), end]
            if borders != sorted(borders) or end > len(text) or any(a >= b for a, b in tokens):
                what = "sentences or tokens out of order"
                raise self._malformed(what, "ascending offsets", item)
            sentences.append(Sentence(start, end, pack_spans(tokens)))
            last = end
        return tuple(sentences)

    def _attributes(self, row: Tree) -> tuple[tuple[str, str], ...]:
        """Our "attributes", then "meta" and every other key that holds one plain value.

        In "meta", and of pairs, a list of plain values is several attributes.
        """
        meta = row.get("meta")
        others = {key: value for key, value in row.items() if key not in _KNOWN}
        if isinstance(meta, dict):
            del others["meta"]
            others |= meta
        if isinstance(row.get("label"), str):
            others["label"] = row["label"]
        pairs = list(self._pairs(row.get("attributes")))
        for key, value in others.items():
            listed = key == PAIR or (isinstance(meta, dict) and key in meta)
            if listed and isinstance(value, list) and all(
                isinstance(one, str | int | float) for one in value
            ):  # fmt: skip
                pairs += [(clean(key), clean(str(one))) for one in value]
            else:
                pairs += self.source.attributes({key: value}, (), self._where)
        return tuple(pairs)


def _read(path: Path, options: Options) -> Reading:
    """Read JSON Lines, or a JSON list of documents.

    Raises:
        FormatError: a line is not JSON or not a document (no text, an offset that is not a number).
        DataError: there is no document.
    """
    source = reading.open_source(path, options)
    text, source.text = source.text, ""
    return read_records(source, rows.json_values(text, path), format="jsonl")


def read_records(source: Source, values: Iterable[rows.Value], *, format: str) -> Reading:
    """The documents of JSON values, in our own form or in those of tools, and whose they are.

    Raises:
        FormatError: a value is not a document.
        DataError: there is no document.
    """
    options, problems = source.options, source.problems
    reader, left = RecordReader(source), tools.LeftOut()
    versions: list[Version] = []
    written_by: set[str] = set()

    def add(value: object, name: str, where: str) -> None:
        if value is None:
            left.count("cancelled", where)
            return
        tool, found = tools.tool_records(value, where, source=source, left=left)
        written_by.add(tool)
        for who, record, units in found:
            versions.append(Version(who, reader.document(record, name, where, units=units)))

    for where, name, given in values:
        try:
            value = rows.parse_json(given, where) if isinstance(given, str) else given
            parts = tools.records_in(value)
            if len(parts) == 1:
                add(parts[0], name, where)
                continue
        except (DataError, FormatError) as error:
            options.skip(error, problems, where)
            continue
        for number, part in enumerate(parts, 1):
            with options.document(problems, f"{where}#{number}"):
                add(part, f"{name}:{number}", f"{where}#{number}")
    left.report(source)
    if not versions:
        out = ", ".join(f"{count} {kind}" for kind, (count, _) in left.counts.items())
        if out:
            raise DataError(f"no document was accepted: {out}", where=str(source.path))
        raise reading.no_document(source.path, problems, "the file is empty")
    if "Prodigy" in written_by:  # its records have no ids: the text says which belong together
        first: dict[str, Version] = {}
        for number, version in enumerate(versions):
            other = first.setdefault(version.document.text, version)
            if other.annotator != version.annotator:
                document = replace(version.document, id=other.document.id)
                versions[number] = Version(version.annotator, document)
    documents, details, several = reading.choose_versions(
        versions, options.annotators, where=str(source.path), problems=problems
    )
    details = {"encoding": source.encoding, **details}
    if any(written_by):
        details["written by"] = " and ".join(sorted(written_by - {""}))
    return Reading(documents, problems, format, details, several)


# --- Writing our own full form, and the formats of this module ------------------------------------


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


_TOOL = Supports(relations=True, attributes=True)
_PUBANNOTATION = replace(_TOOL, fragments=True, concepts="all", said=True)
_doccano = tools.writer(tools.doccano_record)
_prodigy = tools.writer(tools.prodigy_record)
_label_studio = tools.writer(tools.label_studio_record, reading.JSON_LIST)
_pubannotation = tools.writer(tools.pubannotation_record, reading.JSON_LIST)
FORMATS = (
    Format("jsonl", "JSON Lines", ".jsonl", _read, tools.writer(document_record),
           by_text=lambda sample: sample.is_json),
    Format("doccano", "doccano's JSON Lines", ".jsonl", _read, _doccano, _TOOL),
    Format("prodigy", "Prodigy's JSON Lines", ".jsonl", _read, _prodigy, _TOOL),
    Format("labelstudio", "Label Studio's JSON", ".json", _read, _label_studio, _TOOL),
    Format("labelstudio-min", "Label Studio's JSON-MIN", ".json", _read, instead="labelstudio"),
    Format("medcattrainer", "MedCATtrainer's JSON", ".json", _read),
    Format("spacy", "spaCy's training data as JSON", ".json", _read),
    Format("ner-annotator", "NER Annotator's JSON", ".json", _read),
    Format("pubannotation", "PubAnnotation's JSON", ".json", _read, _pubannotation, _PUBANNOTATION),
)  # fmt: skip
"""JSON Lines, and the tools whose JSON the same reader understands."""
