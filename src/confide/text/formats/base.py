"""What all formats share: a reader's options, what it gives, and the description of a format."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.annotators import Version
from confide.text.document import Document, Problem, Span
from confide.text.languages import AUTO

NO_DATA = re.compile(
    r"(?i)^(readme|license|licence|source|notice|changelog|relation2id\.)|rel2id\.json$"
    r"|^(dataset_dict|dataset_infos?|state|label2id|id2label|labels?|rel_info|pid2name)\.json$"
    r"|^typesystem\.xml$|\.(md|html?|pdf|png|dtd|xsd|conf)$"
)
"""Names of files that lie beside data but are not data."""
_SLACK = 200
_UNSAFE = re.compile(r"[^\w.\-/]+")
_BROKEN, _LEFT_OUT = "broken-document", "left out: "


def is_number(text: str) -> bool:
    """Whether this is a whole number of at most 15 digits, and nothing else."""
    return text.isascii() and text.isdigit() and len(text) < 16


def whole(value: object) -> int | None:
    """A whole number, which a file may write as 6, 6.0 or "6"; None for anything else.

    >>> [whole(value) for value in (6, 6.0, "6", " 6.0", 6.5, "6.5", True, None, float("inf"))]
    [6, 6, 6, 6, None, None, None, None, None]
    """
    if isinstance(value, str):
        number, _, rest = value.strip().partition(".")
        return int(number) if is_number(number) and not rest.strip("0") else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


Columns = tuple[int | str, int | str | None]
"""The columns of the token and the tag, or of the id and the text of notes."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to read; None or the default means that the reader finds out by itself.

    `types` are the entity types that may occur (None: any). `columns` are those of the token and
    the tag (None: the file has no tags): numbers counted from 0 or, if negative, from the end, or
    the names of columns and keys. In a table of notes they are those of the id and the text.
    `annotators` says whose annotation of a document that several annotated is read: "first",
    "majority" or a name; None reads the first, and counts the others as lost. `skip_broken`: a
    document that cannot be read is left out and named, instead of being an error.
    `language` is that of text without sentences (`text.splitting`).
    """

    scheme: str | None = None
    encoding: str | None = None
    columns: Columns | None = None
    bare_type: str = "entity"
    types: frozenset[str] | None = None
    annotators: str | None = None
    skip_broken: bool = False
    language: str = AUTO

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

    @contextmanager
    def document(self, problems: list[Problem], where: object) -> Iterator[None]:
        """A block that reads one document, which is left out if it is broken and that is wished.

        Raises DataError and FormatError as the block does, unless `skip_broken` is set.
        """
        try:
            yield
        except (DataError, FormatError) as error:
            self.skip(error, problems, where)

    def skip(self, error: DataError | FormatError, problems: list[Problem], where: object) -> None:
        """Leave out a document that is broken, if that is wished, or else raise its error again."""
        if not self.skip_broken:
            raise error
        problems.append(Problem(_BROKEN, str(where), f"{_LEFT_OUT}{error}", lost=True))


def nothing_in(path: Path, problems: Sequence[Problem], otherwise: str) -> DataError:
    """The error for a file without a document; it says why the first was left out, if one was."""
    broken = next((one.what for one in problems if one.kind == _BROKEN), None)
    left = f"no document is left: {(broken or '').removeprefix(_LEFT_OUT)}"
    return DataError(otherwise if broken is None else left, where=str(path))


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file gave: documents, what was lost or doubtful, the format, and how it was read.

    `versions` are what each annotator made of the documents that several annotated.
    """

    documents: list[Document]
    problems: list[Problem] = field(default_factory=list)
    format: str = ""
    details: dict[str, str] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: its name in settings, what it is, its file ending, a reader and a writer.

    `read(path, options)` gives a `Reading`; `write(documents, path, scheme)` gives the problems and
    is None if the format is read-only. `suffix` is empty if the format is a folder. `whole`: the
    reader takes a whole folder, not file by file. `by_annotator`: a file is one annotator's version
    of a document, and where it lies says whose and of which.
    """

    name: str
    title: str
    suffix: str
    read: Callable[[Path, Options], Reading]
    write: Callable[[Sequence[Document], Path, str], list[Problem]] | None
    whole: bool = False
    by_annotator: bool = False


@lru_cache(maxsize=4096)
def entity_id(number: int) -> str:
    """The id of an entity that a file gives none: T1, T2, ...; the same string for all documents.

    >>> entity_id(3)
    'T3'
    """
    return f"T{number}"


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
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        pass
    what = "half of a character in the text; read as U+FFFD"
    problems.append(Problem("lone-surrogate", where, what))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def unheld(path: Path, what: str, number: int, *, kind: str) -> list[Problem]:
    """One problem for a number of things that a format cannot hold; none for zero."""
    return [Problem(kind, str(path), f"{number} {what}", lost=True)] if number else []


def file_name(name: str, taken: set[str]) -> str:
    """A path in a folder, made from a document's id, that no other document has; it is taken then.

    >>> taken = set()
    >>> file_name("a b/../c", taken), file_name("A_B/c", taken)
    ('a_b/c', 'A_B/c-2')
    """
    parts = [part.strip(".") for part in _UNSAFE.sub("_", name).split("/")]
    plain = "/".join(part[:100] for part in parts if part) or "document"
    names = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
    free = next(name for name in names if name.lower() not in taken)
    taken.add(free.lower())
    return free
