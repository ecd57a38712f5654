"""Cleanup of runs at a server: only runs that are over, or that are named.

Each run has its folder, `runs/RUN`, and its submissions, which NVIDIA FLARE keeps in `store/runs`,
each with a name, its outcome, and what the lead can download.
"""

from __future__ import annotations

import datetime
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.errors import GuardError, KitError, os_errors_as, printable
from confide.files import decode_json, file_bytes, path_inside
from confide.flare.kit import STORE, Kit
from confide.flare.nvidia.processes import lives, lock_kit

RUNS = "runs"
_RESULT, _META, _ENDED = "result.json", "meta", "FINISHED"


@dataclass(frozen=True)
class StoredRun:
    """One run that a server holds.

    `over`: it has a result or never began, so it cannot be resumed. `last`: when anything of it was
    last written, in UTC. `folders`: everything that is held, `bytes` in all.
    """

    run: str
    over: bool
    last: datetime.datetime
    bytes: int
    folders: tuple[Path, ...]


def stored_runs(kit: Kit) -> tuple[StoredRun, ...]:
    """List the runs that this kit's server holds, the oldest first. Raises KitError: unreadable."""
    with os_errors_as(
        KitError,
        "the server's runs cannot be read",
        where=kit.path,
        fix="run the command as the user that runs the server",
    ):
        submissions = _submissions(kit)
        names = submissions.keys() | {path.name for path in _folders(kit.path / RUNS)}
        found = [_of(_own(kit, name), name, submissions[name]) for name in names]
    return tuple(sorted(found, key=lambda one: (one.last, one.run)))


def choose_runs(
    found: Iterable[StoredRun],
    *,
    older_than: float | None = None,
    runs: Sequence[str] = (),
    now: datetime.datetime | None = None,
) -> tuple[StoredRun, ...]:
    """The runs that are over and older than `days`, and the named ones, over or not.

    Raises KitError if the server holds no run of a given name.
    """
    there = tuple(found)
    unknown = sorted(set(runs) - {one.run for one in there})
    if unknown:
        raise KitError(
            "the server holds nothing of this run",
            got=unknown[0],
            fix="`confide server tidy` lists what it holds",
        )
    since = (now or datetime.datetime.now(datetime.UTC)) - datetime.timedelta(days=older_than or 0)
    return tuple(
        one
        for one in there
        if one.run in runs or (older_than is not None and one.over and one.last < since)
    )


def delete_runs(kit: Kit, those: Iterable[StoredRun]) -> None:
    """Delete everything that is held of these runs.

    A run's own folder goes last, so a run that could not be deleted completely is still listed.
    Raises KitError if the server is running or a folder cannot be deleted.
    """
    alone = lock_kit(kit.path)
    if alone is None or lives(kit):
        raise KitError(
            "the server is running, and nothing is deleted under a running server",
            where=str(kit.path),
            fix="see that no run is under way (`confide server status`), then stop the server",
        )
    with alone:
        for one in those:
            for folder in one.folders:
                with os_errors_as(KitError, f"{one.run} could not be deleted", where=folder):
                    shutil.rmtree(folder)


def _own(kit: Kit, name: str) -> Path | None:
    """The run's own folder; None if it has none, or if a submission's name is not a safe one."""
    try:
        folder = path_inside(kit.path / RUNS, name)
    except GuardError:
        return None
    return folder if folder.is_dir() else None


def _of(folder: Path | None, name: str, submissions: Sequence[tuple[Path, str]]) -> StoredRun:
    own = [folder] if folder else []
    folders = (*(path for path, _ in submissions), *own)
    files = [path.lstat() for one in folders for path in (one, *one.rglob("*"))]
    ended = all(status.startswith(_ENDED) for _, status in submissions)
    return StoredRun(
        run=name,
        over=(folder / _RESULT).is_file() if folder else ended,
        last=datetime.datetime.fromtimestamp(max(one.st_mtime for one in files), datetime.UTC),
        bytes=sum(one.st_size for one in files),
        folders=folders,
    )


def _submissions(kit: Kit) -> defaultdict[str, list[tuple[Path, str]]]:
    """For each run, the folder and status of its submissions."""
    found = defaultdict(list)
    for path in _folders(kit.path / STORE / RUNS):
        try:
            meta = decode_json(file_bytes(path / _META))
            found[printable(meta["name"], 200)].append((path, str(meta["status"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # FLARE does not know this submission either
    return found


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(one for one in path.iterdir() if one.is_dir() and not one.is_symlink())
