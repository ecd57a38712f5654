"""What an attack came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tally:
    inputs: int
    refused: int
    accepted: int
    slowest_seconds: float
    failures: tuple[str, ...]
