"""Writing a file so that it is there whole or not at all."""

from __future__ import annotations

import os
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
