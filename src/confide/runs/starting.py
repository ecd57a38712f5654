"""The model from which training starts, read from the folder of the run that trained it."""

from __future__ import annotations

from pathlib import Path

from confide.errors import RunError, SettingsError
from confide.kinds.starting import Start
from confide.methods import method_of
from confide.runs.folder import HeldFolder
from confide.settings import Settings


def start_of(settings: Settings, *, place: Path | None = None) -> Start | None:
    """What `start_from` names, at the run's selected round; None if it names nothing.

    `place` is the run's folder, if not the one that the settings name. Raises RunError (no such
    run, or one whose sites have a model each), SettingsError (a model of another kind).
    """
    if not settings.start_from:
        return None
    folder = HeldFolder(place or Path(settings.start_from))
    trained = folder.settings()
    method, wanted = method_of(trained), method_of(settings).kind.name
    where = str(folder.path)
    if method.kind.name != wanted:
        raise SettingsError(
            "training cannot start from a model of another kind",
            where=where,
            expected=wanted,
            got=method.kind.name,
        )
    if method.personal or "" not in folder.result().best_rounds:
        raise RunError(
            "training starts from one model, and every site of this run has its own",
            where=where,
            fix="name a run that ended with a common model",
        )
    state, _ = folder.trained(method, None)
    form, weights = method(trained).model(state, None)
    return Start(form, weights, where)
