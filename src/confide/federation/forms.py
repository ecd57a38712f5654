"""What the fields of a message declare, and how large a message may be.

A field's annotation gives its kind and, for arrays, the number type. An array's name ends in its
legend, one letter or number per axis: `digests_W16` has two axes, the second of length 16, and is
as long as `counts_W` in the same message. Where the name has no legend, `carries(legend=...)` gives
it. Together they bound the size of a message before a byte of it is parsed.

A field may itself be a message. Messages travel flat: the field `batch_size` of the message in
field `how` travels as `how.batch_size`. Such a field may have a type parameter; the class with its
argument (`Kept[TaggerForm]`) then declares everything.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np

from confide.errors import MessageError

Arrays = dict[str, np.ndarray]

DTYPES = frozenset(
    ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
"""The number types that can travel."""

MOST_BYTES = 2 * 2**30
"""The limit for the arrays of one field, unless the field or the ask sets a lower one."""
MOST_ARRAYS = 4096
"""Arrays in one field that holds arrays by name."""
_ENTRY = 200
"""Header bytes for one array, not counting its name."""
_NUMBER, _TEXT, _LIST = 32, 1024, 2**20
"""Bytes of JSON allowed for one field, by kind, unless `carries(most=...)` says otherwise."""

_LEGEND = re.compile(r"_([A-Z0-9]+)$")
_AXIS = re.compile(r"[A-Z]|[0-9]+")


def carries(
    what: str,
    *,
    legend: str = "",
    most: int = 0,
    start: Callable[[], object] | None = None,
    before: int = 0,
    added: bool = False,
    rule: str = "",
) -> Any:
    """Declare a message field, with the words that the wire table prints for it.

    Args:
        what: the words.
        legend: the axes of the array (or of each of several), if the field's name does not end in
            them.
        most: for an array, the longest that an axis with a letter may be; for a text, list or
            table, the most bytes of JSON.
        start: makes the value of a field that the caller leaves out. Decoding requires every field,
            with or without a `start`.
        before: the value of a number that an older file does not have.
        added: files of this place may be older than the field, a text or a table, which is empty
            there, or a number.
        rule: how a site treats the field. The name of its guard that bounds the value
            (`guards.BOUNDED`). Or "open", of a reply: the server may see it of one site even where
            the guard `masked` holds, as names, digests, and what is no count of text. Or "varies",
            of an ask: no site can work it out from the settings, since it depends on what sites
            said before; every other number, text or list of an ask must be what the settings make
            of it (`Method.expects`).
    """
    metadata: dict[str, object] = {
        "what": what,
        "legend": legend,
        "most": most,
        "before": before,
        "added": added,
        "rule": rule,
    }
    if start is None:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(metadata=metadata, default_factory=start)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The largest message allowed: bytes in all, bytes of header, number of arrays."""

    bytes: int
    header: int
    arrays: int


OWN = Limits(bytes=2**40, header=2**29, arrays=2**20)
"""Limits for files that this place wrote itself: memory, checkpoints, releases."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What a field declares. `axes` is None and `dtypes` empty if the field leaves them open.

    `hint` is the annotation; the fields from `most` on, but for it, are those of `carries`.
    """

    kind: str
    dtypes: frozenset[str]
    axes: tuple[str | int, ...] | None
    most: int
    what: str
    hint: object
    before: int
    added: bool
    rule: str = ""

    @property
    def open(self) -> bool:
        """Whether the server may see the field of one site under the guard `masked`."""
        return self.rule == "open"

    @property
    def varies(self) -> bool:
        """Whether no site can work it out from the settings of the run."""
        return self.rule == "varies"

    @property
    def holds_arrays(self) -> bool:
        """Whether the field is an array, or holds arrays by name."""
        return self.kind in ("array", "arrays")

    def arrays(self, name: str, value: Any) -> Arrays:
        """The arrays in this field, `name`, by their names on the wire: `name`, or `name/KEY`."""
        if self.kind == "array":
            return {name: value}
        return {f"{name}/{key}": array for key, array in value.items()}


def by_name(value: np.ndarray | Arrays) -> Arrays:
    """The arrays of a field by name; a single array has the name ""."""
    return value if isinstance(value, dict) else {"": value}


def class_of(kind: type) -> type:
    """The class of a message: of `Kept[TaggerForm]` it is `Kept`."""
    own: type = typing.get_origin(kind) or kind
    return own


@functools.cache
def fields_of(kind: type) -> dict[str, str]:
    """The kind of every field: "array", "arrays", "number", "text", "list" or "table", by name."""
    return {name: form.kind for name, form in forms_of(kind).items()}


@functools.cache
def forms_of(kind: type) -> dict[str, Form]:
    """What every field that travels declares, by name; nested fields are named `OUTER.INNER`.

    Raises MessageError if a field cannot travel.
    """
    found: dict[str, Form] = {}
    for field, hint in _declared(kind):
        if _is_message(hint):
            inner = forms_of(hint).items()
            found |= {f"{field.name}.{name}": form for name, form in inner}
        else:
            found[field.name] = _form(field, hint)
    return found


def gone_of(kind: type) -> set[str]:
    """The fields that files of this place may still have: `gone`, of a message and those in it."""
    own = {name for one in class_of(kind).__mro__ for name in vars(one).get("gone", ())}
    for field, hint in _declared(kind):
        if _is_message(hint):
            own |= {f"{field.name}.{name}" for name in gone_of(hint)}
    return own


def _is_message(hint: object) -> TypeGuard[type]:
    return dataclasses.is_dataclass(typing.get_origin(hint) or hint)


@functools.cache
def _declared(kind: type) -> tuple[tuple[dataclasses.Field[object], object], ...]:
    """The fields of a message and their annotations, with type arguments filled in.

    Cached because looking up annotations takes longer than decoding a small message.
    """
    own = class_of(kind)
    if not dataclasses.is_dataclass(own):
        raise MessageError(f"{own.__name__} is not a dataclass, so it cannot travel")
    known = dict(zip(getattr(own, "__parameters__", ()), typing.get_args(kind), strict=False))
    hints = typing.get_type_hints(own)
    fields = dataclasses.fields(own)
    own_hints = [known.get(hints[field.name], hints[field.name]) for field in fields]
    return tuple(zip(fields, map(_spelt_out, own_hints), strict=True))


def _spelt_out(hint: Any) -> Any:
    """The annotation without named aliases, as `NDArray` is from numpy 2.5 on."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if not arguments:
        return hint
    spelt = tuple(map(_spelt_out, arguments))
    if (value := getattr(origin, "__value__", None)) is not None:
        return value[spelt]
    return hint if spelt == arguments else origin[spelt]


def values_of(message: object) -> Iterator[tuple[str, Form, Any]]:
    """Everything in a message that travels: its name, what its field declares, and its value."""
    own: type = type(message)
    for field, hint in _declared(own):
        value = getattr(message, field.name)
        if dataclasses.is_dataclass(value):
            for name, form, inner in values_of(value):
                yield f"{field.name}.{name}", form, inner
        else:
            yield field.name, _form(field, hint), value


def made_of(kind: type, values: Mapping[str, object], *, start: str = "") -> Any:
    """The message of class `kind` with these values, by the names of `forms_of`."""
    own: dict[str, object] = {}
    for field, hint in _declared(kind):
        name = start + field.name
        if _is_message(hint):
            own[field.name] = made_of(hint, values, start=f"{name}.")
        else:
            own[field.name] = values[name]
    return class_of(kind)(**own)


@functools.cache
def _form(field: dataclasses.Field[object], hint: object) -> Form:
    kind, said = _kind(hint), field.metadata
    named = _LEGEND.search(field.name) if kind == "array" else None
    legend = said.get("legend") or (named[1] if named else "")
    axes = tuple(int(a) if a.isdigit() else a for a in _AXIS.findall(legend)) if legend else None
    arrays = kind in ("array", "arrays")
    array = typing.get_args(hint)[1] if kind == "arrays" else hint
    return Form(
        kind,
        dtypes=_dtypes(array) if arrays else frozenset(),
        axes=axes if arrays else None,
        most=said.get("most", 0),
        what=said.get("what", ""),
        hint=hint,
        before=said.get("before", 0),
        added=said.get("added", False),
        rule=said.get("rule", ""),
    )


def _kind(hint: object) -> str:
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
    raise MessageError(
        f"a field of type {hint} cannot travel",
        expected="numbers, strings, lists or dicts of these, arrays, or messages",
    )


def _dtypes(hint: object) -> frozenset[str]:
    """The number types in an annotation such as NDArray[np.int8 | np.float32]; empty means any."""
    arguments = typing.get_args(hint)
    if len(arguments) != 2:
        return frozenset()
    (scalar,) = typing.get_args(arguments[1])
    scalars = typing.get_args(scalar) or (scalar,)
    return frozenset(np.dtype(one).name for one in scalars if one not in (np.generic, Any))


def undeclared(kind: type) -> list[str]:
    """The array fields of a message that do not declare their number type or their axes."""
    return [
        name
        for name, form in forms_of(kind).items()
        if form.kind == "array" and (form.axes is None or not form.dtypes)
    ]


def check_arrays(kind: type, values: Mapping[str, object]) -> None:
    """Raise MessageError if an array is not what its field declares.

    `values` holds the value of every array field. A letter in a legend stands for the same length
    throughout a message; a nested message has letters of its own, and so has each array in a field
    of arrays by name.
    """
    lengths: dict[str, dict[str | int, int]] = defaultdict(dict)
    for name, form in forms_of(kind).items():
        if form.holds_arrays:
            for place, array in form.arrays(name, values[name]).items():
                own = lengths[name.rpartition(".")[0]] if form.kind == "array" else {}
                _check(form, array, f"{class_of(kind).__name__}.{place}", own)


def _check(form: Form, array: np.ndarray, place: str, lengths: dict[str | int, int]) -> None:
    if form.dtypes and array.dtype.name not in form.dtypes:
        expected = " or ".join(sorted(form.dtypes))
        what = f"{place} has the wrong number type"
        raise MessageError(what, expected=expected, got=array.dtype.name)
    if form.axes is None:
        return
    if array.ndim != len(form.axes):
        what = f"{place} has the wrong number of dimensions"
        raise MessageError(what, expected=str(len(form.axes)), got=str(array.ndim))
    for axis, length in zip(form.axes, array.shape, strict=True):
        want = axis if isinstance(axis, int) else lengths.setdefault(axis, length)
        if length != want:
            what = f"{place} has an axis of the wrong length"
            raise MessageError(what, expected=str(want), got=str(length))
        if form.most and length > form.most:
            what = f"{place} has an axis that is too long"
            raise MessageError(what, expected=f"at most {form.most}", got=str(length))


# --- how large a message may be -------------------------------------------------------------------


def limits_of(kind: type) -> Limits:
    """The largest that a message of this class may be, whoever sends it."""
    return limits_with(kind, {})


def limits_with(
    kind: type, like: Mapping[str, Arrays], *, numbers: Mapping[str, int] | None = None
) -> Limits:
    """As `limits_of`, but tighter, from what is known of some fields.

    `like`: for fields of arrays by name, the arrays that they must resemble; each may come with one
    bit per row, and in codes with a scale for each. `numbers`: for other array fields, how many
    numbers they hold in all.
    """
    size, header, arrays = 0, 512 + len(class_of(kind).__name__), 0
    for name, form in forms_of(kind).items():
        if not form.holds_arrays:
            header += 2 * (_plain(form) + len(name) + 4)  # JSON within JSON
        elif name in like:
            given = like[name]
            size += sum(
                array.nbytes + len(array) // 8 + 1 for array in given.values() if array.ndim
            )
            size += 8 * len(given)
            header += _ENTRY + sum(3 * (_ENTRY + 6 * (len(name) + len(key))) for key in given)
            arrays += 1 + 3 * len(given)
        else:
            count = 1 if form.kind == "array" else MOST_ARRAYS
            size += _bytes(form, (numbers or {}).get(name))
            header += count * (_ENTRY + 6 * len(name))
            arrays += count
    return Limits(8 + header + size, header, arrays)


def widest(limits: Iterable[Limits]) -> Limits:
    """The limits of a message that may be any one of several."""
    every = list(limits)
    return Limits(
        max(one.bytes for one in every),
        max(one.header for one in every),
        max(one.arrays for one in every),
    )


def _plain(form: Form) -> int:
    return form.most or {"number": _NUMBER, "text": _TEXT}.get(form.kind, _LIST)


def _bytes(form: Form, numbers: int | None) -> int:
    """The most bytes that the arrays of a field may have."""
    width = max((np.dtype(name).itemsize for name in form.dtypes), default=8)
    if numbers is not None:
        return numbers * width
    if form.axes is None or form.kind == "arrays":
        return MOST_BYTES
    total = width
    for axis in form.axes:
        total *= axis if isinstance(axis, int) else form.most or MOST_BYTES
    return min(total, MOST_BYTES)
