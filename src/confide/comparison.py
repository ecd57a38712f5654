"""Two runs over the same test text, sentence by sentence: is the difference real?

Every site keeps beside its errors what each sentence of its test text counted. Both runs' sentences
are resampled together, the same draw for both (the paired bootstrap: Koehn 2004, "Statistical
Significance Tests for Machine Translation Evaluation", after Efron 1979), and the interval is that
of the difference in micro-F1. Nothing is sent: it is for whoever has the sites' own folders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from confide.errors import RunError, SettingsError
from confide.runfolder import RunFolder, decisive
from confide.scoring import Comparison, Count, f1, paired_bootstrap
from confide.scoring.bootstrap import Table
from confide.sitereport import SENTENCES, SENTENCES_SCHEMA

__all__ = ["Compared", "RunComparison", "SideScore", "compare"]

Matching = Literal["strict", "relaxed"]
Verdict = Literal["better", "worse", "no clear difference"]
FEWEST_SAMPLES = 100

_MAY_DIFFER = {"seed", "key", "site", "split"}
"""Settings that repeats of one run need not share: the seed, and how it dealt the text."""


@dataclass(frozen=True, slots=True)
class SideScore:
    """A side's micro-F1, all repeats' counts together; mean and deviation of the repeats' own F1.

    Fractions. `deviation` is the sample standard deviation; None where there is one run.
    """

    f1: float
    mean: float
    deviation: float | None


@dataclass(frozen=True, slots=True)
class Compared:
    """The second side minus the first in micro-F1, at one site or over all; fractions.

    `verdict` is on the second side, by whether the interval excludes 0.
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

    `first` and `second` name the sides: their methods, or folders where the method is the same.
    `pairs` are the folders, run by run. `same_text`: all repeats were scored on the same text.
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


class Sentences(NamedTuple):
    """What a site's sentences counted, (true, predicted, gold), and a digest of its test text."""

    site: str
    fingerprint: str
    counts_N3: Table


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as it is compared. `settings` are those that its repeats share, where they are here."""

    path: Path
    method: str
    settings: dict[str, Any] | None
    sites: dict[str, Sentences]


def compare(
    first: str | Path | Sequence[str | Path],
    second: str | Path | Sequence[str | Path],
    *,
    matching: Matching = "strict",
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> RunComparison:
    """Compare two runs, or two lists of repeats, on the same sentences.

    Args:
        first: a run's folder, or several: repeats of one run that differ in their seed. A site
            that has only its own folder of a run (`sites/NAME`) gives that.
        second: what it is compared with, as many and in the same order.
        matching: which F1.
        level: of the percentile interval, between 0 and 1.
        samples: how often sentences are drawn.
        seed: of the draws.

    The unit that is drawn is a sentence. Repeats on the same test text are added sentence by
    sentence first, so that a sentence stays one unit however often it was scored. Where each repeat
    held out other text (a `test_share` under several seeds), there is no such sum: the first runs
    of both sides then share one text, the second runs another, and these texts stand beside each
    other as one long list of pairs. A sentence that several repeats held out is in it as often,
    which makes the interval a little too narrow.

    The interval knows which sentences were scored and nothing of other seeds: for that, look at the
    deviation over repeats. At 0.95, one site in twenty looks different by chance alone.

    Raises:
        RunError: a folder holds no finished run, or not its sites' counts; the runs have other
            sites or other test text; repeats that differ in more than their seed.
        SettingsError: a level, number of samples or matching that makes no sense.
    """
    _check_options(matching, level, samples)
    resample = partial(paired_bootstrap, level=level, samples=samples, seed=seed)
    one, two = ([_run(path, matching) for path in _paths(side)] for side in (first, second))
    _check_sides(one, two)
    _check_texts(one, two)
    names = sorted(one[0].sites)
    return RunComparison(
        *_labels(one[0], two[0]),
        pairs=tuple((str(a.path), str(b.path)) for a, b in zip(one, two, strict=True)),
        same_text=all(len({run.sites[name].fingerprint for run in one}) == 1 for name in names),
        matching=matching,
        level=level,
        samples=samples,
        seed=seed,
        overall=_compared(one, two, names, resample),
        sites={name: _compared(one, two, [name], resample) for name in names},
    )


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


def _paths(side: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(side)] if isinstance(side, (str, Path)) else [Path(path) for path in side]


def _run(path: Path, matching: Matching) -> _Run:
    """A run with the counts of all sites that scored test text; or one site's own folder of it."""
    if (path / SENTENCES).is_file():
        own = read_sentences(path / SENTENCES, matching)
        return _Run(path, "", None, {own.site: own})
    folder = RunFolder(path)
    settings, result = decisive(folder.settings()), folder.result()
    shared = {key: value for key, value in settings.items() if key.split(".")[0] not in _MAY_DIFFER}
    scored = [site for site, found in result["scores"]["sites"].items() if found["sentences"]]
    if not scored:
        raise RunError(
            "no site of the run has test text to compare on",
            where=str(path),
            fix="name `test` files in its settings",
        )
    sites = {site: _of_site(folder.sites / site, matching) for site in scored}
    return _Run(path, result["method"], shared, sites)


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


def _check_options(matching: str, level: float, samples: int) -> None:
    if matching not in get_args(Matching):
        raise SettingsError(
            "no such way to match", expected=" or ".join(get_args(Matching)), got=repr(matching)
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


def _check_sides(first: Sequence[_Run], second: Sequence[_Run]) -> None:
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


def _check_texts(first: Sequence[_Run], second: Sequence[_Run]) -> None:
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
                    "the runs were scored on the same text, cut into other sentences",
                    where=f"site {name} of {path} and {run.path}",
                    fix="score one of them again with this confide: `confide run … --resume`",
                )


def _labels(first: _Run, second: _Run) -> tuple[str, str]:
    """Two methods; or the runs' folders, where the method is the same or nobody says which."""
    if first.method and second.method and first.method != second.method:
        return first.method, second.method
    one, two = (
        run.path.parent.parent if run.path.parent.name == "sites" else run.path
        for run in (first, second)
    )
    return str(one), str(two)


def _compared(
    first: Sequence[_Run],
    second: Sequence[_Run],
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


def _together(side: Sequence[_Run], sites: Sequence[str]) -> Table:
    """The side's sentences at these sites: repeats on one text added up, other text after it."""
    blocks: dict[tuple[str, str], Table] = {}
    for name in sites:
        for run in side:
            _, fingerprint, counts_N3 = run.sites[name]
            key = name, fingerprint
            blocks[key] = blocks[key] + counts_N3 if key in blocks else counts_N3
    return np.concatenate(list(blocks.values()))


def _score(side: Sequence[_Run], sites: Sequence[str]) -> SideScore:
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
