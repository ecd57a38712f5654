"""The HTML page: everything that its template shows, worked out from run folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from confide import __version__
from confide.errors import RunError, os_errors_as
from confide.federation.files import for_the_owner
from confide.report import words
from confide.report.audits import audits
from confide.report.folder import FinishedRun, Refused, load_runs, task_of
from confide.report.mistakes import (
    ConfusionView,
    ErrorsView,
    entity_confusion,
    errors_view,
    relation_confusion,
)
from confide.report.plots import MOST_ROWS
from confide.report.ranked import precision_recall
from confide.report.reliability import SureView, reliability
from confide.report.sections import by_site, by_type, learning_curves, reached
from confide.report.sitecurves import site_curves
from confide.report.spent import spent
from confide.report.typemap import TypeMap, type_map
from confide.report.verdict import lede, told_range, verdict
from confide.report.views import RunView, view_of
from confide.runs.athome import CANDIDATES
from confide.tasks import TASKS
from confide.userfiles import write_whole

RENEW = 5
"""Seconds after which a browser loads the page of a run that goes on again."""
MOST_SHOWN = 3
"""Sentences, pairs or bags of one site that are shown before the reader asks for more."""


def write_page(
    runs: Sequence[Path | str],
    *,
    out: Path | str | None = None,
    text: bool = True,
    renewed: bool = False,
) -> Path:
    """See `confide.report.report`. The file is written whole or not at all.

    A page that may hold text of sites is its owner's alone, unless it is there already.

    `renewed`: the page will be written again and again, and browsers load it again.
    """
    alone = len(runs) == 1
    folders = load_runs([Path(run) for run in runs], text=text, unfinished=renewed or alone)
    if not renewed and folders[0].running and not folders[0].history:
        raise RunError(
            "the run was stopped before its first checkpoint, so there is nothing to show",
            where=str(folders[0].path),
            fix="continue it with `confide run … --resume`, or watch it with --watch",
        )
    name = "report.html" if len(folders) == 1 else "comparison.html"
    page = Path(out) if out is not None else folders[0].path / name
    html = render(folders, renewed=renewed)
    with (
        os_errors_as(
            RunError, "the page cannot be written", where=page, fix="name another file with --out"
        ),
        for_the_owner() if text else nullcontext(),
    ):
        write_whole(page, html.encode())
    return page


def render(runs: Sequence[FinishedRun], *, renewed: bool = False) -> str:
    """The page as HTML. If it is `renewed`, browsers load it again while a run goes on."""
    views = [view_of(number, run) for number, run in enumerate(runs)]
    task = task_of(runs)
    environment = Environment(
        loader=PackageLoader("confide.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (words.points, words.size, words.duration, words.count):
        environment.filters[function.__name__] = function
    return environment.get_template("page.html.j2").render(
        version=__version__,
        title=", ".join(dict.fromkeys(r.result.name or r.path.name for r in runs)),
        lede=lede(runs),
        verdict=verdict(runs),
        told_range=told_range,
        running=[run for run in runs if run.running],
        renew=RENEW if renewed else 0,
        notices=_notices(runs),
        views=views,
        task=task,
        kinds=TASKS[task].kinds,
        drawn=TASKS[task].drawn,
        called=TASKS[task].words,
        curves=learning_curves(views),
        site_curves=site_curves(views),
        reached=reached(views),
        by_site=by_site(views),
        by_type=by_type(views),
        ranked=precision_recall(views),
        candidates=CANDIDATES,
        confusions=_confusions(views),
        shown_rows=MOST_ROWS,
        errors=_errors(views),
        most_shown=MOST_SHOWN,
        maps=_maps(views),
        reliable=_reliable(views),
        audits=audits(views),
        spent=spent(views),
        same_data=_same_data(runs),
    )


# --- all runs -----------------------------------------------------------------------------


class Notice(NamedTuple):
    """What a reader must know; for refused replies, when (rounds and step) and why."""

    text: str
    refused: Sequence[tuple[str, str]] = ()


def _notices(runs: Sequence[FinishedRun]) -> list[Notice]:
    """What a reader must know before comparing."""
    found = []
    if not _same_data(runs):
        what = "The runs used different data: their scores cannot be compared."
        found.append(Notice(what))
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
    return found + [Notice(text) for text in _overlooked(runs)]


MOST_REASONS = 3
"""Reasons shown for one refused site; result.json has them all."""
MOST_STRETCHES = 5
"""Stretches of rounds shown for one reason."""


def _reasons(refused: Sequence[Refused]) -> Iterator[tuple[str, str]]:
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


def _overlooked(runs: Sequence[FinishedRun]) -> list[str]:
    """How many relations no run could find; runs with the same number share one notice."""
    labels: dict[int, list[str]] = {}
    for run in runs:
        labels.setdefault(sum(run.overall.get("missed", {}).values()), []).append(run.label)
    return [
        f"{', '.join(alike)}: {words.count(missed)} marked relations join pairs that were not"
        " looked at; they count as not found."
        for missed, alike in labels.items()
        if missed
    ]


def _same_data(runs: Sequence[FinishedRun]) -> bool:
    return len({run.result.data.fingerprint for run in runs}) == 1


def _confusions(views: Sequence[RunView]) -> list[tuple[RunView, ConfusionView]]:
    """What was predicted as what, for each run that records it; of entities, the sites know."""
    found = []
    for view in views:
        if view.run.overall.get("confusion"):
            found.append((view, relation_confusion(view.run.overall)))
        elif (table := entity_confusion(view.run.errors)) is not None:
            found.append((view, table))
    return found


def _errors(views: Sequence[RunView]) -> list[tuple[RunView, list[ErrorsView]]]:
    """By run, the federated ones first, what each site sees of its own text."""
    own = [(v, [errors_view(found) for found in v.run.errors]) for v in views if v.run.errors]
    return sorted(own, key=lambda pair: pair[0].note != "")


def _maps(views: Sequence[RunView]) -> list[tuple[RunView, TypeMap]]:
    found = [(view, type_map(view.run)) for view in views]
    return [(view, one) for view, one in found if one is not None]


def _reliable(views: Sequence[RunView]) -> list[tuple[RunView, SureView]]:
    found = [(view, reliability(view.run, id=f"sure{n}")) for n, view in enumerate(views)]
    return [(view, one) for view, one in found if one is not None]
