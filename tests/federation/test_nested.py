"""Messages within messages are flat on the wire; `given` declares what leaves a type open."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import GuardError, MessageError
from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.failures import Failure
from confide.federation.guards import check_reply
from confide.federation.ledger import Ledger, read_ledger
from confide.federation.memory import MemoryStore
from confide.federation.messages import (
    FORMAT,
    Limits,
    class_of,
    decode,
    encode,
    forms_of,
    limits_of,
    made_of,
    peek,
    sizes,
    values_of,
)
from confide.federation.site import Site, SiteHost
from confide.federation.steps import Step, wire_table
from federation.generics import KEEP, NEST, Deep, F, Flat, Has, S, Said, Shape, deep, shape
from federation.toys import federation, undeclared

NAMES = {
    "has.form.width": "number",
    "has.form.names": "list",
    "has.form.marks_W4": "array",
    "has.form.counts_W": "array",
    "has.weights_W": "array",
    "weights": "arrays",
    "name": "text",
}


def rewritten(data: bytes, change: Any) -> bytes:
    """The same arrays under a header whose fields `change` was applied to."""
    header = peek(data)
    change(header.fields)
    tensors = safetensors.numpy.load(data)
    said = json.dumps([FORMAT, header.message, header.fields])
    return safetensors.numpy.save(tensors, {"confide": said})


def without(data: bytes, name: str, **more: np.ndarray) -> bytes:
    """The same fields, less this array."""
    tensors = {key: array for key, array in safetensors.numpy.load(data).items() if key != name}
    header = json.dumps([FORMAT, peek(data).message, peek(data).fields])
    return safetensors.numpy.save(tensors | more, {"confide": header})


# --- what travels ---------------------------------------------------------------------------------


def test_forms_of_a_message_within_have_its_name_before_theirs() -> None:
    assert {name: form.kind for name, form in forms_of(Deep).items()} == NAMES
    assert list(forms_of(Deep)) == list(NAMES)
    assert [(name, form.kind) for name, form, _ in values_of(deep())] == list(NAMES.items())
    assert forms_of(Deep)["has.form.marks_W4"].what == "W marks of four bytes"


@given(st.integers(0, 5), st.integers(0, 7))
def test_a_nested_message_comes_out_as_it_went_in(words: int, weights: int) -> None:
    message = deep(words, weights)
    data = encode(message)
    back = decode(Deep, data)
    assert type(back.has) is Has
    assert type(back.has.form) is Shape
    for (name, _, value), (other, _, found) in zip(
        values_of(message), values_of(back), strict=True
    ):
        assert name == other
        assert str(value) == str(found)
        assert type(value) is type(found)
    assert encode(back) == data
    assert set(peek(data).fields) == {
        name for name, kind in NAMES.items() if kind in ("number", "list", "text")
    }
    assert set(safetensors.numpy.load(data)) == {
        "has.form.marks_W4", "has.form.counts_W", "has.weights_W", "weights/a",
    }  # fmt: skip
    rows = sizes(message, len(data))
    assert [row.field for row in rows] == [*NAMES, "(header)"]
    assert sum(row.bytes for row in rows) == len(data)


@each("form", [Flat(0.5), shape()])
def test_a_generic_message_travels_with_any_argument(form: Any) -> None:
    message: Has[Any] = Has(form, np.ones(3, np.float32))
    kind: Any = Has[type(form)]  # type: ignore[misc]
    back = decode(kind, encode(message))
    assert type(back.form) is type(form)
    assert class_of(kind) is Has
    assert decode((Failure, kind), encode(message)).form.__class__ is type(form)


def test_one_argument_is_not_another() -> None:
    """Also where both are decoded one after the other: what is remembered is of the argument."""
    data = encode(Has(Flat(0.5), np.ones(3, np.float32)))
    assert decode(Has[Flat], data).form == Flat(0.5)
    with pytest.raises(MessageError, match=r"a Has lacks its field 'form\.width'"):
        decode(Has[Shape], data)
    assert decode(Has[Flat], data).form == Flat(0.5)


def test_values_are_found_and_put_together_by_their_names() -> None:
    message = deep()
    named = {name: value for name, _, value in values_of(message)}
    assert (named["has.form.width"], named["name"]) == (3, "text")
    again = made_of(Deep, {name: value for name, _, value in values_of(message)})
    assert encode(again) == encode(message)


# --- what is refused ------------------------------------------------------------------------------


@each(
    ("change", "words"),
    [
        ({"has.form.extra": 1}, "a Deep has an unknown field 'has.form.extra'"),
        ({"has.extra": 1}, "unknown field 'has.extra'"),
        ({"has.form": {"width": 3}}, "unknown field 'has.form'"),
        ({"form.width": 3}, "unknown field 'form.width'"),
        ({"width": 3}, "unknown field 'width'"),
        ({"has.form.width": "3"}, r"Deep\.has\.form\.width has the wrong type"),
        ({"has.form.width": 3.5}, r"Deep\.has\.form\.width has the wrong type"),
        ({"has.form.width": 2**70}, r"has\.form\.width is an integer with more than 64 bits"),
        ({"has.form.names": [1]}, r"Deep\.has\.form\.names has the wrong type"),
        ({"has.form.names": None}, r"Deep\.has\.form\.names has the wrong type"),
        ({"has.form.width": ...}, r"a Deep lacks its field 'has\.form\.width'"),
    ],
)
def test_another_field_within_is_refused_by_its_whole_name(
    change: dict[str, Any], words: str
) -> None:
    def apply(fields: dict[str, Any]) -> None:
        for name, value in change.items():
            if value is ...:
                del fields[name]
            else:
                fields[name] = value

    with pytest.raises(MessageError, match=words):
        decode(Deep, rewritten(encode(deep()), apply))


def test_arrays_within_are_all_there_and_no_others() -> None:
    data = encode(deep())
    with pytest.raises(MessageError, match=r"lacks its field 'has\.form\.counts_W'"):
        decode(Deep, without(data, "has.form.counts_W"))
    with pytest.raises(MessageError, match=r"unknown field 'has\.form\.odd'"):
        decode(Deep, without(data, "", **{"has.form.odd": np.ones(2)}))
    with pytest.raises(MessageError, match=r"unknown field 'has/a'"):
        decode(Deep, without(data, "", **{"has/a": np.ones(2)}))


@each(
    ("changes", "words"),
    [
        (
            {"counts_W": np.ones(3, np.int64)},
            r"Deep\.has\.form\.counts_W has an axis of the wrong length",
        ),
        ({"counts_W": np.ones(2, np.int32)}, r"form\.counts_W has the wrong number type"),
        (
            {"marks_W4": np.zeros((2, 5), np.uint8)},
            r"marks_W4 has an axis of the wrong length; expected 4",
        ),
        ({"counts_W": np.array(2)}, r"counts_W has the wrong number of dimensions"),
        (
            {"counts_W": np.ones(6, np.int64), "marks_W4": np.ones((6, 4), np.uint8)},
            "has an axis that is too long",
        ),
    ],
)
def test_arrays_within_are_as_they_are_declared(changes: dict[str, Any], words: str) -> None:
    form = dataclasses.replace(shape(), **changes)
    has: Has[Shape] = Has(form, np.ones(2, np.float32))
    with pytest.raises(MessageError, match=words):
        decode(Deep, encode(dataclasses.replace(deep(), has=has)))


def test_a_letter_within_stands_for_a_length_of_its_own() -> None:
    """W of the form is 2, W of the weights beside it 5; both in one message."""
    assert decode(Deep, encode(deep(2, 5))).has.weights_W.shape == (5,)


def test_what_cannot_travel_is_named_wherever_it_is() -> None:
    form = dataclasses.replace(shape(), width=object())
    with pytest.raises(MessageError, match=r"Has\.form\.width"):
        encode(Has(form, np.ones(2, np.float32)))
    with pytest.raises(MessageError, match=r"Has\.form\.marks_W4"):
        encode(Has(dataclasses.replace(shape(), marks_W4=[1]), np.ones(2, np.float32)))


def test_a_reply_is_looked_at_within(tmp_path: Path) -> None:
    """Numbers and arrays that are not finite, or absurd, are refused however deep they are."""
    step = dataclasses.replace(NEST, reply=Deep)
    check_reply(step, Flat(1.0), deep())
    odd = dataclasses.replace(shape(), width=10**13)
    with pytest.raises(GuardError, match=r"has\.form\.width is absurdly large"):
        check_reply(step, Flat(1.0), dataclasses.replace(deep(), has=Has(odd, np.ones(1))))
    nan = np.full(2, np.nan, np.float32)
    with pytest.raises(GuardError, match=r"has\.weights_W is not finite"):
        check_reply(step, Flat(1.0), dataclasses.replace(deep(), has=Has(shape(), nan)))
    with pytest.raises(GuardError, match=r"flat\.depth is not finite"):
        check_reply(NEST, Flat(1.0), Said(Flat(float("nan"))))


# --- how large it may be --------------------------------------------------------------------------


def test_limits_count_what_is_within() -> None:
    within, alone = limits_of(Has[Shape]), limits_of(Shape)
    assert within.arrays == alone.arrays + 1 == 3
    assert within.header > alone.header
    assert within.bytes > alone.bytes
    assert limits_of(Has[Flat]).arrays == 1
    assert limits_of(Has[Flat]).header < within.header
    known = limits_of(Has[Shape], numbers={"weights_W": 10})
    assert known.header == within.header
    assert known.bytes == 8 + known.header + 10 * 4 + 5 * 4 + 5 * 8


def test_a_list_within_is_no_longer_than_its_field_says() -> None:
    """The limit of a header has 64 bytes for `names`, not the megabyte of a list."""
    limits = limits_of(Has[Shape])
    assert limits.header < 4096
    form = dataclasses.replace(shape(), names=["x" * 10_000])
    data = encode(Has(form, np.ones(1, np.float32)))
    with pytest.raises(MessageError, match="header is larger than its fields allow"):
        decode(Has[Shape], data, limits=dataclasses.replace(limits, bytes=2**30))
    fits = encode(Has(shape(), np.ones(1, np.float32)))
    small = Limits(bytes=len(fits), header=limits.header, arrays=3)
    assert decode(Has[Shape], fits, limits=small)
    with pytest.raises(MessageError, match="more arrays than"):
        decode(Has[Shape], fits, limits=dataclasses.replace(small, arrays=2))


def test_an_open_array_within_is_noticed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Loose:
        numbers: np.ndarray

    Has_of: Any = Has[Loose]
    assert undeclared(Has_of) == ["form.numbers"]
    assert undeclared(Has[Shape]) == []
    with pytest.raises(MessageError, match=r"Has\.form\.numbers does not declare its array"):
        KEEP.given({F: Loose, S: Flat})


# --- steps ----------------------------------------------------------------------------------------


def test_a_step_may_leave_types_open_until_they_are_given() -> None:
    step = KEEP.given({F: Shape, S: Flat})
    assert (step.ask, step.reply) == (Has[Shape], Flat)
    assert step.ask == Has[Shape]
    assert step.answer is KEEP.answer
    assert (step.name, step.drawn) == ("keep", "")
    assert KEEP.ask == Has[F]
    assert KEEP.reply is S
    other = KEEP.given({F: Flat, S: Shape})
    assert (other.ask, other.reply) == (Has[Flat], Shape)
    assert KEEP.given({F: Flat, S: Shape}, drawn="remember").drawn == "remember"
    drawn = dataclasses.replace(KEEP, drawn="before")
    assert drawn.given({F: Flat, S: Shape}).drawn == "before"


def test_a_type_that_is_not_given_is_missed() -> None:
    with pytest.raises(KeyError):
        KEEP.given({F: Shape})
    with pytest.raises(KeyError):
        KEEP.given({S: Shape})


def test_a_type_that_cannot_travel_is_refused_when_it_is_given() -> None:
    class Bare:
        pass

    with pytest.raises(MessageError, match="cannot travel"):
        KEEP.given({F: Bare, S: Flat})
    with pytest.raises(MessageError, match="not a dataclass"):
        KEEP.given({F: Shape, S: Bare})


def test_a_message_that_nests_cannot_be_summed() -> None:
    """It holds numbers only; but what adds replies up looks at fields, not within them."""
    assert {form.kind for form in forms_of(Said).values()} == {"number"}
    with pytest.raises(MessageError, match="nest: only numbers and arrays can be summed"):
        Step.of(NEST.answer, summed=True)
    with pytest.raises(MessageError, match="keep: only numbers and arrays can be summed"):
        dataclasses.replace(KEEP, summed=True).given({F: Shape, S: Said})
    assert dataclasses.replace(KEEP, summed=True).given({F: Shape, S: Flat}).summed


def test_the_wire_table_says_what_is_within() -> None:
    rows = wire_table([KEEP.given({F: Shape, S: Flat}), NEST])
    assert [(row.step, row.direction, row.field, row.kind) for row in rows] == [
        ("keep", "down", "form.width", "number"),
        ("keep", "down", "form.names", "list"),
        ("keep", "down", "form.marks_W4", "array"),
        ("keep", "down", "form.counts_W", "array"),
        ("keep", "down", "weights_W", "array"),
        ("keep", "up", "depth", "number"),
        ("nest", "down", "depth", "number"),
        ("nest", "up", "flat.depth", "number"),
    ]


def hosted(folder: Path, *steps: Step) -> SequentialEngine:
    named = {step.name: step for step in steps}
    return SequentialEngine([Site("site-1", [], folder)], Hosting(named, Has[Shape], 7))


def test_the_ledger_names_what_is_within(tmp_path: Path) -> None:
    step, book = KEEP.given({F: Shape, S: Flat}), Ledger(tmp_path / "ledger.jsonl")
    given: Has[Shape] = Has(shape(), np.ones(3, np.float32))
    sites = federation(hosted(tmp_path, step, NEST), book)
    sites.ask(step, given, round=0)
    sites.ask(NEST, Flat(1.0), round=0)
    book.flush()
    found = list(read_ledger(tmp_path / "ledger.jsonl"))
    named = {(entry.direction, entry.field): entry for entry in found}
    assert named["down", "form.marks_W4"].bytes == named["down", "form.marks_W4"].count == 8
    assert named["up", "flat.depth"].kind == "number"
    assert {entry.field for entry in found if entry.step == "keep"} == {
        "form.width", "form.names", "form.marks_W4", "form.counts_W", "weights_W", "depth",
        "(header)",
    }  # fmt: skip
    assert book.totals["down"]["site-1"] == len(encode(given)) + len(encode(Flat(1.0)))


def test_what_a_site_keeps_may_be_generic(tmp_path: Path) -> None:
    """The memory is read again as the class with its argument, by another host."""
    step = KEEP.given({F: Shape, S: Flat})
    given: Has[Shape] = Has(shape(), np.ones(3, np.float32))
    federation(hosted(tmp_path, step)).ask(step, given, round=0)
    store = MemoryStore(tmp_path / "memory", Has[Shape])
    assert encode(store.before(1, "keep")) == encode(given)


def test_random_choices_are_named_by_what_a_step_says_not_by_its_name(tmp_path: Path) -> None:
    """So that a step can be called otherwise, and its numbers stay."""

    def seed(step: Step, folder: str) -> float:
        store = MemoryStore(tmp_path / folder, Has[Shape])
        host = SiteHost(Site("site-1", []), {step.name: step}, memory=store, seed=7)
        reply = host.answer(step.name, 1, encode(Has(shape(), np.ones(3, np.float32))))
        return decode(Flat, reply).depth

    plain = KEEP.given({F: Shape, S: Flat})
    assert seed(plain, "a") == seed(dataclasses.replace(plain, name="hold", drawn="keep"), "b")
    assert seed(plain, "c") != seed(dataclasses.replace(plain, name="hold"), "d")


def test_an_ask_with_another_form_is_refused_at_the_site(tmp_path: Path) -> None:
    step = KEEP.given({F: Shape, S: Flat})
    store = MemoryStore(tmp_path / "memory", Has[Shape])
    host = SiteHost(Site("site-1", []), {"keep": step}, memory=store, seed=7)
    reply = host.answer("keep", 0, encode(Has(Flat(1.0), np.ones(3, np.float32))))
    assert decode(Failure, reply).code == "bad-ask"
    assert isinstance(
        decode(Flat, host.answer("keep", 0, encode(Has(shape(), np.ones(3, np.float32))))), Flat
    )


def test_the_same_bytes_asked_by_another_step_are_opened_as_its_own(tmp_path: Path) -> None:
    """Sites of one process open bytes once; not for a step whose ask has another argument."""
    step, other = KEEP.given({F: Shape, S: Flat}), KEEP.given({F: Flat, S: Flat})
    site, data = Site("site-1", []), encode(Has(Flat(2.0), np.ones(1, np.float32)))
    store = MemoryStore(tmp_path / "memory", Has[Flat])
    steps = {"flat": dataclasses.replace(other, name="flat"), "keep": step}
    host = SiteHost(site, steps, memory=store, seed=7)
    assert isinstance(decode((Flat, Failure), host.answer("flat", 0, data)), Flat)
    assert decode(Failure, host.answer("keep", 0, data)).code == "bad-ask"
