"""What the fields of a message declare, and how much a message may weigh.

A field's annotation says its kind, and of arrays the type of number. The legend of an array is the
end of its name, a letter or a number for each axis: `digests_W16` has two axes, the second of 16,
and is as long as `counts_W` of the same message. `carries(legend=...)` says it where the name does
not. From all this follows how large a message of a class can be, before a byte of it is parsed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from confide.errors import MessageError

Arrays = dict[str, np.ndarray]

DTYPES = frozenset(
    ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
"""The types of number that can travel."""

MOST_BYTES = 2 * 2**30
"""Of the arrays of one field, where neither the field nor the ask says less."""
MOST_ARRAYS = 4096
"""In one field that holds arrays by name."""
_ENTRY = 200
"""Bytes in the header for one array, besides its name."""
_NUMBER, _TEXT, _LIST = 32, 1024, 2**20
"""Bytes of JSON of one field, by kind, where `carries(most=...)` does not say more."""

_FIELDS: dict[type, dict[str, str]] = {}
_LEGEND = re.compile(r"_([A-Z0-9]+)$")
_AXIS = re.compile(r"[A-Z]|[0-9]+")


def carries(what: str, *, legend: str = "", most: int = 0) -> Any:
    """A message field, with the words that the wire table prints for it.

    `legend`: the axes of an array (or of each of several), where the name does not say them.
    `most`: of an array, how long an axis with a letter can be; of a text, list or table, how many
    bytes it can be as JSON.
    """
    return dataclasses.field(metadata={"what": what, "legend": legend, "most": most})


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The most that a message may be: bytes in all, bytes of its header, and arrays."""

    bytes: int
    header: int
    arrays: int


OWN = Limits(bytes=2**40, header=2**29, arrays=2**20)
"""Of files that this place wrote itself: memory, checkpoints, releases."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What a field declares. `axes` is None, and `dtypes` empty, where it leaves them open."""

    kind: str
    dtypes: frozenset[str]
    axes: tuple[str | int, ...] | None
    most: int


def fields_of(kind: type) -> dict[str, str]:
    """Field name -> "array", "arrays", "number", "text", "list" or "table", from annotations."""
    if kind not in _FIELDS:
        _FIELDS[kind] = {name: form.kind for name, form in forms_of(kind).items()}
    return _FIELDS[kind]


@functools.cache
def forms_of(kind: type) -> dict[str, Form]:
    """What every field of a message declares. Raises MessageError where one cannot travel."""
    if not dataclasses.is_dataclass(kind):
        raise MessageError(f"{kind.__name__} is not a dataclass, so it cannot travel")
    hints = hints_of(kind)
    return {field.name: _form(field, hints[field.name]) for field in dataclasses.fields(kind)}


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The annotations of a message; looking them up takes longer than decoding a small one."""
    return typing.get_type_hints(kind)


def _form(field: dataclasses.Field[Any], hint: Any) -> Form:
    kind, most = _kind(hint), int(field.metadata.get("most", 0))
    if kind not in ("array", "arrays"):
        return Form(kind, frozenset(), None, most)
    named = _LEGEND.search(field.name) if kind == "array" else None
    legend = field.metadata.get("legend") or (named[1] if named else "")
    axes = tuple(int(a) if a.isdigit() else a for a in _AXIS.findall(legend)) if legend else None
    array = typing.get_args(hint)[1] if kind == "arrays" else hint
    return Form(kind, _dtypes(array), axes, most)


def _kind(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is np.ndarray or origin is np.ndarray:
        return "array"
    if origin is dict and arguments[0] is str:
        if arguments[1] is np.ndarray or typing.get_origin(arguments[1]) is np.ndarray:
            return "arrays"
        _kind(arguments[1])
        return "table"
    if hint is str:
        return "text"
    if hint in (int, float, bool):
        return "number"
    if origin in (list, tuple):
        for argument in arguments:
            if argument is not Ellipsis:
                _kind(argument)
        return "list"
    if origin in (typing.Union, types.UnionType):
        return _kind(next(a for a in arguments if a is not type(None)))
    raise MessageError(f"a field of type {hint} cannot travel")


def _dtypes(hint: Any) -> frozenset[str]:
    """The types of number in an annotation such as NDArray[np.int8 | np.float32]; empty: any."""
    arguments = typing.get_args(hint)
    if len(arguments) != 2:
        return frozenset()
    (scalar,) = typing.get_args(arguments[1])
    scalars = typing.get_args(scalar) or (scalar,)
    return frozenset(np.dtype(one).name for one in scalars if one not in (np.generic, Any))


def undeclared(kind: type) -> list[str]:
    """The array fields of a message that leave open what an array of theirs is like."""
    return [
        name
        for name, form in forms_of(kind).items()
        if form.kind == "array" and (form.axes is None or not form.dtypes)
    ]


def check_arrays(kind: type, arrays: Mapping[str, Any]) -> None:
    """Raise MessageError where an array is not what its field declares.

    `arrays` holds the value of every array field. A letter of a legend stands for one length in a
    message; in a field of arrays by name, for one length in each array.
    """
    lengths: dict[str | int, int] = {}
    for name, form in forms_of(kind).items():
        if form.kind == "array":
            _check(form, arrays[name], f"{kind.__name__}.{name}", lengths)
        elif form.kind == "arrays":
            for key, array in arrays[name].items():
                _check(form, array, f"{kind.__name__}.{name}/{key}", {})


def _check(form: Form, array: np.ndarray, place: str, lengths: dict[str | int, int]) -> None:
    if form.dtypes and array.dtype.name not in form.dtypes:
        expected = " or ".join(sorted(form.dtypes))
        what = f"{place} has another type of number"
        raise MessageError(what, expected=expected, got=array.dtype.name)
    if form.axes is None:
        return
    if array.ndim != len(form.axes):
        what = f"{place} has another number of dimensions"
        raise MessageError(what, expected=str(len(form.axes)), got=str(array.ndim))
    for axis, length in zip(form.axes, array.shape, strict=True):
        want = axis if isinstance(axis, int) else lengths.setdefault(axis, length)
        if length != want:
            raise MessageError(f"{place} has another shape", expected=str(want), got=str(length))
        if form.most and length > form.most:
            what = f"{place} is longer than such an array can be"
            raise MessageError(what, expected=f"at most {form.most}", got=str(length))


# --- how much a message may weigh -----------------------------------------------------------------


def limits_of(kind: type) -> Limits:
    """The most that a message of this class may be, whoever sends it."""
    return limits_with(kind, {})


def limits_with(
    kind: type, like: Mapping[str, Mapping[str, Any]], *, numbers: Mapping[str, int] | None = None
) -> Limits:
    """The same where more is known: what some fields must be like, and how many numbers they hold.

    `like`: of fields of arrays by name, the arrays that they have to resemble; each may come with
    a bit for every row. `numbers`: of other array fields, how many numbers they hold in all.
    """
    size, header, arrays = 0, 512 + len(kind.__name__), 0
    for name, form in forms_of(kind).items():
        if form.kind not in ("array", "arrays"):
            header += 2 * (_plain(form) + len(name) + 4)  # JSON within JSON
        elif name in like:
            given = like[name]
            size += sum(
                array.nbytes + len(array) // 8 + 1 for array in given.values() if array.ndim
            )
            size += 8 * len(given)
            header += sum(2 * (_ENTRY + 6 * (len(name) + len(key))) for key in given)
            arrays += 2 * len(given)
        else:
            count = 1 if form.kind == "array" else MOST_ARRAYS
            size += _bytes(form, (numbers or {}).get(name))
            header += count * (_ENTRY + 6 * len(name))
            arrays += count
    return Limits(8 + header + size, header, arrays)


def widest(limits: Iterable[Limits]) -> Limits:
    """What a message may be that may be any of several."""
    every = list(limits)
    return Limits(
        max(one.bytes for one in every),
        max(one.header for one in every),
        max(one.arrays for one in every),
    )


def _plain(form: Form) -> int:
    return form.most or {"number": _NUMBER, "text": _TEXT}.get(form.kind, _LIST)


def _bytes(form: Form, numbers: int | None) -> int:
    """Of all arrays of a field."""
    width = max((np.dtype(name).itemsize for name in form.dtypes), default=8)
    if numbers is not None:
        return numbers * width
    if form.axes is None or form.kind == "arrays":
        return MOST_BYTES
    total = width
    for axis in form.axes:
        total *= axis if isinstance(axis, int) else form.most or MOST_BYTES
    return min(total, MOST_BYTES)
