"""A site's finished replies, kept on its disk until the server can no longer ask for them.

Where a process dies or a connection is cut, a round breaks, and is asked again from the last
checkpoint. A site that had finished its part sends it from its disk.

A kept reply answers the very ask that it was made for, in the same turn, and only while the site's
memory is as that turn left it (`MemoryStore.after`): it is then what the site would compute again.
Each is sealed with the site's identity key, together with a digest of all else that it was made
from, so nothing that was changed on the disk leaves. It goes with the first ask of a later round,
before which the server has made a checkpoint, and at the end of the run.

Under masks and noise nothing is kept. A site's numbers are never on its disk before they are
masked, and the masks' keys end with its process: that work is done again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from confide.federation.seals import int_bytes, is_signed_by, statement
from confide.files import decode_json, file_bytes, for_the_owner, write_atomically

if TYPE_CHECKING:  # slow to import, and prediction needs none
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

REPLIES = "replies"
"""Their folder in a site's run folder."""
MOST, ROOM = 64, 2 * 2**30
"""Files, and bytes in all; the oldest go first."""
_FORMAT = b"confide reply 1\n"
_HEADER = 1000
_NAME = re.compile(r"round-(\d{6,})\.\w+\.reply", re.ASCII)


class KeptReplies:
    """The kept replies of one run in a folder of its own.

    `key` is the site's identity key. `binding` is a digest of what replies depend on besides memory
    and ask: the run, its settings, the site's own limits, its text.
    """

    def __init__(self, folder: Path, key: Ed25519PrivateKey, *, binding: bytes) -> None:
        self._folder = folder
        self._key = key
        self._binding = binding

    def find(self, round: int, step: str, ask: bytes) -> bytes | None:
        """The reply that was kept for the ask of this digest (32 bytes); None if there is none."""
        path = self._path(round, step)
        try:
            raw = file_bytes(path, ROOM)
            end = raw.index(b"\n", len(_FORMAT), _HEADER)
            said = decode_json(raw[len(_FORMAT) : end])
            reply, asked, signature = raw[end + 1 :], said["ask"], said["signature"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        known = raw.startswith(_FORMAT) and asked == ask.hex()
        public = self._key.public_key().public_bytes_raw()
        said = self._said(round, step, ask, reply)
        return reply if known and is_signed_by(public, signature, said) else None

    def keep(self, round: int, step: str, ask: bytes, *, reply: bytes) -> None:
        """Keep a reply in place of an earlier one of this turn. A disk without room keeps none."""
        if len(reply) >= ROOM:
            return
        said = self._said(round, step, ask, reply)
        header = {"ask": ask.hex(), "signature": self._key.sign(said).hex()}
        with contextlib.suppress(OSError), for_the_owner():
            write_atomically(
                self._path(round, step), _FORMAT, json.dumps(header).encode(), b"\n", reply
            )
            left = ROOM
            for number, (*_, path) in enumerate(sorted(self._files(), reverse=True)):
                left -= path.stat().st_size
                if number >= MOST or left < 0:
                    path.unlink()

    def drop(self, round: int, step: str) -> None:
        """Forget the reply of this turn: the turn is computed anew."""
        self._path(round, step).unlink(missing_ok=True)

    def drop_up_to(self, round: int) -> None:
        """Forget the replies of rounds up to this one: the server has a checkpoint after it."""
        for number, _, path in self._files():
            if number <= round:
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget all replies: the run is over."""
        for *_, path in self._files():
            path.unlink(missing_ok=True)

    def _path(self, round: int, step: str) -> Path:
        return self._folder / f"round-{round:06d}.{step}.reply"

    def _files(self) -> list[tuple[int, int, Path]]:
        """The round of each file, when it was written, and its path."""
        there = self._folder.iterdir() if self._folder.is_dir() else ()
        named = [(_NAME.fullmatch(path.name), path) for path in there]
        return [(int(one[1]), path.stat().st_mtime_ns, path) for one, path in named if one]

    def _said(self, round: int, step: str, ask: bytes, reply: bytes) -> bytes:
        digest = hashlib.sha256(reply).digest()
        return statement("kept-reply", self._binding, int_bytes(round), step.encode(), ask, digest)
