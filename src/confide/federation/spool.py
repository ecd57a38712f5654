"""Blocks of bytes put aside: in memory while they are few, then in a private file.

The file has no name (POSIX), only its owner may read it, and it is gone when the spool is closed or
the process ends. It lies in `TMPDIR`.
"""

from __future__ import annotations

import os
import tempfile

from confide.errors import RunError, os_errors_as

IN_MEMORY = 64 * 2**20
"""Bytes that a spool keeps in memory."""


class Spool:
    """Bytes that are put aside one after another, and read in any order. Close it after use."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115
        self._end = 0

    def put(self, data: bytes) -> tuple[int, int]:
        """Put bytes aside; where they begin, and how many. Raises RunError: the disk is full."""
        place = self._end
        with os_errors_as(
            RunError,
            "the replies of a round could not be put aside",
            where=tempfile.gettempdir(),
            fix="free some space there, or set TMPDIR to another folder, then resume",
        ):
            self._file.seek(place)
            self._file.write(data)
        self._end = place + len(data)
        return place, len(data)

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
