"""PGR (Sousa, Lamurias & Couto 2019): a gene and a phenotype in a sentence, labelled from the HPO.

A table with a header and tabs. The training part has the labels of the knowledge base; in the
curated test part, a last column says whether each is Correct, Incorrect or Uncertain.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Sequence
from html.entities import html5
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Problem, Span
from confide.text.files import LONGEST_LINE
from confide.text.formats.base import Options, Reading, shown, whole
from confide.text.formats.draft import gathered, opened
from confide.text.formats.one_pair import End, Line, document_of, find_names
from confide.text.formats.placing import Effort
from confide.text.formats.records import clean

RELATION = "gene-phenotype"
FILE = "file"
"""The attribute that names the abstract of a sentence."""
_ENDS = ("GENE", "PHENOTYPE")
_COLUMNS = (
    "FILE_ID", "SENTENCE", *_ENDS, "GENE_ID", "PHENOTYPE_ID", "GENE_START_POSITION",
    "GENE_END_POSITION", "PHENOTYPE_START_POSITION", "PHENOTYPE_END_POSITION", "RELATION",
)  # fmt: skip
_CONFIRMATION = "CONFIRMATION"
_LABELS = {"true": True, "false": False}
_VERDICTS = {"C": False, "I": True}
"""Whether a verdict reverses the label."""
_ESCAPE = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]*);")


def read(path: Path, options: Options) -> Reading:
    """Read the table: a document for each row, of one sentence, that asks about its pair.

    The gene is the head, the phenotype the tail; what holds between them is `RELATION`, where the
    label is true and nobody calls it incorrect, or false and called so. A pair whose label is
    uncertain is left out and named. The abstract's number is the attribute "file".

    HTML escapes are read as what they stand for; offsets, which count them, are moved. Where the
    text at the offsets is not the name, the name is looked for in the sentence.

    Raises:
        FormatError: a column is missing, a row has other columns, or a value is invalid.
        DataError: there is no row, or a type was not declared.
    """
    source, effort = opened(path, options, longest=LONGEST_LINE), Effort(str(path))
    lines = list(source.lines())
    if len(lines) < 2:
        raise DataError("the table has no rows", where=str(path))
    header = _header(lines[0][2], lines[0][0])

    def one(where: str, name: str, line: str) -> Document:
        row = _row(header, line, where)
        found = _line(row, name, where, source.problems, effort=effort)
        return document_of(found, options, source.problems)

    curated = "yes" if _CONFIRMATION in header else "no"
    return gathered(source, lines[1:], one, format="pgr", curated=curated)


def is_pgr(lines: Sequence[str]) -> bool:
    """Whether a file begins with such a header."""
    first = next((line for line in lines if line.strip()), "")
    return set(_COLUMNS) <= {name.strip() for name in first.split("\t")}


def _header(line: str, where: str) -> list[str]:
    names = [name.strip() for name in line.split("\t")]
    names = [_CONFIRMATION if name.startswith(_CONFIRMATION) else name for name in names]
    missing = [name for name in _COLUMNS if name not in names]
    if missing or len(set(names)) != len(names):
        raise FormatError(
            "the header is not that of PGR",
            expected=f"each column once, {', '.join(missing) or 'and no other twice'} among them",
            where=where,
        )
    return names


def _row(header: Sequence[str], line: str, where: str) -> dict[str, str]:
    cells = line.split("\t")
    if len(cells) != len(header):
        raise FormatError(
            "a row of other columns than the header",
            expected=str(len(header)),
            got=str(len(cells)),
            where=where,
        )
    return dict(zip(header, cells, strict=True))


def _line(
    row: dict[str, str], name: str, where: str, problems: list[Problem], *, effort: Effort
) -> Line:
    raw = row["SENTENCE"]
    text, shifts = unescaped(raw)
    names = [unescaped(row[end])[0].strip() for end in _ENDS]
    places: list[tuple[Span, ...] | None] = []
    for end, wanted in zip(_ENDS, names, strict=True):
        start, stop = (_offset(row, f"{end}_{side}_POSITION", where) for side in ("START", "END"))
        span = _moved(start, shifts), _moved(stop, shifts)
        fits = bool(wanted) and text[slice(*span)].casefold() == wanted.casefold()
        places.append((span,) if fits else None)
        if not fits:
            what = f"{end.lower()} {shown(wanted)} is {shown(raw[start:stop])} at its offsets"
            problems.append(Problem("offset-mismatch", where, what))
    for number, place in enumerate(places):
        if place is None:
            taken = places[1 - number] or ()
            (places[number],) = find_names(
                text, [names[number]], where=where, problems=problems, effort=effort, taken=taken
            )
    gene, phenotype = (
        End(wanted, end.capitalize(), clean(row[f"{end}_ID"].strip()), place)
        for end, wanted, place in zip(_ENDS, names, places, strict=True)
    )
    label = _label(row, where)
    if label is None:
        what = "nobody knows whether the label is right: the pair is left out"
        problems.append(Problem("uncertain-label", where, what, lost=True))
    return Line(
        name,
        where,
        text,
        (gene, phenotype),
        RELATION if label else "NA",
        attributes=((FILE, clean(row["FILE_ID"].strip())),),
        paired=label is not None,
    )


def _label(row: dict[str, str], where: str) -> bool | None:
    """Whether the relation holds; None if that is uncertain."""
    label = _LABELS.get(row["RELATION"].strip().lower())
    verdict = row.get(_CONFIRMATION, "C").strip().upper()
    if label is None or verdict not in (*_VERDICTS, "U"):
        raise FormatError(
            "a label or its confirmation",
            expected="True or False; C, I or U",
            got=f"{shown(row['RELATION'])} {shown(row.get(_CONFIRMATION, ''))}",
            where=where,
        )
    return None if verdict == "U" else label is not _VERDICTS[verdict]


def _offset(row: dict[str, str], column: str, where: str) -> int:
    value = whole(row[column])
    if value is None:
        got = shown(row[column])
        raise FormatError(f"{column} is no offset", expected="a whole number", got=got, where=where)
    return value


def unescaped(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without HTML escapes; for each the offset behind it, and by how much it has shrunk.

    >>> unescaped("p &lt; 0.1 &amp; q")
    ('p < 0.1 & q', [(6, 3), (16, 7)])
    """
    pieces: list[str] = []
    shifts: list[tuple[int, int]] = []
    last = shrunk = 0
    for match in _ESCAPE.finditer(text):
        name = match[0][1:]
        plain = html.unescape(match[0]) if name.startswith("#") else html5.get(name)
        if plain is None:
            continue  # it stands for nothing
        pieces += (text[last : match.start()], plain)
        last = match.end()
        shrunk += len(match[0]) - len(plain)
        shifts.append((last, shrunk))
    return "".join((*pieces, text[last:])), shifts


def _moved(offset: int, shifts: Sequence[tuple[int, int]]) -> int:
    """An offset of a text with escapes as one of the text without."""
    before = bisect_right(shifts, offset, key=lambda shift: shift[0])
    return offset - (shifts[before - 1][1] if before else 0)
