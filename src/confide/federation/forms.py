"""What the fields of a message declare, and how much a message may weigh.

A field's annotation says its kind, and of arrays the type of number. The legend of an array is the
end of its name, a letter or a number for each axis: `digests_W16` has two axes, the second of 16,
and is as long as `counts_W` of the same message. `carries(legend=...)` says it where the name does
not. From all this follows how large a message of a class can be, before a byte of it is parsed.

A field may be a message itself. What travels is flat: field `batch_size` of the message in field
`how` is `how.batch_size`. A message may be generic in such a field; then its class with an argument
(`Kept[TaggerForm]`) declares everything.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
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

_LEGEND = re.compile(r"_([A-Z0-9]+)$")
_AXIS = re.compile(r"[A-Z]|[0-9]+")


def carries(
    what: str,
    *,
    legend: str = "",
    most: int = 0,
    start: Callable[[], Any] | None = None,
    was: str = "",
    before: int = 0,
) -> Any:
    """A message field, with the words that the wire table prints for it.

    `legend`: the axes of an array (or of each of several), where the name does not say them.
    `most`: of an array, how long an axis with a letter can be; of a text, list or table, how many
    bytes it can be as JSON. `start` makes the value of a field that is not given. A message that is
    decoded has all its fields, whether they have a `start` or not. `was`: how the field was called
    in format 2; `before`: what a number is in a file of that format that does not have it.
    """
    metadata = {"what": what, "legend": legend, "most": most, "was": was, "before": before}
    if start is None:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(metadata=metadata, default_factory=start)


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
    """What a field declares. `axes` is None, and `dtypes` empty, where it leaves them open.

    `what` are the words of `carries`, `hint` is the annotation, `was` the name in format 2,
    `before` the number where a file of that format does not have the field.
    """

    kind: str
    dtypes: frozenset[str]
    axes: tuple[str | int, ...] | None
    most: int
    what: str
    hint: Any
    was: str
    before: int


def class_of(kind: Any) -> type:
    """The class of a message, which may come with arguments: `Kept` of `Kept[TaggerForm]`."""
    own: type = typing.get_origin(kind) or kind
    return own


@functools.cache
def fields_of(kind: Any) -> dict[str, str]:
    """Name -> "array", "arrays", "number", "text", "list" or "table", of all that travels.

    The fields of a message in a field are named with a dot between.
    """
    return {name: form.kind for name, form in forms_of(kind).items()}


@functools.cache
def forms_of(kind: Any) -> dict[str, Form]:
    """What every field of a message declares, by the same names.

    Raises MessageError where one cannot travel.
    """
    found: dict[str, Form] = {}
    for field, hint in _declared(kind):
        if dataclasses.is_dataclass(class_of(hint)):
            inner = forms_of(hint).items()
            found |= {f"{field.name}.{name}": form for name, form in inner}
        else:
            found[field.name] = _form(field, hint)
    return found


@functools.cache
def _declared(kind: Any) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    """The fields of a message and their annotations, arguments put in.

    Looking annotations up takes longer than decoding a small message.
    """
    own = class_of(kind)
    if not dataclasses.is_dataclass(own):
        raise MessageError(f"{own.__name__} is not a dataclass, so it cannot travel")
    known = dict(zip(getattr(own, "__parameters__", ()), typing.get_args(kind), strict=False))
    hints = typing.get_type_hints(own)
    fields = dataclasses.fields(own)
    return tuple((field, known.get(hints[field.name], hints[field.name])) for field in fields)


def values_of(message: Any) -> Iterator[tuple[str, Form, Any]]:
    """Everything that travels of a message: its name, what is declared of it, and its value."""
    for field, hint in _declared(_own(message)):
        value = getattr(message, field.name)
        if dataclasses.is_dataclass(value):
            for name, form, inner in values_of(value):
                yield f"{field.name}.{name}", form, inner
        else:
            yield field.name, _flat(_own(message), field, hint), value


def _own(message: Any) -> Any:
    """The class of a message."""
    return type(message)


@functools.cache
def _flat(kind: type, field: dataclasses.Field[Any], hint: Any) -> Form:
    return _form(field, hint)


def made_of(kind: Any, values: Mapping[str, Any], *, start: str = "") -> Any:
    """The message of this class that has these values, by the names of `forms_of`."""
    own = {}
    for field, hint in _declared(kind):
        name = start + field.name
        nested = dataclasses.is_dataclass(class_of(hint))
        own[field.name] = made_of(hint, values, start=f"{name}.") if nested else values[name]
    return class_of(kind)(**own)


def _form(field: dataclasses.Field[Any], hint: Any) -> Form:
    kind, most = _kind(hint), int(field.metadata.get("most", 0))
    what, was = (
        str(field.metadata.get("what", "")),
        str(field.metadata.get("was", "") or field.name),
    )
    before = int(field.metadata.get("before", 0))
    if kind not in ("array", "arrays"):
        return Form(kind, frozenset(), None, most, what, hint, was, before)
    named = _LEGEND.search(field.name) if kind == "array" else None
    legend = field.metadata.get("legend") or (named[1] if named else "")
    axes = tuple(int(a) if a.isdigit() else a for a in _AXIS.findall(legend)) if legend else None
    array = typing.get_args(hint)[1] if kind == "arrays" else hint
    return Form(kind, _dtypes(array), axes, most, what, hint, was, before)


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


def undeclared(kind: Any) -> list[str]:
    """The array fields of a message that leave open what an array of theirs is like."""
    return [
        name
        for name, form in forms_of(kind).items()
        if form.kind == "array" and (form.axes is None or not form.dtypes)
    ]


def check_arrays(kind: Any, arrays: Mapping[str, Any]) -> None:
    """Raise MessageError where an array is not what its field declares.

    `arrays` holds the value of every array field. A letter of a legend stands for one length in a
    message, and in one within it for another; in a field of arrays by name, for one length in each
    array.
    """
    lengths: dict[str, dict[str | int, int]] = defaultdict(dict)
    for name, form in forms_of(kind).items():
        if form.kind == "array":
            own = lengths[name.rpartition(".")[0]]
            _check(form, arrays[name], f"{class_of(kind).__name__}.{name}", own)
        elif form.kind == "arrays":
            for key, array in arrays[name].items():
                _check(form, array, f"{class_of(kind).__name__}.{name}/{key}", {})


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


def limits_of(kind: Any) -> Limits:
    """The most that a message of this class may be, whoever sends it."""
    return limits_with(kind, {})


def limits_with(
    kind: Any, like: Mapping[str, Mapping[str, Any]], *, numbers: Mapping[str, int] | None = None
) -> Limits:
    """The same where more is known: what some fields must be like, and how many numbers they hold.

    `like`: of fields of arrays by name, the arrays that they have to resemble; each may come with
    a bit for every row. `numbers`: of other array fields, how many numbers they hold in all.
    """
    size, header, arrays = 0, 512 + len(class_of(kind).__name__), 0
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
