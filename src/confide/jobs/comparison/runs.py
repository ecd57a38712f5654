"""The runs of a comparison: read from their folders, and refused if they cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from confide.errors import RunError
from confide.runs.folder import RunFolder, decisive
from confide.runs.sentences import (
    SENTENCES,
    Matching,
    Sentences,
    SentencesFile,
    read_sentences,
    sentences_file,
)
from confide.scoring.bootstrap import Table
from confide.settings import Settings
from confide.tasks import TASKS, USUAL

_MAY_DIFFER = {"seed", "key", "site", "split"}
"""Settings that repeats of one run need not share: the seed, and where text and key come from."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run to compare. `settings` are those that its repeats share; None if they are not here."""

    path: Path
    method: str
    settings: dict[str, object] | None
    sites: dict[str, Sentences]


def paths_of(side: str | Path | Sequence[str | Path]) -> list[Path]:
    """The folders of one side."""
    return [Path(side)] if isinstance(side, (str, Path)) else [Path(path) for path in side]


def task_of(runs: Sequence[Opened]) -> str:
    """The task of all these runs. Raises RunError if they have different tasks."""
    if len({run.task for run in runs}) > 1:
        raise RunError(
            "these runs have different tasks, so their scores cannot be compared",
            where=" and ".join(f"{run.path} ({run.task})" for run in runs),
            expected="runs of one task",
        )
    return next((run.task for run in runs), USUAL)


@dataclass(frozen=True, slots=True)
class Opened:
    """A folder to compare: a run's, with its settings, or a site's own folder of a run."""

    path: Path
    task: str
    settings: Settings | None = None
    own: SentencesFile | None = None


def opened(path: Path) -> Opened:
    """The folder of a run, or a site's own folder of one. Raises RunError if it is neither."""
    if (path / SENTENCES).is_file():
        own = sentences_file(path / SENTENCES)
        return Opened(path, own.task, own=own)
    settings = RunFolder(path).settings()
    return Opened(path, settings.task, settings)


def run_of(one: Opened, matching: Matching) -> Run:
    """A run with the counts of all sites that scored test text, or of the one site at hand."""
    path = one.path
    if one.settings is None:
        own = read_sentences(path / SENTENCES, matching, held=one.own)
        return Run(path, "", None, {own.site: own})
    folder = RunFolder(path)
    settings, result = decisive(one.settings), folder.result()
    shared = {key: value for key, value in settings.items() if key.split(".")[0] not in _MAY_DIFFER}
    unit = TASKS[one.task].unit
    scored = [site for site, found in result.scores.sites.items() if found.get(unit)]
    if not scored:
        raise RunError(
            "no site of the run has test text to compare on",
            where=str(path),
            fix="name `test` files in its settings",
        )
    sites = {site: _of_site(folder.sites / site, matching) for site in scored}
    return Run(path, result.method, shared, sites)


def _of_site(folder: Path, matching: Matching) -> Sentences:
    if (folder / SENTENCES).is_file():
        return read_sentences(folder / SENTENCES, matching)
    if (folder / "errors.json").is_file():
        raise RunError(
            "an older confide wrote this run and did not keep the counts of its sentences",
            where=str(folder),
            expected=SENTENCES,
            fix="continue it with `confide run … --resume`: that scores its test text again, and"
            " trains nothing",
        )
    raise RunError(
        "the site's own folder is not here, nor are the counts of its sentences",
        where=str(folder),
        expected=SENTENCES,
        fix="let the site compare: it never sends this file, and `confide compare` takes its own"
        " folders of two runs",
    )


def check_sides(first: Sequence[Run], second: Sequence[Run]) -> None:
    """Raise RunError if the sides differ in length, or the runs of a side are not repeats."""
    if len(first) != len(second) or not first:
        raise RunError(
            "one side has more runs than the other",
            expected="one run of the second side for each of the first",
            got=f"{len(first)} and {len(second)}",
            fix="name all runs of the first side, then as many of the second in the same order",
        )
    for side in (first, second):
        for run in side[1:]:
            before, now = side[0].settings, run.settings
            if before is None or now is None:
                continue
            keys = before.keys() | now.keys()
            other = sorted(key for key in keys if before.get(key) != now.get(key))
            if other:
                raise RunError(
                    f"the runs of one side have another {other[0]}",
                    where=f"{side[0].path} and {run.path}",
                    expected="repeats of one run, which differ in their seed",
                    got=f"{before.get(other[0])!r} and {now.get(other[0])!r}",
                    fix="name all runs of the first side, then as many of the second",
                )


def check_texts(first: Sequence[Run], second: Sequence[Run]) -> None:
    """Raise RunError if the runs differ in their sites, or the two of a pair in their sentences."""
    names = sorted(first[0].sites)
    for run in (*first, *second):
        if sorted(run.sites) != names:
            raise RunError(
                "the runs were not scored at the same sites",
                where=f"{first[0].path} and {run.path}",
                expected=", ".join(names),
                got=", ".join(sorted(run.sites)),
            )
    for one, two in zip(first, second, strict=True):
        for name in names:
            if one.sites[name].fingerprint != two.sites[name].fingerprint:
                raise RunError(
                    "the two runs were scored on different test text",
                    where=f"site {name} of {one.path} and {two.path}",
                    fix="compare runs with the same `test` files and tags; where sites hold out a"
                    " `test_share`, runs of the same seed",
                )
    known: dict[tuple[str, str], tuple[Path, Table]] = {}
    for run in (*first, *second):
        for name, found in run.sites.items():
            key = name, found.fingerprint
            path, before_N3 = known.setdefault(key, (run.path, found.counts_N3))
            if not np.array_equal(before_N3[:, 2], found.counts_N3[:, 2]):
                raise RunError(
                    "the runs were scored on the same text, cut into different sentences or pairs",
                    where=f"site {name} of {path} and {run.path}",
                    fix="score one of them again with this confide: `confide run … --resume`",
                )
