"""Logs of a run for the tools that people use: what its events say, in numbers and names.

A log is a listener of a run's events, as the command line's progress is; runs know none of them. A
new one is a context manager that opens it and a line in `LOGS`. No text, no keys and no paths are
logged.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from confide.errors import ConfideError, SettingsError, os_errors_as, printable
from confide.federation.events import Event, Watcher
from confide.files import Tree
from confide.runs.folder import RunFolder, shareable
from confide.settings import nearest

OpenLog = Callable[[Path, str], AbstractContextManager[Watcher]]
"""Opens a log, given the run's folder and where the log is wanted ("": its usual place)."""


class Logs:
    """A watcher that hands every event to some logs. They open once the run's folder is there.

    A log that cannot be opened ends the run at its start. One that fails later is given up, `say`
    is told, and the run goes on: numbers in a log are not worth a night of training.
    """

    def __init__(self, names: Sequence[str], *, say: Callable[[str], None]) -> None:
        self._wanted = [find_log(name) for name in names]
        self._say = say
        self._lock = threading.Lock()
        self._start: Event | None = None
        self._open: dict[str, tuple[AbstractContextManager[Watcher], Watcher]] = {}

    def __call__(self, event: Event) -> None:
        """Take an event; federations that run side by side may call at once."""
        with self._lock:
            if event.kind == "start":  # the run's folder is there from the next event on
                self._start = event
                return
            if self._start is not None:
                start, self._start = self._start, None
                self._open_all(Path(start.folder or "."))
                self._write(start)
            self._write(event)

    def __enter__(self) -> Self:
        """The logs themselves."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close all logs."""
        for name, (log, _) in self._open.items():
            try:
                log.__exit__(None, None, None)
            except Exception as failed:
                self._say(_given_up(name, failed))

    def _open_all(self, folder: Path) -> None:
        """Open the logs. Raises SettingsError."""
        for name, opener, where in self._wanted:
            try:
                log = opener(folder, where)
                self._open[name] = log, log.__enter__()
            except ConfideError:
                raise
            except Exception as error:
                raise SettingsError(
                    f"the log {name} cannot be opened ({type(error).__name__})",
                    where=where or None,
                    got=printable(str(error)),
                    fix="name another place with --log NAME=WHERE, or leave out --log",
                ) from error

    def _write(self, event: Event) -> None:
        for name, (_, write) in list(self._open.items()):
            try:
                write(event)
            except Exception as error:
                del self._open[name]
                self._say(_given_up(name, error))


def find_log(wanted: str) -> tuple[str, OpenLog, str]:
    """A log by NAME or NAME=WHERE: its name, its opener, and where. Raises SettingsError."""
    name, _, where = wanted.partition("=")
    if name not in LOGS:
        raise SettingsError(
            "there is no such log", got=printable(repr(name), 60), fix=nearest(name, list(LOGS))
        )
    return name, LOGS[name], where


def _given_up(name: str, error: Exception) -> str:
    return f"the log {name} failed and is given up; the run goes on ({type(error).__name__})"


# --- One JSON object per line for each event. docs/logging.md describes its keys


SCHEMA = 1
EVENTS_FILE = "events.jsonl"

_KEYS = (
    "round", "rounds", "site", "step", "loss", "bytes_up", "bytes_down", "seconds", "seconds_left",
    "dev", "dev_sites", "test", "test_sites",
)  # fmt: skip


@contextmanager
def open_jsonl(folder: Path, where: str) -> Iterator[Watcher]:
    """The log in a file, by default events.jsonl in the run's folder; lines are added at its end.

    Readers see a line at once. Raises SettingsError.
    """
    path = Path(where) if where else folder / EVENTS_FILE
    with os_errors_as(SettingsError, "the log cannot be written", where=path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8", buffering=1)
    with file:
        yield lambda event: file.writelines([json_line(event, time.time()), "\n"])


def json_line(event: Event, now: float) -> str:
    """One line. Only a failure has a message: the code's words, never a site's text."""
    found: Tree = {
        "schema": SCHEMA,
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "event": event.kind,
    }
    found |= {key: value for key in _KEYS if (value := getattr(event, key)) is not None}
    if event.kind == "failed" and event.message:
        found["message"] = event.message
    return json.dumps(found, separators=(",", ":"), default=dict)


# --- Curves by round


def numbers(event: Event) -> dict[str, float]:
    """The numbers of an event as named curves; empty if it says nothing to draw.

    `loss`, `bytes/up`, `bytes/down`, `seconds`, `dev/KIND` and `dev_site/SITE` of a round;
    `test/KIND` and `test_site/SITE` at the end. Of a federation of one site, the site comes first.
    """

    def under(name: str, values: Mapping[str, float | None] | None) -> dict[str, float | None]:
        return {f"{name}/{key}": value for key, value in (values or {}).items()}

    found: dict[str, float | None] = {}
    if event.kind == "round":
        found = {
            "loss": event.loss,
            "bytes/up": event.bytes_up,
            "bytes/down": event.bytes_down,
            "seconds": event.seconds,
        }
        found |= under("dev", event.dev) | under("dev_site", event.dev_sites)
    elif event.kind == "end":
        found = under("test", event.test) | under("test_site", event.test_sites)
    start = f"{event.site}/" if event.site and event.kind == "round" else ""
    return {start + name: float(value) for name, value in found.items() if value is not None}


def _curves(add: Callable[[int, dict[str, float]], None]) -> Watcher:
    """Call `add` with the numbers of each event at its round; those of the end at the last one."""
    last = 0

    def write(event: Event) -> None:
        nonlocal last
        last = max(last, event.round or 0)
        if found := numbers(event):
            add(event.round or last, found)

    return write


EXPERIMENT = "confide"
URI = "MLFLOW_TRACKING_URI"
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""MLflow reports its use to its makers otherwise."""
BRIEF = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""A server that does not answer must not hold up the training; the user's own values count."""


@contextmanager
def open_mlflow(folder: Path, where: str) -> Iterator[Watcher]:
    """A new MLflow run in the experiment `confide`, with the run's settings as parameters.

    It ends as failed unless the run comes to its end. Settings with a path or names of sites are
    left out. `where` is the tracking server, by default $MLFLOW_TRACKING_URI. Raises SettingsError,
    also if MLflow is not installed.
    """
    os.environ.update(QUIET)
    for name, value in BRIEF.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise SettingsError(
            "MLflow is not installed", fix="pip install 'confide[mlflow]'"
        ) from error
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
    for name, setting in shareable(RunFolder(folder).settings(as_written=True)).items():
        store.log_param(run, name, setting)

    def add(round: int, found: dict[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [Metric(name, number, now, round) for name, number in found.items()]
        store.log_batch(run, metrics=metrics)

    write, status = _curves(add), "FAILED"

    def watch(event: Event) -> None:
        nonlocal status
        status = "FINISHED" if event.kind == "end" else status
        write(event)

    yield watch
    store.set_terminated(run, status)


@contextmanager
def open_tensorboard(folder: Path, where: str) -> Iterator[Watcher]:
    """The log in a new file of a folder, by default `tensorboard` in the run's.

    The file does not name this machine. Raises SettingsError, also if TensorBoard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise SettingsError(
            "TensorBoard is not installed", fix="pip install 'confide[tensorboard]'"
        ) from error
    place = Path(where) if where else folder / "tensorboard"
    with os_errors_as(SettingsError, "the log cannot be written", where=place):
        place.mkdir(parents=True, exist_ok=True)
        file = (place / f"events.out.tfevents.{time.time_ns()}.confide").open("xb")
    with file:
        writer = RecordWriter(file)

        def add(round: int, found: dict[str, float]) -> None:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in found.items()]
            record(Record(wall_time=time.time(), step=round, summary=Summary(value=values)))

        def record(one: Record) -> None:
            writer.write(one.SerializeToString())
            writer.flush()

        record(Record(wall_time=time.time(), file_version="brain.Event:2"))
        yield _curves(add)


@contextmanager
def open_wandb(folder: Path, where: str) -> Iterator[Watcher]:
    """A new run of Weights & Biases, with the run's settings as its configuration.

    Its files are in the run's folder, and nothing is sent, unless `where` names a PROJECT or
    ENTITY/PROJECT. Settings with a path or names of sites are left out, and so are this machine,
    its user, the program's output and its code. Raises SettingsError if W&B is not installed.
    """
    os.environ.update(SILENT)
    try:
        import wandb
    except ImportError as error:
        raise SettingsError(
            "Weights & Biases is not installed", fix="pip install 'confide[wandb]'"
        ) from error
    entity, _, project = where.rpartition("/")
    run = wandb.init(
        entity=entity or None,
        project=project or EXPERIMENT,
        name=folder.name,
        dir=str(folder),
        mode=None if where else "offline",  # None: $WANDB_MODE, or online
        config=shareable(RunFolder(folder).settings(as_written=True)),
        settings=wandb.Settings(**ONLY_NUMBERS),
    )
    run.define_metric("*", step_metric="round")  # rounds of `alone` begin again at each site
    write, code = _curves(lambda number, found: run.log({"round": number, **found})), 1

    def watch(event: Event) -> None:
        nonlocal code
        code = 0 if event.kind == "end" else code
        write(event)

    yield watch
    run.finish(exit_code=code)


SILENT = {"WANDB_ERROR_REPORTING": "false", "DO_NOT_TRACK": "true"}
"""W&B reports its faults to its makers otherwise."""
ONLY_NUMBERS: dict[str, object] = {
    "console": "off", "silent": True, "disable_git": True, "disable_code": True,
    "save_code": False, "host": "-", "username": "-", "email": "-", "program": "-",
    "x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True,
    "x_save_requirements": False, "init_timeout": 20.0,
}  # fmt: skip
"""Settings that keep W&B from collecting more than numbers, and from waiting long for a server."""


LOGS: dict[str, OpenLog] = {
    "jsonl": open_jsonl,
    "mlflow": open_mlflow,
    "tensorboard": open_tensorboard,
    "wandb": open_wandb,
}
