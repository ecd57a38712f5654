"""A knowledge base: triples of head, relation and tail, as a table cut by tabs.

Rows are ``head relation tail``, or ``head relation tail head-type tail-type``; the line ``head
relation tail ...`` at the top is a header. A million rows are numbers in arrays, each name once.

Legend of shapes: T triples, each once, in the order of their pairs.
"""

from __future__ import annotations

import gzip
import io
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError, FormatError
from confide.text.archives import inside
from confide.text.document import Document, Problem
from confide.text.files import lines_of, read_text, write_text
from confide.text.formats.biobert import is_negative

By = Literal["concept", "letters"]
Triple = tuple[str, str, str]
_HEADER = ["head", "relation", "tail"]
_NAMED = 100
"""How many rows of each sort are named one by one."""
_LEFT_OUT = {
    "duplicate-triple": ("stands in an earlier row, too", False),
    "triple-to-itself": ("has one thing at both ends", True),
    "triple-without-relation": ("says that nothing holds", True),
}
"""The rows that are left out: why, and whether something is lost with them."""


def letters(name: str) -> str:
    """What two names have in common that are the same but for case and white space.

    >>> letters(" Acute  Renal FAILURE")
    'acute renal failure'
    """
    return " ".join(name.casefold().split())


class Row(NamedTuple):
    """A row of the table; a type that is not stated is empty."""

    line: int
    head: str
    relation: str
    tail: str
    head_type: str = ""
    tail_type: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class KnowledgeBase:
    """Triples that can be asked for by the names of their ends.

    `by` is what the names are: identifiers ("concept"), or words as they stand in text ("letters"),
    which are compared by `letters`. `names` has a number for each, `relations` are in the order in
    which they first come, `problems` name the rows that were left out.
    """

    by: By
    names: dict[str, int]
    relations: tuple[str, ...]
    types: tuple[str, ...]
    head_T: NDArray[np.int64]
    tail_T: NDArray[np.int64]
    relation_T: NDArray[np.int64]
    head_type_T: NDArray[np.int64]
    tail_type_T: NDArray[np.int64]
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.head_T)

    @property
    def typed(self) -> bool:
        """Whether a row states the type of an end."""
        return len(self.types) > 1

    def between(self, head: str, tail: str, types: tuple[str, str]) -> list[int]:
        """The triples, by number, of a pair whose ends have these types (whatever their case)."""
        one, other = self.names.get(head), self.names.get(tail)
        if one is None or other is None:
            return []
        low, high = np.searchsorted(self.head_T, (one, one + 1))
        start, stop = low + np.searchsorted(self.tail_T[low:high], (other, other + 1))
        if not self.typed:
            return list(range(start, stop))
        wanted = [("", kind.casefold()) for kind in types]
        return [
            number
            for number in range(start, stop)
            if self.types[self.head_type_T[number]] in wanted[0]
            and self.types[self.tail_type_T[number]] in wanted[1]
        ]

    def relation(self, number: int) -> str:
        """The relation of a triple."""
        return self.relations[int(self.relation_T[number])]


def read_knowledge(path: Path | str, *, by: By = "concept") -> KnowledgeBase:
    """Read a table of triples; gzip is unpacked.

    Rows that stand twice are read once; those whose ends are one, and those whose relation says
    that nothing holds (`NA`), are left out. All of them are in `problems`, by line.

    Raises:
        MissingDataError: there is no such file.
        FormatError: a row has other columns than the first, or an empty name.
        DataError: there is no triple.
    """
    return knowledge_of(_rows(Path(path)), by=by, where=str(path))


def knowledge_of(
    rows: Iterable[Row | Triple], *, by: By = "concept", where: str = "triples"
) -> KnowledgeBase:
    """The knowledge base of rows, or of plain triples; raises as `read_knowledge` does."""
    names: dict[str, int] = {}
    relations: dict[str, int] = {}
    types = {"": 0}
    columns = [array("q") for _ in range(6)]
    left: dict[str, list[int]] = {"triple-to-itself": [], "triple-without-relation": []}
    for row in _numbered(rows):
        head, tail = row.head, row.tail
        if by == "letters":
            head, tail = letters(head), letters(tail)
        if head == tail:
            left["triple-to-itself"].append(row.line)
        elif row.relation not in relations and is_negative(row.relation):
            left["triple-without-relation"].append(row.line)
        else:
            columns[0].append(names.setdefault(head, len(names)))
            columns[1].append(names.setdefault(tail, len(names)))
            columns[2].append(relations.setdefault(row.relation, len(relations)))
            columns[3].append(types.setdefault(row.head_type.casefold(), len(types)))
            columns[4].append(types.setdefault(row.tail_type.casefold(), len(types)))
            columns[5].append(row.line)
    if not relations:
        raise DataError("there is no triple", expected="head, relation, tail", where=where)
    *parts, lines_T = (np.frombuffer(column, np.int64) for column in columns)
    order_T = np.lexsort(parts[::-1])
    sorted_parts = [part[order_T] for part in parts]
    same_T = np.all([part[1:] == part[:-1] for part in sorted_parts], axis=0)
    first_T = np.concatenate([[True], ~same_T])
    head_T, tail_T, relation_T, head_type_T, tail_type_T = (p[first_T] for p in sorted_parts)
    left["duplicate-triple"] = np.sort(lines_T[order_T][~first_T]).tolist()
    return KnowledgeBase(
        by,
        names,
        tuple(relations),
        tuple(types),
        head_T,
        tail_T,
        relation_T,
        head_type_T,
        tail_type_T,
        [one for kind in _LEFT_OUT for one in _named(kind, left[kind], where)],
    )


def _numbered(rows: Iterable[Row | Triple]) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        yield row if isinstance(row, Row) else Row(number, *row)


def _named(kind: str, lines: Sequence[int], where: str) -> Iterator[Problem]:
    """A problem for each of the first lines, and one for all others."""
    why, lost = _LEFT_OUT[kind]
    for line in lines[:_NAMED]:
        yield Problem(kind, f"{where}:{line}", f"the triple {why}", lost=lost)
    if len(lines) > _NAMED:
        what = f"from here on, the triples of {len(lines) - _NAMED} more rows: each {why}"
        yield Problem(kind, f"{where}:{lines[_NAMED]}", what, lost=lost)


# --- the table ----------------------------------------------------------------------------


def _rows(path: Path) -> Iterator[Row]:
    width = 0
    for number, line in _lines(path):
        cells = [cell.strip() for cell in line.split("\t")]
        if not width:
            width = len(cells)
            if [cell.casefold() for cell in cells[:3]] == _HEADER:
                continue
        if len(cells) != width or width not in (3, 5) or not all(cells[:3]):
            raise FormatError(
                f"a row of {len(cells)} columns, or an empty one among the first three",
                expected="head, relation, tail, and in all rows or none the types of head and tail,"
                " cut by tabs",
                where=f"{path}:{number}",
            )
        yield Row(number, *cells)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, and their numbers; read one by one where that can be."""
    try:
        if inside(path) is None and path.is_file():
            yield from _streamed(path)
            return
    except (ValueError, OSError, EOFError, zlib.error):
        pass  # what is wrong, or which encoding it is in, is said by the reader of whole files
    for number, line in enumerate(lines_of(read_text(path)[0]), 1):
        if line.strip():
            yield number, line


def _streamed(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = gzip.GzipFile(fileobj=raw) if packed else raw
        for number, line in enumerate(io.TextIOWrapper(stream, "utf-8-sig"), 1):
            if "\0" in line:
                raise ValueError("a NUL character")
            if line.strip():
                yield number, line.rstrip("\n")


# --- triples of annotated documents ----------------------------------------------------------


def triples_of(documents: Iterable[Document], *, by: By = "concept") -> list[Triple]:
    """The triples that documents' relations say, each once, in order.

    An end is its concept (of a mention the first), or by letters the words of every mention that
    has the concept. A relation whose end has no such name gives no triple.
    """
    found: dict[Triple, None] = {}
    for document in documents:
        names: dict[str, list[str]] = {}
        for entity in document.entities:
            words = letters(document.surface(entity))
            names[entity.id] = [words] if by == "letters" else list(entity.concepts[:1])
        concepts: dict[str, list[str]] = {}
        for entity in document.entities:
            for concept in entity.concepts:
                own = names[entity.id] if by == "letters" else [concept]
                concepts.setdefault(concept, []).extend(own)
        for relation in document.relations:
            known = concepts if relation.level == "concept" else names
            heads, tails = (known.get(end, []) for end in (relation.head, relation.tail))
            found |= {(head, relation.type, tail): None for head in heads for tail in tails}
    return [triple for triple in found if triple[0] != triple[2] and not is_negative(triple[1])]


def write_triples(triples: Sequence[Triple], path: Path | str) -> None:
    """Write triples as a table with a header; raises DataError where that cannot be."""
    rows = [_HEADER, *triples]
    text = "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
    write_text(Path(path), text)
