"""Files and folders: written whole or not at all, for their owner only, and only where they belong.

A name from elsewhere (a lead, a site, the engine) becomes a path in one way only: `plain_name`
checks the name, and `inside` makes the path.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from confide.errors import GuardError, RunError, os_errors_as
from confide.userfiles import taking_the_place_of

LONGEST_NAME = 100
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_PLAIN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


def plain_name(name: object, what: str) -> str:
    """The name, if it can name a file or folder and nothing else.

    `what` says what it names, for the error. Raises GuardError, which never repeats the name.
    """
    if type(name) is not str or not _PLAIN.fullmatch(name):
        raise GuardError(
            f"this is not the name of {what}",
            expected=f"a letter or digit, then up to {LONGEST_NAME - 1} letters, digits,"
            " '.', '_' or '-'",
            got=f"{len(name)} characters" if isinstance(name, str) else type(name).__name__,
        )
    return name


def inside(folder: Path, *names: str) -> Path:
    """The path of plain names below one of our own folders. Raises GuardError.

    No part of it below the folder may be a link, so it cannot lead out of the folder.
    """
    path = folder
    for name in names:
        path = path / plain_name(name, "a file or folder")
        if path.is_symlink():
            raise GuardError(
                "this is a link, and links are not followed here",
                expected="a file or folder",
                where=str(path),
            )
    return path


def is_regular(path: Path) -> bool:
    """Whether this is a file, and not a link, folder, pipe or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def write_of_run(path: Path, data: bytes) -> None:
    """Write a file of a run atomically. Raises RunError if it cannot be written."""
    with os_errors_as(
        RunError,
        f"{path.name} could not be written",
        where=path.parent,
        fix="free some disk space, then repeat the command; a run goes on with --resume",
    ):
        write_atomically(path, data)


def write_atomically(path: Path, *parts: bytes) -> None:
    """Write all parts beside `path`, flush to disk, rename. If that fails, the old file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with taking_the_place_of(path, path.with_name(path.name + ".tmp")) as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def lock(path: Path, *, needed: bool = True) -> IO[str] | None:
    """A file, made if there is none and locked while it is open; None if another has locked it.

    The lock ends with the process that holds it, however that ends. Unless it is `needed`, a file
    system without locks is none. Raises OSError if the file cannot be made or locked.
    """
    file = open(path, "a", opener=_private)  # noqa: SIM115 - open means locked
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not needed and error.errno in _NO_LOCKS:
            return file
        file.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return file


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextmanager
def for_the_owner() -> Iterator[None]:
    """Make all that this process creates inside its owner's alone: folders 0700, files 0600."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can open; an existing one is closed to others."""
    with for_the_owner():
        path.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        path.chmod(mode & ~0o077)
