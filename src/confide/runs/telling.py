"""The first and the last event of a run, as every place that runs or follows one tells them."""

from __future__ import annotations

from pathlib import Path

from confide.federation.events import Event
from confide.runs.result import Result
from confide.settings import Settings
from confide.tasks import TASKS


def started(settings: Settings, name: str, folder: Path) -> Event:
    """The first event: how many rounds are planned, and the run's folder."""
    said = f"{name}: {settings.method}"
    return Event("start", rounds=settings.rounds, message=said, folder=str(folder))


def ended(result: Result, folder: Path) -> Event:
    """The last event: the scores on test text, of all sites and of each that has any."""
    task, scores = TASKS[result.task], result.scores
    sites = {
        site: task.value(own, task.kinds[0])
        for site, own in scores.sites.items()
        if not task.empty(own)
    }
    test = task.values(scores.overall) if sites else None
    return Event("end", message=str(folder), test=test, test_sites=sites or None)
