"""Tables of notes, CSV or TSV: a row for a text, with its id and other columns as attributes.

Tools export tables too, with the annotation of a text as JSON in a cell. Such a table is read as
the JSON of its rows (`jsonl`).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Problem
from confide.text.files import LONGEST_LINE, write_text
from confide.text.formats.base import Options, Reading, shown
from confide.text.formats.delimited import Cells, column, rows_of_table
from confide.text.formats.draft import Source, opened
from confide.text.formats.jsonl import Value, annotated
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.formats.literals import value_of
from confide.userfiles import Tree

TEXTS = ("text", "note_text", "note", "report_text", "report", "document_text", "notes", "body")
IDS = ("id", "note_id", "document_id", "doc_id", "row_id", "report_id", "identifier", "name")
_ANNOTATION = re.compile(
    r"""\s*(?:\[\s*)?(?:\{[^{}\[\]]{0,200}["'](?:start|begin|start_offset|entities|spans|labels?)["']\s*:
    |[\[(]\s*"?\d+(?:\.0)?"?\s*,\s*"?\d+(?:\.0)?"?\s*,\s*["'])""",
    re.VERBOSE,
)
"""How a cell begins that holds spans: objects with a start, or lists of start, end and label."""


def is_notes(header: Sequence[str], path: Path) -> bool:
    """Whether a header is one of a table of notes: an id and a text, or a text in a .csv file."""
    names = {name.lower() for name in header}
    table = len(header) > 1 or path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
    return table and bool(names & set(TEXTS))


def read(path: Path, options: Options) -> Reading:
    """Read a document for each row; an empty text is left out and reported.

    `options.columns` names the columns of the id and the text.

    Raises:
        FormatError: there is no column of texts, or a row does not fit the header.
        DataError: there is no text.
    """
    source = opened(path, options, longest=LONGEST_LINE)
    rows = list(rows_of_table(source.text, path, options=options, problems=source.problems))
    stated = options.columns or (None, None)
    full: list[tuple[str, str, str, Cells]] = []
    for where, cells in rows:
        header = list(cells)
        own = column(header, stated[0], IDS, where=where, what="id")
        held = column(header, stated[1], TEXTS, where=where, what="text")
        if held is None:
            raise FormatError(
                "no column of texts",
                expected=f"a column called {' or '.join(TEXTS)}",
                got=", ".join(header)[:200],
                where=where,
                fix="state the columns of the id and the text",
            )
        if cells[held].strip():
            name = cells[own].strip() if own else ""
            rest = {key: cell for key, cell in cells.items() if key not in (own, held)}
            number = where.rpartition(":")[2]
            full.append((where, name or f"{path.stem}:{number}", cells[held], rest))
    if len(full) < len(rows):
        what = f"{len(rows) - len(full)} rows without a text are left out"
        source.problems.append(Problem("empty-document", str(path), what))
    if not full:
        raise DataError("there is no text in the table", where=str(path))
    marked = {key for *_, cells in full for key, cell in cells.items() if _ANNOTATION.match(cell)}
    if marked:
        return _annotated(source, full, marked)
    documents = [
        Document(name, text, attributes=tuple(pair for pair in cells.items() if pair[1]), source=at)
        for at, name, text, cells in full
    ]
    return Reading(documents, source.problems, "notes", {"encoding": source.encoding})


def _annotated(
    source: Source, rows: Sequence[tuple[str, str, str, Cells]], marked: Collection[str]
) -> Reading:
    """The rows as JSON, with what is in the cells of some columns; they must all hold JSON."""

    def values() -> Iterator[Value]:
        for where, name, text, cells in rows:
            row: Tree = {key: cell for key, cell in cells.items() if cell and key not in marked}
            with source.options.document(source.problems, where):
                held = {key: _value(cells[key], where) for key in marked if cells[key].strip()}
                items = [one for value in held.values() if isinstance(value, list) for one in value]
                if any(isinstance(one, dict) and "labels" in one for one in items):
                    row |= {"annotation_id": None, **held}  # as Label Studio's JSON-MIN
                else:
                    row["entities"] = items
                    for value in held.values():
                        row |= value if isinstance(value, dict) else {}
                yield where, name, row | {"id": name, "text": text}

    reading = annotated(source, values(), format="notes")
    return replace(reading, details={**reading.details, "annotation": ", ".join(sorted(marked))})


def _value(cell: str, where: str) -> object:
    """The value of a cell with annotation, its tuples as lists. Raises FormatError."""
    try:
        return json.loads(json.dumps(value_of(cell)))
    except (ValueError, TypeError) as error:
        raise FormatError(
            "a cell of a column with annotation that is no JSON",
            expected='[{"start": 0, "end": 4, "label": "Drug"}, ...]',
            got=shown(cell),
            where=where,
            fix="export it again, as JSON if the tool can",
        ) from error


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a table with the columns id and text, and one for each attribute; no annotation.

    `scheme` is not used. Raises DataError if the file cannot be written.
    """
    cut, problems = cut_down(documents, Keeps(attributes=True), path)
    names = dict.fromkeys(key for document in cut for key, _ in document.attributes)
    columns = ["id", "text", *(name for name in names if name not in ("id", "text") and name)]
    page = io.StringIO(newline="")
    table = csv.writer(page, delimiter="\t" if path.suffix == ".tsv" else ",")
    table.writerow(columns)
    entities = 0
    for document in cut:
        said = dict(document.attributes)
        cells = [document.id, document.text, *(said.get(name, "") for name in columns[2:])]
        table.writerow(cell.replace("\0", "") for cell in cells)
        entities += len(document.entities)
    write_text(path, page.getvalue())
    if entities:
        what = f"{entities} entities: a table of notes has none"
        problems.append(Problem("entities-unheld", str(path), what, lost=True))
    return problems
