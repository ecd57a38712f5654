"""Where a run stands that is not finished, and the first and last event of one.

The state is read from its newest checkpoint, with its best model so far.

It can be read while the run goes on: checkpoints are written whole or not at all.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from confide.errors import CheckpointError, Note, RunError
from confide.federation.events import Event
from confide.federation.memory import CheckpointStore
from confide.files import Tree
from confide.runs.folder import ALONE, CHECKPOINTS, RunFolder
from confide.runs.result import RESULT, Result, first_wrong, merge_histories
from confide.scoring.calibration import Calibrator
from confide.settings import Settings
from confide.tasks import TASKS, Task

_DAMAGED = "the progress of a checkpoint cannot be read"
_TRIES = 3
"""A run deletes old checkpoints while they are read."""


def current_result(path: Path) -> Result:
    """Make a result from the history so far, with nothing of test text; `rounds` are those planned.

    Raises RunError, also if a checkpoint is damaged.
    """
    begun = _begun(path)
    try:
        history = merge_histories([progress["history"] for progress in begun.values()])
        best = [progress["best_round"] or None for progress in begun.values()]
    except (KeyError, TypeError) as error:
        raise RunError(_DAMAGED, where=str(path)) from error
    return _result(path, {"best_round": best[0] if len(best) == 1 else None, "history": history})


def so_far(path: Path) -> Result:
    """Make a provisional result of a run that is not finished, so that its model can be used.

    It names the best rounds so far and what calibrates their confidences, and gives an
    Note. Raises RunError, also if there is no checkpoint yet.
    """
    found, begun = current_result(path), _begun(path)
    if not begun:
        raise RunError(
            "the run was stopped before its first checkpoint, so there is no model",
            where=str(path),
            fix="continue it with `confide run … --resume`",
        )
    done = max(turn.round for turn in found.history)
    try:
        best = {name: one["best_round"] or len(one["history"]) for name, one in begun.items()}
        scale = {name: Calibrator.read(one["calibrator"])._asdict() for name, one in begun.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(_DAMAGED, where=str(path)) from error
    sites = {name for turn in found.history for name in (*turn.sites, *turn.dev_sites)}
    kept = _result(
        path,
        {
            "history": [turn.model_dump() for turn in found.history],
            "best_rounds": best,
            "calibration": {"calibrators": scale},
            "data": {"sites": {name: {} for name in sorted(sites)}},
        },
    )
    which = ", ".join(f"{name + ': ' if name else ''}{round}" for name, round in best.items())
    warnings.warn(
        f"{path}: this run is not finished (round {done} of {found.rounds}), so the best checkpoint"
        f" so far is used: round {which}; `confide run … --resume` continues the run",
        Note,
        stacklevel=2,
    )
    return kept


def _begun(path: Path) -> dict[str, Tree]:
    """The progress of each federation that has a checkpoint, by name."""
    found = {name: _progress(store) for name, store in _stores(RunFolder(path)).items()}
    return {name: progress for name, progress in found.items() if progress is not None}


def _result(path: Path, known: Tree) -> Result:
    """A result of what is known and what the settings say. Raises RunError."""
    settings = RunFolder(path).settings()
    tree = {
        "schema": 1,
        "name": settings.name,
        "task": settings.task,
        "method": settings.method,
        "seed": settings.seed,
        "rounds": settings.rounds,
        **known,
    }
    try:
        return Result.model_validate(tree)
    except ValidationError as error:
        raise first_wrong(error, _DAMAGED, path) from error


def checkpoint_marks(path: Path) -> tuple[tuple[str, int], ...]:
    """Changes whenever `current_result` would: each federation's newest checkpoint; and the end."""
    if (path / RESULT).exists():
        return (("", -1),)
    return tuple(
        (str(store.folder), store.rounds()[-1])
        for store in _stores(RunFolder(path)).values()
        if store.rounds()
    )


def _stores(folder: RunFolder) -> dict[str, CheckpointStore]:
    """The checkpoints of each federation by its name: a site that trains alone, or "" for all."""
    alone = sorted(folder.path.glob(f"{ALONE}/*/{CHECKPOINTS}"))
    return {one.parent.name: CheckpointStore(one) for one in alone} or {"": folder.store()}


def _progress(store: CheckpointStore) -> Tree | None:
    """The progress that the newest checkpoint holds; None if there is none yet."""
    for left in range(_TRIES - 1, -1, -1):
        rounds = store.rounds()
        if not rounds:
            return None
        try:
            found = json.loads(store.load(rounds[-1]).progress)
        except CheckpointError as error:
            if left and not store.path(rounds[-1]).exists():
                continue
            raise RunError(error.what, where=error.where, fix=error.fix) from error
        except ValueError as error:
            raise RunError(_DAMAGED, where=str(store.path(rounds[-1]))) from error
        if isinstance(found, dict) and isinstance(found.get("history"), list):
            return found
        raise RunError(_DAMAGED, where=str(store.path(rounds[-1])))
    return None


# --- The events of a run
#
# Every place that runs or follows one tells them.


def started(settings: Settings, name: str, folder: Path) -> Event:
    """The first event: how many rounds are planned, and the run's folder."""
    said = f"{name}: {settings.method}"
    return Event("start", rounds=settings.rounds, message=said, folder=str(folder))


def rounds_after(result: Result, round: int) -> Iterator[Event]:
    """The rounds of a finished run that come after `round`, for who did not hear of them."""
    moved, best = {"up": 0, "down": 0}, -1.0
    for turn in result.history:
        own = next(iter((turn.dev or {}).values()), None)
        best = max(best, -1.0 if own is None else own)
        if turn.bytes:
            moved = {"up": moved["up"] + turn.bytes.up, "down": moved["down"] + turn.bytes.down}
        if turn.round > round:
            known = None if best < 0 else best
            yield round_event(
                TASKS[result.task], dict(turn), rounds=result.rounds, best=known, moved=moved
            )


def round_event(
    task: Task,
    record: Mapping[str, Any],
    *,
    rounds: int | None,
    best: float | None,
    moved: Mapping[str, int],
) -> Event:
    """The event of a round of the history; `moved` are the bytes of all rounds so far."""
    dev = record.get("dev")
    return Event(
        "round",
        record["round"],
        rounds=rounds,
        loss=record.get("loss"),
        dev_f1=next(iter((dev or {}).values()), None),
        best_f1=best,
        bytes_up=moved["up"],
        bytes_down=moved["down"],
        seconds=record.get("seconds"),
        score=task.words.score or task.words.kind(task.kinds[0]),
        dev=dev,
        dev_sites=record.get("dev_sites") or None,
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
