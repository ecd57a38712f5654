"""Events that a run reports to its watcher: numbers and names only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened: "start", "ask", "reply", "failed", "round", "scores" or "end".

    In a federation of one site, a "round" names that site. `dev_f1` is an F1, or the number that
    `score` names, and `best_f1` the best so far; `dev` has the number of each kind of score,
    `dev_sites` the first kind of each site. The "start" says the `folder`, the "end" the scores on
    `test` text, if there is any.
    """

    kind: str
    round: int | None = None
    rounds: int | None = None
    site: str | None = None
    step: str | None = None
    loss: float | None = None
    dev_f1: float | None = None
    best_f1: float | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    seconds: float | None = None
    seconds_left: float | None = None
    message: str | None = None
    score: str | None = None
    dev: Mapping[str, float | None] | None = None
    dev_sites: Mapping[str, float | None] | None = None
    test: Mapping[str, float | None] | None = None
    test_sites: Mapping[str, float | None] | None = None
    folder: str | None = None


Watcher = Callable[[Event], None]


def unwatched(event: Event) -> None:
    """A watcher that ignores everything."""


def to_all(*watchers: Watcher) -> Watcher:
    """A watcher that tells several, one after the other."""

    def tell(event: Event) -> None:
        for watch in watchers:
            watch(event)

    return tell
