"""What is wrong with a value, in our words: pydantic checks it, and speaks of Python's types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from confide.errors import printable

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_DATE = "a date, such as 2026-01-31"
_TIME = "a time with its zone, such as 2026-01-31T12:00:00+00:00"
_NAME = "up to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
_FORMS = {
    r"^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$": "auto, cpu, mps, cuda, or one of several as cuda:1",
    r"^[0-9a-f]{16}$": "16 hexadecimal digits in small letters",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$": _NAME,
    r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63}|\*)$": f"*, or {_NAME}",
    r"^[A-Za-z][A-Za-z0-9_-]{0,63}$": "up to 64 letters, digits, dashes and underscores, the first"
    " a letter",
    r"^[^\s\x00-\x1f\x7f]+$": "a name without spaces",
    r"^[a-z]{2}$": "two small letters, such as en",
}
"""Patterns of text, in words."""

_WORDS: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"
    ),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("string_type", "string_sub_type", "string_unicode"), "text"),
    "string_too_short": lambda limit: (
        f"text of at least {_counted(limit['min_length'], 'character')}"
    ),
    "string_too_long": lambda limit: (
        f"text of at most {_counted(limit['max_length'], 'character')}"
    ),
    "string_pattern_mismatch": lambda limit: _FORMS.get(
        limit["pattern"], f"text of the form {limit['pattern']}"
    ),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "literal_error": lambda limit: str(limit["expected"]),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "too_short": lambda limit: f"at least {_counted(limit['min_length'], 'item')}",
    "too_long": lambda limit: f"at most {_counted(limit['max_length'], 'item')}",
    "greater_than": lambda limit: f"more than {_number(limit['gt'])}",
    "greater_than_equal": lambda limit: f"at least {_number(limit['ge'])}",
    "less_than": lambda limit: f"less than {_number(limit['lt'])}",
    "less_than_equal": lambda limit: f"at most {_number(limit['le'])}",
    **dict.fromkeys(
        ("date_type", "date_parsing", "date_from_datetime_parsing", "date_from_datetime_inexact"),
        _DATE,
    ),
    **dict.fromkeys(
        ("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "timezone_aware"), _TIME
    ),
    "missing": "a value",
    "extra_forbidden": "no such key",
    **dict.fromkeys(
        ("union_tag_invalid", "union_tag_not_found"),
        lambda limit: str(limit.get("expected_tags", "one of the tasks")),
    ),
}
"""What was expected, by pydantic's type of error; from the limit of the field where it has one."""

_TABLES = ("dict_type", "model_type", "model_attributes_type")


def expected(first: ErrorDetails, *, table: str = "a table") -> str:
    """What would have been right. `table` is what names and values are called in this file."""
    if first["type"] in _TABLES:
        return table
    words = _WORDS.get(first["type"], "another kind of value")
    return words if isinstance(words, str) else words(first.get("ctx", {}))


def place_of(first: ErrorDetails) -> str:
    """Where the value is, such as site.0.name; keys come from the file and are made printable."""
    return printable(".".join(str(part) for part in first["loc"] if part != "[key]"))


def own_words(first: ErrorDetails) -> str | None:
    """What our own check said of the value, if it was one of ours that failed."""
    return first["msg"].removeprefix("Value error, ") if first["type"] == "value_error" else None


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
