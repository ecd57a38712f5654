"""Notes without annotation, and tables: raw text, CSV and TSV."""

from __future__ import annotations

import csv
import io
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.files import Tree
from confide.text import files, reading, rows
from confide.text.document import Document, Entity, Relation
from confide.text.formats.jsonl import read_records
from confide.text.reading import EVERYTHING, Format, Options, Output, Reading, Sample, Source
from confide.text.segment import segmented

# --- Raw text -------------------------------------------------------------------------------------
#
# A file is one document without annotation; offsets count every character of it.


def _read_text(path: Path, options: Options) -> Reading:
    """Read a file as one document, named by the file's stem.

    Raises:
        FormatError: the bytes do not fit the encoding.
        DataError: there is nothing but white space in it.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    if not source.text.strip():
        raise DataError("the file is empty", where=str(path))
    document = Document(path.stem, source.text, source=str(path))
    return Reading([document], source.problems, "text", {"encoding": source.encoding})


def _write_text(documents: Sequence[Document], out: Output) -> None:
    """Write the texts, separated by empty lines."""
    out.write("\n\n".join(document.text for document in documents))


# --- Tables with a header -------------------------------------------------------------------------
#
# Cut by commas, tabs or semicolons, as spreadsheets write them.

_CUTS = ("\t", ";", ",")
_CELL = re.compile(r"[^\W\d][\w .:/#()-]{0,60}", re.UNICODE)
csv.field_size_limit(files.LONGEST_LINE)  # of all tables: a note may be long
Cells = dict[str, str]


def header_of(line: str) -> list[str]:
    """The names of columns in the first line of a table; empty if it is none."""
    cut = next((mark for mark in _CUTS if mark in line), ",")
    try:
        cells = [cell.strip() for cell in next(csv.reader([line.rstrip("\r\n")], delimiter=cut))]
    except (csv.Error, StopIteration):
        return []
    named = all(_CELL.fullmatch(cell) for cell in cells)
    return cells if named and len(set(cells)) == len(cells) else []


def rows_of_table(source: Source) -> Iterator[tuple[str, Cells]]:
    """Every row of a table after its header: where it stands, and its cells by column.

    Raises:
        FormatError: there is no header, a row has more cells than it, or a quotation is not closed.
    """
    text = source.text.lstrip("\r\n")
    cut = next((mark for mark in _CUTS if mark in text.split("\n", 1)[0]), ",")
    table = csv.reader(io.StringIO(text, newline=""), delimiter=cut, strict=True)
    header: list[str] = []
    try:
        for row in table:
            where = f"{source.path}:{table.line_num}"
            if not header:
                header = [cell.strip() for cell in row]
                if len(set(header)) != len(header):
                    raise FormatError("two columns have one name", where=where)
            elif len(row) > len(header):
                error = FormatError(
                    "a row has more cells than there are columns",
                    expected=f"{len(header)}: {', '.join(header)[:100]}",
                    got=str(len(row)),
                    where=where,
                    fix="put texts with commas or line ends in quotation marks",
                )
                source.options.skip(error, source.problems, where)
            elif any(cell.strip() for cell in row):
                cells = [*row, *[""] * (len(header) - len(row))]
                yield where, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise FormatError(
            f"not a table: {error}",
            where=f"{source.path}:{table.line_num}",
            fix="close its quotation marks, or export it again",
        ) from error


def column_of(
    header: Sequence[str], stated: int | str | None, known: Sequence[str], *, where: str, what: str
) -> str | None:
    """The name of a column: the stated one (by name or number), or the first that is known.

    Raises FormatError if the stated one is not there.
    """
    if stated is None:
        by_name = {name.lower(): name for name in header}
        return next((by_name[name] for name in known if name in by_name), None)
    if isinstance(stated, int) and -len(header) <= stated < len(header):
        return header[stated]
    if isinstance(stated, str) and stated in header:
        return stated
    raise FormatError(
        f"the stated column of the {what} does not exist",
        expected=f"one of the {len(header)} columns {', '.join(header)[:200]}",
        got=str(stated)[:60],
        where=where,
    )


# --- Tables of notes ------------------------------------------------------------------------------
#
# CSV or TSV: a row for a text, with its id and other columns as attributes.
#
# Tools export tables too, with the annotation of a text as JSON in a cell. Such a table is read as
# the JSON of its rows (`jsonl`).

TEXTS = ("text", "note_text", "note", "report_text", "report", "document_text", "notes", "body")
IDS = ("id", "note_id", "document_id", "doc_id", "row_id", "report_id", "identifier", "name")
_ANNOTATION = re.compile(
    r"""\s*(?:\[\s*)?(?:\{[^{}\[\]]{0,200}["'](?:start|begin|start_offset|entities|spans|labels?)["']\s*:
    |[\[(]\s*"?\d+(?:\.0)?"?\s*,\s*"?\d+(?:\.0)?"?\s*,\s*["'])""",
    re.VERBOSE,
)
"""The beginning of a cell that holds spans: objects with a start, or lists of start, end and
label."""


def _is_notes(sample: Sample) -> bool:
    """True if a header is one of a table of notes: an id and a text, or a text in a .csv file."""
    header = header_of(sample.rows[0])
    named = sample.path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
    known = not {name.lower() for name in header}.isdisjoint(TEXTS)
    return known and (len(header) > 1 or named) and len(sample.lines) > 1


def _read_notes(path: Path, options: Options) -> Reading:
    """Read a document for each row; an empty text is left out and reported.

    `options.columns` names the columns of the id and the text.

    Raises:
        FormatError: there is no column of texts, or a row does not fit the header.
        DataError: there is no text.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    stated = options.columns or (None, None)
    full: list[tuple[str, str, str, Cells]] = []
    empty = 0
    for where, cells in rows_of_table(source):
        header = list(cells)
        own = column_of(header, stated[0], IDS, where=where, what="id")
        held = column_of(header, stated[1], TEXTS, where=where, what="text")
        if held is None:
            raise FormatError(
                "no column of texts",
                expected=f"a column called {' or '.join(TEXTS)}",
                got=", ".join(header)[:200],
                where=where,
                fix="state the columns of the id and the text",
            )
        name = (cells[own].strip() if own else "") or f"{path.stem}:{where.rpartition(':')[2]}"
        rest = {key: cell for key, cell in cells.items() if key not in (own, held)}
        full += [(where, name, cells[held], rest)] if cells[held].strip() else []
        empty += not cells[held].strip()
    if empty:
        what = f"{empty} rows without a text are left out"
        source.problems.note("empty-document", path, what)
    if not full:
        raise DataError("there is no text in the table", where=str(path))
    marked = {key for *_, cells in full for key, cell in cells.items() if _ANNOTATION.match(cell)}
    if not marked:
        documents = [
            Document(name, text, attributes=tuple((k, v) for k, v in cells.items() if v), source=at)
            for at, name, text, cells in full
        ]
        return Reading(documents, source.problems, "notes", {"encoding": source.encoding})

    def values() -> Iterator[rows.Value]:
        """The rows as JSON, with what is in the cells of the marked columns."""
        for where, name, text, cells in full:
            row: Tree = {key: cell for key, cell in cells.items() if cell and key not in marked}
            with options.document(source.problems, where):
                held = {key: _value(cells[key]) for key in marked if cells[key].strip()}
                items = [one for value in held.values() if isinstance(value, list) for one in value]
                if any(isinstance(one, dict) and "labels" in one for one in items):
                    row |= {"annotation_id": None, **held}  # as Label Studio's JSON-MIN
                else:
                    row["entities"] = items
                    for value in held.values():
                        row |= value if isinstance(value, dict) else {}
                yield where, name, row | {"id": name, "text": text}

    found = read_records(source, values(), format="notes")
    return replace(found, details={**found.details, "annotation": ", ".join(sorted(marked))})


def _value(cell: str) -> object:
    """The value of a cell with annotation, its tuples as lists. Raises FormatError."""
    try:
        return json.loads(json.dumps(rows.literal_value(cell)))
    except (ValueError, TypeError) as error:
        raise FormatError(
            "a cell of a column with annotation that is no JSON",
            expected='[{"start": 0, "end": 4, "label": "Drug"}, ...]',
            got=rows.quoted(cell),
            fix="export it again, as JSON if the tool can",
        ) from error


def _write_notes(documents: Sequence[Document], out: Output) -> None:
    """Write a table with the columns id and text, and one for each attribute; no annotation."""
    names = dict.fromkeys(key for document in documents for key, _ in document.attributes)
    columns = [name for name in names if name not in ("id", "text", "")]
    page = io.StringIO(newline="")
    table = csv.writer(page, delimiter="\t" if out.path.suffix == ".tsv" else ",")
    table.writerow(["id", "text", *columns])
    for document in documents:
        said = dict(document.attributes)
        cells = [document.id, document.text, *(said.get(name, "") for name in columns)]
        table.writerow(cell.replace("\0", "") for cell in cells)
    out.write(page.getvalue())


# --- Tables of relations --------------------------------------------------------------------------
#
# For people and spreadsheets: one line each, cells separated by tabs.
#
# The table is write-only: it holds no text but the sentences of its relations. `COLUMNS` lists the
# columns; offsets are characters of the document, `start end` of each fragment, joined by
# semicolons.

COLUMNS = (
    "head", "head_type", "relation", "tail", "tail_type", "sentence", "confidence",
    "head_confidence", "tail_confidence", "document", "head_offsets", "tail_offsets",
)  # fmt: skip


def _read_table(path: Path, options: Options) -> Reading:
    """Raise FormatError: a table leaves out what reading it back would need."""
    raise FormatError(
        "a table of relations is only written, never read",
        where=str(path),
        fix="write JSON Lines as well: they hold everything",
    )


def _write_table(documents: Sequence[Document], out: Output) -> None:
    """Write the relations of documents in order.

    The sentence is that of head and tail, or all from the first to the last that the two touch;
    white space in a cell is one blank. A cell with a quotation mark is quoted, as spreadsheets do.
    A number that is not known is an empty cell.

    Raises:
        DataError: the file cannot be written.
    """
    page = io.StringIO()
    table = csv.writer(page, delimiter="\t", lineterminator="\n")
    table.writerow(COLUMNS)
    alone = 0
    for document in map(segmented, documents):
        entities = {entity.id: entity for entity in document.entities}
        linked: set[str] = set()
        for relation in document.relations:
            head, tail = entities.get(relation.head), entities.get(relation.tail)
            if relation.level == "concept" or head is None or tail is None:
                what = f"{relation.type} {relation.id} does not link two mentions"
                out.problems.lost("relation-unheld", document.where, what)
                continue
            linked |= {head.id, tail.id}
            cells = _cells(document, relation, head, tail)
            table.writerow(" ".join(cell.replace("\0", "").split()) for cell in cells)
        alone += len(entities.keys() - linked)
    out.write(page.getvalue())
    out.unheld("entities-unheld", alone, "entities are in no relation: they have no line")


def _cells(document: Document, relation: Relation, head: Entity, tail: Entity) -> tuple[str, ...]:
    """The cells of a relation."""
    start, end = min(head.start, tail.start), max(head.end, tail.end)
    starts = [sentence.start for sentence in document.sentences]
    first, last = bisect_right(starts, start) - 1, bisect_right(starts, end - 1) - 1
    if last >= 0:  # all sentences that the two touch, and what is between them
        start = min(start, starts[max(first, 0)])
        end = max(end, document.sentences[last].end)
    return (
        document.surface(head),
        head.type,
        relation.type,
        document.surface(tail),
        tail.type,
        document.text[start:end],
        *("" if one.confidence is None else f"{one.confidence:.4f}"
          for one in (relation, head, tail)),
        document.id,
        *(";".join(f"{a} {b}" for a, b in one.fragments) for one in (head, tail)),
    )  # fmt: skip


TEXT = Format(
    "text",
    "raw text, no annotation",
    ".txt",
    _read_text,
    _write_text,
    replace(EVERYTHING, entities=False, relations=False, concept_relations=False),
    by_text=lambda sample: sample.path.suffix.lower() in (".txt", ".text"),
)
NOTES = Format(
    "notes",
    "a table of notes, CSV or TSV",
    ".csv",
    _read_notes,
    _write_notes,
    reading.Supports(entities=False, attributes=True),
    by_text=_is_notes,
)
TABLE = Format("table", "a table of relations", ".tsv", _read_table, _write_table)
