"""Narrow lanes: sums that never run over, right on average, and openings that ask for nonsense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays
from confide.federation.quantising import can_quantise
from confide.federation.secure.lanes import LaneLayout, largest_of, layout_of
from confide.federation.secure.messages import Opening
from confide.federation.secure.steps import layout_for
from confide.methods import METHODS
from confide.methods.fedavg import TRAIN, Train, Update
from confide.methods.fedner import IMPROVE
from federation.secure.summed import COUNT, MOVE, ask

START = {"a": np.zeros((4, 5), np.float32), "b": np.zeros(3, np.float32)}
ASK: Any = Train(START, None, "equal", [])  # type: ignore[arg-type]


def reply(change: Arrays) -> Update:
    return Update({n: START[n] + change[n] for n in START}, 1.0, {}, 0.0, 1)


def opening(width: int, ranges: dict[str, float]) -> Opening:
    return Opening(np.empty(0, np.uint8), "", 0, False, 4, 0.0, [], width, ranges)


def laid(sites: int, width: int, **rooms: float) -> LaneLayout:
    return layout_of(TRAIN, ASK, sites=sites, examples=0.0, lane_width=width, ranges=rooms)


def summed(layout: LaneLayout, changes: list[Arrays]) -> Update:
    """What the server makes of the lanes of all sites, added modulo their sizes."""
    total = np.zeros(layout.length, np.uint8)
    for seed, change in enumerate(changes):
        lanes = layout.lanes_of(TRAIN, ASK, reply(change), seed=seed)
        for (own, width), (more, _) in zip(
            layout.by_width(total), layout.by_width(lanes), strict=True
        ):
            own.view(f"<u{width}")[:] += more.view(f"<u{width}")
    found, odd = layout.total_of(TRAIN, ASK, total)
    assert odd == 0
    return Update(**found)


@pytest.mark.parametrize("width", [1, 2])
@given(sites=st.integers(1, 60), size=st.floats(1e-6, 100), sign=st.sampled_from([-1.0, 1.0]))
def test_the_largest_changes_of_all_sites_never_run_over(
    width: int, sites: int, size: float, sign: float
) -> None:
    layout = laid(sites, width, a=size, b=size)
    far = {name: np.full(one.shape, 1e6 * sign, np.float32) for name, one in START.items()}
    total = summed(layout, [far] * sites)
    step = size * sites / (2.0 ** (8 * width - 1) - 1 - sites)
    for name in START:
        mean = total.weights[name] / total.weight
        np.testing.assert_allclose(mean, sign * size, atol=step + 1e-9 * size)


@each("width", [1, 2])
def test_a_sum_is_right_on_average_however_small_a_site_is(width: int) -> None:
    """Most shares are less than one step: rounded to the nearest, all would be zero."""
    draw = np.random.default_rng(1).standard_normal
    layout = laid(50, width, a=8.0, b=8.0)
    means = []
    for _ in range(40):
        changes = [
            {n: (0.02 * draw(one.shape) + 0.01).astype(np.float32) for n, one in START.items()}
            for _ in range(50)
        ]
        total = summed(layout, changes)
        means.append(total.weights["a"].mean() / total.weight)
    assert abs(np.mean(means) - 0.01) < 0.3 / 2.0 ** (8 * width - 1) + 0.004


def test_arrays_without_a_room_keep_their_lanes() -> None:
    wide = layout_of(TRAIN, ASK, sites=5, examples=0.0)
    narrow = laid(5, 1, a=0.5)
    assert narrow.length == wide.length - 3 * START["a"].size
    assert narrow.digest != wide.digest != laid(5, 1, a=0.25).digest
    assert laid(100, 1, a=0.5).length == wide.length  # too many roundings for a lane of one byte
    assert laid(100, 2, a=0.5).length < wide.length


@each("name", list(START))
def test_narrow_and_wide_lanes_of_one_reply_hold_each_their_own_array(name: str) -> None:
    change = {
        n: np.full(one.shape, 0.25 * (n == "a") - 0.5, np.float32) for n, one in START.items()
    }
    total = summed(laid(4, 2, **{name: 1.0}), [change] * 4)
    for one, array in total.weights.items():
        np.testing.assert_allclose(array / total.weight, change[one], atol=1e-3)


def test_how_large_changes_are_is_read_off_a_sum() -> None:
    for layout in (laid(4, 2, a=3.0, b=3.0), layout_of(TRAIN, ASK, sites=4, examples=0.0)):
        change = {n: np.zeros_like(one) for n, one in START.items()}
        change["a"][1, 2], change["b"][0] = -2.0, 0.5
        lanes = layout.lanes_of(TRAIN, ASK, reply(change))
        found = largest_of(layout, TRAIN, lanes)
        assert found["a"] == pytest.approx(2.0 / 4, abs=1e-3)  # one site of four
        assert found["b"] == pytest.approx(0.5 / 4, abs=1e-3)


def test_only_changes_of_weights_are_narrow() -> None:
    assert can_quantise(TRAIN) and can_quantise(IMPROVE)
    assert not can_quantise(COUNT)
    narrow = {name for name, pair in METHODS.items() if any(map(can_quantise, pair.steps))}
    assert {"fedavg-tagger", "fedner-tagger", "pseudo-complete-encoder", "lazy-mil-bags"} <= narrow
    assert not any(name.startswith(("feded", "dp-")) for name in narrow)


@each(
    ("lane", "rooms"),
    [
        (3, {"a": 1.0}),
        (-1, {"a": 1.0}),
        (8, {"a": 1.0}),
        (2, {"a": 0.0}),
        (2, {"a": -1.0}),
        (2, {"a": float("nan")}),
        (2, {"a": float("inf")}),
        (2, {"other": 1.0}),
    ],
)
def test_nonsense_is_refused(lane: int, rooms: dict[str, float]) -> None:
    with pytest.raises(Refusal) as refused:
        layout_for(TRAIN, ASK, opening(lane, rooms))
    assert refused.value.code == "bad-ask"


def test_steps_that_cannot_have_narrow_lanes_refuse_them() -> None:
    for step in (MOVE, COUNT):
        if not can_quantise(step):
            with pytest.raises(Refusal):
                layout_for(step, ASK, opening(2, {"a": 1.0}))
    assert layout_for(COUNT, ask(), opening(0, {})).parts
