"""Metrics for MLflow: one MLflow run for each run, on a server that the user names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from confide.errors import SettingsError
from confide.federation.events import Event
from confide.jobs.logs import not_installed
from confide.jobs.logs.facts import numbers, settings_of

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

EXPERIMENT = "confide"
URI = "MLFLOW_TRACKING_URI"
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}
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


def opened(folder: Path, where: str) -> Metrics:
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
