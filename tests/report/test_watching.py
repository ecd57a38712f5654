"""The page of a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from confide.errors import RunError
from confide.federation.memory import Checkpoint, CheckpointStore
from confide.report.folder import load_run
from confide.report.page import report, watch_report
from confide.runs.status import checkpoint_marks, current_result
from report.folders import result, write_run

SETTINGS = """
schema = 2
method = "fedavg"
rounds = 12
[[site]]
name = "north"
train = "train.conll"
"""


def begun(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.toml").write_text(SETTINGS)
    (folder / "train.conll").write_text("")
    return folder


def scored(folder: Path, rounds: int, *, part: str = "", best: int = 1) -> None:
    """A checkpoint after so many rounds."""
    told = result("fedavg", 0.8)["history"][:rounds]
    for turn in told:
        turn |= {"train_seconds": 1.0, "compute_seconds": 1.0, "slowest_seconds": 1.0}
    progress = {"history": told, "best_round": best}
    own = folder / "alone" / part if part else folder
    store = CheckpointStore(own / "checkpoints")
    store.save(
        Checkpoint(rounds, np.zeros(4, np.uint8), "binding", json.dumps(progress), 0), best=best
    )


def test_a_run_stands_where_its_newest_checkpoint_says(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    assert current_result(folder).history == [] and checkpoint_marks(folder) == ()
    scored(folder, 3)
    scored(folder, 5, best=4)
    found = current_result(folder)
    assert (len(found.history), found.best_round, found.rounds) == (5, 4, 12)
    assert [turn.round for turn in found.history] == [1, 2, 3, 4, 5]
    assert found.scores.overall == {}


def test_sites_alone_stand_together(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    scored(folder, 2, part="north")
    assert len(current_result(folder).history) == 2
    scored(folder, 4, part="south")
    assert [len(turn.sites) for turn in current_result(folder).history] == [6, 6, 3, 3]
    assert len(checkpoint_marks(folder)) == 2


def test_damaged_progress_is_refused_in_words(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    scored(folder, 1)
    path = folder / "checkpoints/round-000001.ckpt"
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    with pytest.raises(RunError, match="damaged"):
        current_result(folder)
    store = CheckpointStore(folder / "checkpoints")
    for told in ("[]", "{}", '{"history": [{"round": -1}], "best_round": 1}', "not JSON"):
        store.save(Checkpoint(2, np.zeros(1, np.uint8), "b", told, 0), best=1)
        with pytest.raises(RunError, match="cannot be read"):
            current_result(folder)


def test_the_page_is_renewed_with_every_scored_round_until_the_end(tmp_path: Path) -> None:
    folder, told = tmp_path / "run", list[tuple[str, bool, bool]]()

    def on_page(page: Path, where: str) -> None:
        html = page.read_text()
        told.append((where, 'http-equiv="refresh"' in html, "Still running" in html))

    steps = [
        lambda: begun(folder), lambda: None, lambda: scored(folder, 3), lambda: scored(folder, 4),
        lambda: None, lambda: write_run(folder, result("fedavg", 0.8)),
    ]  # fmt: skip
    page = watch_report(folder, on_page=on_page, wait=lambda _: steps.pop(0)() and None)
    assert page == folder / "report.html"
    assert told == [
        ("round 0 of 12", True, True), ("round 3 of 12", True, True),
        ("round 4 of 12", True, True), ("finished", False, False),
    ]  # fmt: skip
    assert steps == []


def test_the_page_of_a_run_that_goes_on_shows_its_curves_and_no_test_scores(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    scored(folder, 3)
    run = load_run(folder, unfinished=True)
    assert run.running and run.sites == ["cardiology", "oncology", "practice"]
    pages = []
    watch_once = iter([None])

    def on_page(page: Path, _: str) -> None:
        pages.append(page.read_text())

    def wait(_: float) -> None:
        if next(watch_once, "end") == "end":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch_report(folder, on_page=on_page, wait=wait)
    (html,) = pages
    assert "Learning curves" in html and "on development text" in html
    assert "Nothing crossed the wall" not in html and "2.7 MB" in html  # three rounds of 0.9 MB
    assert "nothing was held out" not in html and '<progress value="3" max="12">' in html


def test_a_run_that_was_stopped_has_a_page_that_is_not_renewed(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(RunError, match="before its first checkpoint"):
        report([tmp_path])
    scored(tmp_path, 3)
    html = report([tmp_path]).read_text()
    assert "Not finished" in html and "round 3 of 12" in html and "Learning curves" in html
    assert 'http-equiv="refresh"' not in html and "loads nothing and runs" in html


def test_only_finished_runs_are_compared(tmp_path: Path) -> None:
    scored(begun(tmp_path / "stopped"), 3)
    finished = write_run(tmp_path / "done", result("fedavg", 0.8))
    with pytest.raises(RunError, match="not finished"):
        report([finished, tmp_path / "stopped"])
