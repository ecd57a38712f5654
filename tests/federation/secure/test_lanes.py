"""Replies as whole numbers: known answers, bounds for any number of sites, and no clipping."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from confide.errors import GuardError
from confide.federation.secure import lanes
from confide.federation.secure.lanes import EMPTY, LaneLayout, LazyArrays, layout_of, no_lanes
from confide.federation.steps import Step
from federation import toys
from federation.secure.plays import named, plus
from federation.secure.summed import (
    CODE,
    COUNT,
    HALVE,
    MOST,
    MOVE,
    SLOPE,
    Ask,
    Coded,
    Counted,
    Halved,
    Moved,
    Sloped,
    ask,
)

ONE = Ask({"a": np.zeros(1, np.float32)}, {}, 1)


def moved(value: float, *, weight: float = 1.0, loss: float = 0.0) -> Moved:
    return Moved({"a": np.array([value], np.float64)}, weight, {}, loss, 1)


def lane_of(value: float, *, weight: float = 1.0, whole: float = 1.0) -> int:
    """A change of one number, as it lies in its lane."""
    layout = replace(layout_of(MOVE, ONE, sites=3, examples=1.0), whole=whole)
    found = layout.lanes_of(MOVE, ONE, moved(value * weight, weight=weight))
    return int(layout.views(found)["weights", "a"][0])


@each(
    ("value", "lane"),
    [
        (0.0, 0),
        (1.0, 134217728),
        (-1.0, 4160749568),
        (3.725290298461914e-09, 0),
        (1.1175870895385742e-08, 2),
        (-7.999, 3221359690),
    ],
)
def test_fixed_point_known_answers(value: float, lane: int) -> None:
    """Half a unit goes to zero, and one and a half to two: to the nearest, ties to even."""
    assert lane_of(value) == lane


@each("value", [8.001, -8.001, 1e30, 1e308])
def test_what_does_not_fit_is_refused_and_never_clipped(value: float) -> None:
    """Flower's SecAgg+ clips without a word (its issue 7522)."""
    with pytest.raises(GuardError, match="absurdly large"):
        lane_of(value)


def test_the_largest_changes_of_all_sites_fit() -> None:
    """Shares sum to one, so the sum of any number of sites stays within half a lane."""
    for sites in (3, 10, 100, 1_000):
        added = sum(lane_of(8.0, weight=1.0, whole=float(sites)) for _ in range(sites))
        assert added <= 2**30 + sites / 2 < 2**31


# --- bounds ------------------------------------------------------------------------------


@each("sites", [3, 9, 10, 11, 100, 257, 258, 259, 260, 1_000, 2_000])
@each("code", [127, -127])
def test_codes_of_any_number_of_sites_do_not_overflow(sites: int, code: int) -> None:
    """Fed-BioMed's sums overflowed from ten nodes on (its issue 1210)."""
    asked = ask(many=2)
    layout = layout_of(CODE, asked, sites=sites, examples=0.0)
    one = layout.lanes_of(CODE, asked, Coded(np.full(2, code, np.int8), 1))
    total, odd = layout.total_of(CODE, asked, _times(layout, one, sites))
    assert total["said_N"].tolist() == [code * sites] * 2
    assert (total["sites"], odd) == (sites, 0)


def _times(layout: LaneLayout, one: np.ndarray, sites: int) -> np.ndarray:
    total = one.copy()
    for part, width in layout.by_width(total):
        part.view(f"<u{width}")[:] *= np.uint64(sites).astype(f"<u{width}")
    return total


@each("sites", [1, 3, 10, 257, 1_024, 1_025, 5_000])
@each("sign", [1.0, -1.0])
def test_narrow_lanes_hold_the_largest_numbers_of_any_number_of_sites(
    sites: int, sign: float
) -> None:
    """All sites send the largest number, or one a hair below, which rounds away from zero."""
    asked = ask(many=2)
    layout = layout_of(HALVE, asked, sites=sites, examples=float(sites))
    part = next(part for part in layout.parts if part.field == "said_N")
    assert part.width == (2 if sites <= 1_024 else 4)
    largest = np.float64(MOST * 1.001 * (1 + 0.9e-6)) * sign
    one = layout.lanes_of(HALVE, asked, Halved(np.array([largest, largest * 0.99999]), 1.0))
    total, odd = layout.total_of(HALVE, asked, _times(layout, one, sites))
    error = np.abs(total["said_N"] / sites - [largest, largest * 0.99999])
    assert error.max() <= sites * 0.5 / part.scale * (1 + 1e-9)
    assert (total["weight"], odd) == (sites, 0)


def test_what_does_not_fit_a_narrow_lane_is_refused_and_never_clipped() -> None:
    asked = ask(many=1)
    layout = layout_of(HALVE, asked, sites=3, examples=3.0)
    for value in (MOST * 1.002, -MOST * 1.002, math.inf):
        with pytest.raises(GuardError, match="absurdly large"):
            layout.lanes_of(HALVE, asked, Halved(np.array([value]), 1.0))


@each(("sites", "bytes_each"), [(3, 2), (50, 2), (258, 2), (259, 4)])
def test_a_masked_upload_is_as_long_as_a_plain_one_of_its_precision(
    sites: int, bytes_each: int
) -> None:
    """Of float16 the same two bytes. Of int8 more: a sum of codes has more values than a code."""
    asked = ask(many=60_000)
    for step, plain, limit in ((HALVE, 2, 1.05 * 2), (CODE, 1, bytes_each * 1.001)):
        layout = layout_of(step, asked, sites=sites, examples=float(sites))
        assert plain <= layout.length / asked.many <= limit


@each("sites", [3, 10, 2_000])
@each("width", ["wide_N", "narrow_N"])
def test_counts_that_could_overflow_are_refused_at_the_site(sites: int, width: str) -> None:
    asked = ask(many=1)
    layout = layout_of(COUNT, asked, sites=sites, examples=0.0)
    bits = 63 if width == "wide_N" else 31
    fits = int((2.0**bits - 1024) // sites)

    def put(value: int) -> np.ndarray:
        values = {"wide_N": np.zeros(1, np.int64), "narrow_N": np.zeros(1, np.int32)}
        values[width] = values[width] + np.array([value], values[width].dtype)
        return layout.lanes_of(COUNT, asked, Counted(**values))

    for value in (fits, -fits):
        total, _ = layout.total_of(COUNT, asked, _times(layout, put(value), sites))
        assert total[width].tolist() == [value * sites]
    for value in (fits + fits // 100 + 2000, -(fits + fits // 100 + 2000), -(2**bits)):
        with pytest.raises(GuardError, match="does not fit its lane"):
            put(value)


@each("dtype", [np.uint64, np.int64])
def test_the_ends_of_integer_types_do_not_slip_through(dtype: Any) -> None:
    """|−2⁶³| is negative in int64, and 2⁶⁴ − 1 is −1."""
    for value in (np.iinfo(dtype).max, np.iinfo(dtype).min):
        if value:
            with pytest.raises(GuardError):
                lanes._whole(np.array([value], dtype), 2.0**62, "field")


@each("value", [1e12, -1e12, math.nan, math.inf, -math.inf])
def test_numbers_out_of_range_are_refused(value: float) -> None:
    layout = layout_of(MOVE, ONE, sites=3, examples=1.0)
    with pytest.raises(GuardError):
        layout.lanes_of(MOVE, ONE, moved(0.0, loss=value))


@each("value", [math.nan, math.inf, 0.5])
def test_counts_that_are_no_whole_numbers_are_refused(value: float) -> None:
    asked = replace(ask(many=1), weights={"table": np.zeros((1, 1), np.float32)})
    layout = layout_of(MOVE, asked, sites=3, examples=2.0)
    seen = {"table": np.array([value], np.float32)}
    reply = Moved({"table": np.zeros((1, 1))}, 1.0, seen, 0.0, 1)
    with pytest.raises(GuardError):
        layout.lanes_of(MOVE, asked, reply)


@each("value", [math.inf, -math.inf])
def test_an_infinite_change_is_refused(value: float) -> None:
    with pytest.raises(GuardError):
        lane_of(value)


# --- what a server chooses -----------------------------------------------------------------


def test_a_whole_that_is_too_small_leaves_nobody_out() -> None:
    """A server that names few examples would otherwise read the smallest site alone.

    Sites with more examples than it names would have nothing to add, and the sum over all would be
    the reply of the one that is left.
    """
    weights = [3.0, 50.0, 70.0, 90.0]
    layout = layout_of(MOVE, ONE, sites=4, examples=4.0)
    found = [layout.lanes_of(MOVE, ONE, moved(0.25 * w, weight=w)) for w in weights]
    alone = layout.views(found[0])["weights", "a"][0]
    total = plus(layout, found)
    assert layout.views(total)["weights", "a"][0] == 2**25 * 3 + alone
    assert layout.views(total)[EMPTY, ""][0] == 0
    restored, odd = layout.total_of(MOVE, ONE, total)
    assert (restored["weight"], odd) == (sum(weights), 0)


@each("examples", [0.0, -1.0, math.nan, -math.inf])
def test_a_whole_that_is_none_leaves_everybody_out(examples: float) -> None:
    """Not some of the sites, which would tell who they are."""
    layout = layout_of(MOVE, ONE, sites=4, examples=examples)
    for weight in (1.0, 7.0, 1e6):
        with pytest.raises((GuardError, ZeroDivisionError)):
            layout.lanes_of(MOVE, ONE, moved(weight / 4, weight=weight))


def test_every_part_of_a_layout_is_in_its_digest() -> None:
    layout = layout_of(MOVE, ask(), sites=4, examples=9.0)
    others = [
        layout_of(MOVE, ask(), sites=5, examples=9.0),
        layout_of(MOVE, ask(), sites=4, examples=10.0),
        layout_of(COUNT, ask(), sites=4, examples=9.0),
        layout_of(MOVE, ONE, sites=4, examples=9.0),
        *(
            LaneLayout((*layout.parts[:-1], replace(layout.parts[-1], **change)), layout.whole, 4)
            for change in (
                {"name": "x"},
                {"shape": (1,)},
                {"width": 8},
                {"scale": 2.0},
                {"codes": True},
            )
        ),
        LaneLayout(layout.parts[::-1], layout.whole, 4),
    ]
    assert len({one.digest for one in (layout, *others)}) == len(others) + 1


# --- layouts -------------------------------------------------------------------------------


@each("step", [MOVE, COUNT, CODE, HALVE, SLOPE])
def test_parts_lie_end_to_end_and_on_multiples_of_their_width(step: Step) -> None:
    layout = layout_of(step, ask(), sites=4, examples=9.0)
    start = 0
    for part in layout.parts:
        assert start % part.width == 0
        start += part.length
    assert start == layout.length == len(no_lanes(layout, empty=False))
    assert sum(len(lane) for lane, _ in layout.by_width(no_lanes(layout, empty=False))) == start
    assert not no_lanes(layout, empty=False).any()
    assert no_lanes(layout, empty=True).sum() == 1


@each(
    "change",
    [
        lambda reply: replace(reply, weights={}),
        lambda reply: replace(reply, weights={**reply.weights, "more": np.zeros(1)}),
        lambda reply: replace(reply, weights={n: np.zeros(3) for n in reply.weights}),
        lambda reply: replace(reply, seen={**reply.seen, "b": np.zeros(2, np.float32)}),
        lambda reply: replace(reply, seen={}),
        lambda reply: replace(reply, seen={"table": np.zeros(4, np.float32)}),
    ],
)
def test_a_reply_of_another_form_has_no_lanes(change: Any) -> None:
    asked = ask()
    layout = layout_of(MOVE, asked, sites=4, examples=40.0)
    weights = {name: array.astype(np.float64) for name, array in asked.weights.items()}
    reply = Moved(weights, 1.0, {"table": np.ones(5, np.float32)}, 0.5, 3)
    layout.lanes_of(MOVE, asked, reply)
    with pytest.raises(GuardError):
        layout.lanes_of(MOVE, asked, change(reply))


def test_what_is_restored_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ask()
    layout = layout_of(MOVE, asked, sites=4, examples=40.0)
    draw = np.random.default_rng(2)
    total = draw.integers(0, 3, layout.length, np.uint8)
    whole = dict(layout.total_of(MOVE, asked, total)[0]["weights"])
    monkeypatch.setattr(lanes, "_BLOCK", 2)
    blocks, _ = layout.total_of(MOVE, asked, total)
    assert whole.keys() == blocks["weights"].keys()
    for name in whole:
        assert np.array_equal(whole[name], blocks["weights"][name])


def test_what_a_site_adds_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In wide lanes, and in narrow ones, whose changes are cut off and rounded by chance."""
    asked = ask()
    draw = np.random.default_rng(3)
    weights = {n: a + draw.normal(size=a.shape) for n, a in asked.weights.items()}
    reply = Moved(weights, 1.0, {"table": np.ones(5, np.float32)}, 0.5, 3)
    for width in (0, 1, 2):
        ranges = dict.fromkeys(weights, 1.0)
        layout = layout_of(
            MOVE, asked, sites=4, examples=4.0, lane_width=width, ranges=ranges if width else None
        )
        whole = layout.lanes_of(MOVE, asked, reply, seed=1)
        with monkeypatch.context() as patch:
            patch.setattr(lanes, "_CACHED", 2)
            blocks = layout.lanes_of(MOVE, asked, reply, seed=1)
        assert whole.tobytes() == blocks.tobytes(), width


def test_changes_that_are_no_share_leave_room_for_those_of_all_sites() -> None:
    """Without a weight each of three adds its change whole: it has a third of half a lane."""
    asked = toys.ask()
    layout = layout_of(toys.MOVE, asked, sites=3, examples=0.0)
    for size in (5.3, -5.3):
        reply = toys.Moved({name: one + size for name, one in asked.weights.items()})
        one = layout.lanes_of(toys.MOVE, asked, reply)
        total, _ = layout.total_of(toys.MOVE, asked, _times(layout, one, 3))
        for name, array in total["weights"].items():
            np.testing.assert_allclose(array - asked.weights[name], 3 * size, rtol=1e-6)
    for size in (5.4, -5.4, 7.9):
        reply = toys.Moved({name: one + size for name, one in asked.weights.items()})
        with pytest.raises(GuardError, match="does not fit its lane"):
            layout.lanes_of(toys.MOVE, asked, reply)


@settings(max_examples=30)
@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=8))
def test_wide_lanes_hold_a_gradient_to_its_last_bits(values: list[float]) -> None:
    asked = ask(many=1)
    layout = layout_of(SLOPE, asked, sites=len(values), examples=0.0)
    found = [layout.lanes_of(SLOPE, asked, Sloped(np.array([one]))) for one in values]
    total, _ = layout.total_of(SLOPE, asked, plus(layout, found))
    assert abs(total["slope_N"][0] - math.fsum(values)) <= len(values) * 2.0**-25
    assert len(named(3)) == 3


def test_the_sum_of_a_large_model_is_held_one_array_at_a_time() -> None:
    like = {str(number): np.ones(50_000, np.float32) for number in range(20)}
    asked = replace(ask(), weights=like)
    layout = layout_of(MOVE, asked, sites=4, examples=40.0)
    summed = no_lanes(layout, empty=False)
    tracemalloc.start()
    try:
        total, _ = layout.total_of(MOVE, asked, summed)
        for name, array in total["weights"].items():
            assert array.shape == like[name].shape
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 8 * 50_000 <= peak < 5 * 8 * 50_000


def test_arrays_that_are_made_later_are_those_of_a_dict_however_they_are_read() -> None:
    made: list[str] = []

    def one(name: str) -> Any:
        return lambda: made.append(name) or np.full(2, len(name))

    there = LazyArrays({name: one(name) for name in ("a", "bb")})
    assert made == []
    assert (len(there), "bb" in there, list(there), set(there.keys())) == (
        2, True, ["a", "bb"], {"a", "bb"},
    )  # fmt: skip
    for found in (dict(there), {**there}, {} | there, dict(there.items()), there.copy()):
        assert {name: array.tolist() for name, array in found.items()} == {
            "a": [1, 1], "bb": [2, 2],
        }  # fmt: skip
    assert [array.tolist() for array in there.values()] == [[1, 1], [2, 2]]
    there["a"] = np.zeros(1)
    assert there["a"].tolist() == there.get("a").tolist() == [0]
    assert there.get("c") is None and there.pop("c", None) is None
    assert there.pop("bb").tolist() == [2, 2]
    assert list(there) == ["a"] and len(there) == 1
    for missing in (lambda: there["bb"], lambda: there.pop("bb")):
        with pytest.raises(KeyError):
            missing()
    with pytest.raises(TypeError, match="array by array"):
        assert there == {}
