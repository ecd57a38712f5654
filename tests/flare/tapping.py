"""What the processes of a consortium give to TLS and get from it: every frame, and canaries in it.

A proxy would see nothing, since the wire is encrypted; so each process is started with `wiretap/`
on its path, which keeps the frames just before they are encrypted.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from test_canary import sightings

PACKED = re.compile(b"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08|PK\x03\x04")
"""How zlib, gzip and a part of a zip archive begin."""
EVERY = ("up", "down", "local")


class Tap:
    """What the processes have kept; the same frame is looked at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._looked: dict[Path, int] = {}

    def new(self, *whats: str, kit: str = "*") -> list[bytes]:
        """The frames of a kit since the last look; one that is just being written comes later."""
        found: list[bytes] = []
        for path in [path for what in whats for path in self.folder.glob(f"{kit}-*.{what}")]:
            with open(path, "rb") as file:
                file.seek(self._looked.get(path, 0))
                frames = frames_in(file.read())
            self._looked[path] = self._looked.get(path, 0) + sum(8 + len(one) for one in frames)
            found += frames
        return found


def frames_in(data: bytes) -> list[bytes]:
    """The whole frames in what a process has kept."""
    start, found = 0, []
    while start + 8 <= len(data):
        end = start + 8 + int.from_bytes(data[start : start + 8], "big")
        if end > len(data):
            break
        found.append(data[start + 8 : end])
        start = end
    return found


def unpacked(data: bytes) -> Iterator[bytes]:
    """What is compressed somewhere in these bytes."""
    for match in PACKED.finditer(data):
        start, kind = match.start(), match.group()
        if kind[:2] == b"PK":
            names, extra = (
                int.from_bytes(data[start + n : start + n + 2], "little") for n in (26, 28)
            )
            start, bits = start + 30 + names + extra, -15
        else:
            bits = 47 if kind[0] == 0x1F else 15
        try:
            plain = zlib.decompressobj(bits).decompress(memoryview(data)[start:])
        except zlib.error:
            continue
        if plain:
            yield plain


def seen(frames: list[bytes]) -> list[str]:
    """The canaries in frames, also where two frames of one message meet, and in what is packed."""
    whole = b"".join(frames)
    return sorted(
        {*sightings(whole), *(name for part in unpacked(whole) for name in sightings(part))}
    )


def in_frames(text: str, found: list[bytes]) -> bool:
    return any(text.encode() in frame for frame in found)
