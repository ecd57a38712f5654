"""A plan of noise: what is open is worked out, and bad settings are refused in words."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from confide.cli.verbs import app
from confide.errors import SettingsError
from confide.jobs.privacy_plan import MEASURED, privacy_plan
from confide.methods import method_of
from confide.settings import Settings, dump, parse

TREE: dict[str, Any] = {
    "split": {"sites": 10, "train": "a.conll"},
    "federation": {"sums": "masked"},
    "privacy": {"unit": "document", "epsilon": 8, "rate": 0.0128, "rounds": 1560},
}


def settings(**privacy: object) -> Settings:
    return parse({**TREE, "privacy": {**TREE["privacy"], **privacy}})


def test_the_noise_is_worked_out_for_the_sites_of_the_settings() -> None:
    plan = privacy_plan(settings(), units=5000)
    assert 7.9 < plan.epsilon <= 8 and plan.noise == pytest.approx(0.7026, abs=0.0001)
    assert (plan.sites, plan.least, plan.colluding, plan.honest) == (10, 7, 3, 4)
    assert plan.site_noise == pytest.approx(plan.noise / 2)
    assert plan.whole_noise == pytest.approx(plan.noise * math.sqrt(10 / 4))
    assert plan.drawn == pytest.approx(64)
    assert plan.per_number == pytest.approx(plan.whole_noise / 64)
    spent = [one.epsilon for one in plan.rounds_spent]
    assert spent == sorted(spent) and spent[-1] == plan.epsilon
    assert [plan.rounds_spent[0].rounds, plan.rounds_spent[-1].rounds] == [1, 1560]


def test_what_colluders_and_lost_sites_change() -> None:
    plan = privacy_plan(settings())
    by = {(one.colluding, one.sites): one.epsilon for one in plan.against}
    assert by[3, 7] == pytest.approx(plan.epsilon, rel=1e-3)  # the promise: least sum, c of them
    assert by[0, 10] < by[0, 7] < by[3, 7]
    assert by[3, 10] < by[3, 7] <= by[6, 10] < by[6, 7]


def test_sites_that_step_by_themselves_add_all_of_the_noise() -> None:
    tree = {**TREE, "method": "dp-feded", "privacy": {**TREE["privacy"], "rounds": 8, "steps": 25}}
    plan, own = privacy_plan(parse(tree), units=5000), settings(rounds=200)
    assert plan.noise == privacy_plan(own).noise and plan.steps == 25
    assert plan.site_noise == plan.whole_noise == plan.noise
    assert plan.drawn == pytest.approx(0.0128 * 5000 / 10)
    assert plan.per_number == pytest.approx(plan.noise / plan.drawn)
    assert [one.rounds for one in plan.rounds_spent][-1] == 8 and plan.against == ()
    assert plan.rounds_spent[-1].epsilon == pytest.approx(privacy_plan(own).epsilon)


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ({"unit": "hospital"}, r"privacy\.unit is wrong"),
        ({"epsilon": 0}, r"privacy\.epsilon is wrong"),
        ({"delta": 0.1}, r"privacy\.delta is wrong"),
        ({"rate": 1.5}, r"privacy\.rate is wrong"),
        ({"clip": 0}, r"privacy\.clip is wrong"),
        ({"noise": 1e9}, r"privacy\.noise is wrong"),
        ({"epsilonn": 3}, r"unknown key 'privacy\.epsilonn'.*'epsilon'"),
    ],
)
def test_wrong_values_are_refused(privacy: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings(**privacy)


def test_plain_sums_are_refused() -> None:
    for sums in ({}, {"federation": {"sums": "plain"}}):
        with pytest.raises(SettingsError, match="sums that nobody can open"):
            parse({"privacy": TREE["privacy"], **sums})


def test_what_cannot_be_planned_is_said() -> None:
    with pytest.raises(SettingsError, match=r"no \[privacy\]"):
        privacy_plan(parse({"federation": {"sums": "masked"}}))
    with pytest.raises(SettingsError, match="name no sites"):
        privacy_plan(parse({key: TREE[key] for key in ("federation", "privacy")}))
    with pytest.raises(SettingsError, match="cannot hide"):
        privacy_plan(parse({**TREE, "split": {"sites": 2, "train": "a"}}))
    with pytest.raises(SettingsError, match="noise and rate are open"):
        privacy_plan(parse({**TREE, "privacy": {"unit": "patient", "epsilon": 1, "rounds": 5}}))
    with pytest.raises(SettingsError, match="out of reach"):
        privacy_plan(settings(noise=0.3))
    with pytest.raises(SettingsError, match="units must be"):
        privacy_plan(settings(), units=0)


def test_no_run_takes_settings_whose_promise_it_would_not_keep() -> None:
    """A run without noise under `[privacy]` would be the worst of all."""
    with pytest.raises(SettingsError, match="trains without noise"):
        method_of(settings())


def test_settings_with_privacy_read_back_the_same(tmp_path: Any) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(dump(settings()))
    assert privacy_plan(path) == privacy_plan(settings())
    assert privacy_plan(path, overrides=["privacy.rounds=10"]).rounds == 10


def test_the_verb_shows_it(tmp_path: Any) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(dump(settings()))
    shown = CliRunner().invoke(app, ["privacy", "plan", str(path), "--units", "5000"])
    assert shown.exit_code == 0
    for words in ("σ = 0.7026 clips", "a sum over at least 7", "about 64 units", "after round"):
        assert words in shown.output
    as_json = CliRunner().invoke(app, ["privacy", "plan", str(path), "--json"])
    assert json.loads(as_json.stdout)["noise"] == pytest.approx(0.7026, abs=0.0001)


def test_what_it_cost_elsewhere_is_what_was_measured(root: Path) -> None:
    lines = (root / "benchmarks/privacy/measured.jsonl").read_text().splitlines()
    cells: dict[tuple[str, str], list[float]] = {}
    for one in map(json.loads, lines):
        if one["how"] == "as ten" and not one["set"]:
            cells.setdefault((one["cell"], one["epsilon"]), []).append(one["f1"])
    told = [one for rows in MEASURED.values() for one in rows]
    assert told
    for one in told:
        shown = {"inf": one.without, "1.0": one.at_1, "3.0": one.at_3, "8.0": one.at_8}
        for epsilon, f1 in shown.items():
            found = cells[f"{one.corpus}, {one.model}", epsilon]
            assert len(found) > 1 and round(sum(found) / len(found), 1) == f1, one


def test_corpora_of_like_size_come_first() -> None:
    told = privacy_plan(settings(), units=600).elsewhere
    assert {one.corpus for one in told} == {one.corpus for one in MEASURED["entities"]}
    far = [abs(math.log(one.units / 600)) for one in told]
    assert far == sorted(far)
    assert privacy_plan(settings()).elsewhere == MEASURED["entities"]
