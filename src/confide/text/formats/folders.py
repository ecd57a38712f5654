"""Folders of files: which of them are data, which are read together, and which are one corpus."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from confide.errors import DataError, MissingDataError, os_errors_as
from confide.text import files
from confide.text.formats import brat, hub
from confide.text.published import ade, i2b2, relations
from confide.text.reading import NO_DATA

# --- Files of a folder ----------------------------------------------------------------------------


_HIDDEN = re.compile(r"(^|[/\\])(\.|__MACOSX)")


def files_under(folder: Path) -> list[Path]:
    """The data files of a folder and of all folders in it, without hidden files and READMEs.

    The folder may be in an archive. A folder whose data files are the ADE corpus, or a split that
    `datasets` saved, stands for itself, since they are read together. No link to a folder is
    followed.

    Raises:
        DataError: the system refuses to list a folder.
    """
    if not folder.is_dir():
        inside = (file for file in files.files_below(folder) if _is_data(file))
        return sorted(file for file in inside if not _HIDDEN.search(str(file.relative_to(folder))))
    found: list[Path] = []
    with os_errors_as(DataError, "the folder cannot be read", where=folder):
        for place, folders, names in os.walk(folder, onerror=_raise):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += _leaves(Path(place), [Path(place, name) for name in sorted(names)])
    return found


def _raise(error: OSError) -> None:
    raise error


def _is_data(file: Path) -> bool:
    return not file.name.startswith(".") and NO_DATA.search(file.name) is None


def _leaves(folder: Path, inside: Sequence[Path]) -> list[Path]:
    """The data files among those directly in a folder, or the folder if it stands for itself."""
    if hub.saved_split(folder):
        return [folder]
    found = [file for file in inside if _is_data(file) and file.is_file()]
    return [folder] if found and all(map(ade.corpus_file, found)) else found


def folder_read_whole(folder: Path) -> str:
    """The format of a folder that is read as one, whatever else is in it; empty for any other."""
    below = list(folder.rglob("*")) if folder.is_dir() else list(files.files_below(folder))
    endings = {file.suffix.lower() for file in below}
    if not endings.isdisjoint(brat.MARKS):
        return "brat"
    if i2b2.CONCEPTS in endings:
        return "i2b2"
    trees = relations.xml_files(folder)
    if trees and files.root_name(files.read_bytes(trees[0])) == relations.ROOT:
        return "ddi"
    if files_under(folder) == [folder]:
        return "datasets" if hub.saved_split(folder) else "ade"
    return ""


# --- Corpora of several files ---------------------------------------------------------------------

PARTS = ("train", "dev", "test")
_SET = r"(?:[-_. ]?set)?"
_PART_NAMES = {
    "train": re.compile(rf"(?i)train(?:ing)?{_SET}"),
    "dev": re.compile(
        rf"(?i)(?<![a-z])(?:devel(?:opment)?|dev|valid(?:ation)?|val){_SET}(?![a-z])"
    ),
    "test": re.compile(rf"(?i)(?<![a-z])(?:test(?:ing)?|eval){_SET}(?![a-z])"),
}


def group_corpora(paths: Sequence[Path]) -> dict[str, dict[str, list[Path]]]:
    """Group files by corpus and part, in the order in which they were given.

    Files in one folder whose names differ only in words such as train, devel or test form one
    corpus; a file whose name has no such word is a corpus for training. Folders side by side whose
    whole names are such words hold the parts of one corpus, or of several if the files in them
    have the same names. A folder of brat files (or of i2b2's or DDI's) counts as one file; any
    other folder stands for its contents.

    Returns:
        For each corpus, a name (letters, digits, ``_ . -``; taken from the files' names or their
        folder) and its files by part. Every corpus has a file for training.

    Raises:
        MissingDataError: a folder holds nothing.
    """
    leaves = list(dict.fromkeys(leaf for path in paths for leaf in _corpus_leaves(path, ())))
    by_folder = _parts_by_folder(leaves)
    groups: dict[tuple[Path, str], dict[str, list[Path]]] = {}
    for leaf in leaves:
        part, rest = _part(leaf)
        part, key = by_folder.get(leaf, (part, (leaf.parent, rest)))
        groups.setdefault(key, {name: [] for name in PARTS})[part].append(leaf)
    # groups without a train file join the only group beside them with one, or train on dev
    for key in [key for key, parts in groups.items() if not parts["train"]]:
        beside = [other for other in groups if other[0] == key[0] and groups[other]["train"]]
        orphan = groups[key]
        if len(beside) == 1:
            for part in ("dev", "test"):
                groups[beside[0]][part] += orphan[part]
            del groups[key]
        else:
            spare = "dev" if orphan["dev"] else "test"
            orphan["train"], orphan[spare] = orphan[spare], []
    return dict(zip(_names(list(groups)), groups.values(), strict=True))


def _corpus_leaves(path: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """The files of a path; a folder of brat, i2b2 or DDI files counts as one.

    `above` are the folders that led to this one; a link back to one of them is not followed.
    """
    files.must_be_a_path(path)
    if not path.is_dir():
        yield path
        return
    with os_errors_as(DataError, "the folder cannot be read", where=path):
        state = path.stat()
        if (state.st_dev, state.st_ino) in above:
            return
        above = (*above, (state.st_dev, state.st_ino))
        inside = sorted(child for child in path.iterdir() if not child.name.startswith("."))
        together = _one_corpus(path, inside)
    if together:
        yield path
        return
    leaves = _leaves(path, inside)
    leaves += [leaf for child in inside if child.is_dir() for leaf in _corpus_leaves(child, above)]
    if not leaves:
        raise MissingDataError("the folder holds no data file", where=str(path))
    yield from leaves


def _one_corpus(folder: Path, inside: Sequence[Path]) -> bool:
    """Return whether the files in a folder are read together, as with brat, i2b2 and DDI."""
    notes = [child for child in inside if child.name.lower() in i2b2.FOLDERS and child.is_dir()]
    first = next((child for child in inside if child.suffix.lower() == ".xml"), None)
    return (
        any(child.suffix in brat.MARKS for child in inside)
        or any(i2b2.is_note_file(file) for place in (folder, *notes) for file in place.iterdir())
        or (first is not None and first.is_file()
            and files.root_name(files.read_bytes(first)) == relations.ROOT)
        or hub.saved_split(folder)
    )  # fmt: skip


def _part(path: Path) -> tuple[str, str]:
    """Which part a file's name says it is ("train" if none), and the rest of the name."""
    stem = path.name if path.is_dir() else path.name.removesuffix(".gz").rpartition(".")[0]
    stem = stem or path.name
    for part, pattern in _PART_NAMES.items():
        found = pattern.search(stem)
        if found:
            rest = stem[: found.start()] + " " + stem[found.end() :]
            return part, re.sub(r"[^A-Za-z0-9]+", "-", rest).strip("-")
    return "train", stem


def _parts_by_folder(leaves: Sequence[Path]) -> dict[Path, tuple[str, tuple[Path, str]]]:
    """The part and corpus of files that lie in folders such as train/ and dev/, side by side.

    Only of files whose own names say no part.
    """
    found: dict[Path, dict[str, list[Path]]] = {}
    for leaf in leaves:
        folder = leaf.parent
        named = next(
            (part for part, name in _PART_NAMES.items() if name.fullmatch(folder.name)), ""
        )
        if named and _part(leaf) == ("train", leaf.name.removesuffix(".gz").rpartition(".")[0]):
            found.setdefault(folder.parent, {}).setdefault(named, []).append(leaf)
    placed: dict[Path, tuple[str, tuple[Path, str]]] = {}
    for above, parts in found.items():
        if len(parts) < 2 or "train" not in parts:
            continue
        stems = {part: {_part(leaf)[1] for leaf in own} for part, own in parts.items()}
        alike = all(own <= stems["train"] for own in stems.values())
        for part, own in parts.items():
            placed |= {leaf: (part, (above, _part(leaf)[1] if alike else "")) for leaf in own}
    return placed


def _names(keys: Sequence[tuple[Path, str]]) -> list[str]:
    """A name for each site, from the rest of its files' names or their folder."""
    plain = [rest or folder.resolve().name for folder, rest in keys]
    twice = {name for name, count in Counter(plain).items() if count > 1}
    names: dict[str, None] = {}
    counts: Counter[str] = Counter()
    for name, (folder, rest) in zip(plain, keys, strict=True):
        wanted = f"{folder.resolve().name}-{rest}" if name in twice else name
        wanted = re.sub(r"[^A-Za-z0-9_.-]+", "-", wanted).strip("-_.")[:56] or "site"
        chosen = f"{wanted}-{counts[wanted] + 1}" if wanted in names else wanted
        counts[re.sub(r"-\d+$", "", chosen)] += 1
        names[chosen] = None
    return list(names)
