"""One process at a time runs in a folder: a second is refused, and the first loses nothing."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide import files
from confide.errors import RunError
from confide.runs.folder import LOCK
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import result, same_run


@each("resume", [True, False])
def test_a_run_that_is_under_way_is_left_alone(tmp_path: Path, resume: bool) -> None:
    settings = tiny(tmp_path, "rounds=3")
    straight, out = tmp_path / "straight", tmp_path / "out"
    run(settings, out=straight)
    refused: list[RunError] = []

    def also(event: Any) -> None:
        if event.kind == "round" and event.round == 2:
            with pytest.raises(RunError) as caught:
                run(settings, out=out, resume=resume)
            refused.append(caught.value)

    run(settings, out=out, on_event=also)
    assert len(refused) == 1
    if resume:
        assert refused[0].what == "a run is under way in this folder"
        assert refused[0].got == f"process {os.getpid()}"
    same_run(straight, out)


def test_a_run_that_began_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    """Both saw an empty folder; the one that reads its text for longer must not begin again."""
    settings, out = tiny(tmp_path, "rounds=2"), tmp_path / "out"

    def first(event: Any) -> None:
        if event.kind == "start":
            run(settings, out=out)

    with pytest.raises(RunError, match="there is already a run in this folder"):
        run(settings, out=out, on_event=first)
    assert result(out)["rounds"] == 2


def test_the_folder_is_free_once_the_run_has_ended(tmp_path: Path) -> None:
    """Also after a failure, and after a process that was killed and left its number behind."""
    settings, out = tiny(tmp_path, "rounds=2"), tmp_path / "out"

    def fail(event: Any) -> None:
        if event.kind == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, out=out, on_event=fail)
    assert (out / LOCK).read_text() == ""
    (out / LOCK).write_text("4711")
    run(settings, out=out, resume=True)
    assert (out / LOCK).read_text() == ""
    assert (out / LOCK).stat().st_mode & 0o777 == 0o600


def test_a_disk_without_locks_can_hold_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so where a lock is needed."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert run(tiny(tmp_path, "rounds=1"), out=tmp_path / "out").result.rounds == 1
    with pytest.raises(OSError, match="not implemented"):
        files.lock(tmp_path / "lock")


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny(tmp_path, "rounds=1")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("confide.runs.folder.os.write", full)
        with pytest.raises(RunError, match="free some disk space"):
            run(settings, out=tmp_path / "out")
    assert run(settings, out=tmp_path / "out").result.rounds == 1


def test_a_lock_is_its_owners_and_ends_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = files.lock(path)
    assert first is not None and files.lock(path) is None
    assert path.stat().st_mode & 0o777 == 0o600
    first.close()
    again = files.lock(path)
    assert again is not None
    again.close()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    (out / LOCK).symlink_to(elsewhere)
    with pytest.raises(RunError, match="cannot be locked"):
        run(tiny(tmp_path, "rounds=1"), out=out)
    assert not elsewhere.exists()
