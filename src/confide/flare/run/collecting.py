"""Which files of a run's folder travel: those that a run writes, by name, and nothing else.

The server copies them to where FLARE collects what the lead may download; the lead takes the same
files, and no others, from the download.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from confide.errors import GuardError
from confide.federation.files import for_the_owner, inside, is_regular
from confide.flare.run.events import OUTCOME
from confide.runs.folder import ALONE, CHECKPOINTS

RESULT = "result.json"
FILES = ("environment.json", "ledger.jsonl", OUTCOME, RESULT)
"""The files of a run, or of one site's part of it. The result comes last, since it marks the run as
finished. The settings do not travel: they are the lead's own."""
_CHECKPOINT = re.compile(r"round-\d{6}\.ckpt")


def carried(folder: Path) -> Iterator[tuple[str, ...]]:
    """The files of this run that travel, as names below the folder, the result last."""
    for site in _names(folder / ALONE):
        for file in _of_a_part(folder / ALONE / site):
            yield (ALONE, site, *file)
    yield from _of_a_part(folder)


def collect(folder: Path, into: Path) -> None:
    """Copy the files of a run that travel, readable by their owner only."""
    with for_the_owner():
        for names in carried(folder):
            _copy(inside(folder, *names), inside(into, *names))


def bring_home(source: Path, target: Path) -> None:
    """Copy a downloaded run into its folder, each file whole or not at all.

    Earlier checkpoints that the download lacks are deleted: the run keeps its last and its best.
    """
    new = set(carried(source))
    for names in carried(target):
        if CHECKPOINTS in names and names not in new and (source / Path(*names).parent).is_dir():
            inside(target, *names).unlink()
    collect(source, target)


def _of_a_part(folder: Path) -> Iterator[tuple[str, ...]]:
    for name in _names(folder / CHECKPOINTS):
        if _CHECKPOINT.fullmatch(name) and is_regular(folder / CHECKPOINTS / name):
            yield CHECKPOINTS, name
    yield from ((name,) for name in FILES if is_regular(folder / name))


def _names(folder: Path) -> list[str]:
    """The plain names in a folder; none if it is a link."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if _is_plain(folder, path.name))


def _is_plain(folder: Path, name: str) -> bool:
    try:
        inside(folder, name)
    except GuardError:
        return False
    return True


def _copy(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f"{place.name}.new")
    shutil.copyfile(path, fresh)
    fresh.replace(place)
