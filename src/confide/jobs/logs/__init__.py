"""Logs of a run for the tools that people use: what its events say, in numbers and names.

A log is a listener of a run's events, as the command line's progress is; runs know none of them. A
new one is a module with an `opened` and a line in `LOGS`. No text, no keys and no paths are logged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from confide.errors import ConfideError, SettingsError, printable
from confide.federation.events import Event

LOGS = {
    "jsonl": "confide.jobs.logs.to_jsonl",
    "mlflow": "confide.jobs.logs.to_mlflow",
    "tensorboard": "confide.jobs.logs.to_tensorboard",
}
"""Each name's module. Its `opened(folder, where)` gives a log; it imports its library there."""


class Log(Protocol):
    """One log of one run."""

    def write(self, event: Event) -> None:
        """Write what an event says, if this log has a place for it."""
        ...

    def close(self, *, whole: bool) -> None:
        """Close the log; `whole`: the run came to its end."""
        ...


Opened = Callable[[Path, str], Log]


class Logs:
    """A watcher that hands every event to some logs. They open once the run's folder is there.

    A log that cannot be opened ends the run at its start. One that fails later is given up, `say`
    is told, and the run goes on: numbers in a log are not worth a night of training.
    """

    def __init__(self, names: Sequence[str], *, say: Callable[[str], None]) -> None:
        self._wanted = [named(name) for name in names]
        self._say = say
        self._lock = threading.Lock()
        self._start: Event | None = None
        self._open: dict[str, Log] = {}
        self._whole = False

    def __call__(self, event: Event) -> None:
        """Take an event; federations that run side by side may call at once."""
        with self._lock:
            if event.kind == "start":
                self._start = event
                return
            if self._start is not None:
                self._begin(self._start)
            self._whole = self._whole or event.kind == "end"
            self._write(event)

    def __enter__(self) -> Self:
        """The logs themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all logs."""
        for name, log in self._open.items():
            try:
                log.close(whole=self._whole)
            except Exception as failed:
                self._say(_given_up(name, failed))

    def _begin(self, start: Event) -> None:
        """Open the logs. Raises SettingsError."""
        self._start = None
        folder = Path(start.folder or ".")
        for name, opened, where in self._wanted:
            try:
                self._open[name] = opened(folder, where)
            except ConfideError:
                raise
            except Exception as error:
                raise SettingsError(
                    f"the log {name} cannot be opened ({type(error).__name__})",
                    where=where or None,
                    got=printable(str(error)),
                    fix="name another place with --log NAME=WHERE, or leave out --log",
                ) from error
        self._write(start)

    def _write(self, event: Event) -> None:
        for name, log in list(self._open.items()):
            try:
                log.write(event)
            except Exception as error:
                del self._open[name]
                self._say(_given_up(name, error))


def named(wanted: str) -> tuple[str, Opened, str]:
    """A log by NAME or NAME=WHERE: its name, its opener, and where. Raises SettingsError."""
    name, _, where = wanted.partition("=")
    if name not in LOGS:
        near = get_close_matches(name, LOGS, n=1)
        raise SettingsError(
            "there is no such log",
            expected=" or ".join(LOGS),
            got=printable(repr(name), 60),
            fix=f"did you mean {near[0]}?" if near else None,
        )
    opened: Opened = import_module(LOGS[name]).opened
    return name, opened, where


def not_installed(library: str, extra: str) -> SettingsError:
    """A log's library is missing."""
    return SettingsError(f"{library} is not installed", fix=f"pip install 'confide[{extra}]'")


def _given_up(name: str, error: Exception) -> str:
    return f"the log {name} failed and is given up; the run goes on ({type(error).__name__})"
