"""JSON Lines: one document per line, in our own full form or in the forms of doccano and others.

docs/formats/jsonl.md lists what is understood. A file with one JSON list of such objects, or a
single object, is read too; so are the exports of the tools in `tools`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.annotators import Version, settled
from confide.text.document import Document, Problem
from confide.text.files import each_line, with_plain_ends, write_parts
from confide.text.formats.base import Options, Reading, nothing_in
from confide.text.formats.draft import Source, opened
from confide.text.formats.records import RecordReader
from confide.text.formats.tools import LeftOut, Notes, parts_of, taken
from confide.userfiles import Tree, json_of

_BLANK = re.compile(r"\s*")
_OPEN = re.compile(r"\{[^\S\n]*(?:\n|\Z)")
_PAIR = re.compile(r'\[\s*"')
Value = tuple[str, str, object]
"""A line, or a value of a list: its place, a name for its document, and itself."""


def read(path: Path, options: Options) -> Reading:
    """Read JSON Lines, or a JSON list of documents.

    Raises:
        FormatError: a line is not JSON or not a document (no text, an offset that is not a number).
        DataError: there is no document, or a type was not declared.
    """
    source = opened(path, options)
    text, source.text = source.text, ""
    return annotated(source, _values(text, path), format="jsonl")


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
        tool, found = taken(value, Notes(where, problems, left, options.bare_type))
        tools.add(tool)
        for who, record, units in found:
            versions.append(Version(who, reader.document(record, name, where, units=units)))

    for where, name, given in values:
        try:
            value = _load(given, where) if isinstance(given, str) else given
            parts = parts_of(value)
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
    chosen = settled(versions, options.annotators, where=str(source.path), problems=problems)
    details = {"encoding": source.encoding, **chosen.details}
    if any(tools):
        details["written by"] = " and ".join(sorted(tools - {""}))
    return Reading(chosen.documents, problems, format, details, chosen.versions)


def _nothing(left: LeftOut, problems: Sequence[Problem], path: Path) -> DataError:
    """The error for a file without a document, with what was left out of it."""
    out = ", ".join(f"{count} {kind}" for kind, (count, _) in left.counts.items())
    if out:
        return DataError(f"no document was accepted: {out}", where=str(path))
    return nothing_in(path, problems, "the file is empty")


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


def rows_of(
    text: str,
    path: Path,
    *,
    options: Options | None = None,
    problems: list[Problem] | None = None,
) -> Iterator[tuple[str, str, Tree]]:
    """Every JSON object of a file: its place, a name for it, and the object.

    With `options`, a broken line is left out if they say so. Raises FormatError if a line is not
    JSON or not an object.
    """
    options, problems = options or Options(), problems if problems is not None else []
    for where, name, given in _values(text, path):
        with options.document(problems, where):
            row = _load(given, where) if isinstance(given, str) else given
            if not isinstance(row, dict):
                raise FormatError(
                    "not a document",
                    expected='a JSON object with "text"',
                    got=type(row).__name__,
                    where=where,
                )
            yield where, name, row


def _values(text: str, path: Path) -> Iterator[Value]:
    """Every line of a file, or the values of the one list that it is; strings are not parsed."""
    file, stem, text = str(path), path.stem, with_plain_ends(text)
    found = _BLANK.match(text)
    start = found.end() if found else 0
    if text.startswith("[", start) and not _PAIR.match(text, start):
        listed = _load(text, file)
        assert isinstance(listed, list), "a JSON text that begins with [ is a list"
        listed.reverse()
        for number in range(1, len(listed) + 1):
            value = listed.pop()
            line = json.dumps(value) if isinstance(value, str) else value
            yield f"{file}#{number}", f"{stem}:{number}", line
        return
    lines: Iterable[tuple[int, str]] = enumerate(each_line(text), 1)
    if _OPEN.match(text, start):  # one object over several lines
        lines = [(text.count("\n", 0, start) + 1, text)]
    for number, line in lines:
        if line and not line.isspace():
            yield f"{file}:{number}", f"{stem}:{number}", line


def _load(text: str, where: str) -> object:
    try:
        return json_of(text, parse_constant=_refuse)
    except ValueError as error:
        raise FormatError(f"not JSON: {error}", where=where) from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents in our own full form, which holds everything; `scheme` is not used."""
    lines = (json.dumps(record(document), ensure_ascii=False) + "\n" for document in documents)
    write_parts(path, lines)
    return []


def record(document: Document) -> Tree:
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
