"""Messages, and one codec for the wire, site memory, checkpoints and golden tests.

A message is a frozen dataclass whose fields are numbers, strings, booleans, lists or dicts of
these, numpy arrays, dicts of numpy arrays, or other messages. Arrays travel as safetensors, the
rest as JSON in the safetensors header. Nothing is ever pickled.

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
import math
import types
import typing
from typing import Any, TypedDict, TypeVar

import numpy as np

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
    gone_of,
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

FORMAT = 3
MOST_INT = 2**63 - 1
M = TypeVar("M")

_PLAIN = (bool, int, float, str)
_NUMBERS = {
    "BOOL" if one.kind == "b" else f"{one.kind.upper()}{8 * one.itemsize}": one
    for one in (np.dtype(name).newbyteorder("<") for name in DTYPES)
}
"""The types of numbers that can travel, by what safetensors calls them."""
_TYPES = {one: name for name, one in _NUMBERS.items()}
_ORDER = ("BOOL", "U8", "I8", "I16", "F16", "I32", "F32", "F64", "I64")
"""The same types in the order of that library, which writes the last ones first."""


@dataclasses.dataclass(frozen=True)
class FieldSize:
    """The size of one field of an encoded message: bytes, and how many numbers or items."""

    field: str
    kind: str
    bytes: int
    count: int


def encode(message: object) -> bytes:
    """The bytes of a message. Raises MessageError if it holds something that cannot travel."""
    called = type(message).__name__
    tensors: Arrays = {}
    plain: dict[str, object] = {}
    for name, form, value in values_of(message):
        if form.holds_arrays:
            for place, array in form.arrays(name, value).items():
                tensors[place] = _array(array, f"{called}.{place}")
        else:
            plain[name] = _plain(value, f"{called}.{name}")
    return _written(tensors, _json([FORMAT, called, plain]))


def _written(tensors: Arrays, said: str) -> bytes:
    """Arrays and a text as a safetensors file, bit for bit what that library writes.

    It would hold two copies while it writes; here is one, which a model of gigabytes needs.
    """
    kinds = {name: _TYPES[array.dtype.newbyteorder("<")] for name, array in tensors.items()}
    order = sorted(tensors, key=lambda name: (-_ORDER.index(kinds[name]), name))
    header: dict[str, object] = {"__metadata__": {"confide": said}}
    end = 0
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        shape = list(tensors[name].shape)
        header[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": [begin, end]}
    text = _raw_json(header).encode()
    text += b" " * (-len(text) % 8)
    little = (tensors[name].astype(_NUMBERS[kinds[name]], copy=False) for name in order)
    arrays = (array.reshape(-1).view(np.uint8).data for array in little)
    return b"".join([len(text).to_bytes(8, "little"), text, *arrays])


def decode(kind: type[M], data: bytes | memoryview, *, limits: Limits = OWN) -> M:
    """The message of class `kind` in `data`. Raises MessageError on anything else.

    A generic class needs its type argument. A message beyond the limits is refused before any of it
    is parsed.
    """
    return decode_one_of((kind,), data, limits=limits)


def decode_file(kind: type[M], data: bytes | memoryview) -> M:
    """As `decode`, for a file that this place wrote, perhaps before the class was changed.

    A field that was added later (`carries(added=True)`) is empty, or a number as its
    `carries(before=...)` says, and one that a class names in `gone` is passed over. Raises
    MessageError.
    """
    header = _opened(data, OWN)
    if header.message != class_of(kind).__name__:
        return decode(kind, data)
    gone = gone_of(kind)
    kept = {name: value for name, value in header.fields.items() if name not in gone}
    made: M = _made(kind, _late(kind) | kept, _arrays(kind, header, data))
    return made


def _late(kind: type) -> dict[str, object]:
    """The fields that older files of this format lack: empty ones, and numbers as they say."""
    empty: dict[str, object] = {"text": "", "table": {}}
    return {
        name: empty.get(form.kind, form.before)
        for name, form in forms_of(kind).items()
        if form.added
    }


def decode_one_of(
    kinds: tuple[type[M], ...], data: bytes | memoryview, *, limits: Limits = OWN
) -> M:
    """As `decode`, for a message that may be of any of these classes."""
    header = _opened(data, limits)
    kind = next((one for one in kinds if class_of(one).__name__ == header.message), None)
    if kind is None:
        expected = " or ".join(class_of(one).__name__ for one in kinds)
        raise MessageError("the wrong message", expected=expected, got=header.message[:80])
    found: M = _made(kind, header.fields, _arrays(kind, header, data))
    return found


def _arrays(kind: type, header: _Header, data: bytes | memoryview) -> Arrays:
    """The arrays of a message, by their names on the wire. Raises MessageError.

    They are views of `data` and cannot be written to, so that a large message is held once. As
    safetensors has it, they lie end to end behind the header.
    """
    called, behind, end = class_of(kind).__name__, memoryview(data)[header.size :], 0
    found: Arrays = {}
    try:
        for name, said in sorted(header.arrays.items(), key=lambda item: item[1]["data_offsets"]):
            if said["dtype"] not in _NUMBERS:
                what = f"{called}.{name[:80]} is an array of a type that cannot travel"
                raise MessageError(what)
            number, shape = _NUMBERS[said["dtype"]], said["shape"]
            start, stop = said["data_offsets"]
            if start != end or any(type(one) is not int or one < 0 for one in (stop, *shape)):
                raise ValueError("not end to end")
            if stop - start != math.prod(shape) * number.itemsize:
                raise ValueError("not as large as its shape")
            array = np.frombuffer(behind[start:stop], number).reshape(shape)
            found[name], end = array if array.flags.aligned else array.copy(), stop
            found[name].flags.writeable = False
        if end != len(behind):
            raise ValueError("more bytes than arrays")
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise MessageError(f"the arrays of a {called} cannot be read") from error
    return found


def _made(kind: type, plain: dict[str, object], tensors: Arrays) -> Any:
    """The message with exactly these fields. Raises MessageError if one is missing or unknown."""
    called = class_of(kind).__name__
    values: dict[str, object] = {}
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
            raise MessageError(f"a {called} lacks its field {name!r}")
    if tensors or plain:
        extra = sorted([*tensors, *plain])[0]
        raise MessageError(f"a {called} has an unknown field {extra[:80]!r}")
    check_arrays(kind, values)
    return made_of(kind, values)


class Peeked(TypedDict):
    """The header of an encoded message, without its arrays."""

    format: int
    message: str
    fields: dict[str, object]


def peek(data: bytes, *, limits: Limits = OWN) -> Peeked:
    """The header of an encoded message. Raises MessageError."""
    header = _opened(data, limits)
    return {"format": FORMAT, "message": header.message, "fields": header.fields}


@dataclasses.dataclass(frozen=True, slots=True)
class _Header:
    """What precedes the arrays: the message's class, its plain fields, and where arrays lie.

    `size` is how many bytes precede them.
    """

    message: str
    fields: dict[str, object]
    arrays: dict[str, Any]
    size: int


def check_size(data: bytes | memoryview, limits: Limits) -> int:
    """The length of an encoded message's header. Raises MessageError if message or header is large.

    Reads eight bytes and parses nothing.
    """
    if len(data) > limits.bytes:
        what = "the message is larger than its fields allow"
        raise MessageError(what, expected=f"at most {limits.bytes} bytes", got=f"{len(data)} bytes")
    size = int.from_bytes(bytes(data[:8]), "little")
    if len(data) < 8 or size > len(data) - 8:
        raise MessageError("these bytes are not a confide message")
    if size > limits.header:
        what = "the message's header is larger than its fields allow"
        raise MessageError(what, expected=f"at most {limits.header} bytes", got=f"{size} bytes")
    return size


def _opened(data: bytes | memoryview, limits: Limits) -> _Header:
    """The header, parsed once. Raises MessageError."""
    size = check_size(data, limits)
    try:
        outer = json.loads(str(data[8 : 8 + size], "utf-8"))
        if not isinstance(outer, dict):
            raise ValueError("no header")
        header = json.loads(outer.pop("__metadata__")["confide"])
        if len(outer) > limits.arrays:
            what = "the message has more arrays than its fields allow"
            raise MessageError(what, expected=f"at most {limits.arrays}", got=str(len(outer)))
        format = header["format"] if isinstance(header, dict) else header[0]
        if type(format) is int and format != FORMAT:
            raise MessageError(
                "this message is from another version of confide",
                expected=f"format {FORMAT}",
                got=f"format {format}"[:40],
                fix="install the same version of confide everywhere",
            )
        version, message, fields = header
        if version != FORMAT or not isinstance(message, str) or not isinstance(fields, dict):
            raise ValueError("no message")
        return _Header(message, fields, outer, 8 + size)
    except MessageError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise MessageError("these bytes are not a confide message") from error


def sizes(message: object, encoded: int) -> list[FieldSize]:
    """Bytes and count of every field; a last row holds the rest of the `encoded` bytes."""
    rows = []
    for name, form, value in values_of(message):
        if form.holds_arrays:
            arrays = form.arrays(name, value).values()
            weight, count = sum(one.nbytes for one in arrays), sum(one.size for one in arrays)
            rows.append(FieldSize(name, form.kind, weight, count))
        else:
            count = len(value) if isinstance(value, (list, tuple, dict)) else 1
            rows.append(FieldSize(name, form.kind, len(_json(value)), count))
    rest = encoded - sum(row.bytes for row in rows)
    return [*rows, FieldSize("(header)", "header", rest, 1)]


_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would build one per call


_raw_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _array(value: object, place: str) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype.name not in DTYPES:
        got = f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip()
        raise MessageError(f"{place} cannot travel", expected="an array", got=got)
    return np.asarray(value, order="C")


def _plain(value: object, place: str) -> object:
    """`value` as JSON can hold it. Raises MessageError if it is not plain."""
    if value is None or type(value) in _PLAIN:
        if type(value) is int and abs(value) > MOST_INT:
            raise MessageError(f"{place} cannot travel", expected="at most 64 bits")
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item, place) for item in value]
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: _plain(item, place) for key, item in value.items()}
    raise MessageError(
        f"{place} cannot travel",
        expected="numbers, strings, lists or dicts of these",
        got=type(value).__name__,
    )


def _fit(hint: object, value: object, place: str) -> object:
    """`value` as the type that the annotation declares. Raises MessageError if it does not fit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _fit(next(a for a in arguments if a is not type(None)), value, place)
    if hint is float and (type(value) is float or (type(value) is int and abs(value) <= MOST_INT)):
        return float(value)
    if type(value) is int and abs(value) > MOST_INT:
        raise MessageError(f"{place} is an integer with more than 64 bits")
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
    raise MessageError(f"{place} has the wrong type", expected=str(hint), got=type(value).__name__)
