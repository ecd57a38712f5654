"""The lead's side over a server that is played by a conductor and the sites' homes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from confide.errors import ConfideError, EngineError, RunError
from confide.federation.events import Event
from confide.flare.conducting import Conductor
from confide.flare.coordinating import ATTEMPTS, NOTES, follow
from confide.flare.events import Bulletin
from confide.settings import Settings
from contract.corpus import tiny
from contract.runs import differences
from flare.homes import HomesEngine, of_a_consortium, write_site_files
from flare.test_conducting import Stops, numbers


class Server:
    """A server in this process: a job runs while it is handed in, and may die."""

    def __init__(self, folder: Path, engines: Iterator[HomesEngine]) -> None:
        self.folder = folder
        self.engines = engines
        self.jobs: dict[str, tuple[Bulletin, str]] = {}
        self.sites = ["site-1", "site-2", "site-3"]

    def connected(self) -> list[str]:
        return self.sites

    def submit(self, folder: Path) -> str:
        config = json.loads((folder / "app/config/config_fed_server.json").read_text())
        job = config["workflows"][0]["args"]
        bulletin, status = Bulletin(), "FINISHED:COMPLETED"
        run = self.folder / job["run"]
        conductor = Conductor(
            job["run"],
            job["settings"],
            version=job["version"],
            engine=next(self.engines),
            folder=run,
        )
        try:
            conductor.conduct(bulletin)
            bulletin.end()
        except ConfideError as error:
            bulletin.fail(error)
        except KeyboardInterrupt:
            status = "FINISHED:EXECUTION_EXCEPTION"
        if "COMPLETED" in status:
            bulletin.write(run)
        name = f"job-{len(self.jobs) + 1}"
        self.jobs[name] = (bulletin, status)
        return name

    def status(self, job: str) -> str:
        return self.jobs[job][1]

    def told(self, job: str, since: int) -> dict[str, Any] | None:
        said = self.jobs[job][0].since(since)
        return said if said["events"] else None

    def download(self, job: str, to: Path) -> Path | None:
        found = [path for path in self.folder.iterdir() if path.is_dir()]
        return found[0] if self.jobs[job][1] == "FINISHED:COMPLETED" else None

    def close(self) -> None: ...


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confide.flare.coordinating.time.sleep", lambda seconds: None)


def setting(tmp_path: Path, *overrides: str) -> tuple[Settings, dict[str, Path]]:
    settings = tiny(tmp_path, *overrides)
    return of_a_consortium(settings), write_site_files(tmp_path / "homes", settings)


def lead(server: Server, settings: Settings, out: Path, **given: Any) -> Any:
    return follow(settings, "trial", lambda: server, out=out, **given)


def engines(files: dict[str, Path], *dies: int) -> Iterator[HomesEngine]:
    yield from (Stops(files, asks) for asks in dies)
    while True:
        yield HomesEngine(files)


def test_the_lead_gets_the_runs_folder_and_hears_every_round(tmp_path: Path, quick: None) -> None:
    settings, files = setting(tmp_path)
    told: list[Event] = []
    server = Server(tmp_path / "server", engines(files))
    result = lead(server, settings, tmp_path / "lead", on_event=told.append)
    assert [event.round for event in told if event.kind == "round"] == [1, 2]
    assert result["scores"]["sites"].keys() == {"site-1", "site-2", "site-3"}
    assert (tmp_path / "lead" / "ledger.jsonl").exists()
    assert not (tmp_path / "lead" / "sites").exists()


def test_a_job_that_the_engine_loses_is_submitted_again(tmp_path: Path, quick: None) -> None:
    settings, files = setting(tmp_path, "rounds=4")
    lead(Server(tmp_path / "a", engines(files)), settings, tmp_path / "whole")
    server = Server(tmp_path / "b", engines(files, 20, 8, 4))
    told: list[Event] = []
    lead(server, settings, tmp_path / "lead", on_event=told.append)
    assert len(server.jobs) > 2
    assert "the engine lost the run; submitted again" in [event.message for event in told]
    assert not list(differences(numbers(tmp_path / "whole"), numbers(tmp_path / "lead")))


def test_an_engine_that_never_gets_anywhere_is_given_up(tmp_path: Path, quick: None) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files, *[4] * 20))
    with pytest.raises(EngineError, match="ended the run 5 times"):
        lead(server, settings, tmp_path / "lead")
    assert len(server.jobs) == ATTEMPTS
    server.engines = engines(files)
    assert lead(server, settings, tmp_path / "lead", resume=True)["rounds"] == 2


def test_a_lead_that_dies_goes_on_with_the_same_run(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    monkeypatch.setattr(server, "status", raises(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        lead(server, settings, tmp_path / "lead")
    monkeypatch.undo()
    monkeypatch.setattr("confide.flare.coordinating.time.sleep", lambda seconds: None)
    result = lead(server, settings, tmp_path / "lead", resume=True)
    assert len(server.jobs) == 1
    assert result["rounds"] == 2


def raises(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_what_a_site_refuses_ends_the_run_with_its_name(tmp_path: Path, quick: None) -> None:
    settings, files = setting(tmp_path)
    files["site-2"].write_text(files["site-2"].read_text().split("[consent")[0])
    server = Server(tmp_path / "server", engines(files))
    with pytest.raises(EngineError, match=r"site site-2, step join.*did not agree"):
        lead(server, settings, tmp_path / "lead")
    assert len(server.jobs) == 1


def test_who_is_not_there_is_named_before_anything_runs(tmp_path: Path) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    with pytest.raises(EngineError, match="not connected: west"):
        lead(server, settings, tmp_path / "lead", sites=["site-1", "west"])
    assert not server.jobs
    assert not (tmp_path / "lead").exists()


def test_a_folder_is_never_taken_twice_and_another_is_not_resumed(
    tmp_path: Path, quick: None
) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    lead(server, settings, tmp_path / "lead")
    with pytest.raises(RunError, match="a run in this folder already"):
        lead(server, settings, tmp_path / "lead")
    (tmp_path / "lead" / NOTES).write_text("{}")
    with pytest.raises(RunError, match="not the folder of a run over real sites"):
        lead(server, settings, tmp_path / "lead", resume=True)
