"""Tables: notes with a row for each, and relations for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.files import Tree
from confide.text.document import Document, Entity, Problem, Relation
from confide.text.draft import Source, open_source
from confide.text.files import LONGEST_LINE, write_text
from confide.text.formats.jsonl import annotated
from confide.text.reading import Options, Reading, Supports, quoted, reduce_to, unheld
from confide.text.rows import Value, literal_value
from confide.text.segment import segmented

# --- Tables with a header -------------------------------------------------------------------------
#
# Cut by commas, tabs or semicolons, as spreadsheets write them.

_CUTS = ("\t", ";", ",")
_CELL = re.compile(r"[^\W\d][\w .:/#()-]{0,60}", re.UNICODE)
csv.field_size_limit(LONGEST_LINE)  # of all tables: a note may be long
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


def rows_of_table(
    text: str, path: Path, *, options: Options, problems: list[Problem]
) -> Iterator[tuple[str, Cells]]:
    """Every row of a table after its header: where it stands, and its cells by column.

    Raises:
        FormatError: there is no header, a row has more cells than it, or a quotation is not closed.
    """
    first = text.lstrip("\r\n").split("\n", 1)[0]
    cut = next((mark for mark in _CUTS if mark in first), ",")
    table = csv.reader(io.StringIO(text.lstrip("\r\n"), newline=""), delimiter=cut, strict=True)
    header: list[str] = []
    try:
        for row in table:
            where = f"{path}:{table.line_num}"
            if not header:
                header = [cell.strip() for cell in row]
                if len(set(header)) != len(header):
                    raise FormatError("two columns have one name", where=where)
            elif any(cell.strip() for cell in row):
                cells: Cells = {}
                with options.document(problems, where):
                    cells = _cells(header, row, where)
                if cells:
                    yield where, cells
    except csv.Error as error:
        raise FormatError(
            f"not a table: {error}",
            where=f"{path}:{table.line_num}",
            fix="close its quotation marks, or export it again",
        ) from error


def _cells(header: Sequence[str], row: Sequence[str], where: str) -> Cells:
    if len(row) > len(header):
        raise FormatError(
            "a row has more cells than there are columns",
            expected=f"{len(header)}: {', '.join(header)[:100]}",
            got=str(len(row)),
            where=where,
            fix="put texts with commas or line ends in quotation marks",
        )
    return dict(zip(header, [*row, *[""] * (len(header) - len(row))], strict=True))


def column(
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


# --- Tables of notes
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


def is_notes(header: Sequence[str], path: Path) -> bool:
    """True if a header is one of a table of notes: an id and a text, or a text in a .csv file."""
    names = {name.lower() for name in header}
    table = len(header) > 1 or path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
    return table and bool(names & set(TEXTS))


def read_notes(path: Path, options: Options) -> Reading:
    """Read a document for each row; an empty text is left out and reported.

    `options.columns` names the columns of the id and the text.

    Raises:
        FormatError: there is no column of texts, or a row does not fit the header.
        DataError: there is no text.
    """
    source = open_source(path, options, longest=LONGEST_LINE)
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
        return json.loads(json.dumps(literal_value(cell)))
    except (ValueError, TypeError) as error:
        raise FormatError(
            "a cell of a column with annotation that is no JSON",
            expected='[{"start": 0, "end": 4, "label": "Drug"}, ...]',
            got=quoted(cell),
            where=where,
            fix="export it again, as JSON if the tool can",
        ) from error


def write_notes(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a table with the columns id and text, and one for each attribute; no annotation.

    `scheme` is not used. Raises DataError if the file cannot be written.
    """
    cut, problems = reduce_to(documents, Supports(attributes=True), path)
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


def read_table(path: Path, options: Options) -> Reading:
    """Raise FormatError: a table leaves out what reading it back would need."""
    raise FormatError(
        "a table of relations is only written, never read",
        where=str(path),
        fix="write JSON Lines as well: they hold everything",
    )


def write_table(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write the relations of documents in order; `scheme` is not used.

    The sentence is that of head and tail, or all from the first to the last that the two touch;
    white space in a cell is one blank. A cell with a quotation mark is quoted, as spreadsheets do.
    A number that is not known is an empty cell.

    Raises:
        DataError: the file cannot be written.
    """
    problems: list[Problem] = []
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
                where = document.source or document.id
                problems.append(Problem("relation-unheld", where, what, lost=True))
                continue
            linked |= {head.id, tail.id}
            table.writerow(_row(document, relation, head, tail))
        alone += len(entities.keys() - linked)
    write_text(path, page.getvalue())
    what = "entities are in no relation: they have no line"
    return [*problems, *unheld(path, what, alone, kind="entities-unheld")]


def _row(document: Document, relation: Relation, head: Entity, tail: Entity) -> Iterator[str]:
    """The cells of a relation."""
    start, end = _window(document, head, tail)
    cells = (
        document.surface(head),
        head.type,
        relation.type,
        document.surface(tail),
        tail.type,
        document.text[start:end],
        _number(relation.confidence),
        _number(head.confidence),
        _number(tail.confidence),
        document.id,
        _offsets(head),
        _offsets(tail),
    )
    return (" ".join(cell.replace("\0", "").split()) for cell in cells)


def _window(document: Document, head: Entity, tail: Entity) -> tuple[int, int]:
    """The characters of all sentences that two entities touch, and of what is between them."""
    start, end = min(head.start, tail.start), max(head.end, tail.end)
    starts = [sentence.start for sentence in document.sentences]
    first, last = bisect_right(starts, start) - 1, bisect_right(starts, end - 1) - 1
    if last < 0:
        return start, end
    start = min(start, starts[max(first, 0)])
    return start, max(end, document.sentences[last].end)


def _number(confidence: float | None) -> str:
    return "" if confidence is None else f"{confidence:.4f}"


def _offsets(entity: Entity) -> str:
    return ";".join(f"{start} {end}" for start, end in entity.fragments)
