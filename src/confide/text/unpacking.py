"""The one limit on unpacking, for gzip, zip, tar and workbooks alike.

It is enforced while unpacking, so that a small file that holds a huge one costs neither memory nor
time: at most `MOST_BYTES` in all and, beyond `FREE` bytes, at most `MOST_TIMES` the packed size.
Text packs to about a seventh of its size, tables of tags to a fifth.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO

from confide.errors import FormatError
from confide.userfiles import size_in_words

MOST_BYTES = 1 << 29
"""The most bytes that a packed file, or all files of an archive together, may hold."""
MOST_TIMES = 32
"""How many times its own size a packed file may hold."""
FREE = 1 << 22
"""Up to this many bytes, any ratio is fine."""
GZIP = b"\x1f\x8b"
BROKEN = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, MemoryError, OverflowError)
"""The errors that unpacking libraries raise for damaged files."""
Stream = IO[bytes] | io.BufferedIOBase
_STREAMS: dict[bytes, tuple[str, Callable[[IO[bytes]], Stream]]] = {
    GZIP: ("gzip", lambda file: gzip.GzipFile(fileobj=file)),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ\0": ("xz", lzma.LZMAFile),
}
_CHUNK = 1 << 20


class Meter:
    """Counts what one packed file yields over all its parts; `packed` is its own size."""

    def __init__(self, where: str, packed: int) -> None:
        self._where = where
        self._most = min(MOST_BYTES, max(FREE, MOST_TIMES * packed))
        self._packed = packed
        self._left = self._most

    def chunks(self, stream: Stream, most: int = _CHUNK) -> Iterator[bytes]:
        """A stream's bytes, piece by piece. Raises FormatError at the limit."""
        while raw := stream.read(min(most, self._left + 1)):
            self._left -= len(raw)
            if self._left < 0:
                raise FormatError(
                    f"the packed file of {self._packed:,} bytes holds more than"
                    f" {size_in_words(self._most)}",
                    expected=f"at most {MOST_TIMES} times its own size, or {size_in_words(FREE)}"
                    f" where that is more, and {size_in_words(MOST_BYTES)} in all",
                    where=self._where,
                    fix="if it is text of yours, unpack it yourself and name what is in it",
                )
            yield raw

    def some(self, stream: Stream, most: int) -> bytes:
        """The next bytes of a stream, `most` at most. Raises FormatError at the limit."""
        return next(self.chunks(stream, most), b"")

    def read(self, stream: Stream) -> bytes:
        """All bytes of a stream. Raises FormatError at the limit."""
        return b"".join(self.chunks(stream))


class Metered(io.BufferedIOBase):
    """A stream that unpacks under a limit; reading past it raises FormatError."""

    def __init__(self, stream: Stream, meter: Meter) -> None:
        super().__init__()
        self._stream, self._meter = stream, meter

    def readable(self) -> bool:
        """Always true."""
        return True

    def read1(self, size: int | None = -1, /) -> bytes:
        """The next bytes."""
        return self._meter.some(self._stream, size if size and size > 0 else _CHUNK)

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes, sometimes fewer than `size`; empty only at the end."""
        return self.read1(size)


def unpacked(raw: bytes, where: str, *, only: bytes | None = None) -> bytes:
    """The unpacked bytes of a gzip, bzip2 or xz file; the bytes of any other file as they are.

    `only` restricts unpacking to files that begin with these bytes.

    Raises:
        FormatError: the file is damaged, or holds more than the limit.
    """
    mark = next((mark for mark in _STREAMS if raw.startswith(mark)), None)
    if mark is None or only not in (None, mark):
        return raw
    name, opens = _STREAMS[mark]
    try:
        with opens(io.BytesIO(raw)) as stream:
            return Meter(where, len(raw)).read(stream)
    except BROKEN as error:
        raise FormatError(f"the {name} file is damaged ({error})", where=where) from error
