"""Memory of a site, checkpoints of the server, and spools of bytes: all that stays on disk.

A site's memory is what it keeps for itself between steps, in a folder that it owns. It is never
sent.

Every change is a new version, named by the turn (round, step) that made it; a turn that changed
nothing leaves an empty mark. So a step that is asked again, or asked by a server that resumes from
an earlier round, finds the memory as it was before that turn and gives the same reply.

Versions of rounds after which the server keeps a checkpoint are written to the folder, whole or not
at all; those of the rounds between live in the process and end with it.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.errors import CheckpointError, MessageError, RunError, os_errors_as
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays, carries, class_of, decode_file, pieces
from confide.files import write_atomically


@dataclass(frozen=True)
class AskRecord:
    """The part of every memory that records its asks; `SiteHost` fills it in, and no step does.

    A step finds in its memory what the server gave the site in earlier asks. So that a server
    cannot give one site something else, the digests of these asks are part of what names each sum
    that no one may open (`confide.federation.secure`).
    """

    _: KW_ONLY
    given: dict[str, str] = carries(
        "digest of the newest ask of each step that was remembered", start=dict, before={}
    )


T = TypeVar("T")
_MEMORY_NAME = re.compile(r"^(\d{8})\.round-(\d{6,})\.(\w+)\.(memory|same)$")


def known(memory: T | None) -> T:
    """The memory, which the step needs. Raises Refusal if the site has none."""
    if memory is None:
        raise Refusal("memory-missing")
    return memory


@dataclass(slots=True)
class _Version(Generic[T]):
    """An answered turn, which made new memory or (`same`) left the memory as it was.

    `path` is None if the version lives only in the process; `held` is the memory, or None if only
    the file has it.
    """

    number: int
    round: int
    step: str
    same: bool
    path: Path | None
    held: T | None = None


class MemoryStore(Generic[T]):
    """Versioned memory of one site, for one run. `kind` is the method's `Memory` message.

    Every `every`-th round and round `last` are written to the folder.
    """

    def __init__(
        self, folder: Path, kind: type[T], *, every: int = 1, last: int | None = None
    ) -> None:
        self._folder = folder
        self._kind = kind
        self._every = every
        self._last = last
        self._known: list[_Version[T]] | None = None

    def before(self, round: int, step: str) -> T | None:
        """The memory as it was before this turn; None before the first version.

        Versions made by this turn or by later ones are dropped: they will be made again.
        """
        versions = self._versions()
        for place, version in enumerate(versions):
            if version.round > round or (version.round, version.step) == (round, step):
                for late in reversed(versions[place:]):
                    _delete(late)
                del versions[place:]
                break
        return self.latest()

    def after(self, round: int, step: str) -> bool:
        """Go back to the memory as this turn left it; False, and no change, if it is not there.

        Versions made by later turns are dropped: they will be made again.
        """
        versions = self._versions()
        for place, version in enumerate(versions):
            if (version.round, version.step) == (round, step):
                for late in reversed(versions[place + 1 :]):
                    _delete(late)
                del versions[place + 1 :]
                return True
        return False

    def as_of(self, round: int, step: str) -> T | None:
        """Read the memory as of this round and step, and drop nothing."""
        earlier = []
        for one in self._versions():
            if one.round > round or (one.round, one.step) == (round, step):
                break
            earlier.append(one)
        return self._newest(earlier)

    def commit(self, round: int, step: str, memory: T) -> None:
        """Keep `memory` as the version that this turn made; forget what no re-ask can need.

        Of a step that gives only a part of the memory, such as its form, the rest starts anew.
        """
        if isinstance(memory, AskRecord) and type(memory) is not class_of(self._kind):
            memory = class_of(self._kind)(**vars(memory))
        path = self._path(round, step, "memory")
        if path is not None:
            write_atomically(path, *pieces(memory))
        for older in self._versions():
            if older.path is not None:
                older.held = None  # its file has it
        self._add(_Version(self._number(), round, step, same=False, path=path, held=memory))

    def unchanged(self, round: int, step: str) -> None:
        """Note that this turn was answered and left the memory as it was."""
        path = self._path(round, step, "same")
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self._add(_Version(self._number(), round, step, same=True, path=path))

    def written(self) -> T | None:
        """The newest version in the folder, which an older confide may have written; or None."""
        paths = [one.path for one in self._versions() if one.path is not None and not one.same]
        return decode_file(self._kind, paths[-1].read_bytes()) if paths else None

    def latest(self) -> T | None:
        """The newest version, or None."""
        return self._newest(self._versions())

    def _newest(self, versions: Sequence[_Version[T]]) -> T | None:
        newest = next((version for version in reversed(versions) if not version.same), None)
        if newest is None:
            return None
        if newest.held is None:
            assert newest.path is not None, "a version is held here or in its file"
            newest.held = decode_file(self._kind, newest.path.read_bytes())
        return newest.held

    def _add(self, version: _Version[T]) -> None:
        """Append a version and forget those that no re-ask and no resuming server can need."""
        versions = self._versions()
        versions.append(version)
        since = version.round - 1
        written_since = version.round - self._every
        kept: list[_Version[T]] = []
        has_memory = has_file = False  # one older version of each sort is kept to start from
        for one in reversed(versions):
            needed = one.round >= (since if one.path is None else written_since)
            begins = not one.same and one.round < since and not has_memory
            begins_file = (
                not one.same and one.path is not None and one.round < written_since and not has_file
            )
            has_memory |= begins
            has_file |= begins_file
            if needed or begins or begins_file:
                kept.append(one)
            else:
                _delete(one)
        self._known = kept[::-1]

    def _path(self, round: int, step: str, kind: str) -> Path | None:
        """Where the version of a turn is written; None if it stays in the process."""
        if round % self._every and round != self._last:
            return None
        return self._folder / f"{self._number():08d}.round-{round:06d}.{step}.{kind}"

    def _number(self) -> int:
        versions = self._versions()
        return versions[-1].number + 1 if versions else 1

    def _versions(self) -> list[_Version[T]]:
        """All versions, oldest first; read from the folder once."""
        if self._known is None:
            self._known = []
            for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else []:
                found = _MEMORY_NAME.match(path.name)
                if found:
                    number, round, step, kind = found.groups()
                    self._known.append(
                        _Version(int(number), int(round), step, kind == "same", path)
                    )
        return self._known


def _delete(version: _Version[T]) -> None:
    if version.path is not None:
        version.path.unlink(missing_ok=True)


# --- Checkpoints
#
# The server needs them to continue after a crash: one file per round.
#
# A file is a line with the format, a line with the SHA-256 digest of the rest, and an encoded
# `Checkpoint`. It is written whole or not at all, and refused if its digest does not fit.


_MARK = b"confide checkpoint 1\n"
_CHECKPOINT_NAME = re.compile(r"^round-(\d{6})\.ckpt$")


@dataclass(frozen=True)
class Checkpoint:
    """The server's side of a run after a round. `state` is the method's encoded State.

    `next` is the state that the next round starts from, if it is another (`select.average`).
    """

    round: int = carries("the last round that is complete")
    state: NDArray[np.uint8] = carries("the method's encoded state, as bytes", legend="B")
    binding: str = carries("digest of the settings and of the data's fingerprint")
    progress: str = carries("JSON: history, best round, seconds, totals")
    ledger: int = carries("length of the ledger file in bytes")
    next: NDArray[np.uint8] = carries(
        "the encoded state that the next round starts from; empty if it is the same",
        legend="N",
        start=lambda: np.zeros(0, np.uint8),
    )
    left: Arrays = carries("what rounding the common weights has left out", start=dict)


class CheckpointStore:
    """The checkpoints of one run: the last two rounds, and the best."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, checkpoint: Checkpoint, *, best: int) -> None:
        """Write the checkpoint, then delete those that are neither recent nor of the best round.

        Raises CheckpointError if it cannot be written; older checkpoints stay.
        """
        data, digest = pieces(checkpoint), hashlib.sha256()
        for piece in data:
            digest.update(piece)
        path = self.path(checkpoint.round)
        try:
            write_atomically(path, _MARK, digest.hexdigest().encode(), b"\n", *data)
        except OSError as error:
            there = self.rounds()
            kept = f"; that of round {there[-1]} is safe" if there else ""
            raise CheckpointError(
                f"the checkpoint of round {checkpoint.round} could not be written"
                f" ({error.strerror}){kept}",
                where=str(path),
                fix="make room on the disk, then continue with --resume",
            ) from error
        self.prune(checkpoint.round, best=best)

    def prune(self, last: int, *, best: int) -> None:
        """Delete checkpoints that are neither of the last two rounds nor of the best."""
        for round in self.rounds():
            if round < last - 1 and round != best:
                self.path(round).unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint, ascending."""
        if not self.folder.is_dir():
            return []
        matches = (_CHECKPOINT_NAME.match(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def load(self, round: int) -> Checkpoint:
        """The checkpoint of a round. Raises CheckpointError: missing, damaged or changed."""
        path = self.path(round)
        try:
            raw = path.read_bytes()
        except OSError as error:
            rounds = ", ".join(map(str, self.rounds())) or "no round"
            raise CheckpointError(
                "there is no such checkpoint",
                expected=f"one of the rounds that have one: {rounds}",
                where=str(path),
            ) from error
        end = raw.find(b"\n", len(_MARK))
        digest, data = raw[len(_MARK) : end], memoryview(raw)[end + 1 :]
        if not raw.startswith(_MARK) or hashlib.sha256(data).hexdigest().encode() != digest:
            raise CheckpointError(
                "the checkpoint is damaged or was changed after it was written",
                where=str(path),
                fix="delete the file to continue from an older round, or start the run again",
            )
        try:
            return decode_file(Checkpoint, data)
        except MessageError as error:
            raise CheckpointError(
                "the checkpoint was written by another version of confide",
                where=str(path),
                fix="continue the run with that version, or start it again",
            ) from error

    def path(self, round: int) -> Path:
        """Where the checkpoint of a round lies."""
        return self.folder / f"round-{round:06d}.ckpt"


def as_array(data: bytes) -> NDArray[np.uint8]:
    """Bytes as an array, so that one message can hold another, encoded."""
    return np.frombuffer(data, dtype=np.uint8)


# --- Spools
#
# Blocks of bytes are put aside: in memory while they are few, then in a private file.
#
# The file has no name (POSIX), only its owner may read it, and it is gone when the spool is
# closed or the process ends. It lies in `TMPDIR`.


IN_MEMORY = 64 * 2**20
"""Bytes that a spool keeps in memory."""


class Spool:
    """Bytes that are put aside one after another, and read in any order. Close it after use."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115
        self._in_memory = in_memory
        self._end = 0

    def put(self, *parts: bytes | memoryview) -> tuple[int, int]:
        """Put bytes aside; where they begin, and how many. Raises RunError: the disk is full."""
        place, count = self._end, sum(map(len, parts))
        with os_errors_as(
            RunError,
            "the replies of a round could not be put aside",
            where=tempfile.gettempdir(),
            fix="free some space there, or set TMPDIR to another folder, then resume",
        ):
            if place + count > self._in_memory:
                self._file.rollover()  # before a large part is copied into memory, not after
            self._file.seek(place)
            for part in parts:
                self._file.write(part)
        self._end = place + count
        return place, count

    def get(self, place: int, count: int) -> bytes:
        """`count` bytes from `place` on. Raises RunError if they are gone."""
        self._file.seek(place, os.SEEK_SET)
        found = self._file.read(count)
        if len(found) != count:
            raise RunError(
                "replies that were put aside are no longer there",
                where=tempfile.gettempdir(),
                fix="see that nothing else deletes files there, then resume",
            )
        return found

    def close(self) -> None:
        """Forget everything; a file is deleted."""
        self._file.close()
