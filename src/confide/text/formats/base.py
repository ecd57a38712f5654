"""What all formats share: a reader's options, what it gives, and the description of a format."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import DataError
from confide.text.document import Document, Problem, Span

NO_DATA = re.compile(
    r"(?i)^(readme|license|licence|source|notice|changelog|relation2id\.)|rel2id\.json$"
    r"|\.(md|html?|pdf|png)$"
)
"""Names of files that lie beside data but are not data."""
_SLACK = 200


def is_number(text: str) -> bool:
    """Whether this is a whole number of at most 15 digits, and nothing else."""
    return text.isascii() and text.isdigit() and len(text) < 16


@dataclass(frozen=True, slots=True)
class Options:
    """How to read; None or the default means that the reader finds out by itself.

    `types` are the entity types that may occur (None: any); `columns` are those of the token and
    the tag, counted from 0 or, if negative, from the end (tag None: the file has no tags).
    """

    scheme: str | None = None
    encoding: str | None = None
    columns: tuple[int, int | None] | None = None
    bare_type: str = "entity"
    types: frozenset[str] | None = None

    def require(self, kind: str, where: str) -> None:
        """Check a type against the declared ones.

        Raises:
            DataError: `types` is given and `kind` is not in it.
        """
        if self.types is not None and kind not in self.types:
            raise DataError(
                "an entity type that was not declared",
                expected=" or ".join(sorted(self.types)) or "none",
                got=repr(kind),
                where=where,
                fix="declare it, or map it in the site's tags",
            )


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file gave: documents, what was lost or doubtful, the format, and how it was read."""

    documents: list[Document]
    problems: list[Problem] = field(default_factory=list)
    format: str = ""
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: its name in settings, what it is, its file ending, a reader and a writer.

    `read(path, options)` gives a `Reading`; `write(documents, path, scheme)` gives the problems and
    is None if the format is read-only. `suffix` is empty if the format is a folder. `whole`: the
    reader takes a whole folder, not file by file.
    """

    name: str
    title: str
    suffix: str
    read: Callable[[Path, Options], Reading]
    write: Callable[[Sequence[Document], Path, str], list[Problem]] | None
    whole: bool = False


def place(document: Document, start: int, end: int) -> str:
    """The place of a stretch of a document, for a problem: ``source [start:end]``."""
    return f"{document.source or document.id} [{start}:{end}]"


def merged_fragments(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans in ascending order; those that touch or overlap are merged."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def reads(text: str, spans: Sequence[Span], surface: str) -> bool:
    """Whether fragments of a text equal a surface, apart from white space.

    A stretch that is far longer than the surface cannot equal it and is not read, so that a
    thousand mentions of a whole text take no longer than the text.
    """
    if sum(end - start for start, end in spans) > 2 * len(surface) + _SLACK:
        return False
    return " ".join(text[start:end] for start, end in spans).split() == surface.split()


def shown_at(text: str, spans: Sequence[Span]) -> str:
    """A short quotation from fragments of a text, for its owner."""
    return shown(" ".join(text[start : min(end, start + _SLACK)] for start, end in spans[:_SLACK]))


def free_id(name: str, taken: Container[str], tried: dict[str, int]) -> str:
    """`name`, or the first of name-2, name-3, ... that is not taken.

    `tried`, one dict for all names of a document, remembers the last number of each name, so that
    many equal names take no longer than different ones.
    """
    wanted, number = name, tried.get(name, 1)
    while wanted in taken:
        number += 1
        wanted = f"{name}-{number}"
    tried[name] = number
    return wanted


def shown(text: str, limit: int = 40) -> str:
    """A short quotation from a text, for its owner."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def whole_text(text: str, where: str, problems: list[Problem]) -> str:
    """Text with every lone surrogate read as one U+FFFD, which is reported."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    what = "half of a character in the text; read as U+FFFD"
    problems.append(Problem("lone-surrogate", where, what))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def unheld(path: Path, what: str, count: int, *, kind: str) -> list[Problem]:
    """One problem for `count` things that a format cannot hold; none for zero."""
    return [Problem(kind, str(path), f"{count} {what}", lost=True)] if count else []
