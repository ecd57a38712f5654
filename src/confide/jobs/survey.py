"""Text of all sites in numbers, before a run: is it worth it, and which types have enough?

Nothing is trained (`confide.methods.survey`). Over real sites it is a run like any other: each site
has agreed to it, and notes what left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from confide.errors import RunError
from confide.federation.combining import NEEDED
from confide.federation.events import Watcher
from confide.files import Tree
from confide.recipes import settings_file
from confide.runs.result import Result
from confide.runs.run import run
from confide.settings import Settings, dump, load_settings

_KEPT = ("seed", "key", "site", "split", "data", "guards", "vocabulary", "workers", "threads")
_SUMS = ("at_least", "timeout", "sums", "colluding")


def survey_settings(settings: str | Path, overrides: Sequence[str] = ()) -> Settings:
    """A survey of the text of these settings: of models and training, nothing is kept.

    Three or more simulated sites sum under masks, as real ones do, unless the settings say
    otherwise. Raises SettingsError, MissingDataError.
    """
    chosen, plain = load_settings(settings_file(settings), overrides), Settings()
    own = {name: getattr(chosen.federation, name) for name in _SUMS}
    simulated = len(chosen.site) or (chosen.split.sites if chosen.split else 0)
    if own["sums"] is None and simulated >= NEEDED:
        own["sums"] = "masked"
    federation = plain.federation.model_copy(update=own)
    kept = {name: getattr(chosen, name) for name in _KEPT}
    name = f"{chosen.name or Path(settings).stem}-survey"
    more = {"name": name, "method": "survey", "rounds": 1, "federation": federation}
    return plain.model_copy(update=kept | more)


def survey(
    settings: str | Path,
    *,
    overrides: Sequence[str] = (),
    kit: Path | None = None,
    sites: Sequence[str] = (),
    out: Path | None = None,
    on_event: Watcher | None = None,
) -> Tree:
    """Count the text of all sites together, in plain values.

    Args:
        settings: a TOML file, or the name of a recipe.
        overrides: `key=value` texts that replace values in the file.
        kit: the lead's startup kit, for real sites; None: the settings' own files.
        sites: the real sites that take part; all that are connected, if none is named.
        out: the run's folder, with its ledger; None: it is kept only for real sites, below `runs`.
        on_event: is told what happens.

    Raises SettingsError, and what `run` and `coordinate_run` raise.
    """
    chosen = survey_settings(settings, overrides)
    with TemporaryDirectory() as nowhere:
        if kit is None:
            done = run(chosen, out=out or Path(nowhere) / "run", on_event=on_event)
        else:
            from confide.flare.nvidia.lead import coordinate_run

            file = Path(nowhere) / f"{chosen.name}.toml"
            file.write_text(dump(chosen), encoding="utf-8")
            done = coordinate_run(file, kit=kit, out=out, sites=sites, on_event=on_event)
        return survey_of(done.result, where=done.folder)


def survey_of(result: Result, *, where: Path) -> Tree:
    """The counts in a survey's result. Raises RunError if it is no survey's."""
    turn = dict(result.history[0]) if result.history else {}
    found = turn.get("survey")
    if not isinstance(found, dict):
        raise RunError("this is not the run of a survey", where=str(where))
    return found
