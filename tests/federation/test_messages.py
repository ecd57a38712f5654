"""The codec: what goes in comes out, and nothing but MessageError comes of anything else."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st
from numpy.typing import NDArray

from cases import each
from confide.errors import MessageError
from confide.federation.messages import (
    FORMAT,
    Arrays,
    Pieces,
    carries,
    decode,
    encode,
    encode_large,
    forms_of,
    peek,
    sizes,
)


@dataclass(frozen=True)
class Everything:
    """A field of every kind."""

    table_NM: NDArray[np.float32] = carries("an array")
    weights: Arrays = carries("arrays by name")
    words: list[str] = carries("strings")
    pairs: list[tuple[int, float]] = carries("tuples in a list")
    sizes: dict[str, int] = carries("a table")
    maybe: float | None = carries("a number, or none")
    rate: float = carries("a float")
    count: int = carries("an integer")
    flag: bool = carries("a truth value")
    name: str = carries("a text")


@dataclass(frozen=True)
class Other:
    """Another message."""

    count: int = carries("an integer")


DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
SHAPES = numpy_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: numpy_st.arrays(dtype, SHAPES))
INTS = st.integers(-(2**63) + 1, 2**63 - 1)
FLOATS = st.floats()
TABLES = numpy_st.arrays(np.float32, numpy_st.array_shapes(min_dims=2, max_dims=2, min_side=0))
EVERYTHING = st.builds(
    Everything,
    TABLES,
    st.dictionaries(st.text(max_size=8), ARRAYS, max_size=3),
    st.lists(st.text(max_size=5), max_size=4),
    st.lists(st.tuples(INTS, FLOATS), max_size=3),
    st.dictionaries(st.text(max_size=5), INTS, max_size=3),
    st.none() | FLOATS,
    FLOATS,
    INTS,
    st.booleans(),
    st.text(max_size=10),
)


def some(**changes: Any) -> Everything:
    message = Everything(
        table_NM=np.array([[1, 2, 3], [4, 5, 6]], np.float32),
        weights={"b": np.ones((2, 0), np.int8), "a": np.array(1.5)},
        words=["gut", "Über", "\ud800", "\0"],
        pairs=[(1, 2.0)],
        sizes={"x": 3},
        maybe=None,
        rate=2.5,
        count=2**63 - 1,
        flag=True,
        name="naïve",
    )
    return dataclasses.replace(message, **changes)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return (type(one), len(one)) == (type(other), len(other)) and all(map(same, one, other))
    if isinstance(one, float) and one != one:
        return isinstance(other, float) and other != other
    return type(one) is type(other) and one == other


@given(EVERYTHING)
@example(some())
def test_a_message_comes_out_as_it_went_in(message: Everything) -> None:
    data = encode(message)
    back = decode(Everything, data)
    for field in dataclasses.fields(message):
        assert same(getattr(message, field.name), getattr(back, field.name)), field.name
    assert encode(back) == data
    assert peek(data).message == "Everything"


@given(EVERYTHING)
def test_sizes_add_up_to_the_encoded_length(message: Everything) -> None:
    encoded = len(encode(message))
    rows = sizes(message, encoded)
    assert [row.field for row in rows] == [*forms_of(Everything), "(header)"]
    assert sum(row.bytes for row in rows) == encoded
    assert all(row.bytes >= 0 for row in rows)


def test_a_long_list_does_not_make_the_header_negative() -> None:
    message = some(pairs=[(n, 0.5) for n in range(2000)])
    encoded = len(encode(message))
    assert sizes(message, encoded)[-1].bytes > 0


@each(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
        np.arange(3, dtype=">f4").reshape(3, 1),
        np.broadcast_to(np.float32(2.0), (3, 2)),
    ],
)
def test_arrays_of_any_layout_keep_their_values(array: np.ndarray) -> None:
    back = decode(Everything, encode(some(table_NM=array))).table_NM
    assert back.shape == array.shape
    assert (back == array).all()


# --- what cannot travel -----------------------------------------------------------------


@each(
    "changes",
    [
        {"table_NM": [[1.0]]},
        {"table_NM": np.array(["text"])},
        {"table_NM": np.array([object()])},
        {"table_NM": np.ones(2, np.complex64)},
        {"weights": {"a": 1.0}},
        {"words": [b"bytes"]},
        {"words": {"a", "b"}},
        {"count": np.int64(3)},
        {"count": 2**63},
        {"sizes": {1: 1}},
        {"name": object()},
    ],
)
def test_what_cannot_travel_is_refused_when_it_is_encoded(changes: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match=r"Everything\."):
        encode(some(**changes))


def test_a_class_that_is_no_message_is_refused() -> None:
    class Bare:
        pass

    @dataclass(frozen=True)
    class Odd:
        thing: bytes

    with pytest.raises(MessageError, match="not a dataclass"):
        encode(Bare())
    with pytest.raises(MessageError, match="cannot travel"):
        forms_of(Odd)


# --- what is not the message --------------------------------------------------------------


def header_of(data: bytes) -> dict[str, Any]:
    """The parts of a message's header, in their order."""
    header = peek(data)
    return {"format": FORMAT, "message": header.message, "fields": header.fields}


def rewritten(data: bytes, change: Any) -> bytes:
    """The same arrays under a header that `change` was applied to."""
    header = header_of(data)
    tensors = safetensors.numpy.load(data)
    change(header)
    return safetensors.numpy.save(tensors, {"confide": json.dumps(list(header.values()))})


@each(
    ("change", "words"),
    [
        (lambda h: h["fields"].pop("rate"), "lacks its field 'rate'"),
        (lambda h: h["fields"].update(extra=1), "unknown field 'extra'"),
        (lambda h: h["fields"].update(count="3"), "count has the wrong type"),
        (lambda h: h["fields"].update(count=2.0), "count has the wrong type"),
        (lambda h: h["fields"].update(count=True), "count has the wrong type"),
        (lambda h: h["fields"].update(count=10**30), "more than 64 bits"),
        (lambda h: h["fields"].update(rate=10**400), "rate is an integer"),
        (lambda h: h["fields"].update(rate="x"), "rate has the wrong type"),
        (lambda h: h["fields"].update(flag=1), "flag has the wrong type"),
        (lambda h: h["fields"].update(name=None), "name has the wrong type"),
        (lambda h: h["fields"].update(words="abc"), "words has the wrong type"),
        (lambda h: h["fields"].update(words=[1]), "words has the wrong type"),
        (lambda h: h["fields"].update(pairs=[[1]]), "pairs has the wrong type"),
        (lambda h: h["fields"].update(sizes=[["x", 3]]), "sizes has the wrong type"),
        (lambda h: h.update(message="Other"), "the wrong message; expected Everything; got Other"),
        (lambda h: h.update(message=3), "not a confide message"),
        (lambda h: h.update(fields=[]), "not a confide message"),
        (lambda h: h.pop("fields"), "not a confide message"),
    ],
)
def test_another_header_is_refused_in_words(change: Any, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        decode(Everything, rewritten(encode(some()), change))


def test_another_version_of_the_format_says_so() -> None:
    data = rewritten(encode(some()), lambda header: header.update(format=FORMAT + 1))
    with pytest.raises(
        MessageError, match=rf"another version.*format {FORMAT}.*format {FORMAT + 1}.*same version"
    ):
        decode(Everything, data)


def test_missing_and_unknown_arrays_are_refused() -> None:
    header = {"confide": json.dumps(list(header_of(encode(some())).values()))}
    with pytest.raises(MessageError, match="lacks its field 'table_NM'"):
        decode(Everything, safetensors.numpy.save({"weights/a": np.ones(1)}, header))
    more = {"table_NM": np.ones(1), "table": np.ones(1)}
    with pytest.raises(MessageError, match="unknown field 'table'"):
        decode(Everything, safetensors.numpy.save(more, header))
    odd = {"table_NM": np.ones(1, np.uint64)}
    with pytest.raises(MessageError, match="type that cannot travel"):
        decode(Everything, safetensors.numpy.save(odd, header))


def test_a_message_of_another_class_is_refused() -> None:
    with pytest.raises(MessageError, match="the wrong message"):
        decode(Other, encode(some()))


@given(st.dictionaries(st.text("ab/?", min_size=1), ARRAYS, max_size=5))
def test_arrays_are_read_as_the_library_reads_them(made: Arrays) -> None:
    data = encode(replace(some(), weights=made))
    back = decode(Everything, data).weights
    library = safetensors.numpy.load(data)
    assert back.keys() == made.keys()
    for name, array in back.items():
        theirs = library[f"weights/{name}"]
        assert (array.dtype, array.shape) == (theirs.dtype, theirs.shape)
        assert array.tobytes() == theirs.tobytes() and array.flags.aligned


def test_a_message_is_held_once_and_cannot_be_written_to() -> None:
    data = bytearray(encode(replace(some(), weights={"large": np.zeros(1000)})))
    found = decode(Everything, bytes(data)).weights["large"]
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
    view = memoryview(data)
    array = decode(Everything, view).weights["large"]
    assert np.shares_memory(array, np.frombuffer(view, np.uint8)) and not array.flags.writeable
    odd = bytearray(1) + data  # one byte further on
    moved = decode(Everything, memoryview(odd)[1:]).weights["large"]
    assert moved.flags.aligned and not moved.flags.writeable


def deep() -> Any:
    """A list in lists that can be read, and is too deep to be compared with another."""
    found: list[Any] = []
    for _ in range(300):
        found = [found]
    return found


def arrays_in(outer: Any) -> list[Any]:
    return [one for name, one in outer.items() if name != "__metadata__"]


def _entry(**said: Any) -> Callable[[Any], None]:
    return lambda outer: outer["weights/a"].update(said)


@each(
    "change",
    [
        _entry(shape=[3]),
        _entry(shape=[-2]),
        _entry(shape=[2.0]),
        _entry(shape=[True, 2]),
        _entry(shape=[0, 10**30], data_offsets=[0, 0]),
        _entry(shape=None),
        _entry(dtype="F32"),
        _entry(dtype=["F64"]),
        _entry(data_offsets=[8, 24]),
        _entry(data_offsets=[0, 15]),
        _entry(data_offsets=[0, 10**30]),
        _entry(data_offsets=[-16, 0]),
        _entry(data_offsets=[0]),
        _entry(data_offsets="ab"),
        lambda outer: outer.update({"weights/b": outer["weights/a"]}),
        lambda outer: outer.update({"weights/b": 3}),
        lambda outer: [one.update(data_offsets=deep()) for one in arrays_in(outer)],
        lambda outer: outer.pop("table_NM"),
        lambda outer: outer["table_NM"].pop("shape"),
    ],
)
def test_arrays_that_do_not_lie_end_to_end_are_refused(change: Any) -> None:
    data = encode(replace(some(), weights={"a": np.ones(2)}))
    size = int.from_bytes(data[:8], "little")
    outer = json.loads(data[8 : 8 + size])
    change(outer)
    header = json.dumps(outer).encode()
    header += b" " * (-len(header) % 8)
    with pytest.raises(MessageError):
        decode(Everything, len(header).to_bytes(8, "little") + header + data[8 + size :])


GOOD = encode(some())


@given(st.binary(max_size=300))
@example(b"")
@example(b"\xff" * 8)
@example((2).to_bytes(8, "little") + b"{}")
@example((4).to_bytes(8, "little") + b"null")
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(Everything, data)


def test_nested_garbage_is_refused() -> None:
    deep = b"[" * 100_000
    with pytest.raises(MessageError):
        peek(len(deep).to_bytes(8, "little") + deep)


@given(st.integers(0, len(GOOD) - 1))
def test_truncated_bytes_are_refused(length: int) -> None:
    with pytest.raises(MessageError):
        decode(Everything, GOOD[:length])


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4))
def test_mutated_bytes_give_a_message_or_a_message_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for place, value in changes:
        data[place] = value
    try:
        back = decode(Everything, bytes(data))
    except MessageError:
        return
    assert isinstance(back, Everything)
    encode(back)


@dataclass(frozen=True)
class Loose:
    """Arrays of any names and types, and a text."""

    arrays: Arrays = carries("whatever there is")
    one: np.ndarray = carries("one more")
    text: str = carries("a text")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(
    st.dictionaries(NAMES, ARRAYS, max_size=6),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
def test_what_is_written_is_what_safetensors_writes(arrays: Arrays, text: str) -> None:
    message = Loose(arrays, np.arange(3.0, dtype=np.float32), text)
    header = json.dumps([FORMAT, "Loose", {"text": text}], separators=(",", ":"))
    named = {f"arrays/{name}": array for name, array in arrays.items()} | {"one": message.one}
    assert encode(message) == safetensors.numpy.save(named, {"confide": header})


def test_a_large_message_is_written_with_one_copy_of_it() -> None:
    array = np.zeros(4_000_000, np.float32)
    tracemalloc.start()
    try:
        data = encode(Loose({}, array, ""))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert array.nbytes < len(data) <= peak < 1.1 * array.nbytes


def test_a_large_message_is_held_in_pieces_that_are_its_very_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("confide.federation.messages.WHOLE", 1000)
    array = np.arange(1000, dtype=np.float32)
    message = Loose({"none": np.zeros((0, 3)), "few": np.ones(7, np.int8)}, array, "")
    held, data = encode_large(message), encode(message)
    assert isinstance(held, Pieces)
    assert any(np.shares_memory(array, np.frombuffer(part, np.uint8)) for part in held.parts)
    assert bytes(held) == data and len(held) == len(data)
    draws = np.random.default_rng(1)
    ends = [0, 1, 8, len(data) - 1, len(data), len(data) + 9, *draws.integers(0, len(data), 20)]
    for first in ends:
        for last in ends:
            assert held[first:last] == data[first:last]
    assert encode_large(Loose({}, array[:9], "")) == encode(Loose({}, array[:9], ""))
