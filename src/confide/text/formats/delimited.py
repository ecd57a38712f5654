"""Tables with a header, cut by commas, tabs or semicolons, as spreadsheets write them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from confide.errors import FormatError
from confide.text.document import Problem
from confide.text.files import LONGEST_LINE
from confide.text.formats.base import Options

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
