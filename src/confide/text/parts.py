"""Which files belong together: the parts (train, dev, test) of one corpus, or several corpora."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from confide.errors import DataError, MissingDataError
from confide.text.archives import must_be_a_path
from confide.text.formats.folders import files_in
from confide.text.formats.sniff import BRAT, one_corpus

__all__ = ["BRAT", "PARTS", "grouped"]

PARTS = ("train", "dev", "test")
_PART_NAMES = (
    ("train", re.compile(r"train(?:ing)?(?:[-_. ]?set)?", re.IGNORECASE)),
    (
        "dev",
        re.compile(
            r"(?<![a-z])(?:devel(?:opment)?|dev|valid(?:ation)?|val)(?:[-_. ]?set)?(?![a-z])",
            re.IGNORECASE,
        ),
    ),
    (
        "test",
        re.compile(r"(?<![a-z])(?:test(?:ing)?|eval)(?:[-_. ]?set)?(?![a-z])", re.IGNORECASE),
    ),
)


def grouped(paths: Sequence[Path]) -> dict[str, dict[str, list[Path]]]:
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
    leaves = list(dict.fromkeys(leaf for path in paths for leaf in _leaves(path, frozenset())))
    by_folder = _parts_by_folder(leaves)
    groups: dict[tuple[Path, str], dict[str, list[Path]]] = {}
    for leaf in leaves:
        part, rest = _part(leaf)
        key = leaf.parent, rest
        if leaf in by_folder:
            part, key = by_folder[leaf]
        parts = groups.setdefault(key, {name: [] for name in PARTS})
        parts[part].append(leaf)
    _join_orphans(groups)
    return dict(zip(_names(list(groups)), groups.values(), strict=True))


def _leaves(path: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    """The files of a path; a folder of brat, i2b2 or DDI files counts as one.

    `above` are the folders that led to this one; a link back to one of them is not followed.
    """
    must_be_a_path(path)
    if not path.is_dir():
        yield path
        return
    try:
        state = path.stat()
        if (state.st_dev, state.st_ino) in above:
            return
        above |= {(state.st_dev, state.st_ino)}
        inside = sorted(child for child in path.iterdir() if not child.name.startswith("."))
        together = one_corpus(path)
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(path)) from error
    if together:
        yield path
        return
    leaves = files_in(path)
    leaves += [leaf for child in inside if child.is_dir() for leaf in _leaves(child, above)]
    if not leaves:
        raise MissingDataError("the folder holds no data file", where=str(path))
    yield from leaves


def _part(path: Path) -> tuple[str, str]:
    """Which part a file's name says it is ("train" if none), and the rest of the name."""
    stem = path.name if path.is_dir() else path.name.removesuffix(".gz").rpartition(".")[0]
    stem = stem or path.name
    for part, pattern in _PART_NAMES:
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
        named = next((part for part, name in _PART_NAMES if name.fullmatch(leaf.parent.name)), None)
        if named and _part(leaf) == ("train", leaf.name.removesuffix(".gz").rpartition(".")[0]):
            found.setdefault(leaf.parent.parent, {}).setdefault(named, []).append(leaf)
    placed = {}
    for folder, parts in found.items():
        if len(parts) < 2 or "train" not in parts:
            continue
        stems = {part: {_part(leaf)[1] for leaf in own} for part, own in parts.items()}
        alike = all(own <= stems["train"] for own in stems.values())
        for part, own in parts.items():
            for leaf in own:
                placed[leaf] = part, (folder, _part(leaf)[1] if alike else "")
    return placed


def _join_orphans(groups: dict[tuple[Path, str], dict[str, list[Path]]]) -> None:
    """Let groups without a train file join the only group beside them with one, or train on dev."""
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
