"""Sums of numbers that are worth one or two bytes: how long masked replies are, and how exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cases import each
from confide.federation.messages import decode
from confide.federation.secure.lanes import Part, layout_of
from confide.federation.steps import Step
from confide.kinds.how import How
from confide.learning.adam import LONGEST, Moments, adam
from confide.methods import METHODS
from confide.methods.feded.steps import TRAIN_AND_PREDICT
from confide.methods.fedner.steps import HALF, IMPROVE, Improve, Improved, lanes_of_improved
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import states
from methods.relation_runs import asked

HOW = How(0.001, "adam", 0.0, 0.0, 5.0, 8, 1, 0.0, False, 1)
FEDNER = ("method=fedner-tagger", "options.local_steps=3", "options.sparse=true", "rounds=3")


def improve(*, local_steps: int, dtype: str = "float16", how: How = HOW) -> Improve:
    return Improve({"w": np.zeros((200, 500), dtype)}, how, local_steps=local_steps, sparse=False)


def part_of(step: Step, ask: Any, field: str, *, sites: int = 10) -> Part:
    layout = layout_of(step, ask, sites=sites, examples=0.0)
    return next(part for part in layout.parts if part.field == field)


@each("sites", [3, 10, 100])
def test_float16_is_as_long_under_masks_as_without(sites: int) -> None:
    said = part_of(TRAIN_AND_PREDICT, asked(S=1000, R=9, wire_dtype="float16"), "said_SQ")
    moved = part_of(IMPROVE, improve(local_steps=4), "update", sites=sites)
    assert (said.length, moved.length) == (2 * 1000 * 8, 2 * 200 * 500)


@each(("sites", "most"), [(3, 1.34), (6, 1.34), (10, 1.61), (28, 1.61), (50, 2)])
def test_codes_of_a_byte_are_as_long_as_their_sum_must_be(sites: int, most: float) -> None:
    said = part_of(TRAIN_AND_PREDICT, asked(S=1000, R=9, wire_dtype="int8"), "said_SQ", sites=sites)
    assert np.log2(2 * 127 * sites + 1) / 8 <= said.length / 8000 <= most


def test_gradients_keep_four_bytes() -> None:
    for dtype in ("float16", "float32"):
        assert part_of(IMPROVE, improve(local_steps=1, dtype=dtype), "update").width == 4
    assert part_of(IMPROVE, improve(local_steps=4, dtype="float32"), "update").width == 4


@each("growth", [0.5, 0.9, 1.0, 1.05, 1.11, 1.3, 30.0])
def test_no_step_of_adam_is_longer_than_its_lane_says(growth: float) -> None:
    """Gradients that grow by β2 / β1 in each step are the worst: they come within a hair."""
    value = {"a": np.zeros(1, np.float32)}
    moments, longest = Moments(0, {}, {}), 0.0
    start, numbers = 3000 if growth == 1.11 else 0, 250 if growth < 2 else 20
    if start:  # steps of zeros, so that no bias is left to be corrected
        moments = Moments(start, {"a": np.zeros(1, np.float32)}, {"a": np.zeros(1, np.float32)})
    for number in range(numbers):
        slope = {"a": np.array([1e-6 * growth**number], np.float32)}
        moved, moments = adam(value, slope, moments=moments, learning_rate=1.0)
        longest = max(longest, float(np.abs(moved["a"])[0]))
    assert longest <= LONGEST
    assert growth != 1.11 or longest > 0.97 * LONGEST


@each("rate", [1e-6, 1e-3, 0.5])
def test_the_longest_change_in_float16_fits_its_lane(rate: float) -> None:
    ask = improve(local_steps=3, how=replace(HOW, learning_rate=rate))
    _, most = lanes_of_improved(ask)
    longest = np.float32(7.27 * 3 * rate)
    sent = np.full((200, 500), longest * HALF, np.float32).clip(-65504, 65504).astype(np.float16)
    layout = layout_of(IMPROVE, ask, sites=4, examples=0.0)
    lanes = [layout.lanes_of(IMPROVE, ask, Improved({"w": sent}, 1.0, 0.5, 1))]
    total, odd = layout.total_of(IMPROVE, ask, lanes[0])
    np.testing.assert_allclose(total["update"]["w"], sent.astype(float), atol=most / 2**15)
    assert odd == 0


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    state = decode(METHODS["fedner-tagger"].State, states(folder).popitem()[1])
    found: dict[str, np.ndarray] = state.weights
    return found


def test_a_run_in_half_the_bytes_is_near_the_plain_one(tmp_path: Path) -> None:
    """As near as float16 brings it: the same settings in float32 are as far away."""
    found = {}
    for sums, dtype in (("plain", "float32"), ("plain", "float16"), ("integers", "float16")):
        overrides = (*FEDNER, f"options.wire_dtype={dtype}")
        settings = tiny(tmp_path, *overrides, f"federation.sums={sums}")
        done = run(settings, out=tmp_path / sums / dtype)
        assert not any(entry.failed for entry in done.result.history)
        found[sums, dtype] = weights_of(done.folder)
    first = found["plain", "float32"]
    far = {
        key: max(float(np.abs(one[name] - first[name]).max()) for name in first)
        for key, one in found.items()
    }
    assert 0 < far["integers", "float16"] < 3 * far["plain", "float16"] + 1e-4
