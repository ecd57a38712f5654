"""The lead's side over a server that is played by a conductor and the sites' homes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import ConfideError, EngineError, RunError, SettingsError
from confide.federation.events import Event
from confide.flare.agreements import CONSENT_FILE
from confide.flare.joining import EventBuffer, bring_home, files_to_carry
from confide.flare.nvidia.lead import (
    ATTEMPTS,
    LOST,
    RECORD,
    STOPPED,
    follow_run,
    stop_submissions,
    with_sums,
)
from confide.flare.server import Conductor
from confide.jobs.logs import Logs
from confide.runs.folder import RunFolder
from confide.settings import Settings
from contract.corpus import tiny
from contract.runs import differences
from flare.homes import HomesEngine, Stops, of_a_consortium, place_in, withdraw, write_site_files
from flare.test_conducting import numbers


class Server:
    """A server in this process: a job runs while it is handed in, and may die."""

    def __init__(self, folder: Path, engines: Iterator[HomesEngine]) -> None:
        self.folder = folder
        self.engines = engines
        self.jobs: dict[str, tuple[EventBuffer, str]] = {}
        self.runs: dict[str, str] = {}
        self.stopped: list[str] = []
        self.sites = ["site-1", "site-2", "site-3"]

    def connected(self) -> list[str]:
        return self.sites

    def submit(self, folder: Path) -> str:
        config = json.loads((folder / "app/config/config_fed_server.json").read_text())
        job = config["workflows"][0]["args"]
        bulletin, status = EventBuffer(), "FINISHED:COMPLETED"
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
        self.runs[name] = job["run"]
        return name

    def submissions(self, run: str) -> list[str]:
        return [name for name, of in self.runs.items() if of == run]

    def stop(self, submission: str) -> None:
        self.stopped.append(submission)
        bulletin, status = self.jobs[submission]
        if not status.startswith("FINISHED"):
            self.jobs[submission] = (bulletin, "FINISHED:ABORTED")

    def status(self, job: str) -> str:
        return self.jobs[job][1]

    def events(self, job: str, since: int) -> dict[str, Any] | None:
        said = self.jobs[job][0].since(since)
        return said if said["events"] else None

    def download(self, job: str, to: Path) -> Path | None:
        found = [path for path in self.folder.iterdir() if path.is_dir()]
        return found[0] if self.jobs[job][1] == "FINISHED:COMPLETED" else None

    def close(self) -> None: ...


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confide.flare.nvidia.lead.time.sleep", lambda seconds: None)


def setting(tmp_path: Path, *overrides: str) -> tuple[Settings, dict[str, Path]]:
    settings = tiny(tmp_path, *overrides)
    return of_a_consortium(settings), write_site_files(tmp_path / "homes", settings)


def lead(server: Server, settings: Settings, out: Path, **given: Any) -> Any:
    place = place_in(out.with_name("place"), "lead", "lead")
    return follow_run(settings, "trial", lambda: server, place=place, out=out, **given)


def engines(files: dict[str, Path], *dies: int) -> Iterator[HomesEngine]:
    yield from (Stops(files, asks) for asks in dies)
    while True:
        yield HomesEngine(files)


def test_a_second_lead_cannot_follow_into_the_same_folder(tmp_path: Path, quick: None) -> None:
    """Neither anew nor with --resume: the server would get the run a second time."""
    settings, files = setting(tmp_path)
    server, out = Server(tmp_path / "server", engines(files)), tmp_path / "lead"
    refused: list[str] = []

    def also(event: Event) -> None:
        if event.kind == "round" and not refused:
            for resume in (True, False):
                with pytest.raises(RunError) as caught:
                    lead(server, settings, out, resume=resume)
                refused.append(caught.value.what)

    lead(server, settings, out, on_event=also)
    assert refused == [
        "a run is under way in this folder", "there is already a run in this folder"
    ]  # fmt: skip
    assert len(server.jobs) == 1 and (out / "result.json").exists()


def test_the_lead_gets_the_runs_folder_and_hears_every_round(tmp_path: Path, quick: None) -> None:
    settings, files = setting(tmp_path)
    told: list[Event] = []
    server = Server(tmp_path / "server", engines(files))
    result = lead(server, settings, tmp_path / "lead", on_event=told.append)
    assert [event.round for event in told if event.kind == "round"] == [1, 2]
    assert result.scores.sites.keys() == {"site-1", "site-2", "site-3"}
    assert (tmp_path / "lead" / "ledger.jsonl").exists()
    assert not (tmp_path / "lead" / "sites").exists()


def test_a_run_over_real_sites_is_logged(tmp_path: Path, quick: None) -> None:
    """A log has one start, every round with its scores, and the end with those on test text."""
    settings, files = setting(tmp_path, "rounds=4", "select.every=1")
    server = Server(tmp_path / "server", engines(files, 20))
    said: list[str] = []
    with Logs(["jsonl", "tensorboard"], say=said.append) as logs:
        result = lead(server, settings, tmp_path / "lead", on_event=logs)
    assert len(server.jobs) > 1, "the engine lost a job on the way"
    lines = [json.loads(one) for one in (tmp_path / "lead/events.jsonl").read_text().splitlines()]
    assert [one["event"] for one in (lines[0], lines[-1])] == ["start", "end"]
    assert sum(one["event"] in ("start", "end") for one in lines) == 2
    rounds = [one for one in lines if one["event"] == "round"]
    assert [one["round"] for one in rounds] == [1, 2, 3, 4]
    history = {turn.round: turn.dev for turn in result.history}
    assert [one["dev"] for one in rounds] == [history[n] for n in (1, 2, 3, 4)]
    assert lines[-1]["test"]["strict"] == result.scores.overall["strict"]["f1"]
    assert lines[-1]["test_sites"].keys() == result.scores.sites.keys()
    assert any((tmp_path / "lead/tensorboard").iterdir()) and said == []


def test_rounds_that_nobody_heard_of_are_told_at_the_end(tmp_path: Path, quick: None) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    lead(server, settings, tmp_path / "lead")
    told: list[Event] = []
    server.events = lambda submission, since: None  # type: ignore[method-assign]
    result = lead(server, settings, tmp_path / "lead", resume=True, on_event=told.append)
    assert [event.kind for event in told] == ["start", "round", "round", "end"]
    history = [(turn.round, turn.dev, turn.loss) for turn in result.history]
    assert [(event.round, event.dev, event.loss) for event in told[1:-1]] == history
    moved = (told[-2].bytes_up, told[-2].bytes_down)
    assert result.bytes is not None and told[-1].test
    assert moved == tuple(
        sum(getattr(turn.bytes, way) for turn in result.history) for way in ("up", "down")
    )


def test_a_job_that_the_engine_loses_is_submitted_again(tmp_path: Path, quick: None) -> None:
    settings, files = setting(tmp_path, "rounds=4")
    lead(Server(tmp_path / "a", engines(files)), settings, tmp_path / "whole")
    server = Server(tmp_path / "b", engines(files, 20, 8, 4))
    told: list[Event] = []
    lead(server, settings, tmp_path / "lead", on_event=told.append)
    assert len(server.jobs) > 2
    assert LOST in [event.message for event in told]
    assert not list(differences(numbers(tmp_path / "whole"), numbers(tmp_path / "lead")))


def test_real_sites_mask_unless_told_and_a_method_that_reads_each_update_has_to_say_so() -> None:
    of_chain = Settings(method="chain")
    with pytest.raises(SettingsError, match="masks let it read only sums"):
        with_sums(of_chain, 3)
    assert with_sums(of_chain, 2) == of_chain
    assert with_sums(Settings(), 3).federation.sums == "masked"


def test_an_engine_that_never_gets_anywhere_is_given_up(tmp_path: Path, quick: None) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files, *[4] * 20))
    with pytest.raises(EngineError, match="ended the run 5 times"):
        lead(server, settings, tmp_path / "lead")
    assert len(server.jobs) == ATTEMPTS
    server.engines = engines(files)
    assert lead(server, settings, tmp_path / "lead", resume=True).rounds == 2


def test_a_lead_that_dies_goes_on_with_the_same_run(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    monkeypatch.setattr(server, "status", raises(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        lead(server, settings, tmp_path / "lead")
    monkeypatch.undo()
    monkeypatch.setattr("confide.flare.nvidia.lead.time.sleep", lambda seconds: None)
    result = lead(server, settings, tmp_path / "lead", resume=True)
    assert len(server.jobs) == 1
    assert result.rounds == 2


@pytest.mark.parametrize("where", ["submission", "notes"])
def test_a_lead_that_dies_while_it_submits_submits_once(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Just after the server took it, before the lead noted it; or before anything was noted."""
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    with monkeypatch.context() as dying:
        if where == "submission":
            taken = server.submit

            def dies(folder: Path) -> str:
                taken(folder)
                raise KeyboardInterrupt

            dying.setattr(server, "submit", dies)
        else:
            dying.setattr("confide.flare.nvidia.lead.dump", raises(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            lead(server, settings, tmp_path / "lead")
    resume = where == "submission"
    assert lead(server, settings, tmp_path / "lead", resume=resume).rounds == 2
    assert len(server.jobs) == 1


def test_a_lead_that_dies_while_it_brings_the_run_home_is_resumed(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    lead(server, settings, tmp_path / "whole")
    files_of_a_run = len(list(files_to_carry(tmp_path / "whole")))
    server = Server(tmp_path / "server-2", engines(files))
    for copied in (0, 1, files_of_a_run // 2, files_of_a_run - 1):
        with monkeypatch.context() as dying:
            dying.setattr("confide.flare.joining.shutil.copyfile", Torn(copied))
            with pytest.raises(KeyboardInterrupt):
                lead(server, settings, tmp_path / "lead", resume=copied > 0)
        assert not (tmp_path / "lead" / "result.json").exists()
    lead(server, settings, tmp_path / "lead", resume=True)
    assert len(server.jobs) == 1
    assert not list(differences(numbers(tmp_path / "whole"), numbers(tmp_path / "lead")))
    assert not list((tmp_path / "lead").rglob("*.new"))


class Torn:
    """Copies so many files, then half of one, and dies."""

    def __init__(self, whole: int) -> None:
        self.left = whole

    def __call__(self, source: Path, target: Path) -> None:
        data = source.read_bytes()
        target.write_bytes(data if self.left else data[: len(data) // 2])
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1


def test_the_result_comes_home_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("result.json", "ledger.jsonl", "checkpoints/round-000007.ckpt", "alone/zz/result.json")
    for name in (*kept, "settings.toml", "zz/last", "checkpoints/7/state"):
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_text(name)
    (tmp_path / "home" / "checkpoints").mkdir(parents=True)
    (tmp_path / "home" / "settings.toml").write_text("older")
    (tmp_path / "home" / "coordinate.json").write_text("the lead's own")
    (tmp_path / "home" / "checkpoints" / "round-000002.ckpt").write_text("of a failed submission")
    with monkeypatch.context() as dying:
        dying.setattr("confide.flare.joining.shutil.copyfile", Torn(3))
        with pytest.raises(KeyboardInterrupt):
            bring_home(tmp_path / "there", tmp_path / "home")
    assert not (tmp_path / "home" / "result.json").exists()
    bring_home(tmp_path / "there", tmp_path / "home")
    home = {str(p.relative_to(tmp_path / "home")) for p in (tmp_path / "home").rglob("*.*")}
    assert home == {*kept, "settings.toml", "coordinate.json"}
    assert (tmp_path / "home" / "settings.toml").read_text() == "older"
    assert all((tmp_path / "home" / name).read_text() == name for name in kept)


# --- a run that somebody ends ---------------------------------------------------------------


def test_a_run_that_is_ended_is_not_submitted_again_and_goes_on_later(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, files = setting(tmp_path, "rounds=4")
    lead(Server(tmp_path / "a", engines(files)), settings, tmp_path / "whole")
    server = Server(tmp_path / "b", engines(files, 20))
    folder = RunFolder(tmp_path / "lead")
    first = server.status

    def ended_meanwhile(job: str) -> str:
        monkeypatch.setattr(server, "status", first)
        stop_submissions(folder, lambda: server)
        return first(job)

    monkeypatch.setattr(server, "status", ended_meanwhile)
    told: list[Event] = []
    with pytest.raises(RunError, match="was ended by `confide coordinate --end`"):
        lead(server, settings, tmp_path / "lead", on_event=told.append)
    assert len(server.jobs) == 1
    assert LOST not in [event.message for event in told]
    for _ in range(2):  # there is nothing to end, and it says so as often as it is asked
        ending = stop_submissions(folder, lambda: server)
        assert not ending.stopped and not ending.finished
    lead(server, settings, tmp_path / "lead", resume=True)
    assert len(server.jobs) == 2
    assert not (tmp_path / "lead" / STOPPED).exists()
    assert not list(differences(numbers(tmp_path / "whole"), numbers(tmp_path / "lead")))
    assert stop_submissions(folder, raises(AssertionError)).finished  # and nobody asks


def test_a_lead_that_submits_while_the_run_is_ended_takes_it_back(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    taken = server.submit

    def ended_meanwhile(folder: Path) -> str:
        stop_submissions(RunFolder(tmp_path / "lead"), lambda: server)
        return taken(folder)

    monkeypatch.setattr(server, "submit", ended_meanwhile)
    with pytest.raises(RunError, match=r"was ended.*--resume to continue"):
        lead(server, settings, tmp_path / "lead")
    assert server.stopped == ["job-1"]


def raises(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_what_a_site_refuses_ends_the_run_with_its_name(tmp_path: Path, quick: None) -> None:
    settings, files = setting(tmp_path)
    withdraw(files["site-2"])
    server = Server(tmp_path / "server", engines(files))
    with pytest.raises(EngineError, match=r"site site-2, step join.*did not agree"):
        lead(server, settings, tmp_path / "lead")
    assert len(server.jobs) == 1


def test_a_run_that_failed_is_resumed_while_the_server_still_clears_up(
    tmp_path: Path, quick: None
) -> None:
    settings, files = setting(tmp_path)
    consent = files["site-2"].with_name(CONSENT_FILE)
    text = consent.read_text()
    server = Server(tmp_path / "server", engines(files))
    withdraw(files["site-2"])
    with pytest.raises(EngineError, match="site-2"):
        lead(server, settings, tmp_path / "lead")
    consent.write_text(text)
    looks: list[str] = []

    def status(job: str) -> str:
        looks.append(job)
        return "RUNNING" if len(looks) < 4 else Server.status(server, job)

    def events(job: str, since: int) -> dict[str, Any] | None:
        return None if len(looks) < 4 else Server.events(server, job, since)

    server.status, server.events = status, events  # type: ignore[method-assign]
    assert lead(server, settings, tmp_path / "lead", resume=True).rounds == 2
    assert len(server.jobs) == 2


def test_who_is_not_there_is_named_before_anything_runs(tmp_path: Path) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    with pytest.raises(EngineError, match="not connected: west"):
        lead(server, settings, tmp_path / "lead", sites=["site-1", "west"])
    assert not server.jobs
    assert not (tmp_path / "lead").exists()


def test_a_run_begins_once_enough_of_its_sites_are_connected(tmp_path: Path) -> None:
    """All of them without `at_least`; under masks those that a sum covers, and no other later."""
    named = [f"site-{n}" for n in range(1, 6)]
    tiny_one = of_a_consortium(tiny(tmp_path))
    took: list[dict[str, Any]] = []

    class Takes(Server):
        def submit(self, folder: Path) -> str:
            took.append(json.loads((folder / "meta.json").read_text()))
            raise KeyboardInterrupt

    def begin(sums: str | None, at_least: int, there: int) -> tuple[int, int]:
        """How many sites the server waits for, of how many."""
        own = tiny_one.federation.model_copy(update={"sums": sums, "at_least": at_least})
        server = Takes(tmp_path / "server", iter(()))
        server.sites = named[:there]
        out, told = tmp_path / f"lead-{sums}-{at_least}-{there}", list[Event]()
        settings = tiny_one.model_copy(update={"federation": own})
        with pytest.raises(KeyboardInterrupt):
            lead(server, settings, out, sites=named, on_event=told.append)
        sites = took[-1]["deploy_map"]["app"][1:]
        missing = [event.message or "" for event in told if event.kind == "failed"]
        assert bool(missing) == (len(sites) < 5) and all("site-5: not c" in one for one in missing)
        return took[-1]["min_clients"], len(sites)

    assert begin("plain", 0, 5) == (5, 5)
    assert begin("plain", 2, 2) == (2, 5)
    assert begin(None, 3, 5) == (5, 5), "masked, as real sites are"
    assert begin("masked", 3, 4) == (4, 4)
    for sums, at_least, there in (("plain", 0, 4), ("plain", 3, 2), ("masked", 3, 3)):
        with pytest.raises(EngineError, match=r"not connected: .*site-5") as raised:
            begin(sums, at_least, there)
        least = {0: "", 3: "at least 3 of "}[at_least] if sums == "plain" else "at least 4 of "
        assert f"expected {least}site-1, site-2" in str(raised.value)


def test_a_folder_is_never_taken_twice_and_another_is_not_resumed(
    tmp_path: Path, quick: None
) -> None:
    settings, files = setting(tmp_path)
    server = Server(tmp_path / "server", engines(files))
    lead(server, settings, tmp_path / "lead")
    with pytest.raises(RunError, match="already a run in this folder"):
        lead(server, settings, tmp_path / "lead")
    (tmp_path / "lead" / RECORD).write_text("{}")
    with pytest.raises(RunError, match="not the folder of a run over real sites"):
        lead(server, settings, tmp_path / "lead", resume=True)
