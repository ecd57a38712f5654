"""What came of the runs, in few words and numbers, for those who read no further."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from confide.report import words
from confide.report.folder import FinishedRun, task_of
from confide.report.intervals import ALL, LEVEL, intervals
from confide.report.plots import Range
from confide.report.views import REFERENCES
from confide.runs.learnt import advice
from confide.tasks import TASKS


@dataclass(frozen=True, slots=True)
class Verdict:
    """The one federated run of a page: its score, the interval, and what stands out.

    `score` is None while it goes on and no development text was scored. `of` says on which text.
    """

    score: float | None
    called: str
    of: str
    range: Range | None
    facts: tuple[str, ...]


def lede(runs: Sequence[FinishedRun]) -> str:
    """One sentence for those who read no further."""
    split = [run for run in runs if run.method != "pooled"] or runs
    sites = len({site for run in split for site in run.there})
    what = f"{sites} sites" if sites != 1 else "one site"
    task = TASKS[task_of(runs)]
    kind = task.kinds[0]
    f1 = {run.method: run.score(kind) for run in runs}
    federated = _federated(runs)
    if federated is None or f1[federated.method] is None:
        return f"{len(runs)} runs on {what}." if len(runs) > 1 else f"One run on {what}."
    own = "a model for each" if federated.result.personal else "one model"
    told = f"{what[0].upper()}{what[1:]} trained {own} without sharing text"
    told += f": {words.points(f1[federated.method])} {task.words.score or task.words.kind(kind)}"
    if f1.get("alone") is not None:
        told += f"; each site by itself reaches {words.points(f1['alone'])}"
    if f1.get("public-only") is not None:
        told += f"; the public set alone, {words.points(f1['public-only'])}"
    if f1.get("pooled") is not None:
        told += f"; all text in one place, {words.points(f1['pooled'])}"
    return told + "."


def verdict(runs: Sequence[FinishedRun]) -> Verdict | None:
    """The verdict on the one federated run; None if there are several, or other data."""
    run = _federated(runs) if len(runs) > 1 else next(iter(runs), None)
    if run is None:
        return None
    kind, called = run.scoring.kinds[0], run.scoring.words
    if run.running:
        return Verdict(_newest(run), called.full(kind), "development text", None, ())
    if run.score(kind) is None:
        return None
    facts = (*_gains(run, runs), *_weakest(run), *_kept(run), *_learnt(run))
    found = intervals(run).get(ALL)
    return Verdict(run.score(kind), called.full(kind), "test text", found, facts)


def told_range(range: Range | None) -> str:
    """An interval in words; empty if there is none.

    >>> told_range((0.94751, 0.97))
    '95 % interval 94.8 to 97.0'
    """
    if range is None:
        return ""
    return f"{LEVEL:.0%}".replace("%", " %") + (
        f" interval {words.points(range[0])} to {words.points(range[1])}"
    )


def _federated(runs: Sequence[FinishedRun]) -> FinishedRun | None:
    """The only run that is no reference, if all runs have the same data."""
    own = [run for run in runs if run.method not in REFERENCES]
    if len({run.result.data.fingerprint for run in runs}) > 1:
        return None
    kind = TASKS[task_of(runs)].kinds[0]
    scored = [run for run in own if run.running or run.score(kind) is not None]
    return scored[0] if len(scored) == 1 else None


def _newest(run: FinishedRun) -> float | None:
    """The newest development score of a run that goes on."""
    kind = run.scoring.kinds[0]
    scores = [score for turn in run.history if (score := (turn.dev or {}).get(kind)) is not None]
    return scores[-1] if scores else None


def _gains(run: FinishedRun, runs: Sequence[FinishedRun]) -> Iterator[str]:
    """What each site gains over training alone."""
    alone = next((one for one in runs if one.method == "alone" and one is not run), None)
    kind = run.scoring.kinds[0]
    if alone is None:
        return
    gains = {
        site: after - before
        for site in run.sites
        if (after := run.score(kind, site)) is not None
        and (before := alone.score(kind, site)) is not None
    }
    if not gains:
        return
    losers = [site for site, gain in gains.items() if gain < 0]
    least, most = min(gains, key=gains.__getitem__), max(gains, key=gains.__getitem__)
    by = [f"{name} {100 * gains[name]:+.1f}" for name in dict.fromkeys((least, most))]
    if not losers:
        yield f"Every site gains over training alone: {' to '.join(by)}."
    else:
        yield (
            f"{len(losers)} of {len(gains)} sites are worse off than alone: {' to '.join(by)}."
            " They can keep their own model: confide home."
        )


def _weakest(run: FinishedRun) -> Iterator[str]:
    """The site and the type with the lowest score."""
    kind, typed = run.scoring.kinds[0], run.scoring.typed[0]
    sites = {site: f1 for site in run.sites if (f1 := run.score(kind, site)) is not None}
    found = run.overall.get(typed, {}).get("types", {})
    types = {name: one for name, one in found.items() if one.get("support")}
    parts = []
    if len(sites) > 1:
        site = min(sites, key=sites.__getitem__)
        parts.append(f"site is {site} ({words.points(sites[site])})")
    if len(types) > 1:
        type = min(types, key=lambda name: (types[name]["f1"], name))
        marked = words.count(types[type].get("support"))
        verb = "" if parts else "is "
        parts.append(f"type {verb}{type} ({words.points(types[type]['f1'])}; {marked} marked)")
    if parts:
        yield f"The weakest {', the weakest '.join(parts)}."


def _kept(run: FinishedRun) -> Iterator[str]:
    best, rounds = run.result.best_round, run.result.rounds
    if best is not None and rounds is not None:
        yield f"The model of round {best} of {rounds} was kept."


def _learnt(run: FinishedRun) -> Iterator[str]:
    """Whether the model has learnt next to nothing, or was still learning."""
    if (found := advice(run.result)) is not None:
        yield f"{found.said[0].upper()}{found.said[1:]}."
