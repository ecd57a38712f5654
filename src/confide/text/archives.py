"""Files inside an archive, named like `corpus.zip!/folder/file`: read into memory, never unpacked.

The name of a zip or tar file (`.zip`, `.tar`, `.tar.gz`, `.tgz`) is followed by an exclamation mark
and the path inside. Only plain files count; names that lead out of the archive are ignored.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from confide.errors import (
    ConfideError,
    DataError,
    FormatError,
    MissingDataError,
    os_errors_as,
    printable,
)
from confide.text.unpacking import BROKEN, Meter, unpacked
from confide.userfiles import NotAFileError, TooLargeError, bytes_of

MARK = "!"
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
MOST_PACKED = 1 << 30
"""The largest archive, in bytes."""
_DIGITS = re.compile(rb"[0-9]++")
_LONGEST_NUMBER = 64
_BROKEN = (
    *BROKEN,
    zipfile.BadZipFile,
    tarfile.TarError,
    RuntimeError,  # a zip file with a password
    NotImplementedError,  # a way of packing that nobody here knows
    RecursionError,
)


def inside(path: Path) -> tuple[Path, PurePosixPath] | None:
    """The archive that a path leads into, and the path inside it; None if it leads into none.

    >>> archive, way = inside(Path("ddi/corpus.zip!/Train/a.xml"))
    >>> archive.as_posix(), str(way)
    ('ddi/corpus.zip', 'Train/a.xml')
    """
    for place, part in enumerate(path.parts):
        if part.endswith(MARK) and part[:-1].lower().endswith(SUFFIXES):
            archive = Path(*path.parts[:place], part[:-1])
            return archive, PurePosixPath(*path.parts[place + 1 :])
    return None


def _on_disk(path: Path) -> bool:
    """Whether the path exists; a name too long for a file does not."""
    try:
        return path.exists()
    except OSError:
        return False


def must_be_a_path(path: Path) -> None:
    """Raise DataError for a path that the system refuses, such as a name too long or a link loop.

    A path to nothing is fine.
    """
    with os_errors_as(
        DataError, "the path cannot be used", where=printable(path), fix="check the path"
    ):
        path.exists()


def is_folder(path: Path) -> bool:
    """Whether a path is a folder, on disk or in an archive."""
    place = inside(path)
    if place is None or _on_disk(path):
        return _on_disk(path) and path.is_dir()
    archive, way = place
    return any(way in file.parents for file in _files(archive))


def exists(path: Path) -> bool:
    """Whether there is such a file or folder, on disk or in an archive."""
    place = inside(path)
    if place is None or _on_disk(path):
        return _on_disk(path)
    archive, way = place
    return archive.is_file() and (is_folder(path) or way in _files(archive))


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder in an archive; empty if the folder is not in an archive."""
    place = inside(folder)
    if place is None:
        return
    archive, way = place
    for file in _files(archive):
        if way in file.parents:
            yield folder.joinpath(*file.relative_to(way).parts)


def read_member(path: Path) -> bytes | None:
    """The bytes of a file in an archive; None if the path does not lead into one.

    Raises:
        MissingDataError: there is no such archive, or no such file in it.
        FormatError: this is a folder, or the archive is damaged, locked or far too large.
        DataError: the system refuses to read it.
    """
    place = inside(path)
    if place is None or _on_disk(path):
        return None
    archive, way = place
    files = _files(archive)
    if way in files:
        return files[way]
    if is_folder(path):
        raise FormatError("a folder in an archive, not a file", where=str(path))
    raise MissingDataError(
        "there is no such file in the archive", where=str(path), fix="check the path after the !"
    )


def _files(archive: Path) -> Mapping[PurePosixPath, bytes]:
    """Every file of an archive by its path inside."""
    try:
        stamp = archive.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(
            "there is no such archive", where=str(archive), fix="check the path before the !"
        ) from error
    except OSError as error:
        raise DataError(f"the archive cannot be read ({error})", where=str(archive)) from error
    return _unpacked(archive, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=1)
def _unpacked(archive: Path, _modified: int, _size: int) -> Mapping[PurePosixPath, bytes]:
    """The files of an archive that has not changed since it was last read."""
    reader = zipped_files if archive.suffix.lower() == ".zip" else _tarred
    files: dict[PurePosixPath, bytes] = {}
    try:
        for name, raw in reader(bytes_of(archive, MOST_PACKED), str(archive)):
            way = PurePosixPath(name)
            if not way.is_absolute() and ".." not in way.parts:
                files[way] = raw
    except ConfideError:
        raise
    except (NotAFileError, TooLargeError) as error:
        raise FormatError(f"no archive, but {error.strerror}", where=str(archive)) from error
    except _BROKEN as error:
        raise FormatError(
            f"the archive cannot be unpacked ({error})",
            where=str(archive),
            fix="unpack it yourself and name what is in it",
        ) from error
    return files


class _Item(tarfile.TarInfo):
    """A file in a tar. Long runs of digits in its header could keep tarfile busy for hours."""

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        place = archive.fileobj.tell()
        head = archive.fileobj.read(self.size)
        archive.fileobj.seek(place)
        if any(len(digits) > _LONGEST_NUMBER for digits in _DIGITS.findall(head)):
            raise ValueError("a header with an impossible number")
        found: tarfile.TarInfo = super()._proc_pax(archive)  # type: ignore[misc]
        return found


def zipped_files(raw: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """The files of a zip. Raises FormatError at the limit, and zipfile's own errors for damage."""
    meter = Meter(where, len(raw))
    with zipfile.ZipFile(io.BytesIO(raw)) as opened:
        for item in opened.infolist():
            if not item.is_dir():
                with opened.open(item) as stream:
                    yield item.filename, meter.read(stream)


def _tarred(raw: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """The files of a tar, which is unpacked first, so that what tarfile skips is counted too."""
    whole = unpacked(raw, where)
    meter = Meter(where, max(len(raw), len(whole)))
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:", tarinfo=_Item) as opened:
        for item in opened:
            stream = opened.extractfile(item) if item.isreg() else None
            if stream is not None:
                with stream:
                    yield item.name, meter.read(stream)
