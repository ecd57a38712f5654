"""The runs of a comparison: read from their folders, and refused where they cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide.errors import RunError
from confide.runs.folder import RunFolder, decisive
from confide.runs.sitereport import SENTENCES, SENTENCES_SCHEMA
from confide.scoring.bootstrap import Table
from confide.tasks import TASKS, USUAL, Counted

Matching = Counted

_MAY_DIFFER = {"seed", "key", "site", "split"}
"""Settings that repeats of one run need not share: the seed, and how it dealt the text."""


class Sentences(NamedTuple):
    """What a site's sentences counted, (true, predicted, gold), and a digest of its test text."""

    site: str
    fingerprint: str
    counts_N3: Table


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it is compared. `settings` are those that its repeats share, where they are here."""

    path: Path
    method: str
    settings: dict[str, Any] | None
    sites: dict[str, Sentences]


def read_sentences(file: Path, matching: Matching = "strict") -> Sentences:
    """One site's sentences.json. Raises RunError: damaged, or of a newer schema."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        schema, site, fingerprint = (found[key] for key in ("schema", "site", "fingerprint"))
        counts_N3 = np.array(found[matching])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(file) from error
    if isinstance(schema, int) and schema > SENTENCES_SCHEMA:
        raise RunError(
            "the sentences' counts were written by a newer confide",
            where=str(file),
            expected=f"schema {SENTENCES_SCHEMA} or older",
            got=f"schema {schema}",
            fix="read them with the version of confide that wrote them, or a later one",
        )
    if not (schema == SENTENCES_SCHEMA and isinstance(site, str) and isinstance(fingerprint, str)):
        raise _damaged(file)
    if counts_N3.dtype != np.int64 or counts_N3.ndim != 2 or counts_N3.shape[1] != 3:
        raise _damaged(file)
    true_N, predicted_N, gold_N = counts_N3.T
    if (true_N < 0).any() or (true_N > np.minimum(predicted_N, gold_N)).any():
        raise _damaged(file)
    return Sentences(site, fingerprint, counts_N3)


def _damaged(file: Path) -> RunError:
    return RunError(
        "this is not what a site's sentences counted",
        where=str(file),
        expected="a schema, a site, a fingerprint, and (true, predicted, gold) of each sentence",
    )


def paths_of(side: str | Path | Sequence[str | Path]) -> list[Path]:
    """The folders of one side."""
    return [Path(side)] if isinstance(side, (str, Path)) else [Path(path) for path in side]


def task_of(paths: Sequence[Path]) -> str:
    """The task of all these runs. Raises RunError: they are of several."""
    tasks = {path: _own_task(path) for path in paths}
    if len(set(tasks.values())) > 1:
        raise RunError(
            "one run finds entities and another relations, or facts: there is no score to compare",
            where=" and ".join(f"{path} ({task})" for path, task in tasks.items()),
            expected="runs of one `task`",
        )
    return next(iter(tasks.values()), USUAL)


def _own_task(path: Path) -> str:
    """What the run's settings say, or the kinds of counts in a site's own folder of it."""
    own = path / SENTENCES
    if own.is_file():
        try:
            found = json.loads(own.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None  # it is refused where its counts are read
        keys = found if isinstance(found, dict) else {}
        known = (task.name for task in TASKS.values() if set(task.counted[:1]) & set(keys))
        return next(known, USUAL)
    return RunFolder(path).settings().task


def run_of(path: Path, matching: Matching) -> Run:
    """A run with the counts of all sites that scored test text; or one site's own folder of it."""
    if (path / SENTENCES).is_file():
        own = read_sentences(path / SENTENCES, matching)
        return Run(path, "", None, {own.site: own})
    folder = RunFolder(path)
    settings, result = decisive(folder.settings()), folder.result()
    shared = {key: value for key, value in settings.items() if key.split(".")[0] not in _MAY_DIFFER}
    unit = TASKS[folder.settings().task].unit
    scored = [site for site, found in result["scores"]["sites"].items() if found[unit]]
    if not scored:
        raise RunError(
            "no site of the run has test text to compare on",
            where=str(path),
            fix="name `test` files in its settings",
        )
    sites = {site: _of_site(folder.sites / site, matching) for site in scored}
    return Run(path, result["method"], shared, sites)


def _of_site(folder: Path, matching: Matching) -> Sentences:
    if (folder / SENTENCES).is_file():
        return read_sentences(folder / SENTENCES, matching)
    if (folder / "errors.json").is_file():
        raise RunError(
            "the run was written by an older confide, which did not keep its sentences' counts",
            where=str(folder),
            expected=SENTENCES,
            fix="continue it with `confide run … --resume`: that scores its test text again, and"
            " trains nothing",
        )
    raise RunError(
        "the site's own folder is not here, and with it what its sentences counted",
        where=str(folder),
        expected=SENTENCES,
        fix="let the site compare: it never sends this file, and `confide compare` takes its own"
        " folders of two runs",
    )


def check_sides(first: Sequence[Run], second: Sequence[Run]) -> None:
    """Raise RunError where there are not as many runs, or a side mixes what are no repeats."""
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
    """Raise RunError where runs have other sites, or the two of a pair other sentences."""
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
                    "the two runs were scored on other test text",
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
                    "the runs were scored on the same text, cut into other sentences or pairs",
                    where=f"site {name} of {path} and {run.path}",
                    fix="score one of them again with this confide: `confide run … --resume`",
                )
