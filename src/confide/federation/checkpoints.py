"""Checkpoints: what the server needs to continue after a crash, one file per round.

A file is a line with the format, a line with the SHA-256 digest of the rest, and an encoded
`Checkpoint`. It is written whole or not at all, and refused if its digest does not fit.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from confide.errors import CheckpointError, MessageError
from confide.federation.files import write_atomically
from confide.federation.messages import Arrays, carries, decode_file, encode

_MARK = b"confide checkpoint 1\n"
_NAME = re.compile(r"^round-(\d{6})\.ckpt$")


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
        data = encode(checkpoint)
        digest = hashlib.sha256(data).hexdigest().encode()
        path = self.path(checkpoint.round)
        try:
            write_atomically(path, _MARK, digest, b"\n", data)
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
        matches = (_NAME.match(path.name) for path in self.folder.iterdir())
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
        whole = end >= 0 and raw.startswith(_MARK)
        if not whole or hashlib.sha256(data).hexdigest().encode() != digest:
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
