"""A plan of noise: what is open is worked out, and bad settings are refused in words."""

from __future__ import annotations

import json
import math
import shlex
import tempfile
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from cases import each
from confide.cli.verbs import app
from confide.errors import SettingsError
from confide.jobs.planning import MEASURED, privacy_plan
from confide.methods import method_of
from confide.settings import Settings, dump, load_settings, parse, put

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


@each(
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
    with pytest.raises(SettingsError, match="nor the noise is said"):
        privacy_plan(parse({**TREE, "privacy": {"unit": "patient", "rounds": 5}}))
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
    lines = (root / "benchmarks/security/privacy/measured.jsonl").read_text().splitlines()
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


# --- what is proposed ---------------------------------------------------------------------------

SITES: dict[str, Any] = {"split": {"sites": 10, "train": "a.conll"}}
BARE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "epsilon": {"privacy": {"epsilon": 3}},
    "unit and masks": {
        "federation": {"sums": "masked"}, "privacy": {"unit": "patient", "rounds": 50},
    },
    "noise": {"privacy": {"noise": 4.0, "epsilon": 8}},
    "patients": {"privacy": {"patients": "-"}},
    "tagger": {"model": {"kind": "tagger", "character": "bilstm"}},
    "spans": {"model": {"kind": "spans"}},
    "low rank": {"model": {"kind": "encoder"}, "encoder": {"tune": "lora"}},
    "fedner": {"method": "fedner"},
    "feded": {"method": "feded"},
    "relations": {"task": "re", "method": "feded", "public": {"share": 0.2}},
    "what breaks the promise": {
        "federation": {"sums": "plain", "combine": "median", "groups": 3},
        "training": {"unannotated_types": 1}, "data": {"mask_common": 0.5},
    },
    "some sites know some": {
        "split": None,
        "site": [{"name": f"s{n}", "train": "a", "annotates": ["Drug"]} for n in range(5)],
    },
}  # fmt: skip


def bare(name: str) -> dict[str, Any]:
    return deepcopy({key: one for key, one in {**SITES, **BARE[name]}.items() if one is not None})


@each("units", [None, 600, 5000])
@each("name", BARE)
def test_what_is_proposed_is_all_that_a_run_asks_for(name: str, units: int | None) -> None:
    """With the examples for what only people can say, the method takes the settings."""
    plan = privacy_plan(parse_bare(name), epsilon=None if name == "epsilon" else 8, units=units)
    assert plan.blocked == () and all(one.why for one in (*plan.proposed, *plan.unsaid))
    tree = bare(name)
    for one in plan.proposed:
        put(tree, one.key.split("."), one.value)
    for said in plan.unsaid:
        put(tree, said.key.split("."), said.example)
    whole = parse(tree)
    method_of(whole)(whole)
    assert whole.privacy is not None and plan.epsilon <= (3 if name == "epsilon" else 8)
    assert (whole.rounds, whole.federation.sums) == (plan.rounds, "masked")
    assert ("privacy.units" in [one.key for one in plan.unsaid]) == (units is None)
    again = privacy_plan(whole)
    assert (again.noise, again.rate, again.rounds) == (plan.noise, plan.rate, plan.rounds)
    assert again.proposed == ()


def parse_bare(name: str) -> Any:
    """A file of settings: only the plan takes them as they are."""
    path = Path(tempfile.mkdtemp()) / "settings.toml"
    path.write_text(tomli_w.dumps(bare(name)))
    return path


def test_what_settings_say_stays_as_it_is(tmp_path: Path) -> None:
    own = {
        **SITES,
        "method": "dp-fedner",
        "privacy": {"rate": 0.05, "clip": 2.0, "unit": "sentence"},
    }
    plan = privacy_plan(parse({**own, "federation": {"sums": "masked"}}), epsilon=4)
    keys = [one.key for one in plan.proposed]
    assert not {"method", "privacy.rate", "privacy.clip", "privacy.unit", "federation.sums"} & {
        *keys
    }
    assert (plan.rate, plan.clip, plan.unit, plan.method) == (0.05, 2.0, "sentence", "dp-fedner")
    assert plan.proposed[0].key == "privacy.epsilon" and 3.9 < plan.epsilon <= 4


def test_a_tagger_is_proposed_for_much_text_and_a_last_layer_for_little(tmp_path: Path) -> None:
    """By ε times the number of units, as benchmarks/security/privacy has it."""
    for units, epsilon, kind in ((5400, 3, "tagger"), (5400, 1, "encoder"), (700, 8, "encoder")):
        plan = privacy_plan(parse_bare("nothing"), epsilon=epsilon, units=units)
        assert {one.key: one.value for one in plan.proposed}["model.kind"] == kind
        assert plan.elsewhere[0].units == units


def test_all_that_stands_in_the_way_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("rounds = 0\n[privacy]\nnoise = 0.06\nclip = -1\n")
    with pytest.raises(SettingsError) as caught:
        privacy_plan(path, epsilon=8, units=0)
    for words in ("units must be at least 1", "privacy.clip is wrong", "s.toml"):
        assert words in str(caught.value)
    path.write_text("[split]\nsites = 2\ntrain = 'a'\n")
    with pytest.raises(SettingsError, match="out of reach") as caught:
        privacy_plan(path, epsilon=1e-7)
    assert "cannot hide" in str(caught.value)
    path.write_text("")
    with pytest.raises(SettingsError, match=r"no \[privacy\].*--epsilon 8"):
        privacy_plan(path)


def test_the_verb_prints_lines_that_make_the_settings_run(tmp_path: Path) -> None:
    path = tmp_path / "my settings.toml"
    path.write_text("[split]\nsites = 10\ntrain = 'a.conll'\n")
    shown = CliRunner().invoke(app, ["privacy", "plan", str(path), "--epsilon", "8"])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout[shown.stdout.index("# Add these lines") :].splitlines()
    last = next(number for number, line in enumerate(lines) if line.startswith("# Or all on one"))
    added = "\n".join(lines[1:last]).replace("# units", "units").replace("# types", "types")
    whole = parse({**SITES, **tomllib.loads(added)})
    method_of(whole)(whole)
    words = shlex.split(lines[last + 1])
    assert words[:3] == ["confide", "run", str(path)]
    typed = load_settings(path, [word for word in words[3:] if word != "--set"])
    method_of(typed)(typed)
    as_json = CliRunner().invoke(app, ["privacy", "plan", str(path), "--epsilon", "8", "--json"])
    assert json.loads(as_json.stdout)["proposed"][0]["key"] == "privacy.epsilon"


def test_a_run_names_all_that_is_missing_and_where_to_find_it(tmp_path: Path) -> None:
    own = {**SITES, "method": "dp-fedsgd", "federation": {"sums": "masked"}}
    wrong = parse({**own, "privacy": {"unit": "document", "epsilon": 8}})
    with pytest.raises(SettingsError) as caught:
        method_of(wrong)(wrong)
    for words in (
        "model.context = an encoder", "noise and rate and rounds are open",
        "privacy.units is missing", "data.types is empty", "confide privacy plan",
    ):  # fmt: skip
        assert words in str(caught.value)
