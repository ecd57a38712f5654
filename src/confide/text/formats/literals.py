"""Values in lines and in the cells of a table: JSON's, Python's, and NumPy's lists."""

from __future__ import annotations

import ast
import re
import warnings

from confide.errors import FormatError
from confide.text.formats.base import shown
from confide.userfiles import json_of

_ITEM = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")|(?P<number>-?[0-9]{1,9})(?:\.0*)?)
    (?=[\s,\]])\s*,?""",
    re.VERBOSE | re.DOTALL,
)


_LITERAL = re.compile(
    r"""(?:[uU]?'(?:[^'\\]|\\.)*+'|[uU]?"(?:[^"\\]|\\.)*+"|[\s\[\]{}(),:]|True|False|None
    |[-+]?[0-9.]++(?:[eE][-+]?[0-9]++)?)*+""",
    re.VERBOSE | re.DOTALL,
)
"""What a value of strings, numbers, lists and dicts is written with: no names, no operators."""


def value_of(text: str) -> object:
    """A value that is written as JSON, or as Python writes it. Raises ValueError.

    >>> value_of("[(6, 15, 'DRUG')]"), value_of('{"a": null}')
    ([(6, 15, 'DRUG')], {'a': None})
    """
    try:
        return json_of(text)
    except ValueError:
        if not _LITERAL.fullmatch(text):  # Python's parser takes hours for some that are none
            raise
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backslash in a text that escapes nothing
            found: object = ast.literal_eval(text)
            return found
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError("neither JSON nor a Python value") from error


def list_of(cell: str, where: str) -> list[object]:
    """The strings and whole numbers of a list; a cell without brackets is words between blanks.

    Raises:
        FormatError: it is no such list, or NumPy left out its middle (...).

    >>> list_of("['EU' 'its']", "")
    ['EU', 'its']
    >>> list_of('["EU", "said"]', ""), list_of("[0. 3.]", ""), list_of("O B-X", "")
    (['EU', 'said'], [0, 3], ['O', 'B-X'])
    """
    inside = cell.strip()
    if not inside.startswith("["):
        return list(inside.split())
    if not inside.endswith("]"):
        raise _odd(cell, where)
    found: list[object] = []
    place = 1
    while inside[place:-1].strip():
        match = _ITEM.match(inside, place)
        if match is None:
            raise _odd(cell, where)
        found.append(_unquoted(match["text"], where) if match["text"] else int(match["number"]))
        place = match.end()
    return found


def _unquoted(quoted: str, where: str) -> str:
    if "\\" not in quoted:
        return quoted[1:-1]
    try:
        return str(ast.literal_eval(quoted.replace("\n", "\\n")))
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise _odd(quoted, where) from error


def _odd(cell: str, where: str) -> FormatError:
    cut = "..." in cell
    return FormatError(
        "a list whose middle was left out" if cut else "a cell that is no list",
        expected="a list of strings or of whole numbers",
        got=shown(cell),
        where=where,
        fix="write the table as JSON or parquet, which hold whole lists" if cut else None,
    )
