"""The first and the last event of a run, as every place that runs or follows one tells them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from confide.federation.events import Event
from confide.runs.result import Result
from confide.settings import Settings
from confide.tasks import TASKS


def started(settings: Settings, name: str, folder: Path) -> Event:
    """The first event: how many rounds are planned, and the run's folder."""
    said = f"{name}: {settings.method}"
    return Event("start", rounds=settings.rounds, message=said, folder=str(folder))


def rounds_after(result: Result, round: int) -> Iterator[Event]:
    """The rounds of a finished run that come after `round`, for who did not hear of them."""
    task = TASKS[result.task]
    up, down, best = 0, 0, -1.0
    for turn in result.history:
        own = next(iter((turn.dev or {}).values()), None)
        best = max(best, -1.0 if own is None else own)
        up += turn.bytes.up if turn.bytes else 0
        down += turn.bytes.down if turn.bytes else 0
        if turn.round > round:
            yield Event(
                "round",
                turn.round,
                rounds=result.rounds,
                loss=turn.loss,
                dev_f1=own,
                best_f1=None if best < 0 else best,
                bytes_up=up,
                bytes_down=down,
                seconds=turn.seconds,
                score=task.words.score or task.words.kind(task.kinds[0]),
                dev=turn.dev,
                dev_sites=turn.dev_sites or None,
            )


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
