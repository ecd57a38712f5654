"""Times of several sides that are called in turn, so that a slow minute favours none of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def in_turn(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of processor time of each side, `repeats` times, after one that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, call in sides.items():
            started = time.process_time()
            call()
            if turn:
                times[name].append(time.process_time() - started)
    return times


def ratio(slower: list[float], faster: list[float]) -> float:
    """How many times as long the one took as the other, the median over turns."""
    return statistics.median(a / b for a, b in zip(slower, faster, strict=True))
