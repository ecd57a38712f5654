"""Messages, their limits, and one codec for the wire, site memory, checkpoints and golden tests.

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
import functools
import itertools
import json
import math
import re
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError, MessageError

# --- Fields and sizes of a message
#
# A field's annotation gives its kind and, for arrays, the number type. An array's name ends in
# its legend, one letter or number per axis: `digests_W16` has two axes, the second of length 16,
# and is as long as `counts_W` in the same message. Where the name has no legend,
# `carries(legend=...)` gives it. Together they bound the size of a message before a byte of it is
# parsed.
#
# A field may itself be a message. Messages travel flat: the field `batch_size` of the message in
# field `config` travels as `config.batch_size`. Such a field may have a type parameter; the class
# with its argument (`Kept[TaggerSpec]`) then declares everything.


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


@dataclasses.dataclass(frozen=True)
class Value:
    """The values that a field of a reply may hold, for every kind; both sides check them.

    Attributes:
        least: the smallest that a number, or any number of an array, may be.
        largest: the largest; or a function of the ask that gives it.
        like: the ask's field of arrays by name whose names, shapes and number types these have.
        shape: `shape(ask)` gives the array's shape or, for arrays by name, the shape of each.
        text: "digest" if a text is hexadecimal digits or empty, "names" if a list has distinct
            names.
    """

    least: float | None = None
    largest: float | Callable[[Any], float] | None = None
    like: str = ""
    shape: Callable[[Any], Any] | None = None
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Learnt(Value):
    """Declares a field of a reply that holds what its site learnt.

    Replies are compared, combined, clipped, quantised, masked and summed by this declaration alone.

    Attributes:
        change: the field holds a change, or a gradient, and not new values of arrays of the ask.
        weight: the reply's field with the site's weight, by which the arrays are multiplied; empty
            if it is 1.
        weighting: what a weight is: "equal" (1), "examples" (how many the site trains on), "share"
            (of one whole), "any" (above 0), or the ask's field that says which.
        rows, columns: the reply's field that holds, for each row or column of some arrays, the
            site's weight, or 0 where the site says nothing; of a row that it says nothing of, the
            numbers are 0.
        fixed: the ask's fields that hold the number type and the largest value (`fixed`).
        lane: bytes of a lane of secure sums, and the largest change that has room there
            (`confide.federation.secure.lanes`). Lanes of 4 and 2 bytes hold changes times a site's
            share, of 8 bytes the plain numbers of a reply without a weight; 1 byte stands for
            codes, whole numbers that are added as they are.
        combined: False if the method needs the plain sum.
        slack: how many times `max_norm_ratio` the norms of honest replies may differ by.
        shared: without a `weight`: replies are multiplied by shares that sum to at most 1.
        field: the field itself; filled in by the step.
    """

    change: bool = False
    weight: str = ""
    weighting: str = "equal"
    rows: str = ""
    columns: str = ""
    fixed: tuple[str, str] | None = None
    lane: tuple[int, float] = (4, 8.0)
    combined: bool = True
    slack: float = 1.0
    shared: bool = False
    field: str = ""

    @property
    def start(self) -> str:
        """The ask's field that new values started from; empty if the reply holds a change."""
        return "" if self.change else self.like

    def weight_of(self, reply: object) -> float:
        """The site's weight or, of a sum of replies, the weight of all."""
        return float(getattr(reply, self.weight)) if self.weight else 1.0

    def weighted(self, ask: object) -> str:
        """The meaning of a weight: equal, examples, share, or any."""
        named = self.weighting in ("equal", "examples", "share", "any")
        return self.weighting if named else str(getattr(ask, self.weighting))

    def whole(self, ask: object, sites: int, examples: float) -> float:
        """An upper bound on the sum of the weights of N `sites` that have these `examples`."""
        return {"examples": examples, "share": 1.0}.get(self.weighted(ask), float(sites))

    def has(self, reply: object, name: str, axes: int) -> np.ndarray | None:
        """The site's weight for each row or column of an array of N `axes`, to be broadcast.

        None if it says something of all. For a sum of replies it is their total weight.
        """
        covered = getattr(reply, self.rows or self.columns) if self.rows or self.columns else {}
        if name not in covered:
            return None
        found: np.ndarray = covered[name]
        return found.reshape(-1, *[1] * (axes - 1)) if self.rows else found

    def begun(self, ask: object, reply: object, name: str) -> np.ndarray:
        """The value of an array of `like` if the site had learnt nothing."""
        value: np.ndarray = getattr(ask, self.like)[name]
        if self.change:
            return np.zeros_like(value)
        weight = self.weight_of(reply)
        if weight != 1.0:
            value = value * np.float32(weight)
        has = self.has(reply, name, value.ndim)
        if has is None:
            return value
        if getattr(reply, self.rows)[name].shape != value.shape[:1]:
            raise GuardError(f"{self.rows} must be 0 or the weight for each row")
        return value * (has > 0).astype(np.float32)

    def lanes(self, ask: object) -> tuple[int, float]:
        """The bytes of a number's lane, and the largest number; as many as it has without lanes."""
        if self.fixed is None:
            return self.lane
        kind, most = (getattr(ask, name) for name in self.fixed)
        if kind == "int8":
            return 1, LEVELS
        # rounding to float16 makes numbers a little larger
        return (2, most * 1.001) if kind == "float16" else (4, 2.0 ** math.ceil(math.log2(most)))

    def scale(self, ask: object) -> float:
        """The codes for a number of 1, where numbers travel as codes; else 1."""
        if self.fixed is None or getattr(ask, self.fixed[0]) != "int8":
            return 1.0
        return float(LEVELS / getattr(ask, self.fixed[1]))


def carries(
    what: str,
    *,
    legend: str = "",
    most: int = 0,
    start: Callable[[], object] | None = None,
    before: object = None,
    rule: str = "",
    value: Value | None = None,
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
        before: the value for files of this place that are older than the field.
        rule: how a site treats the field. The name of its guard that bounds the value
            (`guards.BOUNDED`). Or "open", of a reply: the server may see it of one site even where
            the guard `masked` holds, as names, digests, and what is no count of text. Or "varies",
            of an ask: no site can work it out from the settings, since it depends on what sites
            said before; every other number, text or list of an ask must be what the settings make
            of it (`Method.expects`). Arrays of a reply that is summed need no bound on their norm
            if they are "counts", were "clipped" where they were made, or are clipped and under
            "noise": whole numbers that wrap modulo the size of their lane.
        value: of a reply: what the field may hold, and how it holds what the site learnt.
    """
    metadata = {
        "what": what,
        "legend": legend,
        "most": most,
        "before": before,
        "rule": rule,
        "value": value or Value(),
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
    """The declaration of a field. `axes` is None and `dtypes` empty if the field leaves them open.

    `kind` is "array", "arrays", "number", "text", "list" or "table", and `hint` the annotation; the
    fields from `most` on are those of `carries`.
    """

    kind: str
    hint: object
    dtypes: frozenset[str]
    axes: tuple[str | int, ...] | None
    most: int = 0
    what: str = ""
    before: object = None
    rule: str = ""
    value: Value = Value()

    def shapes(self, ask: object) -> dict[str, tuple[int, ...]]:
        """The shapes that the field declares for a reply to this ask, by name ("" for an array)."""
        found = self.value.shape(ask) if self.value.shape is not None else {}
        return found if isinstance(found, dict) else {"": found}

    @property
    def holds_arrays(self) -> bool:
        """True if the field is an array, or holds arrays by name."""
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
    """The class of a message: of `Kept[TaggerSpec]` it is `Kept`."""
    own: type = typing.get_origin(kind) or kind
    return own


@functools.cache
def forms_of(kind: type) -> dict[str, Form]:
    """Return the declared forms of all fields that travel, by name; nested ones are `OUTER.INNER`.

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
    kind, said = _kind(hint), dict(field.metadata)
    named = _LEGEND.search(field.name) if kind == "array" else None
    legend = said.pop("legend", "") or (named[1] if named else "")
    axes = tuple(int(a) if a.isdigit() else a for a in _AXIS.findall(legend)) if legend else None
    arrays = kind in ("array", "arrays")
    array = typing.get_args(hint)[1] if kind == "arrays" else hint
    dtypes, arguments = list[Any](), typing.get_args(array) if arrays else ()
    if len(arguments) == 2:  # number types, as in NDArray[np.int8 | np.float32]
        (scalar,) = typing.get_args(arguments[1])
        dtypes += typing.get_args(scalar) or (scalar,)
    return Form(
        kind,
        hint,
        dtypes=frozenset(np.dtype(one).name for one in dtypes if one not in (np.generic, Any)),
        axes=axes if arrays else None,
        **said,
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
                _check_array(form, array, f"{class_of(kind).__name__}.{place}", own)


def _check_array(form: Form, array: np.ndarray, place: str, lengths: dict[str | int, int]) -> None:
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


_UNKNOWN: Mapping[str, Any] = types.MappingProxyType({})


def limits_of(
    kind: type, *, like: Mapping[str, Arrays] = _UNKNOWN, numbers: Mapping[str, int] = _UNKNOWN
) -> Limits:
    """The largest that a message of this class may be, whoever sends it.

    `like`: for fields of arrays by name, the arrays that they must resemble; each may come with one
    bit per row, and in codes with a scale for each. `numbers`: for other array fields, how many
    numbers they hold in all.
    """
    size, header, arrays = 0, 512 + len(class_of(kind).__name__), 0
    for name, form in forms_of(kind).items():
        if not form.holds_arrays:
            most = form.most or {"number": _NUMBER, "text": _TEXT}.get(form.kind, _LIST)
            header += 2 * (most + len(name) + 4)  # JSON within JSON
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
            size += _bytes(form, numbers.get(name))
            header += count * (_ENTRY + 6 * len(name))
            arrays += count
    return Limits(8 + header + size, header, arrays)


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
"""These types in the order of that library, which writes the last ones first."""


@dataclasses.dataclass(frozen=True)
class FieldSize:
    """The size of one field of an encoded message: bytes, and how many numbers or items."""

    field: str
    kind: str
    bytes: int
    count: int


class Pieces:
    """The bytes of a large message, whose arrays are not copied: nobody may change them."""

    def __init__(self, parts: list[bytes | memoryview]) -> None:
        self.parts = parts
        self._ends = [*itertools.accumulate(map(len, parts))]

    def __len__(self) -> int:
        return self._ends[-1]

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

    def __getitem__(self, wanted: slice) -> bytes:
        first, last, _ = wanted.indices(len(self))
        return b"".join(
            part[max(first - end + len(part), 0) : max(last - end + len(part), 0)]
            for part, end in zip(self.parts, self._ends, strict=True)
            if first < end and last > end - len(part)
        )


WHOLE = 8 * 2**20
"""A message of more bytes than this is held in pieces, and fetched in parts."""


def encode(message: object) -> bytes:
    """The bytes of a message. Raises MessageError if it holds something that cannot travel."""
    return b"".join(pieces(message))


def encode_large(message: object) -> bytes | Pieces:
    """The bytes of a message as `encode` gives them; of a large one, its pieces."""
    found = Pieces(pieces(message))
    return found if len(found) > WHOLE else bytes(found)


def pieces(message: object) -> list[bytes | memoryview]:
    """The bytes of a message, one piece after another; arrays are not copied."""
    called = type(message).__name__
    tensors: Arrays = {}
    plain: dict[str, object] = {}
    array: Any  # not yet known to be one
    for name, form, value in values_of(message):
        if not form.holds_arrays:
            plain[name] = _plain(value, f"{called}.{name}")
            continue
        for place, array in form.arrays(name, value).items():
            if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES:
                got = f"{type(array).__name__} {getattr(array, 'dtype', '')}".strip()
                what = f"{called}.{place} cannot travel"
                raise MessageError(what, expected="an array", got=got)
            tensors[place] = np.asarray(array, order="C")

    # a safetensors file, bit for bit what that library writes; it would hold two copies while it
    # writes, and here is one, which a model of gigabytes needs
    said = _json([FORMAT, called, plain])
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
    return [len(text).to_bytes(8, "little"), text, *arrays]


def decode(
    kind: type[M] | tuple[type[M], ...], data: bytes | memoryview, *, limits: Limits = OWN
) -> M:
    """The message of class `kind`, or of one of several. Raises MessageError on anything else.

    A generic class needs its type argument. A message beyond the limits is refused before any of it
    is parsed.
    """
    header = peek(data, limits=limits)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    own = next((one for one in kinds if class_of(one).__name__ == header.message), None)
    if own is None:
        expected = " or ".join(class_of(one).__name__ for one in kinds)
        raise MessageError("the wrong message", expected=expected, got=header.message[:80])
    found: M = _made(own, header.fields, _arrays(own, header, data))
    return found


def decode_file(kind: type[M], data: bytes | memoryview) -> M:
    """Decode a file that this place wrote, perhaps before the class was changed.

    A field that was added later has the value that it declares (`carries(before=...)`), and one
    that a class names in `gone` is passed over. Raises
    MessageError.
    """
    header = peek(data)
    if header.message != class_of(kind).__name__:
        return decode(kind, data)
    gone = gone_of(kind)
    kept = {name: value for name, value in header.fields.items() if name not in gone}
    forms: Iterable[tuple[str, Form]] = forms_of(kind).items()  # type: ignore[arg-type]
    late = {name: one for name, one in forms if one.before is not None}
    arrays: dict[str, Any] = {n: one.before for n, one in late.items() if one.kind == "array"}
    plain = {name: one.before for name, one in late.items() if name not in arrays}
    made: M = _made(kind, plain | kept, arrays | _arrays(kind, header, data))
    return made


def _arrays(kind: type, header: Header, data: bytes | memoryview) -> Arrays:
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
                raise ValueError("its size is not that of its shape")
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


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The header before the arrays: the message's class, its plain fields, and where arrays lie.

    `size` is how many bytes precede them.
    """

    message: str
    fields: dict[str, object]
    arrays: dict[str, Any]
    size: int


def check_size(data: bytes | memoryview | Pieces, limits: Limits) -> int:
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


def peek(data: bytes | memoryview, *, limits: Limits = OWN) -> Header:
    """The header of an encoded message. Raises MessageError."""
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
        return Header(message, fields, outer, 8 + size)
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


# --- Arrays in fewer bits
#
# For use where a small error does no harm.
#
# `fixed` and `unfixed` turn numbers of a known range into float32, float16 or int8 and back. All
# sites use the same int8 step, so that a sum of codes is the code of the sum.


WireType = Literal["float32", "float16", "int8"]
LEVELS = 127
"""The largest int8 code; the smallest is its negative."""


def fixed(numbers: np.ndarray, kind: WireType, *, most: float) -> np.ndarray:
    """Numbers as they travel, clipped to ±`most` whatever the type.

    Raises GuardError if one is not a number: int8 has no code for that.
    """
    if np.isnan(numbers).any():
        raise GuardError("a value to be sent is not a number")
    clipped: np.ndarray = np.clip(numbers, -most, most)
    if kind == "int8":
        clipped = np.rint(clipped * (LEVELS / most))
    return clipped.astype(kind)


def unfixed(codes: np.ndarray, kind: WireType, *, most: float) -> NDArray[np.float64]:
    """The numbers that codes, or a sum of codes, stand for."""
    return codes.astype(np.float64) * (most / LEVELS if kind == "int8" else 1.0)
