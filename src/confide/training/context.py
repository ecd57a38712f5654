"""Contextual features on the site's disk: computed once per text, then mapped into memory.

A file's name is a digest of the encoder, the exact tokens and the sentence borders, so a different
encoder or text never finds it. It holds a header and the states as float16. Opening it reads all of
it once to compare its checksum (0.02 s for 200,000 words of 384 numbers from memory); a truncated
or changed file is made again.

**The features reveal much of their text.** Only their owner can read the files, which belong to the
site like the text itself.

Shapes: N tokens of all sentences, S sentences, L words of a sentence, X numbers of a state.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError
from confide.files import CACHE
from confide.training.batches import offsets
from confide.training.encoder import FrozenEncoder

Half = NDArray[np.float16]

_DTYPE = np.dtype("<f2")
_LARGEST = float(np.finfo(np.float16).max)
_HEADER = 512  # bytes
_ENDING, _UNFINISHED = ".context", ".unfinished"
_ABANDONED = 24 * 3600.0  # seconds after which an unfinished file is abandoned


def contextual(
    sentences: Sequence[Sequence[str]], encoder: FrozenEncoder, *, folder: Path | None
) -> tuple[Half, NDArray[np.int64]]:
    """states_NX of every token, read from `folder`, or computed and written there; and from_S1.

    Those of sentence `s` are `states_NX[from_S1[s]:from_S1[s + 1]]`. The array is read-only: index
    it by an array of positions, which copies the rows. Only one batch of states is in memory at a
    time. States are clipped to float16's range. With `folder=None` they stay in memory, for text
    that must leave no trace on the disk.

    Raises DataError if they cannot be written (then no partial file is left), and whatever
    `FrozenEncoder.states` raises.
    """
    from_S1 = offsets([len(sentence) for sentence in sentences])
    shape = (int(from_S1[-1]), encoder.dim)
    if not shape[0]:
        return _frozen(np.zeros(shape, _DTYPE)), from_S1
    blocks = (
        (int(from_S1[place]), np.clip(states_LX, -_LARGEST, _LARGEST).astype(_DTYPE))
        for place, states_LX in encoder.states(sentences)
    )
    key = _key(sentences, encoder)
    return kept_rows(key, shape, blocks, folder=folder, dtype=_DTYPE), from_S1


def kept_rows(
    key: str,
    shape: tuple[int, int],
    blocks: Iterable[tuple[int, NDArray[Any]]],
    *,
    folder: Path | None,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    """The rows that `blocks` makes, as (first row, rows), read from `folder` if they are there.

    They are read-only. `key` must name all that they depend on; a damaged file is made again. With
    `folder=None` they stay in memory. Raises DataError if they cannot be written, and whatever
    `blocks` raises.
    """
    if folder is None:
        rows_NX = np.zeros(shape, dtype)
        for start, block_LX in blocks:
            rows_NX[start : start + len(block_LX)] = block_LX
        return _frozen(rows_NX)
    file = _File(folder / f"{key}{_ENDING}", key, shape, dtype)
    with suppress(OSError, DataError):  # there is no such file, or it is damaged
        return _opened(file)
    try:
        _write(file, blocks)
        return _opened(file)
    except OSError as error:
        raise DataError(
            f"contextual features could not be kept ({error.strerror or error})",
            expected=f"room for {(_HEADER + file.bytes(shape[0])) / 1e6:.1f} MB",
            where=str(folder),
            fix=f"make room, or name a folder on another disk in ${CACHE}",
        ) from error


def _frozen(states_NX: NDArray[Any]) -> NDArray[Any]:
    states_NX.flags.writeable = False
    return states_NX


# --- the file -------------------------------------------------------------------------------


def _key(sentences: Sequence[Sequence[str]], encoder: FrozenEncoder) -> str:
    """A SHA-256 of the encoder's digest, the borders of sentences and tokens, and every token."""
    tokens = [token.encode("utf-8", "surrogatepass") for s in sentences for token in s]
    borders = np.array([len(sentences), *map(len, sentences), *map(len, tokens)], "<i8")
    digest = hashlib.sha256(f"confide context 1 {encoder.digest} ".encode())
    digest.update(borders.tobytes())
    digest.update(b"".join(tokens))
    return digest.hexdigest()


class _File(NamedTuple):
    """Where rows are kept, and what they are."""

    path: Path
    key: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]

    def header(self, checksum: int) -> bytes:
        """A header that is equal for equal data, so comparing it checks the file."""
        crc = f"{checksum:08x}"
        fields = {"key": self.key, "shape": self.shape, "dtype": self.dtype.str, "crc32": crc}
        return ("confide context 1\n" + json.dumps(fields)).ljust(_HEADER - 1).encode() + b"\n"

    def bytes(self, rows: int) -> int:
        """The size of N `rows`."""
        return rows * self.shape[1] * self.dtype.itemsize


def _opened(kept: _File) -> NDArray[Any]:
    """The states, mapped. Raises OSError, or DataError if the file is damaged."""
    path = kept.path
    with path.open("rb") as file:
        size, expected = os.fstat(file.fileno()).st_size, _HEADER + kept.bytes(kept.shape[0])
        if size != expected:
            raise DataError(f"{size} bytes instead of {expected}", where=str(path))
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = memoryview(mapped)
    if data[:_HEADER] != kept.header(zlib.crc32(data[_HEADER:])):
        raise DataError("changed since they were written", where=str(path))
    return np.frombuffer(data[_HEADER:], kept.dtype).reshape(kept.shape)


def _write(kept: _File, blocks: Iterable[tuple[int, NDArray[Any]]]) -> None:
    """Write the file whole or not at all, even if other processes write it at the same time."""
    path, key, shape = kept.path, kept.key, kept.shape
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(path.parent)
    handle, name = mkstemp(prefix=f"{key[:16]}.", suffix=_UNFINISHED, dir=path.parent)
    beside = Path(name)
    try:
        with open(handle, "w+b") as file:  # mkstemp made it readable only by its owner
            if hasattr(os, "posix_fallocate"):  # a full disk fails now, not after an hour
                os.posix_fallocate(handle, 0, _HEADER + kept.bytes(shape[0]))
            rows = 0
            for start, block_LX in blocks:
                file.seek(_HEADER + kept.bytes(start))
                file.write(np.ascontiguousarray(block_LX, kept.dtype).data)
                rows += len(block_LX)
            if rows != shape[0]:
                raise DataError(f"the encoder gave {rows} states for {shape[0]} tokens")
            checksum = _checksum(file)
            file.seek(0)
            file.write(kept.header(checksum))
            file.flush()
            os.fsync(handle)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _checksum(file: BinaryIO) -> int:
    checksum = 0
    file.seek(_HEADER)
    while chunk := file.read(1 << 20):
        checksum = zlib.crc32(chunk, checksum)
    return checksum


def _sweep(folder: Path) -> None:
    """Remove unfinished files of killed processes."""
    for path in folder.glob(f"*{_UNFINISHED}"):
        with suppress(OSError):  # another process may have removed it
            if time.time() - path.stat().st_mtime > _ABANDONED:
                path.unlink()
