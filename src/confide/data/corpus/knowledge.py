"""A knowledge base: triples of head, relation and tail, as a table with tabs.

Rows are ``head relation tail``, or ``head relation tail head-type tail-type``; the line ``head
relation tail ...`` at the top is a header. A million rows are numbers in arrays, each name once.

Legend of shapes: T triples, each once, in the order of their pairs.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError, FormatError
from confide.text.document import Document, Problem
from confide.text.draft import is_negative
from confide.text.files import (
    GZIP,
    LONGEST_LINE,
    Meter,
    Metered,
    inside,
    lines_of,
    read_text,
    write_text,
)
from confide.userfiles import opened

T = TypeVar("T")

By = Literal["concept", "letters"]
Triple = tuple[str, str, str]
_Row = tuple[int, str, str, str, str, str]
"""The line, head, relation, tail, and the types of head and tail."""
_ANY = ("", "")
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
    """A name in the form that ignores case and white space.

    >>> letters(" Acute  Renal FAILURE")
    'acute renal failure'
    """
    return " ".join(name.casefold().split())


class _Numbers(dict[T, int]):
    """A number for each thing, in the order in which they are first looked up."""

    def __missing__(self, thing: T) -> int:
        number = self[thing] = len(self)
        return number


@dataclass(frozen=True, slots=True, eq=False)
class KnowledgeBase:
    """Triples that can be asked for by the names of their ends.

    `by` is what the names are: identifiers ("concept"), or words as they stand in text ("letters"),
    which are compared by `letters`. `names` has a number for each, `relations` and `types` (of head
    and tail, "" for any) are in the order in which they first come, `problems` name the rows that
    were left out.
    """

    by: By
    names: dict[str, int]
    relations: tuple[str, ...]
    types: tuple[tuple[str, str], ...]
    head_T: NDArray[np.int64]
    tail_T: NDArray[np.int64]
    relation_T: NDArray[np.int64]
    types_T: NDArray[np.int64]
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
        stated = [self.types[kinds] for kinds in self.types_T[start:stop]]
        return [
            number
            for number, (head_type, tail_type) in enumerate(stated, start)
            if head_type in wanted[0] and tail_type in wanted[1]
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
        FormatError: a row has other columns than the first, or an empty name; it is no regular
            file; or it is packed and holds far more than it weighs.
        DataError: there is no triple.
    """
    return _collected(_rows(Path(path)), by, str(path))


def knowledge_of(triples: Iterable[Triple], *, by: By = "concept") -> KnowledgeBase:
    """The knowledge base of triples that are at hand; raises DataError if there is none."""
    return _collected(((n, *triple, *_ANY) for n, triple in enumerate(triples, 1)), by, "triples")


def _collected(rows: Iterable[_Row], by: By, where: str) -> KnowledgeBase:
    names: _Numbers[str] = _Numbers()
    relations: _Numbers[str] = _Numbers()
    types: _Numbers[tuple[str, ...]] = _Numbers({_ANY: 0})
    heads, tails, kinds, pairs, lines = (array("q") for _ in range(5))
    for line, head, relation, tail, *ends in rows:
        heads.append(names[letters(head) if by == "letters" else head])
        tails.append(names[letters(tail) if by == "letters" else tail])
        kinds.append(relations[relation])
        pairs.append(types[tuple(ends)])
        lines.append(line)
    head_T, tail_T, relation_T, types_T, line_T = (
        np.frombuffer(column, np.int64) for column in (heads, tails, kinds, pairs, lines)
    )
    nothing = np.array([is_negative(name) for name in relations] or [False])
    left = {"triple-to-itself": head_T == tail_T, "triple-without-relation": nothing[relation_T]}
    order_T = np.lexsort((types_T, relation_T, tail_T, head_T))
    order_T = order_T[~(left["triple-to-itself"] | left["triple-without-relation"])[order_T]]
    sorted_parts = [part[order_T] for part in (head_T, tail_T, relation_T, types_T)]
    again_T = np.zeros(len(order_T), dtype=np.bool_)
    again_T[1:] = np.all([part[1:] == part[:-1] for part in sorted_parts], axis=0)
    if not len(order_T):
        raise DataError("there is no triple", expected="head, relation, tail", where=where)
    left["duplicate-triple"] = np.zeros(len(line_T), dtype=np.bool_)
    left["duplicate-triple"][order_T[again_T]] = True
    head_T, tail_T, relation_T, types_T = (part[~again_T] for part in sorted_parts)
    problems = [one for kind in _LEFT_OUT for one in _named(kind, line_T[left[kind]], where)]
    kinds_of = tuple((head.casefold(), tail.casefold()) for head, tail in types)
    return KnowledgeBase(
        by,
        dict(names),
        tuple(relations),
        kinds_of,
        head_T,
        tail_T,
        relation_T,
        types_T,
        problems,
    )


def _named(kind: str, lines: NDArray[np.int64], where: str) -> Iterator[Problem]:
    """A problem for each of the first lines, and one for all others."""
    why, lost = _LEFT_OUT[kind]
    for line in lines[:_NAMED]:
        yield Problem(kind, f"{where}:{line}", f"the triple {why}", lost=lost)
    if len(lines) > _NAMED:
        what = f"from here on, the triples of {len(lines) - _NAMED} more rows: each {why}"
        yield Problem(kind, f"{where}:{lines[_NAMED]}", what, lost=lost)


# --- the table ----------------------------------------------------------------------------


def _rows(path: Path) -> Iterator[_Row]:
    width = 0
    for number, line in _lines(path):
        cells = [*map(str.strip, line.split("\t"))]
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
        head, relation, tail, *ends = cells
        yield number, head, relation, tail, *(ends or _ANY)


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
    with opened(path) as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        size = os.fstat(raw.fileno()).st_size
        stream: Any = raw
        if packed:
            stream = Metered(gzip.GzipFile(fileobj=raw), Meter(str(path), size))
        with io.TextIOWrapper(stream, "utf-8-sig") as text:
            for number, line in enumerate(iter(lambda: text.readline(LONGEST_LINE + 1), ""), 1):
                if "\0" in line or len(line) > LONGEST_LINE:
                    raise ValueError("a NUL character, or a line without an end")
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
    """Write triples as a table with a header; raises DataError if that cannot be."""
    rows = [_HEADER, *triples]
    text = "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
    write_text(Path(path), text)
