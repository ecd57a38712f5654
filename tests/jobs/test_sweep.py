"""Sweeps: what is laid out and refused, what is trained again, what is chosen and shown."""

from __future__ import annotations

import csv
import errno
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide.errors import DataError, RunError, SettingsError
from confide.federation.events import Event
from confide.files import Tree
from confide.jobs import sweep as module
from confide.jobs.comparison import compare
from confide.jobs.sweep import Sweep, read_grid, sweep
from confide.jobs.sweep_table import Cell, OnTest, Spread, SweepReport
from confide.runs.folder import RunFolder
from confide.runs.run import run
from confide.settings import dump, load_settings
from contract.corpus import tiny
from contract.runs import same_run, stopping_at

GRID = ("training.learning_rate=0.05,0.1", "method=fedavg,fedprox")


def settings_in(folder: Path, *overrides: str) -> Path:
    path = folder / "tiny.toml"
    path.write_text(dump(tiny(folder, "rounds=2", *overrides)))
    return path


def laid_out(folder: Path, *grid: str, seeds: int = 1) -> Sweep:
    return sweep(settings_in(folder), grid=grid, seeds=seeds, out=folder / "sweep")


# --- the plan -------------------------------------------------------------------------------


def test_each_combination_is_a_cell(tmp_path: Path) -> None:
    found = laid_out(tmp_path, *GRID, seeds=3)
    assert [tuple(cell.values()) for cell in found.cells] == [
        ("0.05", "fedavg"), ("0.05", "fedprox"), ("0.1", "fedavg"), ("0.1", "fedprox"),
    ]  # fmt: skip
    third = found.settings(3, 2)
    assert (third.training.learning_rate, third.method, third.seed) == (0.1, "fedavg", 2)
    assert found.run_folder(3, 2).path == tmp_path / "sweep" / "cells" / "03" / "seed-2"


def test_the_settings_file_may_change_later(tmp_path: Path) -> None:
    found = laid_out(tmp_path, *GRID)
    before = found.settings(1, 1)
    (tmp_path / "tiny.toml").unlink()
    assert sweep(tmp_path / "sweep").settings(1, 1) == before


def test_when_tables_and_relative_paths_are_those_of_each_cell(tmp_path: Path) -> None:
    path = settings_in(tmp_path)
    more = '\n[when.fedprox]\nrounds = 7\n[model]\nvectors = "words.txt"\n'
    text = path.read_text()
    head, _, rest = text.partition("[model]\n")
    path.write_text(head + '[model]\nvectors = "words.txt"\n' + rest + more.split("[model]")[0])
    found = sweep(path, grid=["method=fedavg,fedprox"], out=tmp_path / "sweep")
    assert [found.settings(cell, 1).rounds for cell in (1, 2)] == [2, 7]
    assert found.settings(1, 1).model.vectors == str(tmp_path / "words.txt")


@each(
    ("grid", "words"),
    [
        ("rounds", "takes a key and its values"),
        ("=1,2", "takes a key and its values"),
        ("rounds=1,,2", "takes a key and its values"),
        ("rounds=", "takes a key and its values"),
        ("seed=1,2", "the grid holds no seeds.*--seeds"),
        ("training.learning_rate=0.1,0.10", r"learning_rate = 0.1 twice"),
    ],
)
def test_a_grid_that_cannot_be_read(grid: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_grid([grid])


def test_a_key_twice() -> None:
    with pytest.raises(SettingsError, match="the grid has rounds twice"):
        read_grid(["rounds=1", "rounds=2"])


@each(
    ("grid", "words"),
    [
        ("training.learningrate=1,2", r"cell 1 .*unknown key.*'learning_rate'"),
        ("training.learning_rate=0.1,-1", r"cell 2 \(training.learning_rate=-1\).*is wrong"),
        ("method=fedavg,fedfast", "cell 2 .*fedfast"),
        ("options.mu=1", "cell 1 .*mu"),
        ("method=fedprox,fedavg options.mu=1", "cell 2 .*mu"),
        ("task=ner,re", "several tasks|select.by"),
    ],
)
def test_all_values_are_checked_before_the_first_run(tmp_path: Path, grid: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        laid_out(tmp_path, *grid.split())
    assert not (tmp_path / "sweep").exists()


def test_another_sweep_in_the_folder_is_refused(tmp_path: Path) -> None:
    found = laid_out(tmp_path, *GRID)
    assert laid_out(tmp_path, *GRID).plan == found.plan
    with pytest.raises(RunError, match=r"other grid.*continue that one with `confide sweep"):
        laid_out(tmp_path, GRID[0])
    with pytest.raises(RunError, match=r"other seeds; expected \(1,\); got \(1, 2\)"):
        laid_out(tmp_path, *GRID, seeds=2)
    path = settings_in(tmp_path, "training.momentum=0.5")
    with pytest.raises(RunError, match="other settings"):
        sweep(path, grid=GRID, out=tmp_path / "sweep")


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="something else than a sweep"):
        laid_out(tmp_path, *GRID)


def test_a_folder_has_its_own_grid(tmp_path: Path) -> None:
    laid_out(tmp_path, *GRID)
    with pytest.raises(SettingsError, match="has its own settings, grid and seeds"):
        sweep(tmp_path / "sweep", seeds=2)


@each(
    ("plan", "words"),
    [("schema = 1\n", "not the plan of a sweep.*at name"), ("[", "cannot be read")],
)
def test_a_damaged_plan(tmp_path: Path, plan: str, words: str) -> None:
    (tmp_path / "sweep.toml").write_text(plan)
    with pytest.raises(RunError, match=words):
        sweep(tmp_path)


def test_no_seed_and_no_such_cell(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs a seed"):
        laid_out(tmp_path, seeds=0)
    found = laid_out(tmp_path, *GRID)
    for cell in ("5", "0", "1-2", "x"):
        with pytest.raises(SettingsError, match=r"no such cell.*1 to 4"):
            found.train(cell=cell)
    with pytest.raises(SettingsError, match="no such cell"):
        found.report(against=9)
    with pytest.raises(SettingsError, match="no process"):
        found.train(workers=0)


# --- training -------------------------------------------------------------------------------


def test_runs_are_those_of_run_and_stopped_ones_go_on(tmp_path: Path) -> None:
    found = laid_out(tmp_path, "method=fedavg,fedprox")
    with pytest.raises(KeyboardInterrupt):
        found.train(on_event=stopping_at(12))
    assert found.report().rows[0].finished == 0
    assert found.train() == {}
    chosen = load_settings(tmp_path / "tiny.toml", ["method=fedprox", "name=tiny-2"])
    alone = run(chosen, out=tmp_path / "alone")
    same_run(found.run_folder(2, 1).path, alone.folder)


class Runs:
    """Stands in for `run`: writes a result with these scores, or raises."""

    def __init__(self, gives: dict[tuple[str, int], Any]) -> None:
        self.gives = gives
        self.called: list[tuple[str, int, bool]] = []

    def __call__(self, settings: Any, *, out: Path, resume: bool, on_event: Any) -> None:
        key = settings.name.rpartition("-")[2], settings.seed
        self.called.append((*key, resume))
        gives = self.gives.get(key, (0.5, 0.5))
        if isinstance(gives, Exception):
            raise gives
        put(out, settings, *gives)


def put(out: Path, settings: Any, dev: float | None, test: float) -> None:
    """A finished run; a share `test` of 100 test sentences was understood."""
    folder = RunFolder(out)
    folder.write("settings.toml", dump(settings))
    rows = [(int(n < 100 * test), 1, 1) for n in range(100)]
    body = {"schema": 1, "site": "north", "fingerprint": "t", "strict": rows, "relaxed": rows}
    (folder.sites / "north").mkdir(parents=True)
    (folder.sites / "north" / "sentences.json").write_text(json.dumps(body))

    def scored(f1: float) -> Tree:
        rates = {"f1": f1, "precision": f1, "recall": f1, "support": 100}
        return {"strict": rates, "relaxed": rates, "sentences": 100}

    scores = {"overall": scored(test), "sites": {"north": scored(test)}}
    result = {
        "schema": 1, "method": settings.method, "seed": settings.seed, "scores": scores,
        "best_rounds": {"": 1}, "seconds": 60.0, "bytes": {"up": {"north": 500, "south": 500}},
    }  # fmt: skip
    folder.write("result.json", result | ({} if dev is None else {"dev": scored(dev)}))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs({})
    monkeypatch.setattr(module, "run", made)
    return made


@each(
    ("error", "words"),
    [
        (RunError("the disk is full"), "^the disk is full$"),
        (DataError("no text"), "^no text$"),
        (OSError(errno.ENOSPC, "No space left on device"), "OSError.*No space left"),
        (ValueError(), "ValueError: without a word"),
    ],
)
def test_a_failed_run_is_named_and_the_others_finish(
    tmp_path: Path, runs: Runs, error: Exception, words: str
) -> None:
    found = laid_out(tmp_path, "method=fedavg,fedprox,scaffold", seeds=2)
    runs.gives["2", 1] = error
    told: list[Event] = []
    failed = found.train(on_event=told.append)
    assert list(failed) == ["2-1"]
    assert re.search(words, failed["2-1"])
    assert [row.finished for row in found.report().rows] == [2, 1, 2]
    assert any("cell 2 of 3 (method=fedprox), seed 1 failed" in str(e.message) for e in told)
    runs.called.clear()
    del runs.gives["2", 1]
    assert found.train() == {}
    assert runs.called == [("2", 1, False)]


def test_one_cell_and_one_run(tmp_path: Path, runs: Runs) -> None:
    found = laid_out(tmp_path, "method=fedavg,fedprox", seeds=2)
    assert found.train(cell="2") == {}
    assert runs.called == [("2", 1, False), ("2", 2, False)]
    runs.gives["1", 2] = RunError("it is broken")
    with pytest.raises(RunError, match="it is broken"):
        found.train(cell="1-2")
    assert runs.called[2:] == [("1", 2, False)]


@pytest.mark.slow
def test_processes_train_side_by_side_and_one_that_fails_takes_none_with_it(tmp_path: Path) -> None:
    good = load_settings(settings_in(tmp_path)).site[0].train[0]
    found = laid_out(tmp_path, f"site.0.train={good},{tmp_path / 'nowhere.conll'}", seeds=2)
    failed = found.train(workers=2)
    assert sorted(failed) == ["2-1", "2-2"] and "nowhere.conll" in failed["2-1"]
    assert [row.finished for row in found.report().rows] == [2, 0]
    again = run(found.settings(1, 2), out=tmp_path / "again")
    same_run(found.run_folder(1, 2).path, again.folder)


def test_a_job_array_for_slurm(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    found = laid_out(tmp_path / "a b", *GRID)
    script = found.slurm()
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    assert "#SBATCH --array=1-4\n" in text and "#SBATCH --cpus-per-task=1\n" in text
    assert f"'{tmp_path / 'a b' / 'sweep'}' --quiet --cell \"$SLURM_ARRAY_TASK_ID\"" in text
    assert sys.executable in text and not (tmp_path / "a b" / "sweep" / "cells").exists()


# --- choosing -------------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path: Path, runs: Runs) -> Sweep:
    """Cell 2 is best on development text, cell 3 on test text."""
    scores = {"1": (0.5, 0.4), "2": (0.7, 0.6), "3": (0.6, 0.9)}
    for name, (dev, test) in scores.items():
        runs.gives |= {(name, 1): (dev, test), (name, 2): (dev + 0.1, test)}
    found = laid_out(tmp_path, "method=fedavg,fedprox,scaffold", seeds=2)
    found.train()
    return found


def test_development_text_chooses_and_only_the_chosen_cell_shows_test_scores(three: Sweep) -> None:
    report = three.report()
    assert [row.chosen for row in report.rows] == [False, True, False]
    assert [row.test is not None for row in report.rows] == [False, True, False]
    chosen = report.rows[1]
    assert chosen.dev == Spread(0.75, pytest.approx(0.0707, abs=1e-4), 0.7, pytest.approx(0.8))
    paths = [[three.run_folder(n, seed).path for seed in (1, 2)] for n in (1, 2)]
    known = compare(*paths).overall
    assert chosen.test is not None
    assert chosen.test.difference == known.difference == pytest.approx(0.2)
    assert (chosen.test.difference_low, chosen.test.p) == (known.low, known.p)
    assert chosen.test.low is not None and chosen.test.high is not None
    assert chosen.test.low < 0.6 < chosen.test.high
    assert (chosen.bytes_up, chosen.seconds) == (1000, 60)
    assert "90.0" not in report.markdown() + report.csv() + report.latex()


def test_all_test_scores_come_with_a_warning(three: Sweep) -> None:
    report = three.report(every=True, against=3)
    assert [row.chosen for row in report.rows] == [False, True, False]
    assert [row.test.difference for row in report.rows if row.test] == [
        pytest.approx(-0.5), pytest.approx(-0.3), None,
    ]  # fmt: skip
    assert "has chosen on test text" in report.caption and "90.0" in report.markdown()


def test_unfinished_cells_are_not_chosen(tmp_path: Path, runs: Runs) -> None:
    found = laid_out(tmp_path, "method=fedavg,fedprox", seeds=2)
    assert "nothing is chosen: no cell is finished" in found.report().caption
    runs.gives |= {("2", 1): (0.9, 0.9), ("2", 2): RunError("broken")}
    found.train()
    report = found.report()
    assert [row.chosen for row in report.rows] == [True, False]
    assert "of those finished so far (1 are not)" in report.caption
    assert [line[3] for line in report.lines] == ["50.0 ± 0.0", "90.0"]


def test_without_development_scores_nothing_is_chosen(tmp_path: Path, runs: Runs) -> None:
    runs.gives["1", 1] = (None, 0.5)
    found = laid_out(tmp_path)
    found.train()
    assert "nothing is chosen: no development score" in found.report().caption


def test_other_test_text_is_said_and_not_compared(three: Sweep) -> None:
    for seed in (1, 2):
        path = three.run_folder(2, seed).sites / "north" / "sentences.json"
        path.write_text(path.read_text().replace('"t"', '"other"'))
    report = three.report()
    assert report.notes == (
        "cell 2 is not compared with cell 1: the two runs were scored on different test text",
    )
    assert report.rows[1].test is not None and report.rows[1].test.difference is None


def test_alone_is_scored_by_its_sites(tmp_path: Path) -> None:
    found = laid_out(tmp_path, "method=alone")
    found.train()
    result = found.run_folder(1, 1).result()
    own = [result.history[turn - 1].dev_sites[site] for site, turn in result.best_rounds.items()]
    dev = found.report().rows[0].dev
    assert dev is not None and dev.mean == pytest.approx(sum(map(float, own)) / 3)


# --- tables ---------------------------------------------------------------------------------


ODD = SweepReport(
    name="a_b",
    keys=("model.kind", "site.0.tags.x|y"),
    seeds=(1, 2),
    task="ner",
    kind="strict",
    against=1,
    every=False,
    rows=(
        Cell(1, {"k": "tagger", "t": "50%_#"}, 2, False, Spread(0.5, 0.01, 0.4, 0.6), None, 1.0, 2),
        Cell(
            2,
            {"k": "linear", "t": "{a|b}"},
            2,
            True,
            Spread(0.6, 0.01, 0.5, 0.7),
            OnTest(Spread(0.5, 0.1, 0.4, 0.6), 0.45, 0.55, -0.02, -0.05, 0.01, 0.2),
            1e6,
            120,
        ),
    ),
)


def test_markdown() -> None:
    first, rule, one, two = ODD.markdown().splitlines()[:4]
    assert (
        first == r"| cell | kind | x\|y | seeds | development | test | − cell 1 | p | up | time |"
    )
    assert rule.count("---") == 10
    assert one == r"| 1 | tagger | 50%\_# | 2/2 | 50.0 ± 1.0 |  |  |  | 1 B | 2.0 s |"
    assert r"| 50.0 ± 10.0 \[45.0, 55.0\] | −2.0 \[−5.0, +1.0\] | 0.200 |" in two
    assert two.startswith(r"| 2 \* | linear | {a\|b} |")


def test_latex() -> None:
    text = ODD.latex()
    assert r"\begin{tabular}{rlllllllll}" in text
    assert r"1 & tagger & 50\%\_\# & 2/2 & 50.0 $\pm$ 1.0 &" in text
    assert r"\{a$|$b\}" in text and r"$-$2.0 [$-$5.0, +1.0]" in text


def test_csv() -> None:
    one, two = csv.DictReader(ODD.csv().splitlines())
    assert (one["model.kind"], one["chosen"], one["test_mean"]) == ("tagger", "0", "")
    assert (two["test_low"], two["difference"], two["p"]) == ("0.45", "-0.02", "0.2")


def test_the_drawing_has_the_best_on_top() -> None:
    text = ODD.svg()
    assert text.index("2: linear") < text.index("1: tagger")
    assert ODD.svg() == text
