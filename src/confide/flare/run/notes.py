"""What the lead writes down in a run's folder, so that it may die as well: `coordinate.json`.

And the mark of a run that somebody ended. It is a file of its own, so that whoever watches the run
and whoever ends it need not write the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from confide import __version__
from confide.errors import RunError
from confide.runs.folder import RunFolder
from confide.userfiles import json_of, text_of

NOTES = "coordinate.json"
"""What the lead keeps of a run that goes on: its name, its sites, its submissions."""
ENDED = "ended.txt"
"""Lies beside it when the run was ended before its time; the next `--resume` takes it away."""


@dataclass
class Notes:
    """A run over real sites as its lead knows it."""

    run: str
    sites: list[str]
    submissions: list[str]
    version: str = __version__


def read(folder: RunFolder) -> Notes:
    """The lead's notes of a run. Raises RunError where there are none."""
    try:
        return Notes(**json_of(text_of(folder.path / NOTES)))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            "this is not the folder of a run over real sites",
            where=str(folder.path),
            expected=f"a readable {NOTES}, written by `confide coordinate`",
        ) from error


def write(folder: RunFolder, notes: Notes) -> None:
    """Keep the notes, whole or not at all."""
    folder.write(NOTES, vars(notes))


def mark_ended(folder: RunFolder) -> None:
    """From now on nobody who watches the run submits it again."""
    folder.write(ENDED, "ended with `confide coordinate --end`; --resume goes on with it\n")


def unmark(folder: RunFolder) -> None:
    """The run goes on again."""
    (folder.path / ENDED).unlink(missing_ok=True)


def check_not_ended(folder: RunFolder) -> None:
    """Raise RunError where the run was ended."""
    if (folder.path / ENDED).exists():
        raise RunError(
            "the run was ended by `confide coordinate --end`",
            where=str(Path(folder.path)),
            fix="the same command with --resume goes on from its last checkpoint",
        )
