"""What `run` and `coordinate` say when they end: whether the run has learnt, and what comes next.

Every command is one line of a shell: names with spaces or other marks are quoted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from confide.cli import screen

if TYPE_CHECKING:
    from confide.runs.result import Result
    from confide.settings import Settings

MOST = 3
"""So many commands come next."""
_READING = ("format", "scheme")
_UNSAID = ("encoding", "columns", "annotators", "skip_broken")
"""How a site's files are read, if not by what `evaluate` can be told."""


def say_advice(
    folder: Path, result: Result, *, command: tuple[str, Sequence[str], Path | None]
) -> None:
    """Say if the model has not learnt, or was still learning, and what changes that.

    `command` has the settings file, the overrides and the folder of the command that ended.
    """
    from confide.runs.folder import RunFolder
    from confide.runs.learnt import advice

    found = advice(result, RunFolder(folder).settings())
    if found is None:
        return
    screen.say(f"\n{found.said}", style="bold yellow")
    if not found.changes:
        return
    settings, overrides, out = command
    kept = [one for one in overrides if one.partition("=")[0].strip() not in found.changes]
    changed = [*kept, *_assigned(found.changes)]
    words = ["confide", "run", settings, *(word for one in changed for word in ("--set", one))]
    if found.resumes:
        words += [*([] if out is None else ["--out", str(out)]), "--resume"]
    else:
        words += ["--out", f"{shown(folder)}-again"]
    said = "to train on" if found.resumes else "to try again"
    screen.say(f"{said}: {shlex.join(words)}")


def _assigned(changes: Mapping[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items()]


def say_next(lines: Sequence[str]) -> None:
    """Say which commands come next."""
    screen.say("next:")
    for line in lines:
        screen.say(f"  {line}")


def next_commands(folder: Path, result: Result) -> list[str]:
    """Three commands for a run that has ended here, with the run's own files and sites."""
    from confide.runs.folder import RunFolder
    from confide.tasks import TASKS

    run, settings, task = shown(folder), RunFolder(folder).settings(), TASKS[result.task]
    file, site, reading = _held_out(settings, result)
    lines = [_line("evaluate", run, file, *site, *reading)] if file else []
    if task.learns == "entities":
        text = shlex.quote("Write a sentence of your own here.")
        lines.append(f"echo {text} | {_line('predict', run, '-', *site)}")
    elif file:
        to = ["--to", "facts"] if task.bags else []
        read = reading[:2] if reading[:1] == ["--format"] else []
        lines.append(_line("predict", run, file, *site, *read, *to))
    lines.append(_line("report", run))
    if settings.method not in ("pooled", "public-only"):
        lines.append(_line("home", run))
    return lines[:MOST]


def lead_commands(folder: Path) -> list[str]:
    """Commands for a lead, who has a run's numbers and no text."""
    return [_line(verb, shown(folder)) for verb in ("report", "ledger")]


def _line(*words: str) -> str:
    return shlex.join(["confide", *words])


def shown(path: Path) -> str:
    """The path from here if it lies below, as a shell that stays here would name it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _held_out(settings: Settings, result: Result) -> tuple[str, list[str], list[str]]:
    """A test file of the run's own, the site whose model to use, and how the file is read.

    There is no file if none was named, or if `evaluate` cannot be told how to read it.
    """
    from confide.settings import SplitTable

    sites = sorted(result.data.sites)
    tables = [settings.split] if settings.split else list(settings.site)
    for table in tables:
        own = settings.data if isinstance(table, SplitTable) else table
        how = [(name, getattr(own, name) or getattr(settings.data, name)) for name in _READING]
        odd = any(getattr(one, name) for one in (own, settings.data) for name in _UNSAID)
        if not table.test or odd:
            continue
        named = min(sites, default="") if isinstance(table, SplitTable) else table.name
        maps = not isinstance(table, SplitTable) and bool(table.tags or table.relations)
        wanted = result.personal or maps
        reading = [word for name, value in how if value for word in (f"--{name}", value)]
        return shown(Path(table.test[0])), ["--site", named] * wanted, reading
    return "", ["--site", *sites[:1]] if result.personal else [], []
