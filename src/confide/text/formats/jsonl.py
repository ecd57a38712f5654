"""JSON Lines: one document per line, in our own full form or in the forms of doccano and others.

docs/formats/jsonl.md lists what is understood. A file with one JSON list of such objects, or a
single object, is read too; so are the exports of the tools in `tools`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.annotators import Version, settled
from confide.text.document import Document, Problem
from confide.text.files import LONGEST_JSON, lines_of, read_text, write_text
from confide.text.formats.base import Options, Reading
from confide.text.formats.records import RecordReader
from confide.text.formats.tools import LeftOut, Notes, taken
from confide.userfiles import Tree, json_of


def read(path: Path, options: Options) -> Reading:
    """Read JSON Lines, or a JSON list of documents.

    Raises:
        FormatError: a line is not JSON or not a document (no text, an offset that is not a number).
        DataError: there is no document, or a type was not declared.
    """
    text, encoding = read_text(path, options.encoding, longest=LONGEST_JSON)
    problems: list[Problem] = []
    reader, left = RecordReader(options, problems), LeftOut()
    versions: list[Version] = []
    tools: set[str] = set()
    for where, name, record in rows_of(text, path, options=options, problems=problems):
        with options.document(problems, where):
            tool, found = taken(record, Notes(where, problems, left))
            tools.add(tool)
            versions += [Version(who, reader.document(one, name, where)) for who, one in found]
    problems += left.problems()
    if not versions:
        raise _nothing(left, path)
    if "Prodigy" in tools:  # its records have no ids: the text says which belong together
        versions = _named_alike(versions)
    chosen = settled(versions, options.annotators, where=str(path), problems=problems)
    details = {"encoding": encoding, **chosen.details}
    if any(tools):
        details["written by"] = " and ".join(sorted(tools - {""}))
    return Reading(chosen.documents, problems, "jsonl", details, chosen.versions)


def _nothing(left: LeftOut, path: Path) -> DataError:
    """The error for a file without a document, with what was left out of it."""
    out = ", ".join(f"{count} {kind}" for kind, (count, _) in left.counts.items())
    return DataError(f"no document was accepted: {out}" if out else "the file is empty",
                     where=str(path))  # fmt: skip


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
    if text.lstrip()[:1] == "[":
        rows = _load(text, str(path))
        assert isinstance(rows, list), "a JSON text that begins with [ is a list"
        for number, row in enumerate(rows, 1):
            with options.document(problems, f"{path}#{number}"):
                row = _object(row, f"{path}#{number}")
            if isinstance(row, dict):
                yield f"{path}#{number}", f"{path.stem}:{number}", row
        return
    lines = [(n, line) for n, line in enumerate(lines_of(text), 1) if line.strip()]
    if lines and lines[0][1].strip() == "{":  # one object over several lines
        lines = [(lines[0][0], text)]
    for number, line in lines:
        where, row = f"{path}:{number}", None
        with options.document(problems, where):
            row = _object(_load(line, where), where)
        if row is not None:
            yield where, f"{path.stem}:{number}", row


def _load(text: str, where: str) -> object:
    try:
        return json_of(text, parse_constant=_refuse)
    except ValueError as error:
        raise FormatError(f"not JSON: {error}", where=where) from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _object(row: object, where: str) -> Tree:
    if not isinstance(row, dict):
        raise FormatError(
            "not a document",
            expected='a JSON object with "text"',
            got=type(row).__name__,
            where=where,
        )
    return row


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents in our own full form, which holds everything; `scheme` is not used."""
    lines = (json.dumps(record(document), ensure_ascii=False) + "\n" for document in documents)
    write_text(path, "".join(lines))
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
        {"start": sentence.start, "end": sentence.end, "tokens": sentence.tokens}
        for sentence in document.sentences
    ]
    row["attributes"] = document.attributes
    return {key: value for key, value in row.items() if value or key in ("id", "text", "entities")}


def _filled(row: Tree) -> Tree:
    return {key: value for key, value in row.items() if value is not None and value != ()}
