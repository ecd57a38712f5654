"""Files and folders: what is read is regular and within a limit, what is written is whole.

Of the files that a user names, only regular ones are opened, and only up to a limit.

Reading a named pipe could wait for ever, and a device never ends; both are refused before a byte is
read. This module also lists the encodings that text may have: those that decode in time
proportional to the bytes.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from confide.errors import ConfideError, GuardError, RunError, os_errors_as, printable

Tree = dict[str, Any]
"""A JSON object or a TOML table as it was parsed: nobody has checked its values yet."""

MOST_SMALL = 1 << 20
"""The most bytes of a file that a person writes or that describes others: settings, keys, kits."""
MOST_JSON = 1 << 26
"""The most bytes of a JSON file that comes with a model: a configuration, a tokenizer."""
DEEPEST = 64
"""The deepest nesting of lists and objects in JSON, and of elements in XML."""
ENCODINGS = frozenset((
    "ascii", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le",
    "utf-32-be", *(f"iso8859-{part}" for part in range(1, 17) if part != 12),
    *(f"cp125{part}" for part in range(9)), "cp437", "cp850", "cp852", "cp866", "cp874", "cp932",
    "cp949", "cp950", "koi8-r", "koi8-u", "mac-roman", "tis-620", "big5", "gb2312", "gbk",
    "gb18030", "euc_jp", "euc_kr", "shift_jis",
))  # fmt: skip
"""The encodings that text may have, by Python's names for them."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:-]{0,39}")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


_JUST_NOW = 2.0
"""Seconds within which two changes of a file may have the same time."""
_DIGESTS: dict[tuple[int, ...], str] = {}
"""The digests of files, by what changes with them."""


class NotAFileError(OSError):
    """The path leads to something other than a regular file; `strerror` says to what."""


class TooLargeError(OSError):
    """A file is larger than its kind may be; `strerror` gives the limit."""


def open_regular(path: Path) -> BufferedReader:
    """A regular file, open for reading.

    It is checked before it is opened, so that no device is touched, and again once it is open.

    Raises:
        NotAFileError: a folder, a named pipe, a device or a socket.
        OSError: as `open` does; ValueError for a path with a NUL character.
    """
    _must_be_regular(path.stat().st_mode, path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _must_be_regular(os.fstat(handle).st_mode, path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _must_be_regular(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise NotAFileError(number, f"{kind}, not a file", str(path))


def must_be_files(paths: Iterable[Path]) -> None:
    """Raise NotAFileError for the first of these that exists and is not a regular file.

    For libraries that open files by themselves; a missing file is left to them.
    """
    for path in paths:
        if path.exists():
            _must_be_regular(path.stat().st_mode, path)


def file_bytes(path: Path, most: int = MOST_SMALL) -> bytes:
    """The bytes of a regular file.

    Raises:
        NotAFileError: as `open_regular` does.
        TooLargeError: the file has more than `most` bytes.
        OSError, ValueError: as `open` does.
    """
    with open_regular(path) as file:
        raw = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if raw is None or len(raw) > most:
        raise TooLargeError(errno.EFBIG, f"larger than {size_in_words(most)}", str(path))
    return raw


def file_text(path: Path, most: int = MOST_SMALL, *, encoding: str = "utf-8") -> str:
    """The text of a regular file. Raises UnicodeDecodeError, and as `file_bytes` does."""
    return file_bytes(path, most).decode(encoding)


def stamp_of(path: Path) -> tuple[int, ...]:
    """A stamp that changes whenever the file is written or replaced; () if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def sha256_of(path: Path) -> str:
    """SHA-256 of a regular file, as 64 hexadecimal digits; hashed again only when it has changed.

    A file that was changed just now is always hashed: its time may not tell the next change. Raises
    NotAFileError, OSError.
    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        mark = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        known = _DIGESTS.get(mark)
        if known is None or time.time() - found.st_ctime < _JUST_NOW:
            known = _DIGESTS[mark] = hashlib.file_digest(file, "sha256").hexdigest()
    return known


def odd_file(folder: Path, files: Mapping[str, str]) -> str | None:
    """The first of these files that is not there with its SHA-256; None if all are."""
    for name, digest in files.items():
        try:
            if sha256_of(folder / name) != digest:
                return name
        except OSError:
            return name
    return None


def decode_json(text: str | bytes, *, parse_constant: Callable[[str], object] | None = None) -> Any:
    """The value of a JSON text whose lists and objects are nested at most `DEEPEST` deep.

    `parse_constant` makes the values of NaN and Infinity, as in `json.loads`. Raises ValueError if
    the text is not JSON, or nested deeper.
    """
    try:
        if isinstance(text, str) and text[:1] != "\ufeff":
            value = _decoder(parse_constant).decode(text)
            if text.count("[") + text.count("{") <= DEEPEST:
                return value
        else:
            value = json.loads(text, parse_constant=parse_constant)
    except RecursionError as error:
        raise _too_deep() from error
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        if not level:
            return value
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    raise _too_deep()


def must_not_be_newer(
    schema: int, known: int, *, kind: type[ConfideError], what: str, where: object = None
) -> None:
    """Raise an error of a `kind` if a file has a schema that only a newer version understands."""
    if schema > known:
        raise kind(
            f"a newer confide wrote {what}",
            expected=f"schema {known} or older",
            got=printable(f"schema {schema}", 40),
            where=None if where is None else str(where),
            fix="upgrade confide, or read it with the version that wrote it",
        )


@lru_cache(maxsize=8)
def _decoder(parse_constant: Callable[[str], object] | None) -> json.JSONDecoder:
    """Make the decoder that `json.loads` makes anew for every text."""
    return json.JSONDecoder(parse_constant=parse_constant)


def _too_deep() -> ValueError:
    return ValueError(f"nested deeper than {DEEPEST}")


def known_encoding(name: str) -> str | None:
    """Python's name of an encoding; None if it is not one of `ENCODINGS`.

    >>> known_encoding("Windows-1252"), known_encoding("punycode")
    ('cp1252', None)
    """
    if not _NAME.fullmatch(name):
        return None
    try:
        found = codecs.lookup(name).name
    except LookupError:
        return None
    return found if found in ENCODINGS else None


def size_in_words(count: int) -> str:
    """A number of bytes in words.

    >>> size_in_words(1 << 20), size_in_words(1 << 31), size_in_words(100)
    ('1 MiB', '2 GiB', '100 bytes')
    """
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift:
            return f"{count >> shift} {unit}"
    return f"{count} bytes"


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file of the user's completely or not at all; what was there stays until then.

    `data` may come in parts, which are not all held at once. Makes missing folders, and keeps the
    permissions of a file that is there. A link stays a link. What is no file (such as /dev/stdout)
    is written as it is. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            _write(device, data)
        return
    path = path.resolve()
    with taking_the_place_of(path, path.with_name(f".{path.name}.new"), mode=0o600) as file:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask()
        os.fchmod(file.fileno(), mode)
        _write(file, data)


@contextmanager
def taking_the_place_of(path: Path, fresh: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A new file `fresh`, which becomes `path` when the block ends; if that fails, it is gone.

    Of two processes that write one path at once, the second waits for the first, where the file
    system has locks. Raises OSError.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)  # waits for no pipe

    while True:
        file = open(fresh, "ab", opener=opener)  # noqa: SIM115 - open means locked
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(fresh, file):
            break
        file.close()  # while we waited, another process made this very file its own `path`
    with file:
        try:
            file.truncate(0)
            yield file
            file.flush()
            fresh.replace(path)
        except BaseException:
            if _is_at(fresh, file):
                fresh.unlink()
            raise


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """Return whether this open file is what lies there."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _write(file: IO[bytes], data: bytes | Iterable[bytes]) -> None:
    file.writelines((data,) if isinstance(data, bytes) else data)


def _umask() -> int:
    """Which permissions new files do not get."""
    now = os.umask(0o077)
    os.umask(now)
    return now


# --- Files and folders
#
# Written whole or not at all, for their owner only, and only where they belong.
#
# A name from elsewhere (a lead, a site, the engine) becomes a path in one way only: `plain_name`
# checks the name, and `path_inside` makes the path.


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


def plain_names(names: Iterable[object]) -> list[str]:
    """Those of the names that `plain_name` takes, in their order."""
    return [name for name in names if type(name) is str and _PLAIN.fullmatch(name)]


def path_inside(folder: Path, *names: str) -> Path:
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
    """Return whether this is a file, and not a link, folder, pipe or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


CACHE = "CONFIDE_CACHE"
"""The variable that names the folder of what can be computed or downloaded again."""


def cache_folder() -> Path:
    """The folder of what can be computed or downloaded again.

    This is `$CONFIDE_CACHE`, else `$XDG_CACHE_HOME/confide`, else `~/.cache/confide`.
    """
    if own := os.environ.get(CACHE):
        return Path(own).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "confide"


def write_of_run(path: Path, data: bytes) -> None:
    """Write a file of a run atomically. Raises RunError if it cannot be written."""
    with os_errors_as(
        RunError,
        f"{path.name} could not be written",
        where=path.parent,
        fix="free some disk space, then repeat the command; a run goes on with --resume",
    ):
        write_atomically(path, data)


def write_atomically(path: Path, *parts: bytes | memoryview) -> None:
    """Write all parts beside `path`, flush to disk, rename. If that fails, the old file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with taking_the_place_of(path, path.with_name(path.name + ".tmp")) as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def write_once(data: bytes, *paths: Path) -> bool:
    """Write new files of one folder, whole, flushed to disk and their owner's; ones there stay.

    They are made in turn, up to the first that holds something else; returns whether none does. Of
    two processes that write one path at once, one wins. Raises OSError.
    """
    folder = paths[0].parent
    fresh = folder / f".{secrets.token_hex(8)}"
    try:
        for path in paths:
            if not path.exists():
                if not fresh.exists():
                    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                    new = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                    with open(new, "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(fresh, path)
            if path.read_bytes() != data:
                return False
    finally:
        fresh.unlink(missing_ok=True)
    return True


def append_durably(path: Path, data: bytes) -> None:
    """Append to its owner's file in one write and flush to disk; if that fails, it is as before."""
    new = not path.exists()
    with open(path, "ab", buffering=0, opener=_private) as file:
        start = file.seek(0, os.SEEK_END)
        try:
            if os.write(file.fileno(), data) != len(data):
                raise OSError(errno.ENOSPC, "the disk is full")
            os.fsync(file.fileno())
        except OSError:
            file.truncate(start)
            raise
    if new:
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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
