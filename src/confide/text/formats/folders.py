"""The data files of a folder, at any depth, on disk or in an archive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from confide.errors import DataError
from confide.text.archives import files_below
from confide.text.formats.ade import corpus_file
from confide.text.formats.base import NO_DATA

ARROW_FOLDER = "state.json"
"""The file in every folder that `datasets.save_to_disk` makes of one split."""


def files_in(folder: Path) -> list[Path]:
    """The data files directly in a folder, sorted by name, without hidden files and READMEs.

    A folder whose data files are the ADE corpus, or a split that `datasets` saved, stands for
    itself, since they are read together.

    Raises:
        DataError: the system refuses to list the folder.
    """
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error
    return _leaves(folder, [file for file in inside if file.is_file()])


def files_under(folder: Path) -> list[Path]:
    """The data files of a folder and of all folders in it; no link to a folder is followed.

    Raises:
        DataError: the system refuses to list a folder.
    """
    if not folder.is_dir():
        return [file for file in sorted(files_below(folder)) if not _hidden(file, folder)]
    found: list[Path] = []
    for place, names in _walk(folder):
        found += _leaves(place, [place / name for name in names])
    return found


def _hidden(file: Path, folder: Path) -> bool:
    parts = file.relative_to(folder).parts
    return any(part.startswith((".", "__MACOSX")) for part in parts) or _no_data(file)


def _no_data(file: Path) -> bool:
    return file.name.startswith(".") or NO_DATA.search(file.name) is not None


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder and the names of its files, sorted. Raises DataError."""
    try:
        for place, folders, files in os.walk(folder, onerror=_refused):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            here = Path(place)
            yield here, sorted(name for name in files if (here / name).is_file())
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error


def _refused(error: OSError) -> None:
    raise error


def _leaves(folder: Path, inside: list[Path]) -> list[Path]:
    """The data files among those of a folder, or the folder if it stands for itself."""
    if saved_split(folder):
        return [folder]
    files = [file for file in inside if not _no_data(file)]
    return [folder] if files and all(map(corpus_file, files)) else files


def saved_split(folder: Path) -> bool:
    """Whether this is a split that `datasets.save_to_disk` wrote."""
    return (folder / ARROW_FOLDER).is_file() and (folder / "dataset_info.json").is_file()
