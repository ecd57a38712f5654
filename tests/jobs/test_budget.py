"""How often sites should talk, for the bytes that they may upload."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cases import each
from confide.cli.verbs import app
from confide.errors import RunError, SettingsError
from confide.jobs.planning import budget
from confide.runs.run import run
from contract.corpus import tiny

OWN = ("training.optimiser=adam", "training.local_epochs=1", "training.batch_size=2")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds of one epoch each."""
    folder = tmp_path_factory.mktemp("budget")
    return run(tiny(folder, *OWN, "rounds=4", "training.decay=0.9"), out=folder / "run").folder


def uploaded(folder: Path) -> float:
    """The megabytes of the site that uploaded most."""
    tree = json.loads((folder / "result.json").read_text())
    return float(max(tree["bytes"]["up"].values())) / 1e6


def test_the_proposal_spends_the_budget_on_the_same_passes(done: Path, tmp_path: Path) -> None:
    for times in (0.6, 1.0, 2.5):
        megabytes = times * uploaded(done)
        found = budget(done, megabytes=megabytes)
        assert found.each == pytest.approx(uploaded(done) / 4)
        assert found.rounds == pytest.approx(4 * times, abs=1 + 4 * times / 3)
        assert found.rounds * found.each <= megabytes * (1 + 1e-9)
        assert found.passes == pytest.approx(4, rel=0.2)
        assert found.decay**found.rounds == pytest.approx(0.9**4)
        folder = tmp_path / str(times)
        again = run(tiny(folder, *OWN, *found.overrides()), out=folder / "run").folder
        assert uploaded(again) == pytest.approx(found.megabytes, rel=0.1)
        assert len(json.loads((again / "result.json").read_text())["history"]) == found.rounds


def test_no_budget_buys_more_than_one_upload_for_each_batch(done: Path) -> None:
    found = budget(str(done), megabytes=1e6, passes=2)
    assert found.local_steps == 1
    assert found.passes == 2
    assert found.optimiser_state == "keep"
    assert found.every == found.average == max(1, found.rounds // 20)


@each("number", [0.0, -1.0, math.inf, math.nan])
def test_budgets_are_numbers_above_zero(done: Path, number: float) -> None:
    with pytest.raises(SettingsError, match="megabytes must be a number above 0"):
        budget(done, megabytes=number)
    with pytest.raises(SettingsError, match="passes must be a number above 0"):
        budget(done, megabytes=1, passes=number)


def test_a_budget_below_one_upload_is_refused_with_what_it_takes(done: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot even upload the model once; expected at leas"):
        budget(done, megabytes=1e-6)


def test_only_a_whole_run_of_means_has_a_budget(done: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not the folder of a run"):
        budget(tmp_path, megabytes=1)
    alone = run(tiny(tmp_path / "a", *OWN, "method=alone", "rounds=1"), out=tmp_path / "alone")
    with pytest.raises(SettingsError, match="no means that could be taken less often"):
        budget(alone.folder, megabytes=1)
    personal = tiny(tmp_path / "p", "method=fedner", "rounds=1", "training.optimiser=adam")
    with pytest.raises(SettingsError, match="no means that could be taken less often"):
        budget(run(personal, out=tmp_path / "fedner").folder, megabytes=1)
    tree = json.loads((alone.folder / "result.json").read_text()) | {"method": "fedavg"}
    bare = shutil.copytree(done, tmp_path / "bare")
    (bare / "result.json").write_text(json.dumps(tree | {"bytes": None, "best_rounds": {"": 1}}))
    with pytest.raises(RunError, match="the folder of the whole run, as the lead has it"):
        budget(bare, megabytes=1)


def test_the_verb_prints_settings_that_can_be_pasted(done: Path) -> None:
    given = ["budget", str(done), "--megabytes", str(2 * uploaded(done))]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0, shown.output
    found = budget(done, megabytes=2 * uploaded(done))
    assert all(f"--set {one}" in shown.output for one in found.overrides())
    said = CliRunner().invoke(app, [*given, "--json"])
    assert json.loads(said.stdout)["rounds"] == found.rounds
