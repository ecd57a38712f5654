"""Logs of a run for the tools that people use: what its events say, in numbers and names.

A log is a listener of a run's events, as the command line's progress is; runs know none of them. A
new one is a function that opens it and a line in `LOGS`. No text, no keys and no paths are logged.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Protocol, Self

from confide.errors import ConfideError, SettingsError, os_errors_as, printable
from confide.federation.events import Event
from confide.files import Tree
from confide.runs.folder import RunFolder, shareable

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
    from tensorboard.summary.writer.record_writer import RecordWriter


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
    return name, LOGS[name], where


def not_installed(library: str, extra: str) -> SettingsError:
    """A log's library is missing."""
    return SettingsError(f"{library} is not installed", fix=f"pip install 'confide[{extra}]'")


def _given_up(name: str, error: Exception) -> str:
    return f"the log {name} failed and is given up; the run goes on ({type(error).__name__})"


# --- Facts of a run for logs: names and numbers of its events, and its settings without paths


def numbers(event: Event) -> dict[str, float]:
    """The numbers of an event as named curves; empty if it says nothing to draw.

    `loss`, `bytes/up`, `bytes/down`, `seconds`, `dev/KIND` and `dev_site/SITE` of a round;
    `test/KIND` and `test_site/SITE` at the end. Of a federation of one site, the site comes first.
    """
    found: dict[str, float | None] = {}
    if event.kind == "round":
        found = {
            "loss": event.loss,
            "bytes/up": event.bytes_up,
            "bytes/down": event.bytes_down,
            "seconds": event.seconds,
        }
        found |= _under("dev", event.dev) | _under("dev_site", event.dev_sites)
    elif event.kind == "end":
        found = _under("test", event.test) | _under("test_site", event.test_sites)
    start = f"{event.site}/" if event.site and event.kind == "round" else ""
    return {start + name: float(value) for name, value in found.items() if value is not None}


def settings_of(folder: Path) -> dict[str, str]:
    """The run's settings by dotted key, without those that hold a path or a site's names."""
    return shareable(RunFolder(folder).settings(as_written=True))


def _under(name: str, values: Mapping[str, float | None] | None) -> dict[str, float | None]:
    return {f"{name}/{key}": value for key, value in (values or {}).items()}


# --- One JSON object per line for each event. docs/logging.md describes its keys


SCHEMA = 1
EVENTS_FILE = "events.jsonl"

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


def open_jsonl(folder: Path, where: str) -> JsonLines:
    """The log in a file, by default events.jsonl in the run's folder; lines are added at its end.

    Raises SettingsError.
    """
    path = Path(where) if where else folder / EVENTS_FILE
    with os_errors_as(SettingsError, "the log cannot be written", where=path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return JsonLines(path.open("a", encoding="utf-8"))


# --- Metrics for MLflow: one MLflow run for each run, on a server that the user names


EXPERIMENT = "confide"
URI = "MLFLOW_TRACKING_URI"
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""MLflow reports its use to its makers otherwise."""
BRIEF = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""A server that does not answer must not hold up the training; the user's own values count."""


class Metrics:
    """An MLflow run."""

    def __init__(self, store: MlflowClient, run: str) -> None:
        self._store, self._run, self._round = store, run, 0

    def write(self, event: Event) -> None:
        """Log the event's numbers at its round; scores of the end stand at the last one."""
        from mlflow.entities import Metric

        self._round = max(self._round, event.round or 0)
        if found := numbers(event):
            from mlflow.utils.time import get_current_time_millis

            now = get_current_time_millis()
            metrics = [
                Metric(name, n, now, event.round or self._round) for name, n in found.items()
            ]
            self._store.log_batch(self._run, metrics=metrics)

    def close(self, *, whole: bool) -> None:
        """End the MLflow run, as failed unless the run came to its end."""
        self._store.set_terminated(self._run, "FINISHED" if whole else "FAILED")


def open_mlflow(folder: Path, where: str) -> Metrics:
    """A new MLflow run in the experiment `confide`, with the run's settings as parameters.

    `where` is the tracking server, by default $MLFLOW_TRACKING_URI. Raises SettingsError, also if
    MLflow is not installed.
    """
    os.environ.update(QUIET)
    for name, value in BRIEF.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise not_installed("MLflow", "mlflow") from error
    place = where or os.environ.get(URI)
    if not place:
        raise SettingsError(
            "the log mlflow needs a tracking server",
            expected=f"its address, or ${URI}",
            fix="name it: --log mlflow=http://127.0.0.1:5000",
        )
    store = MlflowClient(tracking_uri=place)
    known = store.get_experiment_by_name(EXPERIMENT)
    experiment = known.experiment_id if known else store.create_experiment(EXPERIMENT)
    run = store.create_run(experiment, run_name=folder.name).info.run_id
    for name, value in settings_of(folder).items():
        store.log_param(run, name, value)
    return Metrics(store, run)


# --- Curves for TensorBoard: a file of its format, without the name of this machine


CURVES_FOLDER = "tensorboard"
_FORMAT = "brain.Event:2"
"""The first record of every file."""


class Curves:
    """A file of scalars by round."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._round = 0
        self._add(version=_FORMAT)

    def write(self, event: Event) -> None:
        """Add the event's numbers at its round; scores of the end stand at the last one."""
        self._round = max(self._round, event.round or 0)
        if found := numbers(event):
            self._add(values=found, round=event.round or self._round)

    def close(self, *, whole: bool) -> None:
        """Close the file."""
        self._writer.close()

    def _add(
        self, values: dict[str, float] | None = None, *, round: int = 0, version: str = ""
    ) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary

        record = Record(wall_time=time.time(), step=round)
        if version:
            record.file_version = version
        else:
            value = [Summary.Value(tag=name, simple_value=n) for name, n in (values or {}).items()]
            record.summary.CopyFrom(Summary(value=value))
        self._writer.write(record.SerializeToString())
        self._writer.flush()


def open_tensorboard(folder: Path, where: str) -> Curves:
    """The log in a new file of a folder, by default `tensorboard` in the run's.

    Raises SettingsError, also if TensorBoard is not installed.
    """
    try:
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise not_installed("TensorBoard", "tensorboard") from error
    place = Path(where) if where else folder / CURVES_FOLDER
    with os_errors_as(SettingsError, "the log cannot be written", where=place):
        place.mkdir(parents=True, exist_ok=True)
        file = (place / f"events.out.tfevents.{time.time_ns()}.confide").open("xb")
    return Curves(RecordWriter(file))


LOGS: dict[str, Opened] = {
    "jsonl": open_jsonl,
    "mlflow": open_mlflow,
    "tensorboard": open_tensorboard,
}
"""The function that opens each log, given the run's folder and where the log is wanted."""
