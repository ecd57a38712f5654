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
from confide.text.files import (
    LONGEST_JSON,
    each_line,
    read_text,
    with_plain_ends,
    write_parts,
)
from confide.text.formats.base import Options, Reading
from confide.text.formats.records import RecordReader
from confide.text.formats.tools import LeftOut, Notes, is_own, taken
from confide.userfiles import Tree, json_of

_BLANK = re.compile(r"\s*")
_OPEN = re.compile(r"\{[^\S\n]*(?:\n|\Z)")


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
    rows = rows_of(text, path, options=options, problems=problems)
    del text
    for where, name, record in rows:
        try:
            if is_own(record):
                versions.append(Version("", reader.document(record, name, where)))
                continue
            tool, found = taken(record, Notes(where, problems, left))
            tools.add(tool)
            versions += [Version(who, reader.document(one, name, where)) for who, one in found]
        except (DataError, FormatError) as error:
            options.skip(error, problems, where)
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
    file, stem, text = str(path), path.stem, with_plain_ends(text)
    found = _BLANK.match(text)
    start = found.end() if found else 0
    if text.startswith("[", start):
        listed = _load(text, file)
        assert isinstance(listed, list), "a JSON text that begins with [ is a list"
        listed.reverse()
        for number in range(1, len(listed) + 1):
            where = f"{file}#{number}"
            row = _object_of(listed.pop(), where, options, problems)
            if row is not None:
                yield where, f"{stem}:{number}", row
        return
    lines: Iterable[tuple[int, str]] = enumerate(each_line(text), 1)
    if _OPEN.match(text, start):  # one object over several lines
        lines = [(text.count("\n", 0, start) + 1, text)]
    for number, line in lines:
        if not line or line.isspace():
            continue
        where = f"{file}:{number}"
        row = _object_of(line, where, options, problems)
        if row is not None:
            yield where, f"{stem}:{number}", row


def _object_of(given: object, where: str, options: Options, problems: list[Problem]) -> Tree | None:
    """A JSON object, or a line with one; None if it is broken and left out."""
    try:
        row = _load(given, where) if isinstance(given, str) else given
        if isinstance(row, dict):
            return row
        raise FormatError(
            "not a document",
            expected='a JSON object with "text"',
            got=type(row).__name__,
            where=where,
        )
    except FormatError as error:
        options.skip(error, problems, where)
    return None


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
