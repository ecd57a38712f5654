"""What the server tells the lead about a run under way: the events of the run, by number.

The lead asks for the events after the last one it has seen, and gets numbers and names only. It
checks what it hears before using it: a server may not be what it says it is.
"""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from dataclasses import asdict
from pathlib import Path

from confide.errors import ConfideError, printable
from confide.federation.events import Event
from confide.federation.files import write_of_run
from confide.userfiles import Tree

TOPIC = "confide"
OUTCOME = "outcome.json"
MOST_HEARD = 100_000
"""The most bytes of an outcome that are read."""
_KEPT = 2000
_AT_ONCE = 500
_TOLD = ("start", "failed", "round", "scores", "end")
_WHOLE = ("round", "rounds", "bytes_up", "bytes_down")
_NUMBERS = ("loss", "dev_f1", "best_f1", "seconds", "seconds_left")
_WORDS = ("site", "step", "message", "score")
_SCORES = ("dev",)
_HEARD = (*_WHOLE, *_NUMBERS, *_WORDS, *_SCORES)
"""What the lead is told of an event; the scores of single sites stay at the server."""
_MOST_SCORES = 32
_STATES = ("running", "finished", "failed")
_MOST = 10**15


class Bulletin:
    """A watcher that keeps the last events; other threads may ask it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[tuple[int, Tree]] = deque(maxlen=_KEPT)
        self._number = 0
        self._outcome = {"state": "running"}

    def __call__(self, event: Event) -> None:
        """Keep an event, unless it is a single ask or reply: there are too many of these."""
        if event.kind not in _TOLD:
            return
        with self._lock:
            self._number += 1
            all = asdict(event)
            found = {key: all[key] for key in ("kind", *_HEARD) if all[key] is not None}
            self._events.append((self._number, found))

    def since(self, number: int) -> Tree:
        """The events after that number, the number of the last one, and the state of the run."""
        with self._lock:
            later = [(at, event) for at, event in self._events if at > number][:_AT_ONCE]
            return {
                "events": [event for _, event in later],
                "last": later[-1][0] if later else number,
                **self._outcome,
            }

    def end(self) -> None:
        """Note that the run is finished."""
        with self._lock:
            self._outcome = {"state": "finished"}

    def fail(self, error: ConfideError) -> None:
        """Note why the run cannot continue; what the error says of a site is from a fixed list."""
        with self._lock:
            self._outcome = {"state": "failed", "kind": type(error).__name__, "why": str(error)}

    def write(self, folder: Path) -> None:
        """Write how the run ended into its folder. Raises RunError."""
        write_of_run(folder / OUTCOME, json.dumps(self._outcome, indent=1).encode())


def heard_event(told: object) -> Event | None:
    """An event as the server told it; None if it is not an event."""
    if not isinstance(told, dict) or told.get("kind") not in _TOLD:
        return None
    kept: Tree = {"kind": told["kind"]}
    for name, value in told.items():
        if name in _WORDS and isinstance(value, str):
            kept[name] = printable(value, 500)
        elif (name in _WHOLE and type(value) is int and abs(value) <= _MOST) or (
            name in _NUMBERS and type(value) in (int, float) and math.isfinite(value)
        ):
            kept[name] = value
        elif name in _SCORES and isinstance(value, dict):
            kept[name] = _scores(value)
    if kept["kind"] == "round" and not {"round", "rounds", "seconds", "bytes_up"} <= kept.keys():
        return None
    return Event(**kept)


def _scores(told: Tree) -> dict[str, float | None]:
    """Scores by kind, without what is none."""
    return {
        printable(kind, 100): score
        for kind, score in list(told.items())[:_MOST_SCORES]
        if score is None or (type(score) in (int, float) and math.isfinite(score))
    }


def heard_told(said: object, since: int) -> Tree | None:
    """A run's answer when asked for the events after number `since`; None if it makes no sense."""
    if not isinstance(said, dict) or not isinstance(said.get("events"), list):
        return None
    last = said.get("last")
    if type(last) is not int or not since <= last <= _MOST:
        return None
    return {"events": said["events"][:_AT_ONCE], "last": last, **_state(said)}


def heard_outcome(data: bytes) -> Tree:
    """How a run ended, from the file that the server left; empty if the file makes no sense."""
    try:
        said = json.loads(data[:MOST_HEARD])
    except (ValueError, RecursionError):
        return {}
    return _state(said) if isinstance(said, dict) else {}


def _state(said: Tree) -> Tree:
    if said.get("state") not in _STATES:
        return {}
    return {"state": said["state"]} | {
        key: printable(said[key], 2000) for key in ("kind", "why") if key in said
    }
