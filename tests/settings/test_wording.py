"""What is wrong with a value is said in our words, whatever pydantic would say of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from cases import each
from confide.errors import SettingsError
from confide.methods import METHODS
from confide.runs.result import ResultTable
from confide.settings import parse
from confide.settings.reading import _TABLES, _WORDS, error_path, expected, own_settings, own_words
from confide.settings.sitefile import ConsentFile, SiteFile
from confide.settings.tables import Table

THEIRS = re.compile(
    r"Input should|Field required|Value error|should (be|have|match)|valid |instance of|unable to"
    r"|dictionary|tuple|Extra inputs|pydantic|another kind of value|\bNone\b|\bint\b|\bstr\b"
)
"""Words of pydantic and of Python, and ours for an error that nobody thought of."""
WRONG: tuple[Any, ...] = (
    0, -1, 10**9, 1.5, math.nan, math.inf, "", "x", "a/b", "x" * 200, "2026-13-45", True, [], ["x"],
    [1, 2, 3], ["a", "b", "c"], [[1]], {}, {"x": 1}, {"": {}}, date(2026, 1, 31),
    datetime(2026, 1, 31), object(), None,
)  # fmt: skip


def below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


KINDS = {ConsentFile, SiteFile, *below(Table), *below(ResultTable)}


def errors(kind: type[BaseModel]) -> Iterator[Any]:
    for name, field in kind.model_fields.items():
        for value in WRONG:
            try:
                kind.model_validate({field.alias or name: value})
            except ValidationError as error:
                yield from error.errors(include_url=False)


def test_every_error_that_a_table_can_give_has_words_of_ours() -> None:
    assert METHODS and len(KINDS) > 30
    seen = set[str]()
    for kind in KINDS:
        for one in errors(kind):
            said = own_words(one) or expected(one)
            assert said and not THEIRS.search(said), (kind, one["loc"], said)
            assert "\n" not in error_path(one)
            seen.add(one["type"])
    assert {"missing", "literal_error", "string_pattern_mismatch", "bool_parsing",
            "date_from_datetime_parsing",
            "greater_than", "less_than_equal", "too_short", "model_type", "finite_number",
            "datetime_parsing", "value_error", "int_from_float"} <= seen  # fmt: skip
    assert seen - {"value_error"} <= {*_WORDS, *_TABLES}


SITE = {"name": "north", "train": "x"}


@each(
    ("tree", "said"),
    [
        ({"rounds": 0}, "rounds is wrong; expected at least 1; got 0"),
        ({"rounds": "many"}, "rounds is wrong; expected a whole number; got 'many'"),
        ({"rounds": 1.5}, "rounds is wrong; expected a whole number; got 1.5"),
        ({"model": {"dropout": 1}}, "model.dropout is wrong; expected less than 1; got 1"),
        ({"device": "gpu"}, "device is wrong; expected auto, cpu, mps, cuda, or one of several"
         " as cuda:1; got 'gpu'"),
        ({"training": {"optimiser": "lion"}}, "training.optimiser is wrong; expected 'sgd', 'adam',"
         " 'adamw' or 'adagrad'; got 'lion'"),
        ({"training": 3}, "training is wrong; expected a table; got 3"),
        ({"training": {"clip": math.nan}}, "training.clip is wrong; expected more than 0; got nan"),
        ({"select": {"calibrate": "maybe"}}, "select.calibrate is wrong; expected true or false;"
         " got 'maybe'"),
        ({"site": [{"name": "north"}]}, "site.0.train is missing"),
        ({"site": 3}, "site is wrong; expected a list; got 3"),
        ({"data": {"columns": [0]}}, "data.columns.1 is missing"),
        ({"data": {"columns": [0, True]}}, "data.columns.1 is wrong: a column is a number, from 0,"
         " or a name; got True"),
        ({"site": [{**SITE, "tags": {"a\x1b[2J": 3}}]}, "site.0.tags.a?[2J is wrong; expected text;"
         " got 3"),
    ],
)  # fmt: skip
def test_an_error_says_where_what_was_expected_and_what_came(
    tree: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        parse({"site": [SITE], **tree})
    assert str(caught.value) == said


def test_options_of_a_method_are_told_the_same_way() -> None:
    class Own(Table):
        weight: float = 1.0

    with pytest.raises(SettingsError, match=r"^weight is wrong; expected a number; got 'heavy'$"):
        own_settings(Own, {"weight": "heavy"})
