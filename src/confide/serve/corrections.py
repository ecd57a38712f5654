"""Corrections on disk: one JSON Lines file for each annotator, safe from a crash at once.

A correction is a document in confide's own form, appended in one write and flushed to the disk
before it is answered. A later line of the same id replaces an earlier one. A crash can tear only
the last line, which nobody was told is saved; it is removed before the next is written.

Several servers may keep theirs in one folder, and a file may be put there meanwhile: whoever reads
or writes has the folder to itself, and reads a file again that has changed.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

from confide.errors import DataError, os_errors_as
from confide.federation.files import inside, is_regular, private_folder
from confide.text.document import Document
from confide.text.formats import FORMATS, read, write
from confide.text.formats.jsonl import record

ENDING = ".jsonl"
OF, AT = "of", "at"
"""Attributes of a corrected sentence: the id of its text, and the character at which it begins."""
EXPORTS = tuple(name for name, one in FORMATS.items() if one.write)


Mark = tuple[int, int, int] | None


class Corrections:
    """All corrections in a folder, which is made with the first, for its owner only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._turn = threading.Lock()
        self._held: dict[str, tuple[Mark, dict[str, Document]]] = {}

    def annotators(self) -> list[str]:
        """Who has corrected something."""
        if not self.folder.is_dir():
            return []
        files = (path for path in self.folder.iterdir() if path.name.endswith(ENDING))
        return sorted(path.name.removesuffix(ENDING) for path in files if is_regular(path))

    def of(self, annotator: str) -> dict[str, Document]:
        """An annotator's corrections by id, each as last saved. Raises DataError, FormatError."""
        if not self.folder.is_dir():
            return {}
        with self._alone():
            return dict(self._of(annotator))

    def save(self, annotator: str, document: Document, *, of: str = "", at: int = 0) -> int:
        """Keep a correction, whatever happens next; how many the annotator has now.

        A sentence begins at character `at` of the text with the id `of`; a whole text is of none.
        Raises DataError if it cannot be written: then nothing is kept.
        """
        when = datetime.now(UTC).isoformat(timespec="seconds")
        own = [("annotator", annotator), ("corrected", when)]
        place = [(OF, of), (AT, str(at))] if of else []
        kept = replace(document, attributes=(*own, *place))
        line = json.dumps(record(kept), ensure_ascii=False) + "\n"
        path = self._path(annotator)
        private_folder(self.folder)
        with self._alone():
            held = self._of(annotator)
            with os_errors_as(
                DataError, "the correction cannot be written", where=path, fix="make room"
            ):
                _append(path, line.encode())
            held[kept.id] = kept
            self._held[annotator] = _mark(path), held
            return len(held)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread, and no other server, has the folder. Raises DataError."""
        with self._turn, os_errors_as(DataError, "the folder is out of reach", where=self.folder):
            handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)

    def _path(self, annotator: str) -> Path:
        return inside(self.folder, annotator + ENDING)

    def _of(self, annotator: str) -> dict[str, Document]:
        path = self._path(annotator)
        mark, held = self._held.get(annotator, (None, {}))
        if mark is None or mark != _mark(path):
            if path.exists():
                _mend(path)
            there = path.exists() and path.stat().st_size > 0
            documents = read(path, "jsonl").documents if there else []
            held = {one.id: one for one in documents}
            self._held[annotator] = _mark(path), held
        return held


def place_of(document: Document) -> tuple[str, int] | None:
    """The id of the text that a corrected sentence is of, and where it begins; None if whole."""
    held = dict(document.attributes)
    of, at = held.get(OF, ""), held.get(AT, "")
    return (of, int(at)) if of and at.isdecimal() and len(at) < 13 else None


def settled(own: Mapping[str, Document]) -> dict[str, Document]:
    """Corrections without the sentences of texts that were corrected as a whole too."""
    return {
        id: one for id, one in own.items() if not ((place := place_of(one)) and place[0] in own)
    }


def _mark(path: Path) -> Mark:
    """What tells that a file was changed or replaced; None if it is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _mend(path: Path) -> None:
    """Make the file end with a whole line: complete its last one, or cut off what a crash tore."""
    raw = path.read_bytes()
    if not raw or raw.endswith(b"\n"):
        return
    start = raw.rfind(b"\n") + 1
    try:
        json.loads(raw[start:])
        _append(path, b"\n")
    except ValueError:
        with open(path, "r+b") as file:
            file.truncate(start)
            os.fsync(file.fileno())


def _append(path: Path, data: bytes) -> None:
    """Append in one write and flush to disk; if that fails, the file is as before."""
    new = not path.exists()
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        start = os.fstat(handle).st_size
        try:
            if os.write(handle, data) != len(data):
                raise OSError(28, "the disk is full")
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, start)
            raise
    finally:
        os.close(handle)
    if new:
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def exported(documents: Sequence[Document], format: str) -> tuple[bytes, str]:
    """The documents in a format, and how the file's name ends; a folder comes as a zip.

    Raises SettingsError: there is no such format, or none that is written.
    """
    with TemporaryDirectory(prefix="confide-") as folder:
        suffix = FORMATS[format].suffix if format in FORMATS else ""
        path = Path(folder) / f"corrections{suffix}"
        write(documents, path, format)
        if not path.is_dir():
            return path.read_bytes(), suffix or ".txt"
        packed = Path(folder) / "corrections.zip"
        with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
            for file in sorted(path.rglob("*")):
                archive.write(file, file.relative_to(path))
        return packed.read_bytes(), ".zip"
