"""A JSON object whose parts are checked as they are taken, and the keys that tell its form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from confide.errors import FormatError
from confide.text.formats.base import whole
from confide.text.formats.records import clean
from confide.userfiles import Tree

_MARK = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}:,]', re.DOTALL)
Key = int | str
"""A key of an object, or a place in a list."""


@dataclass(frozen=True, slots=True)
class Row:
    """An object of a file, and where it stands. Every method raises FormatError."""

    tree: Tree
    where: str

    def odd(self, what: str, expected: str, got: object) -> FormatError:
        """The error for a part of another form."""
        shape = "nothing" if got is None else type(got).__name__
        return FormatError(what, expected=expected, got=shape, where=self.where)

    def string(self, key: str) -> str:
        """A string that is not empty."""
        value = self.tree.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.odd(f'"{key}"', "a string that is not empty", value)
        return clean(value.strip())

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
        number = whole(value)
        if number is None:
            raise self.odd(what, "a whole number", value)
        return number

    def words(self, key: str) -> list[str]:
        """A list of strings."""
        return self.strings(self.tree.get(key), f'"{key}"')

    def strings(self, value: object, what: str) -> list[str]:
        """A value of this object that must be a list of strings."""
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.odd(what, "a list of strings", value)
        return value

    def values(self, key: str) -> list[object]:
        """A list, empty if it is missing."""
        value = self.tree.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.odd(f'"{key}"', "a list", value)
        return value

    def rows(self, key: str) -> list[Row]:
        """A list of objects, empty if it is missing."""
        values = self.values(key)
        found = [Row(one, self.where) for one in values if isinstance(one, dict)]
        if len(found) != len(values):
            raise self.odd(f'"{key}"', "a list of objects", values)
        return found

    def part(self, item: object, key: Key, what: str) -> object:
        """A part of an item that is an object or a list."""
        if isinstance(key, int):
            if not isinstance(item, list) or key >= len(item):
                raise self.odd(what, f"a list of at least {key + 1}", item)
            return item[key]
        if not isinstance(item, dict):
            raise self.odd(what, "an object", item)
        return item.get(key)

    def type(self, value: object, what: str) -> str:
        """A value that must be the name of a type."""
        if not isinstance(value, str) or not value.strip():
            raise self.odd(what, "a string that is not empty", value)
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
