"""FedED: what a reply weighs and may be, only differences that go down, and interruptions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import GuardError, QuorumError, SettingsError
from confide.federation.coarse import fixed, unfixed
from confide.federation.guards import check_reply
from confide.federation.messages import Arrays, decode, encode
from confide.kinds.relations.public import RelationStudent
from confide.methods import METHODS
from confide.methods.feded.steps import TRAIN_AND_PREDICT, Predicted, bounded_predicted
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import same_run
from methods.relation_runs import asked, reply_of, started

STEP = "train_and_predict"

# --- only differences go down -----------------------------------------------------------------

DIFFERENCE = ("method=feded-relations", "options.download=difference")


def test_sites_keep_the_central_model_bit_for_bit(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, *DIFFERENCE))
    state = method.start(federation)
    assert state.behind == []
    for number in (1, 2, 3):
        before = state
        state, _ = method.round(state, federation, number)
        for site in federation.sites:
            kept, ask = engine.memory(site), engine.asks["take_model", site]
            assert kept.version == state.version == number + 1
            assert kept.weights.keys() == state.weights.keys()
            for name, array in state.weights.items():
                assert np.array_equal(kept.weights[name], array)
            assert not ask.weights
            assert not engine.asks[STEP, site].weights
        assert any((before.weights[n] != state.weights[n]).any() for n in state.weights)
    small, large = (sum(one.nbytes for one in a.values()) for a in (ask.change, state.weights))
    assert small < 0.35 * large
    method.score(state, federation, part="dev", round=3)
    assert not engine.asks["score", "site-1"].weights


def test_the_model_of_an_earlier_round_can_be_tested(tmp_path: Path) -> None:
    """It is the one that was selected; the sites keep a later one."""
    method, federation, engine = started(tmp_path, tiny(tmp_path, *DIFFERENCE))
    first, _ = method.round(method.start(federation), federation, 1)
    early = method.score(first, federation, part="test", round=1)
    last, _ = method.round(first, federation, 2)
    assert method.score(first, federation, part="test", round=2) == early
    assert engine.asks["score", "site-1"].weights
    assert engine.memory("site-1").version == last.version


def test_the_difference_is_near_what_the_server_learnt(tmp_path: Path) -> None:
    """No number is off by more than half a step of its row, and the next round begins there."""
    states = []
    for download in ("whole", "difference"):
        settings = tiny(tmp_path, "method=feded-relations", f"options.download={download}")
        method, federation, _ = started(tmp_path / download, settings)
        states.append(method.start(federation))
        states.append(method.round(states[-1], federation, 1)[0])
    start, whole, same, near = states
    assert all(np.array_equal(start.weights[name], same.weights[name]) for name in start.weights)
    for name, array in whole.weights.items():
        moved = np.abs(array - start.weights[name]).reshape(-1, array.shape[-1])
        off = np.abs(array - near.weights[name]).reshape(moved.shape)
        assert (off.max(1) <= moved.max(1) / 250 + 1e-6).all()


def test_a_site_that_missed_a_difference_gets_the_whole_model(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, *DIFFERENCE), at_least=2)
    lost = {("take_model", "site-2", 1)}

    def change(step: str, site: str, turn: int, reply: Any) -> Any:
        return b"lost" if (step, site, turn) in lost else reply

    engine.change = change
    state, _ = method.round(method.start(federation), federation, 1)
    assert state.behind == ["site-2"]
    state = decode(METHODS["feded-relations"].State, encode(state))
    state, _ = method.round(state, federation, 2)
    assert engine.asks["take_model", "site-2"].weights
    assert not engine.asks["take_model", "site-1"].weights
    assert state.behind == []
    kept = engine.memory("site-2")
    assert all(np.array_equal(kept.weights[name], state.weights[name]) for name in kept.weights)
    state, _ = method.round(state, federation, 3)
    assert not engine.asks["take_model", "site-2"].weights
    assert engine.memory("site-2").version == state.version


def test_a_site_without_the_model_does_not_train_on_another(tmp_path: Path) -> None:
    method, federation, _ = started(tmp_path, tiny(tmp_path, *DIFFERENCE))
    state = method.start(federation)
    with pytest.raises(QuorumError, match=r"site-1.*does not have the model"):
        method.round(replace(state, version=state.version + 1), federation, 1)
    whole, other, _ = started(tmp_path / "whole", tiny(tmp_path, "method=feded-relations"))
    state = whole.start(other)
    with pytest.raises(QuorumError, match=r"site-1.*does not have the model"):
        started(tmp_path, tiny(tmp_path, *DIFFERENCE))[0].round(state, other, 1)


# --- interruptions ------------------------------------------------------------------------------


@pytest.mark.parametrize("download", ["whole", "difference"])
def test_a_run_that_ends_before_the_distillation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: str
) -> None:
    settings = tiny(tmp_path, "method=feded-relations", f"options.download={download}", sites=2)
    straight = run(settings, out=tmp_path / "straight").folder
    real, calls = RelationStudent.learn, []

    def dying(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *arguments, **named)

    monkeypatch.setattr(RelationStudent, "learn", dying)
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run")
    run(settings, out=tmp_path / "run", resume=True)
    assert len(calls) == 3
    same_run(straight, tmp_path / "run")


# --- what a reply weighs and may be -----------------------------------------------------------


def reply(S: int, Q: int, wire_dtype: Any) -> Predicted:
    """One of the sizes of a real run."""
    draw = np.random.default_rng(S).normal(scale=4, size=(S, Q))
    codes = fixed(draw, wire_dtype, most=16.0)
    return Predicted(codes, {}, 1, round(0.123456, 4), sentences=2 * 82)


@each(
    ("public", "classes", "wire_dtype", "most"),
    [
        (64, 2, "int8", 323),  # EU-ADR: 20 % of 320; Sui et al. 2020, Table 7
        (64, 2, "float16", 323),
        (959, 2, "int8", 1_300),  # GAD: 20 % of 4,797
        (959, 2, "float16", 5_000),
        (2046, 9, "int8", 42_000),  # i2b2: 20 % of 10,231
        (2046, 9, "float16", 42_000),
    ],
)
def test_a_reply_weighs_what_its_numbers_do(
    public: int, classes: int, wire_dtype: str, most: int
) -> None:
    message = reply(public, classes - 1, wire_dtype)
    encoded = encode(message)
    assert len(encoded) <= most
    assert len(encoded) - message.said_SQ.nbytes <= 256


GOOD = Predicted(np.zeros((4, 2), np.float16), {}, 1, 0.5, 8)
KNOWN = replace(GOOD, knows={"R": np.array([1, 0, 1], np.float32)})


@each(
    "changes",
    [
        {"sites": 2},
        {"sites": 0},
        {"sentences": 0},
        {"loss": math.inf},
        {"said_SQ": np.zeros((4, 3), np.float16)},
        {"said_SQ": np.zeros((3, 2), np.float16)},
        {"said_SQ": np.zeros((4, 2), np.float32)},
        {"said_SQ": np.zeros((4, 2), np.int8)},
        {"said_SQ": np.full((4, 2), np.nan, np.float16)},
        {"said_SQ": np.full((4, 2), 16.1, np.float16)},
        {"said_SQ": np.full((4, 2), -np.inf, np.float16)},
        {"knows": {"R": np.ones(3, np.float32)}},
    ],
)
def test_a_reply_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    check_reply(TRAIN_AND_PREDICT, asked(), GOOD)
    check_reply(TRAIN_AND_PREDICT, asked(), replace(GOOD, said_SQ=np.full((4, 2), -16, np.float16)))
    with pytest.raises(GuardError):
        check_reply(TRAIN_AND_PREDICT, asked(), replace(GOOD, **changes))


@each(
    "knows",
    [
        {},
        {"R": np.ones(2, np.float32)},
        {"Q": np.ones(3, np.float32)},
        {"R": np.array([1, 0.5, 1], np.float32)},
        {"R": np.array([1, -1, 1], np.float32)},
        {"R": np.array([1, 9, 1], np.float32)},
        {"R": np.array([1, np.nan, 1], np.float32)},
        {"R": np.ones(3, np.float32), "odd": np.ones(3, np.float32)},
    ],
)
def test_what_a_site_knows_is_yes_or_no(knows: Arrays) -> None:
    ask = asked(average="known")
    check_reply(TRAIN_AND_PREDICT, ask, KNOWN)
    with pytest.raises(GuardError):
        check_reply(TRAIN_AND_PREDICT, ask, replace(KNOWN, knows=knows))


@each("code", [-128, 127, -127])
def test_codes_of_int8_are_symmetric(code: int) -> None:
    ask = asked(wire_dtype="int8")
    found = replace(GOOD, said_SQ=np.full((4, 2), code, np.int8))
    if code == -128:
        with pytest.raises(GuardError, match="exceeds the largest"):
            check_reply(TRAIN_AND_PREDICT, ask, found)
    else:
        check_reply(TRAIN_AND_PREDICT, ask, found)


@each("wire_dtype", ["float32", "float16", "int8"])
@each("most", [0.5, 3.0, 1e6])
def test_a_site_says_no_more_than_its_guard_lets_it(wire_dtype: Any, most: float) -> None:
    """The norm of all logits together, whatever type of number they travel in."""
    ask = asked(wire_dtype=wire_dtype)
    logits = np.random.default_rng(1).normal(scale=4, size=(4, 3))
    whole = reply_of(logits, ask)
    found = bounded_predicted(ask, whole, most)
    check_reply(TRAIN_AND_PREDICT, ask, found)
    said = unfixed(found.said_SQ, wire_dtype, most=16.0)
    norm = float(np.linalg.norm(said))
    if most > 1e5:
        assert found.said_SQ is whole.said_SQ
    else:
        assert norm <= most * 1.001
        if wire_dtype != "int8":
            assert norm == pytest.approx(most, rel=1e-2)
        full = unfixed(whole.said_SQ, wire_dtype, most=16.0)
        np.testing.assert_allclose(said, full * most / np.linalg.norm(full), atol=0.13)


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown key 'temprature'.*did you mean 'temperature"):
        started(tmp_path, tiny(tmp_path, "method=feded-relations", "options.temprature=3"))
    for odd in ("wire_dtype=int4", "temperature=0", "most=0", "distil_epochs=0", "average=some"):
        with pytest.raises(SettingsError, match=f"{odd.partition('=')[0]} is wrong"):
            started(tmp_path, tiny(tmp_path, "method=feded-relations", f"options.{odd}"))
