"""JSON Lines: one document per line, in our own full form or in the forms of doccano and others.

docs/formats/jsonl.md lists what is understood. A file with one JSON list of such objects, or a
single object, is read too; so are Label Studio's exports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Problem
from confide.text.files import LONGEST_JSON, lines_of, read_text, write_text
from confide.text.formats.base import Options, Reading
from confide.text.formats.records import RecordReader, label_studio
from confide.userfiles import Tree, json_of


def read(path: Path, options: Options) -> Reading:
    """Read JSON Lines, or a JSON list of documents.

    Raises:
        FormatError: a line is not JSON or not a document (no text, an offset that is not a number).
        DataError: there is no document, or a type was not declared.
    """
    text, encoding = read_text(path, options.encoding, longest=LONGEST_JSON)
    problems: list[Problem] = []
    reader = RecordReader(options, problems)
    documents = []
    for where, name, record in rows_of(text, path):
        if "text" not in record and isinstance(record.get("data"), dict):
            record = label_studio(record, where, problems)
        documents.append(reader.document(record, name, where))
    if not documents:
        raise DataError("the file is empty", where=str(path))
    return Reading(documents, problems, "jsonl", {"encoding": encoding})


def rows_of(text: str, path: Path) -> Iterator[tuple[str, str, Tree]]:
    """Every JSON object of a file: its place, a name for it, and the object.

    Raises FormatError if a line is not JSON or not an object.
    """
    if text.lstrip()[:1] == "[":
        rows = _load(text, str(path))
        assert isinstance(rows, list), "a JSON text that begins with [ is a list"
        for number, row in enumerate(rows, 1):
            yield f"{path}#{number}", f"{path.stem}:{number}", _object(row, f"{path}#{number}")
        return
    lines = [(n, line) for n, line in enumerate(lines_of(text), 1) if line.strip()]
    if lines and lines[0][1].strip() == "{":  # one object over several lines
        lines = [(lines[0][0], text)]
    for number, line in lines:
        where = f"{path}:{number}"
        yield where, f"{path.stem}:{number}", _object(_load(line, where), where)


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
