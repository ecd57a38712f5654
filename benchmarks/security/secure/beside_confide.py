"""One mean under confide's masks, as numbers that a site has learnt: python beside_confide.py
SITES NUMBERS LOST. See `run.py beside`."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray
from run import SENT, Bare, opening_of
from vectors import report, run, vector

from confide.federation.messages import Learnt, carries
from confide.federation.secure.lanes import Lanes, layout_of
from confide.federation.secure.server import Exchange, SumAttempt, Summing
from confide.federation.steps import Step


@dataclass(frozen=True)
class Send:
    """Send your vector."""

    numbers: int = carries("how many numbers it has")


@dataclass(frozen=True)
class Sent:
    """A site's vector."""

    change_N: NDArray[np.float32] = carries(
        "its numbers",
        value=Learnt(shape=lambda ask: (ask.numbers,), weight="weight", weighting="any"),
    )
    weight: float = carries("how much it counts")


SEND = Step("bare", Send, Sent, lambda: (None, None), summed=True)


class Vectors(Bare):
    """Members that sum vectors of floating-point numbers.

    `most` is the most memory that is held outside of the sites, if it is traced.
    """

    def __init__(self, sites: int, numbers: int, lost: int) -> None:
        super().__init__(sites, 1, lost)
        self.ask = Send(numbers)
        self.layout = layout_of(SEND, self.ask, sites=sites, examples=0.0)
        self.most = 0
        self.drawing = 0.0

    def numbers_of(self, name: str) -> Lanes:
        """The site's vector in lanes, in the site's time; that of drawing it is nobody's."""
        before = time.process_time()
        sent = Sent(vector(list(self.members).index(name), self.ask.numbers), 1.0)
        start = time.process_time()
        self.drawing += start - before
        lanes = self.layout.lanes_of(SEND, self.ask, sent)
        self.seconds += time.process_time() - start
        return lanes

    def exchange(
        self, step: Step, asks: Mapping[str, Any], *, round: int, failed: Any
    ) -> Iterator[tuple[str, Any]]:
        """As without floating-point numbers; memory is looked at outside of the sites only."""
        replies = super().exchange(step, asks, round=round, failed=failed)
        while True:
            self.look()
            found = next(replies, None)
            if tracemalloc.is_tracing():
                tracemalloc.reset_peak()
            if found is None:
                return
            yield found

    def look(self) -> None:
        """Note the most memory since the last site's turn."""
        if tracemalloc.is_tracing():
            self.most = max(self.most, tracemalloc.get_traced_memory()[1])


def measure(sites: int, numbers: int, lost: int) -> None:
    """One mean: seconds of a site and of the server, bytes, error."""
    ring = Vectors(sites, numbers, lost)
    exchange = Exchange(1, ring.exchange, lambda fault: print(fault, file=sys.stderr))
    roster = Summing(run="bare", sites=list(ring.members))._greeted(exchange)
    ring.seconds = 0.0
    opening = opening_of(roster, sites)
    traced = sys.argv[4:5] == ["memory"]
    if traced:
        ring.counts = False
        tracemalloc.start()
    start = time.process_time()
    found = SumAttempt(exchange, SEND, opening, SENT, roster=roster, layout=ring.layout).sum(
        list(ring.members)
    )
    assert found is not None, "too many were lost"
    lanes, summed = found
    total, odd = ring.layout.total_of(SEND, ring.ask, lanes)
    assert not odd
    middle = total["change_N"]
    middle /= total["weight"]
    spent = time.process_time() - start
    extra: dict[str, object] = {}
    if traced:
        ring.look()
        tracemalloc.stop()
        extra["server_models"] = round(ring.most / (4 * numbers), 2)
    names = list(ring.members)
    report(
        middle, [names.index(name) for name in summed], numbers,
        library="confide", version=metadata.version("confide"),
        site_s=ring.seconds / sites, server_s=spent - ring.seconds - ring.drawing,
        up_bytes=sum(ring.up.values()) if not traced else None,
        **extra,
    )  # fmt: skip


if __name__ == "__main__":
    run(measure)
