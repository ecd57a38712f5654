"""The lead's public functions: start a run over real sites, or end one, with the lead's kit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.federation.events import Watcher
from confide.flare.kits.peers import place_of
from confide.flare.kits.startup import open_kit
from confide.flare.nvidia.session import LeadSession
from confide.flare.run.coordinating import follow
from confide.flare.run.ending import Ending, end_run
from confide.flare.run.joining import check_suited
from confide.recipes import settings_file
from confide.runs.folder import RunFolder
from confide.runs.result import Result
from confide.settings import Settings, load


@dataclass(frozen=True)
class Coordinated:
    """A finished run over real sites: the lead's folder, and the content of result.json."""

    folder: Path
    result: Result


def coordinate(
    settings: str | Path,
    *,
    kit: Path,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    sites: Sequence[str] = (),
    resume: bool = False,
    on_event: Watcher | None = None,
) -> Coordinated:
    """Train and score over real sites, as the settings say.

    Args:
        settings: a TOML file, or the name of a recipe; it names no one's text.
        kit: the lead's startup kit.
        overrides: `key=value` texts that replace values in the file.
        out: the run's folder at the lead; by default `runs/NAME-METHOD-SEED`.
        sites: the sites that take part; all that are connected, if none is named.
        resume: continue the run in that folder.
        on_event: is told what happens.

    Raises SettingsError, KitError, RunError, EngineError.
    """
    chosen, name, folder = _chosen(settings, overrides, out=out)
    held = open_kit(kit, "lead")
    result = follow(
        chosen,
        name,
        lambda: LeadSession(held),
        out=folder,
        sites=sites,
        resume=resume,
        on_event=on_event,
        place=place_of(held, make=True),
    )
    return Coordinated(folder, result)


def end(
    settings: str | Path, *, kit: Path, overrides: Sequence[str] = (), out: Path | None = None
) -> Ending:
    """Stop a run over real sites early, at the server and at the sites.

    Takes the arguments that the run was started with. Checkpoints and the sites' memory are kept,
    and `coordinate(…, resume=True)` continues from there. Ending a run twice is not an error.

    Raises SettingsError, KitError, RunError (no run in the folder), EngineError (the server cannot
    be reached, or does not end the run).
    """
    _, _, folder = _chosen(settings, overrides, out=out)
    held = open_kit(kit, "lead")
    return end_run(RunFolder(folder), lambda: LeadSession(held))


def _from_the_servers(settings: Settings, folder: Path) -> Settings:
    """The settings with their public files as written in the file, relative to the server's folder.

    Loading made them paths below `folder`, where the settings file lies.
    """
    files = tuple(path.removeprefix(f"{folder}/") for path in settings.public.files)
    public = settings.public.model_copy(update={"files": files})
    return settings.model_copy(update={"public": public})


def _chosen(
    settings: str | Path, overrides: Sequence[str], *, out: Path | None
) -> tuple[Settings, str, Path]:
    """The settings of a run, its name, and its folder at the lead."""
    path = settings_file(settings)
    chosen = _from_the_servers(load(path, overrides), path.parent.resolve())
    check_suited(chosen, where=str(path))
    name = chosen.name or path.stem
    return chosen, name, out or Path("runs") / f"{name}-{chosen.method}-{chosen.seed}"
