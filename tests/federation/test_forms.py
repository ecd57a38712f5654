"""What fields declare is enforced, and what is too large is refused before it is parsed."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from cases import each
from confide.errors import MessageError
from confide.federation import messages
from confide.federation.failures import Failure
from confide.federation.guards import reply_limits
from confide.federation.memory import Checkpoint
from confide.federation.messages import (
    FORMAT,
    OWN,
    Arrays,
    Limits,
    carries,
    class_of,
    decode,
    encode,
    forms_of,
    limits_of,
    peek,
)
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.flare.joining import JOIN, LEAVE
from confide.methods import METHODS
from federation.toys import MULTIPLY, TELL, Reply, ask, undeclared

MIB = 2**20
STEPS = {
    (step.ask, step.reply): step
    for step in (JOIN, LEAVE, *(step for kind in METHODS.values() for step in kind.steps))
}
MESSAGES = sorted(
    {
        *(message for step in STEPS.values() for message in (step.ask, step.reply)),
        *(message for kind in METHODS.values() for message in (kind.State, kind.Memory)),
        Checkpoint,
        Failure,
    },
    key=str,
)


@dataclass(frozen=True)
class Counted:
    """Marks with a count each."""

    marks_W4: NDArray[np.uint8] = carries("W marks of four bytes", most=5)
    counts_W: NDArray[np.int64] = carries("how often each occurs", most=5)
    square_YY: NDArray[np.int8 | np.float32] = carries("a square", most=3)
    plain: NDArray[np.float32] = carries("its axes are said apart", legend="Q")
    rows: dict[str, NDArray[np.float32]] = carries("a number for each row", legend="V")
    names: list[str] = carries("some names")


def counted(**changes: Any) -> Counted:
    return replace(
        Counted(
            marks_W4=np.zeros((2, 4), np.uint8),
            counts_W=np.ones(2, np.int64),
            square_YY=np.zeros((3, 3), np.int8),
            plain=np.zeros(7, np.float32),
            rows={"a": np.zeros(2, np.float32), "b": np.zeros(5, np.float32)},
            names=["one"],
        ),
        **changes,
    )


# --- what is declared ---------------------------------------------------------------------------


@each("kind", MESSAGES)
def test_every_array_of_every_message_is_declared(kind: type) -> None:
    assert undeclared(kind) == []


@each("step", STEPS.values())
def test_arrays_by_name_in_a_reply_are_declared_or_shaped_by_the_ask(step: Step) -> None:
    like = {replied for _, replied in step.like}
    for name, form in forms_of(step.reply).items():
        if form.kind == "arrays" and name not in like:
            shaped = form.axes is not None or form.value.shape is not None
            assert shaped, f"{class_of(step.reply).__name__}.{name}"
            assert form.dtypes, f"{class_of(step.reply).__name__}.{name}"


@each("step", STEPS.values())
def test_every_reply_is_bounded_by_its_field_its_ask_or_its_step(step: Step) -> None:
    """Nothing of a reply is left to the widest bound, which is that of unknown arrays."""
    like = {replied for _, replied in step.like}
    for name, form in forms_of(step.reply).items():
        if form.kind in ("array", "arrays") and name not in like and not form.most:
            assert form.value.shape is not None, f"{class_of(step.reply).__name__}.{name}"


def test_a_step_whose_message_leaves_an_array_open_is_refused() -> None:
    @dataclass(frozen=True)
    class Open:
        """An array of any kind."""

        numbers: np.ndarray = carries("numbers")

    def say(site: Site, memory: object, ask: Open, turn: Turn) -> tuple[Open, object]:
        return ask, memory

    say.__annotations__ |= {"ask": Open, "return": tuple[Open, object]}
    with pytest.raises(MessageError, match=r"Open\.numbers does not declare its array"):
        Step.of(say)


def test_an_array_under_an_alias_is_declared_as_without() -> None:
    """From numpy 2.5 on, `NDArray` is such an alias."""
    number = TypeVar("number", bound=np.generic)
    array = np.ndarray[Any, np.dtype[number]]
    Named = TypeAliasType("Named", array, type_params=(number,))

    @dataclass(frozen=True)
    class Plain:
        one_N: NDArray[np.uint8 | np.float32]
        many: dict[str, NDArray[np.float32]]

    own = {"one_N": Named[np.uint8 | np.float32], "many": dict[str, Named[np.float32]]}
    found = forms_of(make_dataclass("Aliased", list(own.items()), frozen=True))
    plain = forms_of(Plain)
    assert found.keys() == plain.keys()
    for name, form in found.items():
        assert replace(form, hint=None) == replace(plain[name], hint=None)
        assert form.kind == ("arrays" if name == "many" else "array") and form.dtypes


def test_what_is_as_declared_comes_through() -> None:
    back = decode(Counted, encode(counted()))
    assert back.rows["b"].shape == (5,)
    assert decode(Counted, encode(counted(square_YY=np.zeros((1, 1), np.float32))))


@each(
    ("changes", "words"),
    [
        ({"counts_W": np.array(2)}, "counts_W has the wrong number of dimensions"),
        ({"counts_W": np.ones((2, 1), np.int64)}, "counts_W has the wrong number of dimensions"),
        (
            {"counts_W": np.ones(3, np.int64)},
            "counts_W has an axis of the wrong length; expected 2; got 3",
        ),
        ({"counts_W": np.ones(2)}, "the wrong number type; expected int64; got float64"),
        (
            {"marks_W4": np.zeros((2, 5), np.uint8)},
            "marks_W4 has an axis of the wrong length; expected 4",
        ),
        ({"marks_W4": np.zeros((2, 4), np.int8)}, "marks_W4 has the wrong number type"),
        ({"square_YY": np.zeros((2, 3), np.int8)}, "square_YY has an axis of the wrong length"),
        ({"square_YY": np.zeros((4, 4), np.int8)}, "has an axis that is too long"),
        ({"square_YY": np.zeros((2, 2), np.float64)}, "expected float32 or int8"),
        ({"plain": np.array(0.0, np.float32)}, "plain has the wrong number of dimensions"),
        ({"rows": {"a": np.array(1.0, np.float32)}}, "rows/a has the wrong number of dimensions"),
        ({"rows": {"a": np.ones(1, np.float16)}}, "rows/a has the wrong number type"),
    ],
)
def test_what_is_not_as_declared_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MessageError, match=words):
        decode(Counted, encode(counted(**changes)))


# --- how large it may be ------------------------------------------------------------------------


def header_of(size: int) -> bytes:
    """A message that is all header: a list of so many bytes."""
    inner = json.dumps([FORMAT, "Counted", {"names": ["x" * size]}])
    header = json.dumps({"__metadata__": {"confide": inner}}).encode()
    return len(header).to_bytes(8, "little") + header


def test_a_large_header_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 MiB nothing is read but eight bytes: no copy is made, no time is spent."""
    data = header_of(32 * MIB)
    monkeypatch.setattr("confide.federation.messages.json.loads", never)
    for look in (
        lambda: decode(Counted, data, limits=limits_of(Counted)),
        lambda: peek(data, limits=limits_of(Counted)),
    ):
        tracemalloc.start()
        start = time.perf_counter()
        with pytest.raises(MessageError, match="larger than its fields allow"):
            look()
        seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 100_000
        assert seconds < 5
    with pytest.raises(MessageError, match="header is larger than"):
        peek(data, limits=Limits(bytes=OWN.bytes, header=MIB, arrays=1))


def never(*_: object) -> Any:
    raise AssertionError("this was to be refused before")


def test_many_empty_arrays_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = {f"rows/{n}": np.zeros(0, np.float32) for n in range(5_000)}
    header = json.dumps([FORMAT, "Counted", {"names": []}])
    data = safetensors.numpy.save(empty, {"confide": header})
    monkeypatch.setattr("confide.federation.messages.np.frombuffer", never)
    limits = Limits(bytes=OWN.bytes, header=200_000, arrays=OWN.arrays)
    with pytest.raises(MessageError, match="header is larger than its fields allow"):
        decode(Counted, data, limits=limits)
    narrow = Limits(bytes=OWN.bytes, header=OWN.header, arrays=4096)
    with pytest.raises(MessageError, match="more arrays than its fields allow"):
        decode(Counted, data, limits=narrow)


@each("mark", ["[", '{"a":'])
def test_what_is_nested_deep_is_refused(mark: str) -> None:
    for deep in (mark * 400_000, json.dumps({"__metadata__": {"confide": mark * 200_000}})):
        data = len(deep).to_bytes(8, "little") + deep.encode()
        with pytest.raises(MessageError, match="these bytes are not a confide message"):
            decode(Counted, data, limits=limits_of(Counted))


def test_more_bytes_than_a_message_can_have_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = reply_limits(TELL, ask())
    monkeypatch.setattr("confide.federation.messages.json.loads", never)
    with pytest.raises(MessageError, match="the message is larger than"):
        decode(TELL.reply, bytes(limits.bytes + 1), limits=limits)


def test_a_reply_may_weigh_what_its_ask_does_and_little_more() -> None:
    """Twice as many numbers are too many, whatever the header says of them."""
    big = replace(ask(), weights={"a": np.zeros((1000, 300), np.float32)})
    limits = reply_limits(MULTIPLY, big)
    weights = big.weights["a"].nbytes
    assert weights < limits.bytes < weights + 50_000
    assert limits.arrays <= 5
    honest = encode(Reply(dict(big.weights), np.zeros(3), 1, 0.5))
    assert decode(Reply, honest, limits=limits)
    twice = encode(Reply({"a": np.zeros((1000, 600), np.float32)}, np.zeros(3), 1, 0.5))
    with pytest.raises(MessageError, match="the message is larger than"):
        decode(Reply, twice, limits=limits)
    named = encode(Reply({str(n): np.zeros(1) for n in range(9)}, np.zeros(3), 1, 0.5))
    with pytest.raises(MessageError, match=r"more arrays|larger than"):
        decode(Reply, named, limits=limits)


def test_a_failure_fits_into_every_replys_limits() -> None:
    data = encode(Failure("guard", "GuardError", "federation/guards.py:1234", "x" * 500))
    for step in (MULTIPLY, TELL):
        assert decode(Failure, data, limits=reply_limits(step, ask()))


@each("step", STEPS.values())
def test_no_message_of_a_site_without_weights_may_be_large(step: Step) -> None:
    """Numbers, names and counts alone: at most a few hundred megabytes, and a small header."""
    if step.like or step.shapes is not None:
        return
    limits = limits_of(step.reply)
    assert limits.header <= 8 * MIB
    assert limits.bytes <= 200 * MIB


def test_a_header_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    loads = messages.json.loads

    def counting(text: str) -> Any:
        seen.append(len(text))
        return loads(text)

    monkeypatch.setattr("confide.federation.messages.json.loads", counting)
    assert isinstance(messages.decode((Failure, Counted), encode(counted())), Counted)
    assert len(seen) == 2  # the header, and ours within it


def test_arrays_of_an_unknown_message_are_not_looked_at() -> None:
    with pytest.raises(MessageError, match="the wrong message; expected Failure; got Counted"):
        decode(Failure, encode(counted()))


@dataclass(frozen=True)
class Loose:
    """Any arrays."""

    weights: Arrays = carries("any arrays")


@each("shape", [[2**63], [2**64], [-1], [0] * 65, [2**62, 0], [1.5], "x", None])
def test_shapes_that_no_array_has_are_refused(shape: Any) -> None:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    inner = json.dumps([FORMAT, "Loose", {}])
    outer = json.dumps({"__metadata__": {"confide": inner}, "weights/a": entry}).encode()
    data = len(outer).to_bytes(8, "little") + outer
    try:
        found = decode(Loose, data, limits=limits_of(Loose))
    except MessageError:
        return
    assert found.weights["a"].size == 0


def test_the_engine_refuses_what_is_larger_before_there_is_memory_for_it() -> None:
    """By the size that a stream declares; the name of the setting is the engine's own."""
    pytest.importorskip("nvflare", reason="needs the extra confide[flare]")
    from nvflare.fuel.f3.comm_config import VarName
    from nvflare.fuel.f3.streaming.blob_streamer import BlobTask
    from nvflare.fuel.f3.streaming.stream_types import BlobSizeError, Stream, StreamFuture

    from confide.flare import kit

    policy = Path(kit.__file__).with_name("policies") / "common" / "comm_config.json"
    most = json.loads(policy.read_text())[VarName.STREAMING_MAX_BLOB_SIZE]
    assert most == kit.LARGEST
    assert all(limits_of(step.reply).header < most for step in STEPS.values())

    class Large(Stream):  # type: ignore[misc]
        def read(self, chunk_size: int) -> bytes:
            raise AssertionError("nothing of it is read")

    with pytest.raises(BlobSizeError, match="exceeds configured limit"):
        BlobTask(StreamFuture(1), Large(most + 1), most)
