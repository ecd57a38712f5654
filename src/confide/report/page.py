"""The HTML page: everything that its template shows, worked out from run folders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from confide import words
from confide.errors import RunError, os_errors_as
from confide.files import for_the_owner, write_whole
from confide.report import sections
from confide.report.folder import FinishedRun, RefusedReplies, load_run, load_runs, task_of
from confide.report.plots import MOST_ROWS, Range
from confide.runs.folder import (
    CANDIDATES,
    RunFolder,
    audit_sentence,
    epsilon_sentence,
    smallest_sentence,
)
from confide.runs.result import RESULT, advice_on_run
from confide.runs.status import checkpoint_marks
from confide.scoring.relations import FIRSTS
from confide.tasks import TASKS
from confide.version import __version__

RENEW = 5
"""Seconds after which a browser loads the page of a run that goes on again."""
MOST_SHOWN = 3
"""Sentences, pairs or bags of one site that are shown before the reader asks for more."""


def report(
    runs: Sequence[Path | str],
    *,
    out: Path | str | None = None,
    text: bool = True,
    renewed: bool = False,
) -> Path:
    """Write one HTML page that shows one run or compares several, and return its path.

    The page loads nothing from elsewhere and has no scripts. It goes to `out`, or into the first
    run's folder: report.html for one run, comparison.html for several. It is written whole or not
    at all, and is its owner's alone if it may hold text of sites.

    `text=False` leaves out what the model gets right and wrong at each site, with its text. That
    comes from the errors.json that each site writes for itself; a run folder holds them only if all
    sites ran in one process. `renewed`: the page will be written again and again, and browsers load
    it again.

    The page of a single run that was stopped shows what its last checkpoint says.

    Raises RunError if a folder holds no run, a damaged one, or one of a newer schema, or if one of
    several is not finished.
    """
    alone = len(runs) == 1
    folders = load_runs([Path(run) for run in runs], text=text, unfinished=renewed or alone)
    if not renewed and folders[0].running and not folders[0].history:
        raise RunError(
            "the run was stopped before its first checkpoint, so there is nothing to show",
            where=str(folders[0].path),
            fix="continue it with `confide run … --resume`, or watch it with --watch",
        )
    page = Path(out or folders[0].path / ("report.html" if alone else "comparison.html"))
    html = render_report(folders, renewed=renewed)
    with (
        os_errors_as(
            RunError, "the page cannot be written", where=page, fix="name another file with --out"
        ),
        for_the_owner() if text else nullcontext(),
    ):
        write_whole(page, html.encode())
    return page


def watch_report(
    run: Path | str,
    *,
    out: Path | str | None = None,
    text: bool = True,
    on_page: Callable[[Path, str], None] | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Path:
    """Write the page of a run that goes on, again after each scored round, until it is finished.

    Until then the page shows the rounds so far, and browsers load it again every few seconds. The
    folder may still be empty or missing. `on_page` is told the page and where the run stands, each
    time. Gives the page of the finished run. Raises RunError as `report` does.
    """
    folder, before = Path(run), None
    while True:
        now = checkpoint_marks(folder) if RunFolder(folder).is_taken() else None
        if now is not None and now != before:
            before = now
            finished = (folder / RESULT).exists()
            page = report([folder], out=out, text=text, renewed=True)
            if on_page is not None:
                on_page(page, "finished" if finished else _progress(folder))
            if finished:
                return page
        wait(1.0)


def _progress(folder: Path) -> str:
    try:
        run = load_run(folder, text=False, unfinished=True)
    except RunError:  # it moved on in between
        return "running"
    rounds = f" of {run.result.rounds}" if run.result.rounds else ""
    return f"round {len(run.history)}{rounds}"


def render_report(runs: Sequence[FinishedRun], *, renewed: bool = False) -> str:
    """The page as HTML. If it is `renewed`, browsers load it again while a run goes on."""
    views = [sections.view_of(number, run) for number, run in enumerate(runs)]
    task = TASKS[task_of(runs)]

    page = words.templates("confide.report").get_template("page.html.j2")
    return page.render(
        version=__version__,
        title=", ".join(dict.fromkeys(run.name for run in runs)),
        lede=lede(runs),
        headline=headline(runs),
        range_text=range_text,
        running=[run for run in runs if run.running],
        renew=RENEW if renewed else 0,
        notices=_notices(runs),
        views=views,
        task=task.name,
        kinds=task.kinds,
        drawn=task.drawn,
        called=task.words,
        curves=sections.learning_curves(views),
        site_curves=sections.site_curves(views),
        reached=sections.reached(views),
        by_site=sections.by_site(views),
        by_type=sections.by_type(views),
        ranked=sections.precision_recall_plot(views),
        firsts=FIRSTS,
        candidates=CANDIDATES,
        confusions=[(v, found) for v in views if (found := sections.run_confusion(v.run))],
        site_confusion=sections.site_confusion,
        shown_rows=MOST_ROWS,
        errors=sorted((v for v in views if v.run.errors), key=lambda view: view.note != ""),
        most_shown=MOST_SHOWN,
        maps=[(v, map) for v in views if (map := sections.type_map(v.run))],
        reliable=[
            (view, one)
            for n, view in enumerate(views)
            if (one := sections.reliability_view(view.run, id=f"sure{n}"))
        ],
        audits=[
            (view, sections.audit_plot(view.run.audit, id=f"audit{n}"))
            for n, view in enumerate(views)
            if view.run.audit is not None
        ],
        audit_sentences={
            "site": audit_sentence,
            "epsilon": epsilon_sentence,
            "smallest": smallest_sentence,
        },
        spent=[
            (view, budget)
            for n, view in enumerate(views)
            if (budget := sections.privacy_view(view.run, id=f"spent{n}"))
        ],
        traffics=[
            (view, sections.traffic_view(view.run, id=f"traffic{n}"))
            for n, view in enumerate(views)
        ],
        same_data=_same_data(runs),
    )


def _same_data(runs: Sequence[FinishedRun]) -> bool:
    return len({run.result.data.fingerprint for run in runs}) == 1


# --- The summary: the results in few words and numbers, for those who read no further


class Headline(NamedTuple):
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
    sites = len({site for run in runs for site in run.there})
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


def headline(runs: Sequence[FinishedRun]) -> Headline | None:
    """The headline of the one federated run; None if there are several, or other data."""
    run = _federated(runs) if len(runs) > 1 else next(iter(runs), None)
    if run is None:
        return None
    kind, called = run.scoring.kinds[0], run.scoring.words.full(run.scoring.kinds[0])
    if run.running:
        scored = [
            score for turn in run.history if (score := (turn.dev or {}).get(kind)) is not None
        ]
        return Headline(scored[-1] if scored else None, called, "development text", None, ())
    if run.score(kind) is None:
        return None
    facts = [*_gains(run, runs), *_weakest(run)]
    best, rounds = run.result.best_round, run.result.rounds
    if best is not None and rounds is not None:
        facts.append(f"The model of round {best} of {rounds} was kept.")
    if (
        found := advice_on_run(run.result)
    ) is not None:  # it learnt next to nothing, or was still learning
        facts.append(f"{found.said[0].upper()}{found.said[1:]}.")
    range = sections.intervals(run).get(sections.ALL_SITES)
    return Headline(run.score(kind), called, "test text", range, tuple(facts))


def range_text(range: Range | None) -> str:
    """An interval in words; empty if there is none.

    >>> range_text((0.94751, 0.97))
    '95 % interval 94.8 to 97.0'
    """
    if range is None:
        return ""
    return f"{sections.LEVEL:.0%}".replace("%", " %") + (
        f" interval {words.points(range[0])} to {words.points(range[1])}"
    )


def _federated(runs: Sequence[FinishedRun]) -> FinishedRun | None:
    """The only run that is no reference, if all runs have the same data."""
    own = [run for run in runs if run.method not in sections.REFERENCES]
    if len({run.result.data.fingerprint for run in runs}) > 1:
        return None
    kind = TASKS[task_of(runs)].kinds[0]
    scored = [run for run in own if run.running or run.score(kind) is not None]
    return scored[0] if len(scored) == 1 else None


def _gains(run: FinishedRun, runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Sentences on each site's gain over training alone."""
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
            " They can keep their own model: confide personalise."
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


# --- Notices that a reader needs before comparing


MOST_REASONS = 3
"""Reasons shown for one refused site; result.json has them all."""
MOST_STRETCHES = 5
"""Stretches of rounds shown for one reason."""


class Notice(NamedTuple):
    """A notice to the reader; for refused replies, when (rounds and step) and why."""

    text: str
    refused: Sequence[tuple[str, str]] = ()


def _notices(runs: Sequence[FinishedRun]) -> list[Notice]:
    found = []
    if not _same_data(runs):
        found.append(Notice("The runs used different data: their scores cannot be compared."))
    overlooked: dict[int, list[str]] = {}
    for run in runs:
        if run.score(run.scoring.kinds[0]) is None and not run.running:
            what = "nothing was held out for testing, so there are no scores"
            found.append(Notice(f"{run.label}: {what}."))
        refused = run.refused
        for site, rounds in sorted(run.failed.items()):
            text = f"{run.label}: site {site} failed in {rounds} of {len(run.history)} rounds and"
            text += " was left out of them."
            found.append(Notice(text, list(_reasons(refused.get(site, [])))))
        if wrong := run.overall.get("malformed"):
            what = f"{wrong} predicted tag sequences were malformed and repaired"
            found.append(Notice(f"{run.label}: {what}."))
        overlooked.setdefault(sum(run.overall.get("missed", {}).values()), []).append(run.label)
    for missed, alike in overlooked.items():
        if missed:
            what = f"{words.count(missed)} marked relations join pairs that were not looked at"
            found.append(Notice(f"{', '.join(alike)}: {what}; they count as not found."))
    return found


def _reasons(refused: Sequence[RefusedReplies]) -> Iterator[tuple[str, str]]:
    """When and why one site's replies were refused."""
    for one in refused[:MOST_REASONS]:
        first, *others = one.whys.values()
        alike = all(why == first for why in others)
        why = first if alike else f"{first} (round {min(one.whys)}; later with other numbers)"
        yield f"{_rounds(list(one.whys))}, step {one.step}", f"{why}."
    if len(refused) > MOST_REASONS:
        yield "more", f"{len(refused) - MOST_REASONS} other reasons: see result.json."


def _rounds(rounds: Sequence[int]) -> str:
    """Rounds in words, consecutive ones as a stretch: "rounds 1 to 4, 9"."""
    stretches: list[list[int]] = []
    for number in rounds:
        if stretches and stretches[-1][-1] == number - 1:
            stretches[-1] = [stretches[-1][0], number]
        else:
            stretches.append([number])
    shown = ", ".join(" to ".join(map(str, ends)) for ends in stretches[:MOST_STRETCHES])
    more = " and more" if len(stretches) > MOST_STRETCHES else ""
    return f"round{'s' if len(rounds) > 1 else ''} {shown}{more}"
