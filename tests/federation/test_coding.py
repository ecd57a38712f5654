"""Changes in codes: what they stand for, what is left, what a liar can make of them."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import GuardError
from confide.federation.messages import Arrays
from confide.federation.quantising import (
    MOVED,
    SCALES,
    Quantisation,
    Quantiser,
    dequantise,
    quantise,
)

SHAPES = {"table": (40, 20), "bias": (7,), "kernel": (3, 5, 4), "narrow": (30, 3), "scalar": ()}
CODINGS: tuple[Quantisation, ...] = ("float16", "int8", "int4", "int2", "top")
STEPS = {"int8": 1 / 127, "int4": 1 / 7, "int2": 1.0, "top": 1 / 127}


def a_change(seed: int, *, size: float = 1.0) -> Arrays:
    generator = np.random.default_rng(seed)
    return {
        name: (size * generator.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def norm(change: Arrays) -> float:
    return float(np.sqrt(sum(np.square(one, dtype=np.float64).sum() for one in change.values())))


@each("coding", CODINGS)
@each("seed", [None, 1])
def test_codes_stand_for_the_change_and_the_rest_is_left(
    coding: Quantisation, seed: int | None
) -> None:
    change = a_change(3)
    found = quantise(change, Quantiser(coding, share=0.1), seed=seed)
    meant = dequantise(found.sent, SHAPES)
    for name, array in change.items():
        assert meant[name].dtype == np.float32
        assert meant[name].shape == array.shape
        assert meant[name].tobytes() == found.change[name].tobytes()
        np.testing.assert_array_equal(found.residual[name], array - meant[name])


@each("coding", ["int8", "int4", "int2"])
def test_no_number_is_further_off_than_a_step_of_its_row(coding: Quantisation) -> None:
    change = {"table": a_change(1)["table"] * np.float32([[10.0**k] for k in range(-20, 20)])}
    nearest, drawn = (quantise(change, Quantiser(coding), seed=seed) for seed in (None, 1))
    largest_R1 = np.abs(change["table"]).max(1, keepdims=True)
    step_R1 = largest_R1 * STEPS[coding] * (1 + 2**-6)  # a scale has eight bits, rounded up
    assert (np.abs(nearest.residual["table"]) <= step_R1 / 2).all()
    assert (np.abs(drawn.residual["table"]) <= step_R1).all()
    assert np.abs(nearest.residual["table"]).sum() < np.abs(drawn.residual["table"]).sum()
    bits = int(coding.removeprefix("int"))
    for found in (nearest, drawn):
        assert max(len(np.unique(row)) for row in found.change["table"]) <= 2**bits


@each("coding", ["int8", "int4", "int2"])
def test_drawn_rounding_loses_nothing_on_average(coding: Quantisation) -> None:
    change = a_change(5)
    found = [quantise(change, Quantiser(coding), seed=seed).change for seed in range(200)]
    mean = {name: np.mean([one[name] for one in found], 0) for name in change}
    error = norm({name: mean[name] - change[name] for name in change})
    single = norm({name: found[0][name] - change[name] for name in change})
    assert error < 2 * single / np.sqrt(200)


def test_the_seed_decides_how_numbers_are_rounded() -> None:
    one, same, other = (quantise(a_change(1), Quantiser("int4"), seed=seed) for seed in (1, 1, 2))
    assert {n: a.tobytes() for n, a in one.sent.items()} == {
        n: a.tobytes() for n, a in same.sent.items()
    }
    assert one.change["table"].tobytes() != other.change["table"].tobytes()


def test_rows_that_did_not_change_do_not_travel() -> None:
    change = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    assert quantise(change, Quantiser("int4")).sent == {}
    change["table"][[3, 17]] = 1
    found = quantise(change, Quantiser("int4"))
    assert found.sent.keys() == {"table", "table" + SCALES, "table" + MOVED}
    assert len(found.sent["table" + SCALES]) == 2
    assert np.flatnonzero(np.unpackbits(found.sent["table" + MOVED])).tolist() == [3, 17]
    np.testing.assert_allclose(found.change["table"], change["table"], rtol=2**-6)
    assert set(dequantise(found.sent, SHAPES)) == set(SHAPES)


def test_top_sends_the_largest_of_all_arrays() -> None:
    change = a_change(7)
    change["bias"] *= 100
    found = quantise(change, Quantiser("top", share=0.02))
    sizes = np.concatenate([np.abs(one).ravel() for one in change.values()])
    count = int(np.ceil(0.02 * len(sizes)))
    sent = sum(int((one != 0).sum()) for one in found.change.values())
    assert sent <= count
    least = np.sort(sizes)[-count]
    assert all((np.abs(found.change[n][np.abs(a) < least]) == 0).all() for n, a in change.items())
    whole = quantise(change, Quantiser("top", share=1.0))
    assert norm(whole.residual) < norm(change) / 50


def test_what_is_left_and_added_again_arrives_in_the_end() -> None:
    change, left = a_change(2), {name: np.zeros(s, np.float32) for name, s in SHAPES.items()}
    total = {name: np.zeros(shape, np.float64) for name, shape in SHAPES.items()}
    for _ in range(60):
        found = quantise({n: change[n] + left[n] for n in change}, Quantiser("int2"))
        left = found.residual
        total = {name: total[name] + found.change[name] for name in total}
    off = norm({name: total[name] / 60 - change[name] for name in change})
    assert off < norm(quantise(change, Quantiser("int2")).residual) / 20


@pytest.mark.parametrize("coding", CODINGS)
@given(most=st.floats(1e-6, 10))
def test_what_travels_is_at_most_as_large_as_the_site_allows(
    coding: Quantisation, most: float
) -> None:
    found = quantise(a_change(1), Quantiser(coding, share=0.5), seed=1, most=most)
    assert norm(dequantise(found.sent, SHAPES)) <= most * (1 + 1e-6)
    assert norm(found.change) > 0 or coding == "float16"


@given(seed=st.integers(0, 2**20), exponent=st.integers(-30, 30))
def test_any_size_of_change_is_within_its_step(seed: int, exponent: int) -> None:
    change = a_change(seed, size=2.0**exponent)
    found = quantise(change, Quantiser("int8"), seed=seed)
    assert norm(found.residual) <= norm(change) / 50


@each("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    change = a_change(1)
    change["table"][2, 2] = bad
    for coding in CODINGS:
        for share in (0.01, 0.5, 1.0):
            with pytest.raises(GuardError, match="the change of table is not finite"):
                quantise(change, Quantiser(coding, share))


def _lies(sent: Arrays) -> list[tuple[str, Arrays]]:
    table, bomb = sent["table"], zlib.compressobj(9, zlib.DEFLATED, -15)
    large = np.frombuffer(bomb.compress(bytes(2**28)) + bomb.flush(), np.uint8)
    short = np.frombuffer(zlib.compress(bytes(10))[2:-4], np.uint8)
    return [
        ("no such array", {**sent, "other": table}),
        ("are not bytes", {**sent, "table": table.astype(np.int8)}),
        ("are not bytes", {**sent, "table": table.reshape(1, -1)}),
        ("are not bytes", {n: a for n, a in sent.items() if n != "table"}),
        ("cannot be unpacked", {**sent, "table": np.full(9, 255, np.uint8)}),
        ("are not of its rows", {**sent, "table": large}),
        ("are not of its rows", {**sent, "table": short}),
        ("are not of its rows", {**sent, "table": np.concatenate([table, table])}),
        ("are not of its rows", {**sent, "table": table[:-1]}),
        ("one scale for each row", {**sent, "table" + SCALES: np.zeros(3, np.int16)}),
        ("one scale for each row", {**sent, "table" + SCALES: np.zeros(40, np.float32)}),
        ("one bit per row", {**sent, "table" + MOVED: np.zeros(9, np.uint8)}),
        ("one bit per row", {n: a for n, a in sent.items() if n != "table" + MOVED}),
        ("rows that are not there", {**sent, "bias" + MOVED: np.full(1, 255, np.uint8)}),
    ]


def test_codes_that_do_not_fit_are_refused() -> None:
    for what, lie in _lies(quantise(a_change(1), Quantiser("int8"), seed=1).sent):
        with pytest.raises(GuardError, match=what):
            dequantise(lie, SHAPES)


def test_no_more_is_unpacked_than_there_are_numbers() -> None:
    sent: dict[str, Any] = quantise(a_change(1), Quantiser("int8"), seed=1).sent
    lie = next(one for what, one in _lies(sent) if len(one.get("table", b"")) > 2**17)
    tracemalloc.start()
    with pytest.raises(GuardError):
        dequantise(lie, SHAPES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22
