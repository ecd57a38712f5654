"""A run that was stopped can be looked at and used as its last checkpoints left it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from confide import api
from confide.cli.verbs import app
from confide.errors import Note, RunError
from confide.federation.events import Event
from confide.runs.folder import RunFolder
from confide.runs.run import run, start_of
from confide.settings import dump
from contract.corpus import tiny
from flare.waiting import until

UNFINISHED = "not finished"


def stopped(folder: Path, *overrides: str, after: int, **tree: object) -> Path:
    """A run that Ctrl-C stopped after so many rounds; a finished one beside it."""

    def watch(event: object) -> None:
        if getattr(event, "kind", "") == "ask" and (getattr(event, "round", 0) or 0) > after:
            raise KeyboardInterrupt

    settings = tiny(folder, *overrides, **tree)
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=folder / "run", on_event=watch)
    return folder / "run"


@pytest.mark.slow
def test_a_killed_run_is_evaluated_used_and_reported(tmp_path: Path) -> None:
    """A real process, really killed. What is kept is what the finished run had at that round."""
    settings = tiny(tmp_path, "name=same", "rounds=500", "training.learning_rate=0.05")
    (tmp_path / "settings.toml").write_text(dump(settings))
    words = ["run", str(tmp_path / "settings.toml"), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "confide", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    store = RunFolder(tmp_path / "run").store()
    until(lambda: process.poll() is not None or len(store.rounds()) > 1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    progress = json.loads(store.load(store.rounds()[-1]).progress)
    best = progress["best_round"]

    text = str(tmp_path / "data" / "site-1" / "test.conll")
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), text, "--json"])
    assert done.exit_code == 0, done.output
    note, doubt = done.stderr.splitlines()
    assert f"round {best};" in note and UNFINISHED in note and "Warning" not in note
    assert doubt.startswith("Confidences are calibrated on")
    straight = run(
        tiny(tmp_path, "name=same", f"rounds={best}", "training.learning_rate=0.05"),
        out=tmp_path / "straight",
    )
    assert json.loads(done.stdout) == json.loads(json.dumps(api.evaluate(straight.folder, [text])))

    asked = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "-"], input="took aspirin .")
    assert asked.exit_code == 0 and UNFINISHED in asked.stderr
    with pytest.warns(Note, match=UNFINISHED):
        assert api.load(tmp_path / "run").entity_types == ("Drug", "Effect")
    page = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    html = Path(page.stdout.strip()).read_text()
    assert "Not finished" in html and 'http-equiv="refresh"' not in html


@pytest.mark.parametrize(
    ("method", "site"),
    [
        ("fedavg", None),
        ("alone", "site-1"),
        ("fedner", "site-2"),
        pytest.param("pooled", None, marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_run_can_be_stopped_and_used(
    tmp_path: Path, method: str, site: str | None
) -> None:
    folder = stopped(tmp_path, "rounds=5", "base=fedavg", after=2, method=method)
    text = tmp_path / "data" / "site-1" / "test.conll"
    with pytest.warns(Note, match="best checkpoint so far"):
        found = api.evaluate(folder, [text], site=site)
    assert found["sentences"] == 6
    finished = run(
        tiny(tmp_path, "rounds=5", "base=fedavg", method=method), out=folder, resume=True
    )
    assert api.evaluate(finished.folder, [text], site=site)["sentences"] == 6  # and no warning


def test_of_alone_a_site_that_has_not_begun_has_no_model(tmp_path: Path) -> None:
    folder = stopped(tmp_path, "rounds=5", after=2, method="alone")
    text = tmp_path / "data" / "site-1" / "test.conll"
    with pytest.warns(Note), pytest.raises(RunError, match="site-3"):
        api.evaluate(folder, [text], site="site-3")


def test_a_run_without_a_checkpoint_has_no_model(tmp_path: Path) -> None:
    folder = stopped(tmp_path, "rounds=5", after=0)
    text = tmp_path / "data" / "site-1" / "test.conll"
    for use in (lambda: api.evaluate(folder, [text]), lambda: api.report([folder])):
        with pytest.raises(RunError, match=r"before its first checkpoint.*--resume"):
            use()


def test_what_a_stopped_run_is_not_good_for(tmp_path: Path) -> None:
    """A copy, a comparison and a new run's first weights come from a run that is finished."""
    folder = stopped(tmp_path, "rounds=5", after=2)
    for use in (
        lambda: api.release(folder, out=tmp_path / "copy"),
        lambda: api.compare([folder], [folder]),
        lambda: start_of(tiny(tmp_path, f"start_from={folder}")),
    ):
        with pytest.raises(RunError, match=r"not finished.*--resume"):
            use()


def test_the_best_round_so_far_survives_a_stop_and_more_rounds(tmp_path: Path) -> None:
    """Stopped after a round that is not its best, resumed, and then given more rounds."""
    own = ("training.learning_rate=0.2", "seed=2")
    straight = run(tiny(tmp_path, "rounds=6", *own), out=tmp_path / "straight").result
    dev = [(turn.dev or {})["strict"] or 0.0 for turn in straight.history]
    assert dev[1] < dev[0] and straight.best_round == dev.index(max(dev)) + 1 < 6
    folder, events = stopped(tmp_path, "rounds=6", *own, after=2), list[Event]()
    with pytest.warns(Note, match="so far is used: round 1;"):
        api.evaluate(folder, [tmp_path / "data" / "site-1" / "test.conll"])
    again = run(tiny(tmp_path, "rounds=6", *own), out=folder, resume=True, on_event=events.append)
    assert again.result.best_round == straight.best_round
    assert again.result.scores == straight.scores
    told = [(event.round, event.dev_f1, event.best_f1) for event in events if event.kind == "round"]
    assert told == [(n, dev[n - 1], max(dev[:n])) for n in range(2, 7)]
    longer = run(tiny(tmp_path, "rounds=7", *own), out=folder, resume=True).result
    assert (longer.best_round, longer.rounds) == (straight.best_round, 7)
    assert longer.scores == straight.scores  # rounds that are no better change nothing
