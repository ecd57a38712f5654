"""What is not given is worked out, and what comes out keeps its promise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cases import each
from confide.errors import SettingsError
from confide.privacy.account import NoisePlan, grid, plan_noise
from confide.privacy.noise import WIDEST

WHOLE = {"epsilon": 3.0, "noise": 1.0, "rate": 0.01, "rounds": 500, "delta": 1e-5}


def without(name: str, **other: float) -> NoisePlan:
    return plan_noise(**{**WHOLE, **other, name: None})  # type: ignore[arg-type]


def test_epsilon_is_worked_out() -> None:
    assert without("epsilon") == NoisePlan(1.0, 0.01, 500, 1e-5)


def test_the_least_noise() -> None:
    found = without("noise")
    assert found.epsilon <= 3.0 < replace(found, noise=found.noise * 0.998).epsilon


def test_the_highest_rate() -> None:
    found = without("rate")
    assert found.epsilon <= 3.0 < replace(found, rate=found.rate * 1.002).epsilon
    assert without("rate", noise=200.0, rounds=3).rate == 1.0


def test_the_most_rounds() -> None:
    found = without("rounds")
    assert found.epsilon <= 3.0 < replace(found, rounds=found.rounds + 1).epsilon


def test_all_four_must_fit() -> None:
    assert plan_noise(**WHOLE) == NoisePlan(1.0, 0.01, 500, 1e-5)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"epsilon = 0\.1 is out of reach"):
        plan_noise(**{**WHOLE, "epsilon": 0.1})  # type: ignore[arg-type]


def test_two_open_ones_are_too_many() -> None:
    with pytest.raises(SettingsError, match="noise and rate are open"):
        without("rate", noise=None)  # type: ignore[arg-type]


@each("name", ["noise", "rate", "rounds"])
def test_what_nothing_can_reach(name: str) -> None:
    with pytest.raises(SettingsError, match="out of reach"):
        without(name, epsilon=1e-7, rounds=1_000_000, noise=0.1, rate=1.0)


def test_the_grid_is_as_fine_as_the_noise_allows() -> None:
    assert grid(0.5) == grid(1.0) == 2**16
    assert grid(1.01) == 2**15
    assert grid(1000) == 2**6
    assert grid(50) * 50 <= WIDEST < 2 * grid(50) * 50
    with pytest.raises(SettingsError, match="more than can be drawn"):
        grid(1025)


def test_the_noise_is_never_less_than_what_is_counted() -> None:
    for noise in (0.3, 1.0, 3.7, 99.9):
        one = NoisePlan(noise, 0.1, 1, 1e-5).mechanism
        assert noise * one.clip <= math.sqrt(one.variance) < noise * one.clip + 1
