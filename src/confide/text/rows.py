"""Values of a user's file: numbers, JSON and Python values, and their parts checked as taken."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.errors import FormatError
from confide.files import Tree, decode_json
from confide.text.document import Problems
from confide.text.files import each_line, with_plain_ends

# --- Strings and numbers --------------------------------------------------------------------------


def is_number(text: str) -> bool:
    """Return whether this is a whole number of at most 15 digits, and nothing else."""
    return text.isascii() and text.isdigit() and len(text) < 16


def whole_number(value: object) -> int | None:
    """A whole number, which a file may write as 6, 6.0 or "6"; None for anything else.

    >>> [whole_number(value) for value in (6, 6.0, "6", " 6.0", 6.5, "6.5", True, None)]
    [6, 6, 6, 6, None, None, None, None]
    """
    if isinstance(value, str):
        number, _, rest = value.strip().partition(".")
        return int(number) if is_number(number) and not rest.strip("0") else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


def whole_numbers(values: object) -> list[int] | None:
    """The whole numbers of a list; None for anything else.

    >>> whole_numbers(["6", 7.0]), whole_numbers([6, "x"])
    ([6, 7], None)
    """
    if not isinstance(values, list | tuple):
        return None
    found = [whole_number(value) for value in values]
    numbers = [one for one in found if one is not None]
    return numbers if len(numbers) == len(found) else None


def clean(text: str) -> str:
    """Text without lone surrogates, which no file can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def mend_surrogates(text: str, where: str, problems: Problems) -> str:
    """Text with every lone surrogate read as one U+FFFD, which is reported."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        problems.note("lone-surrogate", where, "half of a character in the text; read as U+FFFD")
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def quoted(text: str, limit: int = 40) -> str:
    """A short quotation from a text, for its owner."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def malformed(what: str, expected: str, got: object, *, where: str) -> FormatError:
    """The error for a part of a file that is not as expected; it names what came, not its value."""
    shape = "nothing" if got is None else type(got).__name__
    return FormatError(what, expected=expected, got=shape, where=where)


# --- Literal values -------------------------------------------------------------------------------
#
# In lines and in the cells of a table: JSON's, Python's, and NumPy's lists.

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
"""A pattern of the characters of literal strings, numbers, lists and dicts: no names, no
operators."""


def literal_value(text: str) -> object:
    """A value that is written as JSON, or as Python writes it. Raises ValueError.

    >>> literal_value("[(6, 15, 'DRUG')]"), literal_value('{"a": null}')
    ([(6, 15, 'DRUG')], {'a': None})
    """
    try:
        return decode_json(text)
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


def literal_list(cell: str) -> list[object]:
    """The strings and whole numbers of a list; a cell without brackets is words between blanks.

    Raises:
        FormatError: it is no such list, or NumPy left out its middle (...).

    >>> literal_list("['EU' 'its']")
    ['EU', 'its']
    >>> literal_list('["EU", "said"]'), literal_list("[0. 3.]"), literal_list("O B-X")
    (['EU', 'said'], [0, 3], ['O', 'B-X'])
    """
    inside = cell.strip()
    if not inside.startswith("["):
        return list(inside.split())
    found: list[object] = []
    place = 1
    try:
        while match := _ITEM.match(inside, place):
            place = match.end()
            text = (match["text"] or match["number"]).replace("\n", "\\n")
            found.append(ast.literal_eval(text) if match["text"] else int(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        place = 0  # a quotation with an escape that is none
    if inside[place:].strip() == "]":
        return found
    cut = "..." in cell
    raise FormatError(
        "a list whose middle was left out" if cut else "a cell that is no list",
        expected="a list of strings or of whole numbers",
        got=quoted(cell),
        fix="write the table as JSON or parquet, which hold whole lists" if cut else None,
    )


# --- Checked JSON objects -------------------------------------------------------------------------
#
# Parts are checked as they are taken; the keys tell an object's form.

_MARK = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}:,]', re.DOTALL)
_BLANK = re.compile(r"\s*")
_PAIR = re.compile(r'\[\s*"')
_VALUES = json.JSONDecoder()
Value = tuple[str, str, object]
"""A line, or a value of a list: its place, a name for its document, and itself."""
Key = int | str
"""A key of an object, or a place in a list."""


@dataclass(frozen=True, slots=True)
class Row:
    """An object of a file, and where it stands. Every method raises FormatError."""

    tree: Tree
    where: str

    def malformed(self, what: str, expected: str, got: object) -> FormatError:
        """The error for a part of another form."""
        return malformed(what, expected, got, where=self.where)

    def string(self, key: str) -> str:
        """A string that is not empty."""
        value = self.tree.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.malformed(f'"{key}"', "a string that is not empty", value)
        return clean(value.strip())

    def text(self, key: str, problems: Problems) -> str:
        """A string as it stands, but for lone surrogates, which are reported."""
        value = self.tree.get(key)
        if not isinstance(value, str):
            raise self.malformed(f'"{key}"', "a string", value)
        return mend_surrogates(value, self.where, problems)

    def name(self, keys: Sequence[str], otherwise: str) -> str:
        """The first of some keys that holds a string or a number, as a string."""
        for key in keys:
            value = self.tree.get(key)
            if isinstance(value, str | int) and str(value).strip():
                return clean(str(value))
        return otherwise

    def number(self, key: str) -> int:
        """A whole number."""
        return self.whole(self.tree.get(key), f'"{key}"')

    def whole(self, value: object, what: str) -> int:
        """A value of this object that must be a whole number."""
        number = whole_number(value)
        if number is None:
            raise self.malformed(what, "a whole number", value)
        return number

    def words(self, key: str) -> list[str]:
        """A list of strings."""
        return self.strings(self.tree.get(key), f'"{key}"')

    def strings(self, value: object, what: str) -> list[str]:
        """A value of this object that must be a list of strings."""
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.malformed(what, "a list of strings", value)
        return value

    def values(self, key: str) -> list[object]:
        """A list, empty if it is missing."""
        value = self.tree.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.malformed(f'"{key}"', "a list", value)
        return value

    def rows(self, key: str) -> list[Row]:
        """A list of objects, empty if it is missing."""
        values = self.values(key)
        found = [Row(one, self.where) for one in values if isinstance(one, dict)]
        if len(found) != len(values):
            raise self.malformed(f'"{key}"', "a list of objects", values)
        return found

    def part(self, item: object, key: Key, what: str) -> object:
        """A part of an item that is an object or a list."""
        if isinstance(key, int):
            if not isinstance(item, list) or key >= len(item):
                raise self.malformed(what, f"a list of at least {key + 1}", item)
            return item[key]
        if not isinstance(item, dict):
            raise self.malformed(what, "an object", item)
        return item.get(key)

    def type(self, value: object, what: str) -> str:
        """A value that must be the name of a type."""
        if not isinstance(value, str) or not value.strip():
            raise self.malformed(what, "a string that is not empty", value)
        return clean(value.strip())


def first_keys(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys of the first object of a JSON text, and those of the first object inside it.

    The text may end in the middle.

    >>> first_keys('[{"tokens": ["a"], "h": {"pos": [0')
    (('tokens', 'h'), ('pos',))
    """
    found: tuple[list[str], list[str]] = [], []
    open_objects, depth, last = 0, [], ""
    inner_closed = False
    for match in _MARK.finditer(text):
        mark = match[0]
        if mark in "[{":
            depth.append(mark)
            open_objects += mark == "{"
        elif mark in "]}":
            if depth and depth.pop() == "{":
                inner_closed = inner_closed or open_objects == 2
                open_objects -= 1
                if open_objects == 0:
                    break
        elif mark == ":":
            if open_objects == 1 and depth[-1:] == ["{"]:
                found[0].append(last)
            elif open_objects == 2 and not inner_closed and depth[-1:] == ["{"]:
                found[1].append(last)
        elif mark != ",":
            last = mark[1:-1]
    return tuple(found[0]), tuple(found[1])


def json_values(text: str, path: Path) -> Iterator[Value]:
    """Every line of a file, or the values of the one list that it is; strings are not parsed.

    If the first line is only the beginning of a value, values may take several lines each.
    """
    file, stem, text = str(path), path.stem, with_plain_ends(text)
    found = _BLANK.match(text)
    start = found.end() if found else 0
    if text.startswith("[", start) and not _PAIR.match(text, start):
        listed = parse_json(text, file)
        assert isinstance(listed, list), "a JSON text that begins with [ is a list"
        listed.reverse()
        for number in range(1, len(listed) + 1):
            value = listed.pop()
            line = json.dumps(value) if isinstance(value, str) else value
            yield f"{file}#{number}", f"{stem}:{number}", line
        return
    lines: Iterable[tuple[int, str]] = enumerate(each_line(text), 1)
    line_end = text.find("\n", start)
    opens = text[start:line_end].rstrip()[-1:] in ("{", "[", ",") if line_end > 0 else False
    if opens and _value_end(text, start) > line_end:
        lines = _each_value(text, start)
    for number, line in lines:
        if line and not line.isspace():
            yield f"{file}:{number}", f"{stem}:{number}", line


def _each_value(text: str, start: int) -> Iterator[tuple[int, str]]:
    """The number of each value's first line, and its text; all from a broken one on is the last."""
    number, end = 1, 0
    while start < len(text):
        number, end = number + text.count("\n", end, start), start
        start = _value_end(text, start) or len(text)
        yield number, text[end:start]
        blank = _BLANK.match(text, start)
        start = blank.end() if blank else start


def _value_end(text: str, start: int) -> int:
    """The end of the JSON value that starts there; 0 if there is none."""
    try:
        return _VALUES.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return 0


def parse_json(text: str, where: str) -> object:
    """The value of a JSON text. Raises FormatError."""
    try:
        return decode_json(text, parse_constant=_refuse)
    except ValueError as error:
        raise FormatError(f"not JSON: {error}", where=where) from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
