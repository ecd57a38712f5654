"""Numbers that are none, and encodings that are none: refused wherever a setting is a number."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from cases import each
from confide.errors import SettingsError
from confide.settings import Settings, SiteFile, parse
from confide.settings.reading import _table
from confide.settings.tables import Most, Norm

ANY_SIZE = {"timeout", "clip", "max_norm_ratio", "max_sentences", "max_tokens", "max_norm"}
"""Limits that may be inf: none."""
BOUNDED = {("PrivacyTable", "clip")}
"""Keys of these names that must be finite all the same: without a clip there is no account."""
TABLES = {_table((name, ""), Settings): name for name in Settings.model_fields}
FIELDS = [
    (kind, name)
    for kind in (SiteFile, *TABLES)
    for name, field in kind.model_fields.items()
    if "float" in str(field.annotation)
]


def accepts(kind: type[BaseModel], name: str, value: float) -> bool:
    """Whether the key takes a value; what else the table needs is not looked at."""
    try:
        kind.model_validate({name: value})
    except ValidationError as error:
        return all(one["loc"][:1] != (name,) for one in error.errors())
    return True


@each(("kind", "name"), FIELDS)
def test_only_a_limit_may_be_infinite(kind: type[BaseModel], name: str) -> None:
    """Infinity was accepted for every rate; nothing that is a number may be none."""
    assert not accepts(kind, name, math.nan)
    assert not accepts(kind, name, -math.inf)
    may_be_none = name in ANY_SIZE and (kind.__name__, name) not in BOUNDED
    assert accepts(kind, name, math.inf) == may_be_none


@each("key", [
    "training.learning_rate", "training.weight_decay", "federation.fraction", "model.dropout",
])  # fmt: skip
@each("value", ["nan", "inf", "-inf"])
def test_a_number_is_finite(key: str, value: str) -> None:
    """Infinity was accepted for rates, norms and times."""
    with pytest.raises(SettingsError, match=f"{key} is wrong"):
        parse({}, [f"{key}={value}"])


@each("kind", [Most, Norm])
def test_a_limit_may_be_none(kind: Any) -> None:
    assert TypeAdapter(kind).validate_python(math.inf) in (math.inf, None)
    with pytest.raises((ValidationError, ValueError)):
        TypeAdapter(kind).validate_python(math.nan)


@each("encoding", ["punycode", "idna", "hex", "", "x" * 1000])
def test_an_encoding_that_is_not_read(encoding: str) -> None:
    with pytest.raises(SettingsError, match=r"data\.encoding is wrong: an encoding must be utf-8"):
        parse({"data": {"encoding": encoding}})
    assert parse({"data": {"encoding": "Windows-1252"}}).data.encoding == "Windows-1252"
