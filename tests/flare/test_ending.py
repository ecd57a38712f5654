"""A run is ended: every submission of it, once, and never for longer than is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from typer.testing import CliRunner

from confide.cli.verbs import app
from confide.errors import EngineError, RunError
from confide.flare.nvidia import lead as ending
from confide.flare.nvidia.lead import GONE, RECORD, STOPPED, stop_submissions
from confide.runs.folder import RunFolder


class Server:
    """Says what each submission is at one look after the other; the last word stays."""

    def __init__(self, **looks: list[str]) -> None:
        self.looks = looks
        self.asked: list[str] = []
        self.closed = 0

    def submissions(self, run: str) -> list[str]:
        assert run == "trial-1"
        return list(self.looks)

    def status(self, submission: str) -> str:
        looks = self.looks[submission]
        return looks.pop(0) if len(looks) > 1 else looks[0]

    def stop(self, submission: str) -> None:
        self.asked.append(submission)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    notes = {"run": "trial-1", "sites": ["a"], "submissions": [], "version": "0"}
    (tmp_path / RECORD).write_text(json.dumps(notes))
    return RunFolder(tmp_path)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Sleeping takes no time, but the clock goes on."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(ending.time, "sleep", sleep)
    monkeypatch.setattr(ending.time, "monotonic", lambda: now[0])
    yield now


def ended(folder: RunFolder, server: Any) -> bool:
    found = stop_submissions(folder, lambda: server)
    assert server.closed == 1
    assert (found.run, found.folder) == ("trial-1", folder.path)
    assert (folder.path / STOPPED).exists()
    return found.stopped


def test_every_submission_that_goes_on_is_ended(folder: RunFolder) -> None:
    old, new = ["FINISHED:ABORTED"], ["RUNNING", "RUNNING", "FINISHED:ABORTED"]
    server = Server(old=old, new=new)
    assert ended(folder, server) is True
    assert server.asked == ["new", "new"]


def test_nothing_goes_on(folder: RunFolder) -> None:
    assert ended(folder, Server()) is False
    server = Server(a=["FINISHED:COMPLETED"], b=["FINISHED:EXECUTION_EXCEPTION"])
    assert ended(folder, server) is False
    assert not server.asked


def test_one_that_was_about_to_begin_is_asked_again(folder: RunFolder) -> None:
    """FLARE writes RUNNING over ABORTED, where it is ended while it is being started."""
    looks = ["DISPATCHED", "FINISHED:ABORTED", "FINISHED:ABORTED", "RUNNING", "FINISHED:ABORTED"]
    server = Server(a=looks)
    assert ended(folder, server) is True
    assert server.asked == ["a", "a"]


def test_one_that_comes_to_its_end_meanwhile_was_not_ended(folder: RunFolder) -> None:
    assert ended(folder, Server(a=["RUNNING", "FINISHED:COMPLETED"])) is False


def test_what_a_server_lost_is_ended_too(folder: RunFolder) -> None:
    assert ended(folder, Server(a=[*["RUNNING"] * 16, GONE])) is True


def test_it_does_not_wait_for_ever(folder: RunFolder, clock: list[float]) -> None:
    server = Server(a=["RUNNING"])
    with pytest.raises(EngineError, match="has not done so yet; got RUNNING"):
        stop_submissions(folder, lambda: server)
    assert server.closed == 1
    assert clock[0] <= ending.WITHIN + 2 * ending.AGAIN
    assert len(server.asked) > 10


def test_a_server_that_is_away_is_no_way_around(folder: RunFolder) -> None:
    """Who watches is told at once; the same command ends what is there, when it is back."""

    def away() -> Any:
        raise EngineError("the server cannot be reached with this kit")

    with pytest.raises(EngineError, match="cannot be reached"):
        stop_submissions(folder, away)
    assert (folder.path / STOPPED).exists()
    assert ended(folder, Server(a=["RUNNING", "FINISHED:ABORTED"])) is True


def test_there_must_be_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run over real sites in this folder.*--out"):
        stop_submissions(RunFolder(tmp_path), Server)
    assert not list(tmp_path.iterdir())
    (tmp_path / RECORD).write_text("{}")
    with pytest.raises(RunError, match="not the folder of a run over real sites"):
        stop_submissions(RunFolder(tmp_path), Server)


def test_the_verb_says_what_came_of_it(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = iter([Server(a=["RUNNING", "FINISHED:ABORTED"]), Server(a=["FINISHED:ABORTED"])])
    monkeypatch.setattr(ending, "LeadSession", lambda kit: next(servers))
    monkeypatch.setattr(ending, "open_kit", lambda path, kind: None)
    settings = tmp_path / "settings.toml"
    settings.write_text('method = "fedavg"\n')
    words = ["coordinate", str(settings), "--kit", "kit", "--out", str(folder.path), "--end"]

    def said(*more: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*words, *more])
        return done.exit_code, " ".join(done.output.split())

    assert said() == (
        0,
        "trial-1 has ended, at the server and at the sites its checkpoints are kept; repeat "
        "the command with --resume to continue it",
    )
    assert said()[1].startswith(
        "nothing to end: trial-1 is not in progress its checkpoints are kept"
    )
    (folder.path / "result.json").write_text("{}")
    code, text = said()
    assert code == 0 and text.startswith("nothing to end: trial-1 is finished")
    code, text = said("--resume")
    assert code == 2 and "--end and --resume exclude each other" in text
    (folder.path / RECORD).unlink()
    code, text = said()
    assert code == 2 and "folder to end" in text
