"""Relations as a table for people and spreadsheets: one line each, cells separated by tabs.

The table is write-only: it holds no text but the sentences of its relations. `COLUMNS` lists the
columns; offsets are characters of the document, `start end` of each fragment, joined by semicolons.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from confide.errors import FormatError
from confide.text.document import Document, Entity, Problem, Relation
from confide.text.files import write_text
from confide.text.formats.base import Options, Reading, unheld
from confide.text.segment import segmented

COLUMNS = (
    "head", "head_type", "relation", "tail", "tail_type", "sentence", "confidence",
    "head_confidence", "tail_confidence", "document", "head_offsets", "tail_offsets",
)  # fmt: skip


def read(path: Path, options: Options) -> Reading:
    """Raise FormatError: a table leaves out what reading it back would need."""
    raise FormatError(
        "a table of relations is only written, never read",
        where=str(path),
        fix="write JSON Lines as well: they hold everything",
    )


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
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
