"""What the server tells the lead of a run that goes on: the events of the run, by number.

The lead asks for those since the last one that it has seen. Numbers and names only.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from confide.errors import ConfideError
from confide.federation.events import Event
from confide.federation.files import write_of_run

TOPIC = "confide"
OUTCOME = "outcome.json"
_KEPT = 2000
_AT_ONCE = 500
_TOLD = ("start", "failed", "round", "scores", "end")


class Bulletin:
    """A watcher that keeps the last events; safe to ask from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_KEPT)
        self._number = 0
        self._outcome: dict[str, Any] = {"state": "running"}

    def __call__(self, event: Event) -> None:
        """Keep an event; single asks and replies are too many to tell."""
        if event.kind not in _TOLD:
            return
        with self._lock:
            self._number += 1
            found = {key: value for key, value in asdict(event).items() if value is not None}
            self._events.append((self._number, found))

    def since(self, number: int) -> dict[str, Any]:
        """The events after that number, the number of the last, and how the run stands."""
        with self._lock:
            later = [(at, event) for at, event in self._events if at > number][:_AT_ONCE]
            return {
                "events": [event for _, event in later],
                "last": later[-1][0] if later else number,
                **self._outcome,
            }

    def end(self) -> None:
        """The run is finished."""
        with self._lock:
            self._outcome = {"state": "finished"}

    def fail(self, error: ConfideError) -> None:
        """The run cannot go on, and why; what is said of a site is from a fixed list."""
        with self._lock:
            self._outcome = {"state": "failed", "kind": type(error).__name__, "why": str(error)}

    def write(self, folder: Path) -> None:
        """Keep how it ended with the run."""
        write_of_run(folder / OUTCOME, json.dumps(self._outcome, indent=1).encode())
