"""A site's guard `max_norm`: how far what it uploads may be from what it was asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.federation.guards import check_reply, clipped
from confide.federation.messages import Arrays
from confide.federation.steps import Step
from confide.methods.fedavg import TRAIN, Train, Update
from confide.methods.fedner import IMPROVE, Improve, Improved
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import Asking, same_run, use_engine
from kinds.configs import config


def f32(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


def norm(change: Arrays) -> float:
    """By numpy's own norm, of one long vector."""
    return float(np.linalg.norm(np.concatenate([c.ravel() for c in change.values()])))


# --- fedavg ---------------------------------------------------------------------------------

BEFORE = {"word.weight": f32([1, 1], [2, 2], [30, 40]), "crf": f32(-5, 5)}
STEP = {"word.weight": f32([3, 0], [0, 4], [0, 0]), "crf": f32(0, 12)}  # its norm is 13


def asked(*, weighting: str = "equal", rows: str = "all") -> Train:
    tables = ["word.weight"] if rows == "seen" else []
    return Train(BEFORE, config(), weighting, tables)


def trained(times: float = 1.0, *, weight: float = 1.0) -> Update:
    """A site that moved by STEP, so many times."""
    weights = {n: (BEFORE[n] + np.float32(times) * STEP[n]) * np.float32(weight) for n in BEFORE}
    return Update(weights, weight, {}, 0.5 * weight, 18)


@each("most", [13.0, 13.001, 1e9])
@each("weight", [1.0, 3.0])
def test_a_site_that_moved_no_further_sends_what_it_has(most: float, weight: float) -> None:
    reply = trained(weight=weight)
    assert clipped(TRAIN, asked(), reply, most=most) is reply
    still = trained(0, weight=weight)
    assert clipped(TRAIN, asked(), still, most=1e-6) is still


@each("weight", [1.0, 3.0, 7.0])
def test_a_site_that_moved_further_goes_a_part_of_the_way(weight: float) -> None:
    ask = asked(weighting="examples")
    found = clipped(TRAIN, ask, trained(weight=weight), most=6.5)
    expected = trained(0.5, weight=weight)
    for name, array in found.weights.items():
        np.testing.assert_allclose(array, expected.weights[name], rtol=1e-6)
    check_reply(TRAIN, ask, found)
    assert replace(found, weights={}) == replace(expected, weights={})  # loss and all else
    change = {n: found.weights[n] / weight - BEFORE[n] for n in BEFORE}
    assert norm(change) == pytest.approx(6.5, rel=1e-5)


def test_a_number_that_did_not_move_stays_bit_for_bit() -> None:
    numbers = np.random.default_rng(1).normal(size=5000).astype(np.float32)
    ask = replace(asked(), weights={"a": numbers, "b": f32(0)})
    weight = np.float32(7)
    reply = Update({"a": numbers * weight, "b": f32(9) * weight}, 7.0, {}, 0.5, 18)
    found = clipped(TRAIN, ask, reply, most=0.3).weights
    assert (found["a"] == numbers * weight).all()
    assert found["b"] == pytest.approx(0.3 * 7)


def test_rows_that_do_not_leave_do_not_count() -> None:
    """The third row is 50 long, and 0 as it is sent: the site has not seen its word."""
    ask = asked(weighting="examples", rows="seen")
    seen = f32(1, 1, 0)
    reply = trained(weight=2.0)
    reply.weights["word.weight"][2] = 0
    reply = replace(reply, seen={"word.weight": 2 * seen})
    assert clipped(TRAIN, ask, reply, most=13.0) is reply
    found = clipped(TRAIN, ask, reply, most=6.5)
    half = trained(0.5, weight=2.0).weights
    np.testing.assert_allclose(found.weights["crf"], half["crf"], rtol=1e-6)
    np.testing.assert_allclose(found.weights["word.weight"][:2], half["word.weight"][:2], rtol=1e-6)
    assert found.weights["word.weight"][2].tolist() == [0, 0]
    assert found.seen["word.weight"].tolist() == [2, 2, 0]


# --- fedner ---------------------------------------------------------------------------------

WAY = {"word.weight": f32([3, 0], [0, 4]), "cnn": f32(0, 12)}


def improved(times: float = 1.0, *, share: float = 0.25) -> Improved:
    update = {name: way * np.float32(times * share) for name, way in WAY.items()}
    return Improved(update, share, 0.5 * share, 6)


def test_an_update_is_bounded_before_the_share() -> None:
    ask = Improve(WAY, config(), 1)
    for scale in (1.0, 0.5):
        reply = improved(scale)
        assert clipped(IMPROVE, ask, reply, most=13.0 * scale) is reply
    found = clipped(IMPROVE, ask, improved(), most=6.5)
    check_reply(IMPROVE, ask, found)
    expected = improved(0.5)
    assert {n: a.tolist() for n, a in found.update.items()} == {
        n: a.tolist() for n, a in expected.update.items()
    }
    assert replace(found, update={}) == replace(expected, update={})
    nothing = improved(0)
    assert clipped(IMPROVE, ask, nothing, most=1e-9) is nothing


# --- runs -----------------------------------------------------------------------------------


def change_of(ask: Train | Improve, reply: Update | Improved) -> Arrays:
    """How far a site moved, from what the server got."""
    if isinstance(reply, Improved):
        return {n: a.astype(np.float64) / reply.share for n, a in reply.update.items()}
    change = {}
    for name, array in reply.weights.items():
        change[name] = array.astype(np.float64) / reply.weight - ask.weights[name]
        if name in reply.seen:
            change[name][reply.seen[name] == 0] = 0
    return change


FORMS = [
    ("method=fedavg-tagger",),
    ("method=fedavg-tagger", "options.weighting=sentences", "options.rows=seen"),
    ("method=fedner-tagger",),
    ("method=fedner-tagger", "options.local_steps=2"),
]


@pytest.mark.parametrize(
    "form",
    [pytest.param(one, marks=[pytest.mark.slow] * (one in FORMS[1:3])) for one in FORMS],
    ids=" ".join,
)
def test_nothing_larger_leaves_a_site_in_a_run(
    form: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0.02
    found: list[float] = []

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        assert engine.again(step, round, site, ask) == reply

    def check(step: Step, ask: Any, reply: Any) -> None:
        if step.summed:
            found.append(norm(change_of(ask, reply)))

    monkeypatch.setattr("confide.federation.federation.check_reply", check)
    use_engine(monkeypatch, Asking, look=look)
    run(tiny(tmp_path, *form), out=tmp_path / "plain")
    assert min(found) > 2 * most
    found.clear()
    run(tiny(tmp_path, *form, f"guards.max_norm={most}"), out=tmp_path / "bound")
    assert max(found) == pytest.approx(most, rel=1e-3)
    assert len(found) == 6
    run(tiny(tmp_path, *form, "guards.max_norm=1e6"), out=tmp_path / "free")
    same_run(tmp_path / "plain", tmp_path / "free")
