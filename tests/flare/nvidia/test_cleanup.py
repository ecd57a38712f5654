"""What a server holds of runs goes when it is old and over, or named; nothing else does."""

from __future__ import annotations

import datetime
import json
import os
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.cli import sites
from confide.errors import KitError
from confide.flare.kit import Kit
from confide.flare.nvidia import processes
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.nvidia.processes import choose_runs, stored_runs

NOW = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def founded(tmp_path_factory) -> Kit:
    out = tmp_path_factory.mktemp("founded") / "trial"
    return create_consortium("trial", sites=["north"], host="localhost", out=out).kit("server")


def aged(path: Path, days: float) -> None:
    at = NOW.timestamp() - days * 86400
    for one in (*path.rglob("*"), path):
        os.utime(one, (at, at), follow_symlinks=False)


def folder_of(kit: Kit, run: str, *, over: bool, days: float) -> Path:
    path = kit.path / "runs" / run
    (path / "checkpoints").mkdir(parents=True)
    (path / "checkpoints/round-1.ckpt").write_bytes(b"w" * 1000)
    if over:
        (path / "result.json").write_text("{}")
    aged(path, days)
    return path


def submission(kit: Kit, run: str, status: str, *, days: float) -> Path:
    path = kit.path / "store/runs" / str(uuid.uuid4())
    path.mkdir(parents=True)
    (path / "meta").write_text(json.dumps({"name": run, "status": status}))
    (path / "workspace").write_bytes(b"w" * 500)
    aged(path, days)
    return path


@pytest.fixture
def kit(founded: Kit, tmp_path: Path) -> Kit:
    """A server's kit with an old run, an older one that broke off, a new one, and a refused one."""
    import dataclasses
    import shutil

    shutil.copytree(founded.path, tmp_path / "server")
    kit = dataclasses.replace(founded, path=tmp_path / "server")
    for run, over, days in (("old", True, 40), ("broken", False, 90), ("new", True, 2)):
        folder_of(kit, run, over=over, days=days)
        submission(kit, run, "FINISHED:COMPLETED", days=days)
    submission(kit, "old", "FINISHED:EXECUTION_EXCEPTION", days=41)
    submission(kit, "refused", "FINISHED:EXECUTION_EXCEPTION", days=50)
    submission(kit, "waiting", "SUBMITTED", days=60)
    (kit.path / "store/runs/stray").mkdir()
    (kit.path / "runs/note.txt").write_text("by hand")
    return kit


def names(found: tuple[processes.StoredRun, ...]) -> list[str]:
    return [one.run for one in found]


def test_what_is_held_of_each_run(kit: Kit) -> None:
    found = {one.run: one for one in stored_runs(kit)}
    assert names(stored_runs(kit)) == ["broken", "waiting", "refused", "old", "new"]
    assert {run for run, one in found.items() if one.over} == {"old", "new", "refused"}
    assert found["old"].last == NOW - datetime.timedelta(days=40)
    assert len(found["old"].folders) == 3 and found["old"].bytes > 2000


def test_only_what_is_over_goes_by_age_and_anything_by_name(kit: Kit) -> None:
    found = stored_runs(kit)
    assert choose_runs(found, now=NOW) == ()
    assert names(choose_runs(found, older_than=30, now=NOW)) == ["refused", "old"]
    assert names(choose_runs(found, older_than=0, now=NOW)) == ["refused", "old", "new"]
    assert names(choose_runs(found, runs=["broken"], now=NOW)) == ["broken"]
    assert names(choose_runs(found, older_than=45, runs=["waiting"], now=NOW)) == [
        "waiting",
        "refused",
    ]
    with pytest.raises(KitError, match="holds nothing of this run; got brok"):
        choose_runs(found, older_than=30, runs=["brok"])


def test_a_finished_run_that_went_on_is_not_old(kit: Kit) -> None:
    """Rounds can be added to a run that has a result."""
    (kit.path / "runs/old/checkpoints/round-2.ckpt").write_bytes(b"w")
    assert names(choose_runs(stored_runs(kit), older_than=30, now=NOW)) == ["refused"]


def test_what_was_chosen_goes_and_nothing_else(kit: Kit, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("text")
    (kit.path / "runs/link").symlink_to(outside)
    (kit.path / "runs/old/link").symlink_to(outside)
    aged(kit.path / "runs/old", 40)
    processes.delete_runs(kit, choose_runs(stored_runs(kit), older_than=30, now=NOW))
    assert names(stored_runs(kit)) == ["broken", "waiting", "new"]
    left = {path.name for path in (kit.path / "runs").iterdir()}
    assert left == {"broken", "new", "note.txt", "link"}
    assert len(list((kit.path / "store/runs").iterdir())) == 4
    assert (outside / "precious").read_text() == "text"
    assert kit.key.exists()


def test_nothing_is_deleted_below_a_server_that_runs(kit: Kit) -> None:
    running = processes.lock_kit(kit.path)
    assert running is not None
    with running, pytest.raises(KitError, match="the server is running"):
        processes.delete_runs(kit, stored_runs(kit))
    assert len(stored_runs(kit)) == 5


def test_the_verb_shows_before_it_deletes(kit: Kit) -> None:
    def said(*more: str) -> str:
        found = CliRunner().invoke(sites.server, ["tidy", str(kit.path), *more])
        assert found.exit_code == 0, found.output
        return found.stdout if "--json" in more else found.output

    assert "can be resumed" in said()
    assert "chosen" not in said()
    assert "with --delete" in said("--older-than", "30")
    listed = {one["run"]: one["chosen"] for one in json.loads(said("--run", "broken", "--json"))}
    assert [run for run, there in listed.items() if there] == ["broken"]
    assert len(stored_runs(kit)) == 5
    assert "deleted" in said("--run", "broken", "--delete")
    assert "broken" not in names(stored_runs(kit))


def test_a_server_that_never_ran_holds_nothing(founded: Kit) -> None:
    assert stored_runs(founded) == ()
