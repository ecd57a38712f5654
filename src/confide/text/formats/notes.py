"""Tables of notes, CSV or TSV: a row for a text, with its id and other columns as attributes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Problem
from confide.text.files import read_text, write_text
from confide.text.formats.base import Options, Reading
from confide.text.formats.delimited import column, rows_of_table
from confide.text.formats.keeping import Keeps, cut_down

TEXTS = ("text", "note_text", "note", "report_text", "report", "document_text", "notes", "body")
IDS = ("id", "note_id", "document_id", "doc_id", "row_id", "report_id", "identifier", "name")


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
    text, encoding = read_text(path, options.encoding)
    problems: list[Problem] = []
    documents: list[Document] = []
    empty = 0
    stated = options.columns or (None, None)
    for where, cells in rows_of_table(text, path, options=options, problems=problems):
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
        if not cells[held].strip():
            empty += 1
            continue
        number = where.rpartition(":")[2]
        name = (cells[own].strip() if own else "") or f"{path.stem}:{number}"
        attributes = tuple(
            (key, value) for key, value in cells.items() if key not in (own, held) and value
        )
        documents.append(Document(name, cells[held], attributes=attributes, source=where))
    if empty:
        what = f"{empty} rows without a text are left out"
        problems.append(Problem("empty-document", str(path), what))
    if not documents:
        raise DataError("there is no text in the table", where=str(path))
    return Reading(documents, problems, "notes", {"encoding": encoding})


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
