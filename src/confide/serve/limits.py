"""How much one caller may ask of the server, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes and characters, times in seconds.

    `waiting` counts the asks that wait for one model. A caller has `slow` seconds to send its body,
    and as long to take each piece of the answer.
    """

    body: int = 4 << 20
    characters: int = 100_000
    texts: int = 256
    waiting: int = 32
    connections: int = 128
    slow: float = 20.0
    pad: float = 0.02
    streams: int = 16
    pool: int = 20_000
    session: float = 12 * 3600.0


USUAL = Limits()
