"""Messages and their one codec: for the wire, site memory, checkpoints and golden tests.

A message is a frozen dataclass whose fields are numbers, strings, booleans, lists or dicts of
these, numpy arrays, dicts of numpy arrays, or messages. Arrays travel as safetensors, the rest as
JSON in the safetensors header. Nothing is ever pickled.

>>> from dataclasses import dataclass
>>> import numpy as np
>>> @dataclass(frozen=True)
... class Greeting:
...     words: list[str] = carries("what is said")
...     scores: np.ndarray = carries("one number per word")
>>> data = encode(Greeting(words=["good", "day"], scores=np.array([1.5, 2.0])))
>>> decode(Greeting, data).scores
array([1.5, 2. ])
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy

from confide.errors import MessageError
from confide.federation.forms import (
    DTYPES,
    OWN,
    Arrays,
    Limits,
    carries,
    check_arrays,
    class_of,
    fields_of,
    forms_of,
    made_of,
    values_of,
)

__all__ = [
    "FORMAT",
    "MOST_INT",
    "OWN",
    "Arrays",
    "FieldSize",
    "Limits",
    "carries",
    "check_size",
    "decode",
    "decode_file",
    "decode_one_of",
    "encode",
    "fields_of",
    "peek",
    "sizes",
]

FORMAT, BEFORE = 3, 2
MOST_INT = 2**63 - 1
M = TypeVar("M")

_PLAIN = (bool, int, float, str)


@dataclasses.dataclass(frozen=True)
class FieldSize:
    """What one field of an encoded message weighs."""

    field: str
    kind: str
    bytes: int
    count: int


def encode(message: Any) -> bytes:
    """The bytes of a message. Raises MessageError where it holds what cannot travel."""
    tensors: Arrays = {}
    plain: dict[str, Any] = {}
    for name, form, value in values_of(message):
        if form.kind == "array":
            tensors[name] = _array(value, type(message).__name__, name)
        elif form.kind == "arrays":
            for key, array in value.items():
                tensors[f"{name}/{key}"] = _array(array, type(message).__name__, f"{name}/{key}")
        else:
            plain[name] = _plain(value, type(message).__name__, name)
    header = _json([FORMAT, type(message).__name__, plain])
    return safetensors.numpy.save(tensors, {"confide": header})


def decode(kind: type[M], data: bytes, *, limits: Limits = OWN) -> M:
    """The message of class `kind` in `data`. Raises MessageError on anything else.

    A generic class comes with its argument. What is beyond the limits is refused before anything of
    it is parsed.
    """
    found: M = decode_one_of((kind,), data, limits=limits)
    return found


def decode_file(kind: type[M], data: bytes) -> M:
    """The same of a file that this place wrote, perhaps with the version before: format 2.

    There, messages did not nest, and had other names. What a message did not have then is empty,
    or what its field says.
    """
    header = _opened(data, OWN, formats=(FORMAT, BEFORE))
    if header.format == FORMAT:
        return decode(kind, data)
    found: M = _made(kind, *_renamed(kind, header.fields, _arrays(kind, header, data)))
    return found


def _renamed(kind: Any, before: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """Plain fields and arrays of format 2, as they are called now."""
    plain, named = dict[str, Any](), dict[str, np.ndarray]()
    empty: dict[str, Any] = {"list": [], "table": {}, "text": ""}
    for name, form in forms_of(kind).items():
        was, _, key = form.was.partition("/")
        if form.kind == "arrays":
            old = {f"{name}/{key}": arrays[was]} if key and was in arrays else {}
            start = f"{was}/"
            kept = {place: array for place, array in arrays.items() if place.startswith(start)}
            named |= {f"{name}/{place.removeprefix(start)}": one for place, one in kept.items()}
            named |= old
        elif form.kind == "array" and was in arrays:
            named[name] = arrays[was]
        elif form.kind != "array":
            plain[name] = before.get(was, empty.get(form.kind, form.before))
    return plain, named


def decode_one_of(kinds: tuple[Any, ...], data: bytes, *, limits: Limits = OWN) -> Any:
    """The same of a message that may be of several classes."""
    header = _opened(data, limits)
    kind = next((one for one in kinds if class_of(one).__name__ == header.message), None)
    if kind is None:
        expected = " or ".join(class_of(one).__name__ for one in kinds)
        raise MessageError("another message", expected=expected, got=header.message[:80])
    return _made(kind, header.fields, _arrays(kind, header, data))


def _arrays(kind: Any, header: _Header, data: bytes) -> Arrays:
    """The arrays of a message, by their names on the wire. Raises MessageError."""
    called = class_of(kind).__name__
    try:
        found: Arrays = safetensors.numpy.load(bytes(data)) if header.arrays else {}
    except Exception as error:  # whatever a library makes of bytes that anybody may have written
        raise MessageError(f"the arrays of a {called} cannot be read") from error
    odd = sorted(key for key, array in found.items() if array.dtype.name not in DTYPES)
    if odd:
        raise MessageError(f"{called}.{odd[0]} is an array of a type that cannot travel")
    return found


def _made(kind: Any, plain: dict[str, Any], tensors: Arrays) -> Any:
    """The message of these fields, which must be all that it has. Raises MessageError."""
    called = class_of(kind).__name__
    values: dict[str, Any] = {}
    for name, form in forms_of(kind).items():
        if form.kind == "arrays":
            start = f"{name}/"
            keys = sorted(key for key in tensors if key.startswith(start))
            values[name] = {key.removeprefix(start): tensors.pop(key) for key in keys}
        elif name in (tensors if form.kind == "array" else plain):
            values[name] = tensors.pop(name) if form.kind == "array" else plain.pop(name)
            if form.kind != "array":
                values[name] = _fit(form.hint, values[name], f"{called}.{name}")
        else:
            raise MessageError(f"a {called} without its field {name!r}")
    if tensors or plain:
        extra = sorted([*tensors, *plain])[0]
        raise MessageError(f"a {called} with an unknown field {extra[:80]!r}")
    check_arrays(kind, values)
    return made_of(kind, values)


def peek(data: bytes, *, limits: Limits = OWN) -> dict[str, Any]:
    """The header of encoded bytes: format, name of the message, plain fields."""
    header = _opened(data, limits)
    return {"format": FORMAT, "message": header.message, "fields": header.fields}


@dataclasses.dataclass(frozen=True, slots=True)
class _Header:
    """What stands before the arrays: the message's class, its plain fields, how many arrays."""

    message: str
    fields: dict[str, Any]
    arrays: int
    format: int = FORMAT


def check_size(data: bytes, limits: Limits) -> int:
    """How long the header of encoded bytes is. Raises MessageError where they are too many.

    Looks at eight bytes, and parses nothing.
    """
    if len(data) > limits.bytes:
        what = "the message is larger than one of its kind can be"
        raise MessageError(what, expected=f"at most {limits.bytes} bytes", got=f"{len(data)} bytes")
    size = int.from_bytes(bytes(data[:8]), "little")
    if len(data) < 8 or size > len(data) - 8:
        raise MessageError("these bytes are not a confide message")
    if size > limits.header:
        what = "the message's header is larger than one of its kind can be"
        raise MessageError(what, expected=f"at most {limits.header} bytes", got=f"{size} bytes")
    return size


def _opened(data: bytes, limits: Limits, *, formats: tuple[int, ...] = (FORMAT,)) -> _Header:
    """The header, parsed once. Raises MessageError."""
    size = check_size(data, limits)
    try:
        outer = json.loads(str(data[8 : 8 + size], "utf-8"))
        arrays = len(outer) - 1
        if arrays > limits.arrays:
            what = "the message has more arrays than one of its kind can have"
            raise MessageError(what, expected=f"at most {limits.arrays}", got=str(arrays))
        header = json.loads(outer["__metadata__"]["confide"])
        format = header["format"] if isinstance(header, dict) else header[0]
        if type(format) is int and format not in formats:
            raise MessageError(
                "a message of another version of confide",
                expected=f"format {FORMAT}",
                got=f"format {format}"[:40],
                fix="use the same version of confide at all places",
            )
        version, message, fields = header
        if version not in formats or not isinstance(message, str) or not isinstance(fields, dict):
            raise ValueError("no message")
        return _Header(message, fields, arrays, version)
    except MessageError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise MessageError("these bytes are not a confide message") from error


def sizes(message: Any, encoded: int) -> list[FieldSize]:
    """Bytes and count of every field; a last row holds what the header adds, up to `encoded`."""
    rows = []
    for name, form, value in values_of(message):
        if form.kind == "array":
            rows.append(FieldSize(name, form.kind, value.nbytes, value.size))
        elif form.kind == "arrays":
            total = sum(array.nbytes for array in value.values())
            rows.append(FieldSize(name, form.kind, total, sum(a.size for a in value.values())))
        else:
            count = len(value) if isinstance(value, (list, tuple, dict)) else 1
            rows.append(FieldSize(name, form.kind, len(_json(value)), count))
    rest = encoded - sum(row.bytes for row in rows)
    return [*rows, FieldSize("(header)", "header", rest, 1)]


_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one each time


def _array(value: Any, message: str, name: str) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype.name not in DTYPES:
        got = f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip()
        raise MessageError(f"{message}.{name} cannot travel", expected="an array", got=got)
    return np.asarray(value, order="C")


def _plain(value: Any, message: str, name: str) -> Any:
    if value is None or type(value) in _PLAIN:
        if type(value) is int and abs(value) > MOST_INT:
            raise MessageError(f"{message}.{name} cannot travel", expected="at most 64 bits")
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item, message, name) for item in value]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: _plain(item, message, name) for key, item in value.items()}
    raise MessageError(
        f"{message}.{name} cannot travel",
        expected="numbers, strings, lists or dicts of these",
        got=type(value).__name__,
    )


def _fit(hint: Any, value: Any, place: str) -> Any:
    """`value` in the form that the annotation declares; MessageError where it does not fit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _fit(next(a for a in arguments if a is not type(None)), value, place)
    if hint is float and (type(value) is float or (type(value) is int and abs(value) <= MOST_INT)):
        return float(value)
    if type(value) is int and abs(value) > MOST_INT:
        raise MessageError(f"{place} is an integer of more than 64 bits")
    if hint in _PLAIN and type(value) is hint:
        return value
    if origin is list and isinstance(value, list):
        return [_fit(arguments[0], item, place) for item in value]
    if origin is tuple and isinstance(value, list):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_fit(arguments[0], item, place) for item in value)
        if len(arguments) == len(value):
            return tuple(_fit(a, item, place) for a, item in zip(arguments, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: _fit(arguments[1], item, place) for key, item in value.items()}
    raise MessageError(f"{place} is of another type", expected=str(hint), got=type(value).__name__)
