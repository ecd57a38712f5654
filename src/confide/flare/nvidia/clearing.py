"""What a server holds of runs, and the end of it: nothing goes that nobody named or that may go on.

Of each run there is its folder, `runs/RUN`, and the submissions of it that NVIDIA FLARE keeps in
`store/runs`, each with a name, how it ended, and what the lead can bring home.
"""

from __future__ import annotations

import datetime
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.errors import GuardError, KitError, printable
from confide.federation.files import inside
from confide.flare.kits.policies import STORE
from confide.flare.kits.startup import Kit
from confide.flare.kits.supervisor import lock
from confide.flare.nvidia.processes import lives
from confide.userfiles import bytes_of, json_of

RUNS = "runs"
_RESULT, _META, _ENDED = "result.json", "meta", "FINISHED"


@dataclass(frozen=True)
class Held:
    """What a server holds of one run.

    `over`: it came to its result, or never began; only then nobody can resume it. `last`: when
    anything of it was last written, in UTC. `folders` are all that is held, of `bytes` together.
    """

    run: str
    over: bool
    last: datetime.datetime
    bytes: int
    folders: tuple[Path, ...]


def held(kit: Kit) -> tuple[Held, ...]:
    """What the server of this kit holds, the oldest first. Raises KitError where it cannot look."""
    try:
        submissions = _submissions(kit)
        names = submissions.keys() | {path.name for path in _folders(kit.path / RUNS)}
        found = [_of(_own(kit, name), name, submissions[name]) for name in names]
    except OSError as error:
        raise KitError(
            f"what the server holds cannot be read ({error.strerror})", where=str(kit.path)
        ) from error
    return tuple(sorted(found, key=lambda one: (one.last, one.run)))


def chosen(
    found: Iterable[Held],
    *,
    older_than: float | None = None,
    runs: Sequence[str] = (),
    now: datetime.datetime | None = None,
) -> tuple[Held, ...]:
    """The runs that are over and older than so many days, and those that are named, over or not.

    Raises KitError where nothing is held of a name.
    """
    there = tuple(found)
    unknown = sorted(set(runs) - {one.run for one in there})
    if unknown:
        raise KitError("the server holds nothing of this run", got=unknown[0])
    since = (now or datetime.datetime.now(datetime.UTC)) - datetime.timedelta(days=older_than or 0)
    return tuple(
        one
        for one in there
        if one.run in runs or (older_than is not None and one.over and one.last < since)
    )


def delete(kit: Kit, those: Iterable[Held]) -> None:
    """Delete all that is held of these runs. Raises KitError: the server runs, or a disk refuses.

    A run's own folder goes last: what could not be deleted whole is still held, and can be again.
    """
    alone = lock(kit.path)
    if alone is None or lives(kit):
        raise KitError(
            "the server runs, and nothing is deleted below it",
            where=str(kit.path),
            fix="look that no run goes on (`confide server status`), stop it, and start it after",
        )
    with alone:
        for one in those:
            for folder in one.folders:
                try:
                    shutil.rmtree(folder)
                except OSError as error:
                    raise KitError(
                        f"{one.run} could not be deleted ({error.strerror})", where=str(folder)
                    ) from error


def _own(kit: Kit, name: str) -> Path | None:
    """The run's own folder; None where it has none, or a submission's name can be no folder's."""
    try:
        folder = inside(kit.path / RUNS, name)
    except GuardError:
        return None
    return folder if folder.is_dir() else None


def _of(folder: Path | None, name: str, submissions: Sequence[tuple[Path, str]]) -> Held:
    own = [folder] if folder else []
    folders = (*(path for path, _ in submissions), *own)
    files = [path.lstat() for one in folders for path in (one, *one.rglob("*"))]
    ended = all(status.startswith(_ENDED) for _, status in submissions)
    return Held(
        run=name,
        over=(folder / _RESULT).is_file() if folder else ended,
        last=datetime.datetime.fromtimestamp(max(one.st_mtime for one in files), datetime.UTC),
        bytes=sum(one.st_size for one in files),
        folders=folders,
    )


def _submissions(kit: Kit) -> defaultdict[str, list[tuple[Path, str]]]:
    """By the name of its run: where each submission lies, and how it stands."""
    found = defaultdict(list)
    for path in _folders(kit.path / STORE / RUNS):
        try:
            meta = json_of(bytes_of(path / _META))
            found[printable(meta["name"], 200)].append((path, str(meta["status"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is none that FLARE knows
    return found


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(one for one in path.iterdir() if one.is_dir() and not one.is_symlink())
