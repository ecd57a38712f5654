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
from confide.errors import GuardError, SettingsError
from confide.federation.guards import check_reply, clipped
from confide.federation.messages import Arrays, encode, fixed, unfixed
from confide.kinds.public import Student
from confide.methods.feded import TRAIN_AND_PREDICT, Predicted
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import same_run
from methods.relation_runs import asked, reply_of, started

STEP = "train_and_predict"

# --- interruptions ------------------------------------------------------------------------------


def test_a_run_that_ends_before_the_distillation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(tmp_path, "method=feded-relations", sites=2)
    straight = run(settings, out=tmp_path / "straight").folder
    real, calls = Student.learn, []

    def dying(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *arguments, **named)

    monkeypatch.setattr(Student, "learn", dying)
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
KNOWN = replace(GOOD, knows={"": np.array([0, 1], np.float32)})


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
        {"knows": {"": np.ones(2, np.float32)}},
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
        {"": np.ones(1, np.float32)},
        {"Q": np.ones(3, np.float32)},
        {"": np.array([0.5, 1], np.float32)},
        {"": np.array([-1, 1], np.float32)},
        {"": np.array([9, 1], np.float32)},
        {"": np.array([np.nan, 1], np.float32)},
        {"": np.ones(2, np.float32), "odd": np.ones(3, np.float32)},
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
    found = clipped(TRAIN_AND_PREDICT, ask, whole, most=most)
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
    zero = ("temperature=0", "max_logit=0", "distil_epochs=0")
    for odd in ("wire_dtype=int4", *zero, "average=some"):
        with pytest.raises(SettingsError, match=f"{odd.partition('=')[0]} is wrong"):
            started(tmp_path, tiny(tmp_path, "method=feded-relations", f"options.{odd}"))
