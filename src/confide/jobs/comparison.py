"""Two runs over the same test text, sentence by sentence: is the difference real?

Every site keeps, beside its errors, the counts of each sentence of its test text (with relations,
of each document). Both runs' sentences are resampled together, with the same draw for both (the
paired bootstrap: Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation",
after Efron 1979), which gives an interval for the difference in micro-F1. Nothing is sent: this is
for whoever has the sites' own folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import numpy as np

from confide.errors import RunError, SettingsError
from confide.runs import folder as run_folder
from confide.scoring.intervals import (
    Interval,
    Table,
    bootstrap_interval,
    micro_f1,
    paired_bootstrap,
)
from confide.tasks import TASKS, USUAL

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
class Difference:
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
    matching: run_folder.Matching
    level: float
    samples: int
    seed: int
    overall: Difference
    sites: dict[str, Difference]
    unit: str = TASKS[USUAL].drawn


def compare(
    first: str | Path | Sequence[str | Path],
    second: str | Path | Sequence[str | Path],
    *,
    matching: run_folder.Matching | None = None,
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
    sides = [
        [_scored_run(Path(path)) for path in ([side] if isinstance(side, (str, Path)) else side)]
        for side in (first, second)
    ]
    runs = [run for side in sides for run in side]
    if len({run.task for run in runs}) > 1:
        raise RunError(
            "these runs have different tasks, so their scores cannot be compared",
            where=" and ".join(f"{run.path} ({run.task})" for run in runs),
            expected="runs of one task",
        )
    task = TASKS[runs[0].task if runs else USUAL]
    chosen = next((kind for kind in task.counted if matching in (None, kind)), None)
    if chosen is None:
        known = " or ".join(task.counted)
        raise SettingsError(
            f"no such way to match {task.learns}", expected=known, got=repr(matching)
        )
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
    _check_repeats(*sides)
    one, two = ([run.tables(chosen) for run in side] for side in sides)
    _check_texts(runs, one, two)

    def difference(sites: Sequence[str]) -> Difference:
        one_N3, two_N3 = _stacked(one, sites), _stacked(two, sites)
        found = paired_bootstrap(one_N3, two_N3, level=level, samples=samples, seed=seed)
        verdict: Verdict = "no clear difference"
        if found.low > 0 or found.high < 0:
            verdict = "better" if found.low > 0 else "worse"
        return Difference(
            first=_side_score(one, sites),
            second=_side_score(two, sites),
            difference=found.difference,
            low=found.low,
            high=found.high,
            p=found.p,
            sentences=len(one_N3),
            verdict=verdict,
        )

    names = sorted(one[0])
    a, b = sides[0][0], sides[1][0]
    by_method = a.method and b.method and a.method != b.method
    return RunComparison(
        *((a.method, b.method) if by_method else (a.folder, b.folder)),
        pairs=tuple((str(a.path), str(b.path)) for a, b in zip(*sides, strict=True)),
        same_text=all(len({run[name].fingerprint for run in one}) == 1 for name in names),
        matching=chosen,
        level=level,
        samples=samples,
        seed=seed,
        overall=difference(names),
        sites={name: difference([name]) for name in names},
        unit=task.drawn,
    )


def f1_interval(runs: Sequence[str | Path], *, matching: run_folder.Matching) -> Interval:
    """The micro-F1 of repeats on all sites' test text and its interval, as `compare` draws.

    Raises RunError as `compare` does.
    """
    side = [_scored_run(Path(path)) for path in runs]
    _check_repeats(side, side)
    tables = [run.tables(matching) for run in side]
    _check_texts([*side, *side], tables, tables)
    return bootstrap_interval(_stacked(tables, sorted(tables[0])), samples=2000)


# --- The runs of a comparison, read from their folders, and refused if they cannot be compared


_MAY_DIFFER = {"seed", "key", "site", "split"}
"""Settings that repeats of one run need not share: the seed, and where text and key come from."""


@dataclass(frozen=True, slots=True)
class _ScoredRun:
    """A run, or a site's own folder of one, which has neither its method nor its settings.

    `settings` are those that repeats share; `scored` are the folders of sites with test text.
    """

    path: Path
    task: str
    scored: tuple[Path, ...]
    method: str = ""
    settings: dict[str, object] | None = None

    @property
    def folder(self) -> str:
        """The run's folder, also of a site's own."""
        return str(self.path.parent.parent if self.path.parent.name == "sites" else self.path)

    def tables(self, matching: run_folder.Matching) -> dict[str, run_folder.Sentences]:
        """The counts of each site that scored test text. Raises RunError if they are not here."""
        found = {}
        for place in self.scored:
            if (place / run_folder.SENTENCES).is_file():
                counts = run_folder.read_sentences(place / run_folder.SENTENCES, matching)
                found[counts.site if self.settings is None else place.name] = counts
            elif (place / "errors.json").is_file():
                raise RunError(
                    "an older confide wrote this run and did not keep the counts of its sentences",
                    where=str(place),
                    expected=run_folder.SENTENCES,
                    fix="continue it with `confide run … --resume`: that scores its test text"
                    " again, and trains nothing",
                )
            else:
                raise RunError(
                    "the site's own folder is not here, nor are the counts of its sentences",
                    where=str(place),
                    expected=run_folder.SENTENCES,
                    fix="let the site compare: it never sends this file, and `confide compare`"
                    " takes its own folders of two runs",
                )
        return found


def _scored_run(path: Path) -> _ScoredRun:
    """The run in a folder. Raises RunError if it is neither a run's nor a site's own."""
    if (path / run_folder.SENTENCES).is_file():
        return _ScoredRun(
            path, run_folder.sentences_file(path / run_folder.SENTENCES).task, (path,)
        )
    folder = run_folder.RunFolder(path)
    settings, result = folder.settings(), folder.result()
    unit = TASKS[settings.task].unit
    scored = [site for site, found in result.scores.sites.items() if found.get(unit)]
    if not scored:
        raise RunError(
            "no site of the run has test text to compare on",
            where=str(path),
            fix="name `test` files in its settings",
        )
    shared = {
        key: value
        for key, value in run_folder.decisive(settings).items()
        if key.split(".")[0] not in _MAY_DIFFER
    }
    places = tuple(folder.sites / site for site in scored)
    return _ScoredRun(path, settings.task, places, result.method, shared)


def _check_repeats(first: Sequence[_ScoredRun], second: Sequence[_ScoredRun]) -> None:
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


_Tables = dict[str, run_folder.Sentences]
"""The counts of one run's sentences, by site."""


def _check_texts(
    runs: Sequence[_ScoredRun], first: Sequence[_Tables], second: Sequence[_Tables]
) -> None:
    """Raise RunError if `runs`, the first side's and the second's, differ in sites or sentences."""
    paths, names = [run.path for run in runs], sorted(first[0])
    for path, tables in zip(paths, (*first, *second), strict=True):
        if sorted(tables) != names:
            raise RunError(
                "the runs were not scored at the same sites",
                where=f"{paths[0]} and {path}",
                expected=", ".join(names),
                got=", ".join(sorted(tables)),
            )
    for number, (one, two) in enumerate(zip(first, second, strict=True)):
        for name in names:
            if one[name].fingerprint != two[name].fingerprint:
                raise RunError(
                    "the two runs were scored on different test text",
                    where=f"site {name} of {paths[number]} and {paths[len(first) + number]}",
                    fix="compare runs with the same `test` files and tags; where sites hold out a"
                    " `test_share`, runs of the same seed",
                )
    known: dict[tuple[str, str], tuple[Path, Table]] = {}
    for path, tables in zip(paths, (*first, *second), strict=True):
        for name, (_, fingerprint, counts_N3) in tables.items():
            before, before_N3 = known.setdefault((name, fingerprint), (path, counts_N3))
            if not np.array_equal(before_N3[:, 2], counts_N3[:, 2]):
                raise RunError(
                    "the runs were scored on the same text, cut into different sentences or pairs",
                    where=f"site {name} of {before} and {path}",
                    fix="score one of them again with this confide: `confide run … --resume`",
                )


def _stacked(side: Sequence[_Tables], sites: Sequence[str]) -> Table:
    """The side's sentences at these sites: repeats on one text added up, other text appended."""
    blocks: dict[tuple[str, str], Table] = {}
    for name in sites:
        for tables in side:
            _, fingerprint, counts_N3 = tables[name]
            key = name, fingerprint
            blocks[key] = blocks[key] + counts_N3 if key in blocks else counts_N3
    return np.concatenate(list(blocks.values()))


def _side_score(side: Sequence[_Tables], sites: Sequence[str]) -> SideScore:
    sums_R3 = np.array([sum(run[name].counts_N3.sum(axis=0) for name in sites) for run in side])
    each = micro_f1(sums_R3).tolist()
    overall = float(micro_f1(sums_R3.sum(axis=0)))
    return SideScore(overall, fmean(each), stdev(each) if len(each) > 1 else None)
