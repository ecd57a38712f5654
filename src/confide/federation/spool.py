"""Blocks of bytes put aside: in memory so long as they are few, else in a private file.

The file is this process's alone: it has no name (POSIX), only its owner may read it, and it is gone
when the spool is closed or the process ends. Where it lies, `TMPDIR` says.
"""

from __future__ import annotations

import os
import tempfile
from types import TracebackType
from typing import Self

from confide.errors import RunError

IN_MEMORY = 64 * 2**20
"""Bytes that a spool keeps in memory."""


class Spool:
    """Bytes that are put aside one after the other, and read in any order.

    Raises RunError where the disk does not take them.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def put(self, data: bytes | memoryview) -> tuple[int, int]:
        """Put bytes aside; where they begin, and how many they are."""
        place = self._end
        try:
            self._file.seek(place)
            self._file.write(data)
        except OSError as error:
            raise RunError(
                f"the replies of a round could not be put aside ({error.strerror})",
                where=tempfile.gettempdir(),
                fix="make room there, or name another folder in TMPDIR, then resume",
            ) from error
        self._end = place + len(data)
        return place, len(data)

    def get(self, place: int, count: int) -> bytes:
        """So many bytes from a place on."""
        self._file.seek(place, os.SEEK_SET)
        found = self._file.read(count)
        if len(found) != count:
            raise RunError("bytes that were put aside are not there any more")
        return found

    def close(self) -> None:
        """Forget everything; a file is deleted."""
        self._file.close()
