"""Where a run stands that is not finished, from its newest checkpoint.

It can be read while the run goes on: checkpoints are written whole or not at all.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from confide.errors import CheckpointError, RunError
from confide.federation.checkpoints import CheckpointStore
from confide.runs.folder import ALONE, CHECKPOINTS, RunFolder
from confide.runs.histories import joined
from confide.runs.result import RESULT, Result, first_wrong
from confide.userfiles import Tree

_DAMAGED = "the progress of a checkpoint cannot be read"
_TRIES = 3
"""A run deletes old checkpoints while they are read."""


def standing(path: Path) -> Result:
    """What is known so far: the history, and nothing of test text; `rounds` are those planned.

    Raises RunError, also if a checkpoint is damaged.
    """
    folder = RunFolder(path)
    settings = folder.settings()
    parts = [_progress(store) for store in _stores(folder)]
    begun = [progress for progress in parts if progress is not None]
    try:
        history = joined([progress["history"] for progress in begun])
        best = begun[0]["best_round"] or None if len(begun) == 1 else None
    except (KeyError, TypeError) as error:
        raise RunError(_DAMAGED, where=str(path)) from error
    tree = {
        "schema": 1,
        "name": settings.name,
        "task": settings.task,
        "method": settings.method,
        "seed": settings.seed,
        "rounds": settings.rounds,
        "best_round": best,
        "history": history,
    }
    try:
        return Result.model_validate(tree)
    except ValidationError as error:
        raise first_wrong(error, _DAMAGED, path) from error


def reached(path: Path) -> tuple[tuple[str, int], ...]:
    """Changes whenever `standing` would: each federation's newest checkpoint; and the end."""
    if (path / RESULT).exists():
        return (("", -1),)
    return tuple(
        (str(store.folder), store.rounds()[-1])
        for store in _stores(RunFolder(path))
        if store.rounds()
    )


def _stores(folder: RunFolder) -> list[CheckpointStore]:
    alone = sorted(folder.path.glob(f"{ALONE}/*/{CHECKPOINTS}"))
    return [CheckpointStore(one) for one in alone] or [folder.store()]


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
