"""The page of a run under noise says what was spent, and what that does not cover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide.report.page import report
from confide.report.sections import won
from report.folders import result, write_run
from report.test_page import Page

SETTINGS = 'schema = 2\nmethod = "dp-fedsgd"\n[privacy]\nunit = "document"\nepsilon = 8\n'


def spent(**more: Any) -> dict[str, Any]:
    """What a result says of noise."""
    return {
        "unit": "document", "epsilon": 7.98, "delta": 1e-5, "noise": 1.375, "clip": 0.3,
        "rate": 0.1, "rounds": 12, "units": 5400, "held_out": "closed", **more,
    }  # fmt: skip


def noisy(folder: Path, *, settings: str = SETTINGS, rounds: bool = True, **more: Any) -> Path:
    """The folder of a run under noise."""
    made = {**result("dp-fedsgd", 0.6), "privacy": spent(**more)}
    if rounds:
        for number, turn in enumerate(made["history"], 1):
            turn["epsilon"] = 7.98 * (number / 12) ** 0.5
    path = write_run(folder, made)
    (path / "settings.toml").write_text(settings)
    return path


def page(*runs: Path) -> Page:
    found = Page(report(list(runs)).read_text())
    assert max(found.ids.values()) == 1
    return found


def test_the_promise_the_account_and_its_limits_are_on_the_page(tmp_path: Path) -> None:
    words = page(noisy(tmp_path / "run")).words
    assert "What noise spent" in words
    said = "One document changes what anybody sees, the model included, by at most ε = 7.98"
    assert f"{said} at δ = 1e-5." in words
    assert "is right at most 99.97 % of the time afterwards" in words
    assert "ε of the settings 8" in words and "ε spent 7.98" in words
    assert "noise (σ), in clips 1.375" in words
    assert "documents by the settings 5,400; nothing was counted" in words
    assert "It does not cover:" in words and "names of types and relations, which" in words
    assert "scores of held-out text" not in words
    assert "made from the seed" not in words


def test_the_drawing_tells_the_first_and_the_last_round(tmp_path: Path) -> None:
    html = report([noisy(tmp_path / "run")]).read_text()
    told = "ε by round: 2.30 after round 1, 7.98 after round 12. The settings allow 8."
    assert f'aria-label="{told}"' in html


def test_keys_from_the_seed_promise_nothing(tmp_path: Path) -> None:
    words = page(noisy(tmp_path / "run", simulated=True, held_out="open")).words
    assert "made from the seed" in words and "nothing is promised" in words
    assert "One document changes what anybody sees" not in words
    assert "would be right at most" in words and "is right at most" not in words
    assert "scores of held-out text, which left the sites without noise" in words


@each("settings", ["", "no = [toml", '[privacy]\nunit = "document"\n', "privacy = 3"])
def test_settings_that_name_no_epsilon_are_no_obstacle(settings: str, tmp_path: Path) -> None:
    words = page(noisy(tmp_path / "run", settings=settings)).words
    assert "ε spent 7.98" in words and "ε of the settings" not in words


def test_a_history_without_epsilon_has_no_drawing(tmp_path: Path) -> None:
    html = report([noisy(tmp_path / "run", rounds=False)]).read_text()
    assert "What noise spent" in html and "ε by round" not in html


def test_runs_without_noise_have_no_section(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "plain", result("fedavg", 0.8))
    assert "What noise spent" not in report([plain]).read_text()
    words = page(plain, noisy(tmp_path / "a"), noisy(tmp_path / "b", epsilon=1.0)).words
    assert words.count("It does not cover") == 2
    assert "by at most ε = 1.00" in words and "is right at most 73 %" in words


def test_bets_are_won_as_often_as_the_bound_says() -> None:
    for epsilon, most in ((0.5, 0.62), (1, 0.73), (3, 0.95), (8, 0.9997)):
        assert won(epsilon, 0) == pytest.approx(most, abs=0.005)
    p = won(2.0, 0.1)
    assert p == pytest.approx(2.718281828**2 * (1 - p) + 0.1)
    assert won(0.0, 1.0) == won(50, 1e-5) == 1
