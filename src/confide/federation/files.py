"""Writing a file so that it is there whole or not at all, or so that only its owner can read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confide.errors import RunError


def write_of_run(path: Path, data: bytes) -> None:
    """Write a file of a run atomically. Raises RunError where the disk does not take it."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise RunError(
            f"{path.name} could not be written ({error.strerror})",
            where=str(path.parent),
            fix="make room on the disk; a run goes on with --resume",
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside `path`, flush to the disk, rename. On failure the old file is untouched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".tmp")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextmanager
def for_the_owner() -> Iterator[None]:
    """What this process makes inside is its owner's alone: folders 0700, files 0600 (POSIX)."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can look into; one that is there is closed to others."""
    with for_the_owner():
        path.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        path.chmod(mode & ~0o077)
