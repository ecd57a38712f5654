"""Joining what was found in the windows of long sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from confide.data.batches.encoding import Window


class FoundSpan(NamedTuple):
    """Tokens `start` to `end` of an example, and the probability that they are an entity."""

    start: int
    end: int
    type: str
    confidence: float


def joined(
    by_window: Sequence[Sequence[FoundSpan]],
    windows: Sequence[Window],
    *,
    examples: int,
    flat: bool = True,
) -> list[list[FoundSpan]]:
    """The spans of each example, in order of start and, if `flat`, without overlaps.

    `by_window` are those of each window, numbered by its own tokens. A span belongs to the window
    that owns its first token.
    """
    by_example: list[list[FoundSpan]] = [[] for _ in range(examples)]
    for window, found in zip(windows, by_window, strict=True):
        kept = by_example[window.example]
        for span in found:
            start, end = span.start + window.start, span.end + window.start
            free = not flat or not kept or kept[-1].end <= start
            if window.own_start <= start < window.own_end and free:
                kept.append(span._replace(start=start, end=end))
    return by_example
