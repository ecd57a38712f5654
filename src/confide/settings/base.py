"""What all tables of settings are made of: a strict table, and kinds of values."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from confide.userfiles import known_encoding


def _odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError("a width is odd, so that a word has as many neighbours on either side")
    return number


def _whole(number: float) -> float:
    if number != math.inf and number != int(number):
        raise ValueError("a count is a whole number, or inf for any")
    return number


def _none_if_inf(number: float) -> float | None:
    return None if number == math.inf else number


def _encoding(name: str) -> str:
    if known_encoding(name) is None:
        raise ValueError("an encoding is utf-8, windows-1252, latin-1 or another usual one")
    return name


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
TagScheme = Literal["iobes", "iob2"]


class Table(BaseModel):
    """A table of settings: frozen, and strict about its keys; a number is finite unless said."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_inf_nan="constants", allow_inf_nan=False
    )
