"""The lead's notes in a run's folder, from which it can continue after a crash: `coordinate.json`.

The mark of a run that was ended is a file of its own, so that the process that follows the run and
the one that ends it never write the same file.
"""

from __future__ import annotations

from dataclasses import dataclass

from confide import __version__
from confide.errors import RunError
from confide.runs.folder import RunFolder
from confide.userfiles import json_of, text_of

NOTES = "coordinate.json"
"""The lead's notes of a run: its name, its sites, its submissions."""
ENDED = "ended.txt"
"""Beside the notes if the run was ended early; the next `--resume` deletes it."""


@dataclass
class Notes:
    """A run over real sites as its lead knows it."""

    run: str
    sites: list[str]
    submissions: list[str]
    version: str = __version__


def read(folder: RunFolder) -> Notes:
    """The lead's notes of a run. Raises RunError if there are none."""
    try:
        return Notes(**json_of(text_of(folder.path / NOTES)))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            "this is not the folder of a run over real sites",
            where=str(folder.path),
            expected=f"a readable {NOTES}, written by `confide coordinate`",
        ) from error


def write(folder: RunFolder, notes: Notes) -> None:
    """Write the notes, whole or not at all."""
    folder.write(NOTES, vars(notes))


def mark_ended(folder: RunFolder) -> None:
    """Mark the run as ended, so that no process that follows it submits it again."""
    folder.write(ENDED, "ended with `confide coordinate --end`; --resume continues it\n")


def unmark(folder: RunFolder) -> None:
    """Remove the mark: the run continues."""
    (folder.path / ENDED).unlink(missing_ok=True)


def check_not_ended(folder: RunFolder) -> None:
    """Raise RunError if the run was ended."""
    if (folder.path / ENDED).exists():
        raise RunError(
            "the run was ended by `confide coordinate --end`",
            where=str(folder.path),
            fix="run the same command with --resume to continue from the last checkpoint",
        )
