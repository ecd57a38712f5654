"""Two runs over the same test text, sentence by sentence: is the difference real?

Every site keeps, beside its errors, the counts of each sentence of its test text (with relations,
of each document). Both runs' sentences are resampled together, with the same draw for both (the
paired bootstrap: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation",
after Efron 1979), which gives an interval for the difference in micro-F1. Nothing is sent: this is
for whoever has the sites' own folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import numpy as np

from confide.errors import RunError, SettingsError
from confide.runs.folder import (
    SENTENCES,
    Matching,
    RunFolder,
    Sentences,
    SentencesFile,
    decisive,
    read_sentences,
    sentences_file,
)
from confide.scoring import Comparison, Count, f1, paired_bootstrap
from confide.scoring.intervals import Table
from confide.settings import Settings
from confide.tasks import TASKS, USUAL, Task

# --- The runs of a comparison
#
# Read from their folders, and refused if they cannot be compared.


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


Verdict = Literal["better", "worse", "no clear difference"]
FEWEST_SAMPLES = 100


@dataclass(frozen=True, slots=True)
class SideScore:
    """A side's micro-F1 over the counts of all repeats, and the mean and deviation of their own F1.

    Fractions. `deviation` is the sample standard deviation; None for a single run.
    """

    f1: float
    mean: float
    deviation: float | None


@dataclass(frozen=True, slots=True)
class Compared:
    """The second side minus the first in micro-F1, at one site or over all; fractions.

    `sentences` is the number of sentences, documents with relations, or bags to draw from.
    `verdict` is about the second side, and depends on whether the interval excludes 0.
    """

    first: SideScore
    second: SideScore
    difference: float
    low: float
    high: float
    p: float
    sentences: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two sides by site and over all sites' sentences together.

    `first` and `second` name the sides: their methods, or their folders if the method is the same.
    `pairs` are the folders, run by run. `same_text`: all repeats were scored on the same text.
    `unit` is what was drawn: "sentences", with relations "documents", with bags "bags".
    """

    first: str
    second: str
    pairs: tuple[tuple[str, str], ...]
    same_text: bool
    matching: Matching
    level: float
    samples: int
    seed: int
    overall: Compared
    sites: dict[str, Compared]
    unit: str = TASKS[USUAL].drawn


def compare(
    first: str | Path | Sequence[str | Path],
    second: str | Path | Sequence[str | Path],
    *,
    matching: Matching | None = None,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> RunComparison:
    """Compare two runs, or two lists of repeats, on the same sentences.

    Args:
        first: a run's folder, or several: repeats of one run that differ in their seed. A site
            that has only its own folder of a run (`sites/NAME`) gives that.
        second: the folders to compare with, equally many and in the same order.
        matching: which F1; None: strict, with relations micro, with bags that of their best labels.
        level: the level of the percentile interval, between 0 and 1.
        samples: how many times sentences are drawn.
        seed: the seed of the draws.

    A unit to draw is a sentence; with relations a document (or its stated pair); or a bag. Repeats
    on the same test text are first added sentence by sentence, so that a sentence stays one unit
    however often it was scored. If each repeat held out other text (a `test_share` under several
    seeds), there is no such sum: the first runs of both sides share one text, the second runs
    another, and these texts form one long list of pairs. A sentence that several repeats held out
    occurs in it as often, which makes the interval a little too narrow.

    The interval reflects which sentences were scored, not other seeds; for those, look at the
    deviation over repeats. At 0.95, one site in twenty looks different by chance alone.

    Raises:
        RunError: a folder holds no finished run, or lacks its sites' counts; the runs differ in
            their sites, test text or task; repeats differ in more than their seed.
        SettingsError: the level, number of samples or matching makes no sense.
    """
    sides = paths_of(first), paths_of(second)
    ones, twos = ([opened(path) for path in side] for side in sides)
    task = TASKS[task_of([*ones, *twos])]
    chosen = _checked(matching, task)
    _check_options(level, samples)
    resample = partial(paired_bootstrap, level=level, samples=samples, seed=seed)
    one, two = ([run_of(run, chosen) for run in side] for side in (ones, twos))
    check_sides(one, two)
    check_texts(one, two)
    names = sorted(one[0].sites)
    return RunComparison(
        *_labels(one[0], two[0]),
        pairs=tuple((str(a.path), str(b.path)) for a, b in zip(one, two, strict=True)),
        same_text=all(len({run.sites[name].fingerprint for run in one}) == 1 for name in names),
        matching=chosen,
        level=level,
        samples=samples,
        seed=seed,
        overall=_compared(one, two, names, resample),
        sites={name: _compared(one, two, [name], resample) for name in names},
        unit=task.drawn,
    )


def _checked(matching: str | None, task: Task) -> Matching:
    """The given way of matching, or the task's usual one. Raises SettingsError."""
    known: tuple[Matching, ...] = task.counted
    if not known:
        raise RunError(
            f"runs of task {task.name!r} have no counts of sentences to compare",
            expected=" or ".join(one.name for one in TASKS.values() if one.counted),
            fix="look at the scores of both: `confide report`",
        )
    for kind in known:
        if matching in (None, kind):
            return kind
    raise SettingsError(
        f"no such way to match {task.learns}", expected=" or ".join(known), got=repr(matching)
    )


def _check_options(level: float, samples: int) -> None:
    if not 0 < level < 1:
        raise SettingsError(
            "no such level of an interval", expected="more than 0, less than 1", got=str(level)
        )
    if samples < FEWEST_SAMPLES:
        raise SettingsError(
            "too few samples for an interval",
            expected=f"at least {FEWEST_SAMPLES}",
            got=str(samples),
        )


def _labels(first: Run, second: Run) -> tuple[str, str]:
    """The two methods, or the runs' folders if the methods are the same or unknown."""
    if first.method and second.method and first.method != second.method:
        return first.method, second.method
    one, two = (
        run.path.parent.parent if run.path.parent.name == "sites" else run.path
        for run in (first, second)
    )
    return str(one), str(two)


def _compared(
    first: Sequence[Run],
    second: Sequence[Run],
    sites: Sequence[str],
    resample: Callable[[Table, Table], Comparison],
) -> Compared:
    one_N3, two_N3 = _together(first, sites), _together(second, sites)
    found = resample(one_N3, two_N3)
    return Compared(
        first=_score(first, sites),
        second=_score(second, sites),
        difference=found.difference,
        low=found.low,
        high=found.high,
        p=found.p,
        sentences=len(one_N3),
        verdict=_verdict(found.low, found.high),
    )


def _together(side: Sequence[Run], sites: Sequence[str]) -> Table:
    """The side's sentences at these sites: repeats on one text added up, other text appended."""
    blocks: dict[tuple[str, str], Table] = {}
    for name in sites:
        for run in side:
            _, fingerprint, counts_N3 = run.sites[name]
            key = name, fingerprint
            blocks[key] = blocks[key] + counts_N3 if key in blocks else counts_N3
    return np.concatenate(list(blocks.values()))


def _score(side: Sequence[Run], sites: Sequence[str]) -> SideScore:
    sums = [
        Count(*map(int, sum(run.sites[name].counts_N3.sum(axis=0) for name in sites)))
        for run in side
    ]
    each = [f1(count) for count in sums]
    all_repeats = Count(*map(sum, zip(*sums, strict=True)))
    return SideScore(f1(all_repeats), fmean(each), stdev(each) if len(each) > 1 else None)


def _verdict(low: float, high: float) -> Verdict:
    if low > 0:
        return "better"
    return "worse" if high < 0 else "no clear difference"


__all__ = ["Compared", "Matching", "RunComparison", "SideScore", "compare", "read_sentences"]
