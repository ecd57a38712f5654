"""One JSON object per line for each event. docs/logging.md describes its keys."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from confide.errors import SettingsError, os_errors_as
from confide.federation.events import Event
from confide.files import Tree

SCHEMA = 1
NAME = "events.jsonl"

_NUMBERS = (
    "round", "rounds", "site", "step", "loss", "bytes_up", "bytes_down", "seconds", "seconds_left",
    "dev", "dev_sites", "test", "test_sites",
)  # fmt: skip


class JsonLines:
    """A file to which a line is added for each event."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, event: Event) -> None:
        """Add a line, and let readers see it at once."""
        self._file.write(json.dumps(line(event, time.time()), separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self, *, whole: bool) -> None:
        """Close the file."""
        self._file.close()


def line(event: Event, now: float) -> Tree:
    """Make one line. Only a failure has a message: the code's words, never a site's text."""
    found: Tree = {
        "schema": SCHEMA,
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "event": event.kind,
    }
    for name in _NUMBERS:
        value = getattr(event, name)
        if value is not None:
            found[name] = (
                dict(value) if name in ("dev", "dev_sites", "test", "test_sites") else value
            )
    if event.kind == "failed" and event.message:
        found["message"] = event.message
    return found


def opened(folder: Path, where: str) -> JsonLines:
    """The log in a file, by default events.jsonl in the run's folder; lines are added at its end.

    Raises SettingsError.
    """
    path = Path(where) if where else folder / NAME
    with os_errors_as(SettingsError, "the log cannot be written", where=path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return JsonLines(path.open("a", encoding="utf-8"))
