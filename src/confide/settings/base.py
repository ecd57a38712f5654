"""What every table of settings is made of: a strict base class and types of values."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from confide.text.segment import AUTO, CODES
from confide.userfiles import known_encoding


def _odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError("a width must be odd, so that a word has equally many words on each side")
    return number


def _whole(number: float) -> float:
    if number != math.inf and number != int(number):
        raise ValueError("a count must be a whole number, or inf for no limit")
    return number


def _none_if_inf(number: float) -> float | None:
    return None if number == math.inf else number


def _encoding(name: str) -> str:
    if known_encoding(name) is None:
        raise ValueError("an encoding must be utf-8, windows-1252, latin-1 or another common one")
    return name


def _language(code: str) -> str:
    if code != AUTO and code not in CODES:
        raise ValueError("a language must be auto, or two letters such as en, es, fr, de or ja")
    return code


def _column(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("a column is a number, from 0, or a name")
    return value


Paths = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]
Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Odd = Annotated[int, Field(ge=1), AfterValidator(_odd)]
Most = Annotated[float, Field(ge=0, allow_inf_nan=True), AfterValidator(_whole)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Norm = Annotated[float, Field(gt=0, allow_inf_nan=True), AfterValidator(_none_if_inf)]
Encoding = Annotated[str, AfterValidator(_encoding)]
Language = Annotated[str, AfterValidator(_language)]
Column = Annotated[int | str, BeforeValidator(_column)]
Columns = tuple[Column, Column]
"""Two columns, each by number or by name."""
TagScheme = Literal["iobes", "iob2"]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$")]
Precision = Literal["auto", "float32", "bfloat16"]


class Table(BaseModel):
    """A table of settings: frozen, strict about its keys, and finite unless a field says so."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_inf_nan="constants", allow_inf_nan=False
    )
