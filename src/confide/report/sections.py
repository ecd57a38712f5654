"""The sections of a page: scores, rounds, intervals, reliability, audit, privacy budget, errors."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from confide import words
from confide.errors import DataError, RunError
from confide.federation.ledger import Entry
from confide.report import plots
from confide.report.folder import EntityErrors, Errors, FinishedRun, task_of, totals
from confide.report.plots import Look, Range, RunCurve
from confide.runs.folder import Audit, audit_sentence
from confide.runs.result import Private, RoundRecord, SureBin
from confide.scoring.calibration import AS_IS
from confide.scoring.counts import Scored
from confide.scoring.intervals import Interval, bootstrap_interval
from confide.scoring.relations import auc_interval
from confide.tasks import TASKS, Task
from confide.text.document import NO_RELATION

REFERENCES = {
    "pooled": "a reference: all text in one place, which real sites could not do",
    "alone": "a reference: every site trains on its own text only",
    "public-only": "a reference: trained on the public set alone, without the sites",
}


@dataclass(frozen=True, slots=True)
class RunView:
    """A run on the page: its look, and a note if it is a reference."""

    run: FinishedRun
    look: Look
    note: str


def view_of(number: int, run: FinishedRun) -> RunView:
    """The view of a run, given its number on the page."""
    return RunView(run, Look.of(number), REFERENCES.get(run.method, ""))


def _task(views: Sequence[RunView]) -> Task:
    return TASKS[task_of(view.run for view in views)]


def _spoken(views: Sequence[RunView], kind: str) -> str:
    """A kind of score at the start of a sentence."""
    return _task(views).words.kinds.get(kind) or f"{kind.capitalize()} F1"


# --- What crossed the wall


class TrafficView(NamedTuple):
    """The ledger of a run: a drawing of bytes by site, and tables.

    `steps` has a row (step, times, bytes of a reply, bytes of an ask) for each step, with mean
    bytes, and `left` and `reached` a row (step, field, kind, seen, messages, bytes) for each field
    of a direction; `seen` is as in the ledger.
    """

    plot: Markup | None
    not_drawn: int
    steps: list[tuple[str, int, float | None, float | None]]
    left: list[tuple[tuple[str, ...], int, int]]
    reached: list[tuple[tuple[str, ...], int, int]]


def traffic_view(run: FinishedRun, *, id: str) -> TrafficView:
    """The bytes of a run by site, by step and by field."""
    rows = [(site, run.bytes("up", site), run.bytes("down", site)) for site in run.senders]
    plot = None
    if any(up or down for _, up, down in rows):
        told = "; ".join(f"{s}: {words.size(u)} up, {words.size(d)} down" for s, u, d in rows)
        alternative = f"Bytes that left and reached each site. {told}."
        plot = plots.traffic(rows, id=id, alternative=alternative)
    # a message has one line per field
    messages: dict[tuple[str, str], int] = {}
    lines = Counter((line.step, line.direction, line.field) for line in run.ledger)
    for (step, way, _), number in lines.items():
        messages[step, way] = max(number, messages.get((step, way), 0))
    bytes = totals(run.ledger, lambda line: (line.step, line.direction))
    steps = []
    for step in dict.fromkeys(line.step for line in run.ledger):
        up, down = (messages.get((step, way)) for way in ("up", "down"))
        each_up = bytes[step, "up"] / up if up else None
        each_down = bytes[step, "down"] / down if down else None
        steps.append((step, max(up or 0, down or 0), each_up, each_down))
    fields = []
    for way in ("up", "down"):
        own = [line for line in run.ledger if line.direction == way]
        number_of = Counter(map(_field, own))
        fields.append([(key, number_of[key], sum) for key, sum in totals(own, _field).items()])
    return TrafficView(plot, max(0, len(rows) - plots.MOST_ROWS), steps, *fields)


def _field(line: Entry) -> tuple[str, ...]:
    return line.step, line.field, line.kind, line.seen


# --- Development scores of each site, round by round


MOST_SITES = 12
"""Sites with a drawing of their own."""


def site_curves(views: Sequence[RunView]) -> tuple[list[tuple[str, Markup, float]], int] | None:
    """A small drawing for each site, all on the same axes; None for a single site.

    Gives (site, drawing, last score) for each, the score in the first run that is no reference, and
    how many more sites there are.
    """
    curves: dict[str, list[RunCurve]] = {}
    for view in sorted(views, key=lambda view: view.note != ""):
        for site in view.run.sites:
            scored = ((turn.round, turn.dev_sites.get(site)) for turn in view.run.history)
            points = tuple((float(round), f1) for round, f1 in scored if f1 is not None)
            if points:
                curves.setdefault(site, []).append(RunCurve(view.run.label, view.look, points))
    if len(curves) < 2:
        return None
    points = tuple(point for own in curves.values() for one in own for point in one.points)
    scores, last = [100 * y for _, y in points], max(x for x, _ in points)
    limits = plots.scores_seen((min(scores), max(scores)))
    drawn = []
    for number, (site, own) in enumerate(sorted(curves.items())[:MOST_SITES]):
        told = "; ".join(f"{one.label}: last {words.points(one.points[-1][1])}" for one in own)
        alternative = f"Development scores of {site} by round. {told}."
        plot = plots.site_curve(
            own, id=f"curve{number}", limits=limits, last=last, alternative=alternative
        )
        drawn.append((site, plot, own[0].points[-1][1]))
    return drawn, len(curves) - len(drawn)


# --- Scores by site and type: a map of F1 with a cell for each pair


STRONGEST = 55
"""Percent of colour in the best cell."""


class MapCell(NamedTuple):
    """F1 of one type at one site, the number marked, and percent of colour; None: not there."""

    f1: float | None
    support: int
    share: float


class TypeMap(NamedTuple):
    """Rows and columns are types and sites, the longer of the two down the page."""

    across: str
    columns: tuple[str, ...]
    rows: list[tuple[str, list[MapCell]]]
    low: float
    high: float


def type_map(run: FinishedRun) -> TypeMap | None:
    """The map of one run; None unless it has several sites and several types."""
    kind = run.scoring.typed[0]
    tables = {
        site: dict(run.site_scores(site).get(kind, {}).get("types", {})) for site in run.sites
    }
    sites = tuple(site for site, types in tables.items() if types)
    types = tuple(sorted({type for table in tables.values() for type in table}))
    values = {
        (site, type): rates["f1"]
        for site in sites
        for type, rates in tables[site].items()
        if rates.get("support") or rates.get("predicted")
    }
    if len(sites) < 2 or len(types) < 2 or not values:
        return None
    low, high = min(values.values()), max(values.values())

    def cell(site: str, type: str) -> MapCell:
        f1 = values.get((site, type))
        share = 0.0 if f1 is None else STRONGEST * (f1 - low) / max(high - low, 1e-9)
        return MapCell(f1, tables[site].get(type, {}).get("support", 0), share)

    if len(sites) > len(types):
        rows = [(site, [cell(site, type) for type in types]) for site in sites]
        return TypeMap("type", types, rows, low, high)
    rows = [(type, [cell(site, type) for site in sites]) for type in types]
    return TypeMap("site", sites, rows, low, high)


# --- Precision over recall of ranked facts


def precision_recall_plot(views: Sequence[RunView]) -> Markup | None:
    """The ranked facts in the test text of all sites, a curve a run; None if no run ranked any."""
    curves = [
        RunCurve(view.run.label, view.look, tuple((r, p) for r, p in view.run.overall["curve"]))
        for view in views
        if view.run.overall.get("curve")
    ]
    if not curves:
        return None
    told = "; ".join(
        f"{one.label}: precision {words.points(one.points[0][1])} at recall"
        f" {words.points(one.points[0][0])}, {words.points(one.points[-1][1])} at"
        f" {words.points(one.points[-1][0])}"
        for one in curves
    )
    alternative = f"Precision over recall on test text. {told}."
    return plots.precision_recall(curves, id="ranked", alternative=alternative)


# --- ReliabilityView: is a model as often right as its confidences say?


MOST_TYPES = 12
"""Types with a drawing of their own."""


class ReliabilityView(NamedTuple):
    """The confidences of one run as users see them, calibrated: a drawing, and the errors.

    `found` is the number of finds. `calibrated`: whether the confidences differ from the model's
    own. `errors` has (name, before, after) for all and for each type: the expected calibration
    error (Naeini et al., AAAI 2015) of the model's own and of calibrated confidences. `types` has
    (name, finds, drawing) of the types with the most finds, if there are several; `more` is the
    number of the others. `doubt` says so if they were calibrated on little development text, at the
    site with the least.
    """

    plot: Markup
    found: int
    calibrated: bool
    errors: list[tuple[str, float | None, float | None]]
    types: list[tuple[str, int, Markup]]
    more: int
    doubt: str


def reliability_view(run: FinishedRun, *, id: str) -> ReliabilityView | None:
    """The view of the confidences on test text in result.json; None if it says nothing."""
    told = run.result.calibration
    if told is None or not any(one.found for one in told.after.bins):
        return None
    before, after = told.before, told.after

    errors = [("all", before.error, after.error)]
    for name in sorted({*before.types, *after.types}):
        errors.append((name, before.types.get(name), after.types.get(name)))
    finds = {name: sum(one.found for one in bins) for name, bins in after.type_bins.items()}
    several = sorted((name for name in finds if finds[name]), key=lambda name: (-finds[name], name))
    several = several[:MOST_TYPES] if len(several) > 1 else []
    types = []
    for number, name in enumerate(several):
        bins = before.type_bins.get(name, ()), after.type_bins[name]
        plot = _reliability_plot(*bins, id=f"{id}-{number}", name=name)
        types.append((name, finds[name], plot))
    scored = sum(error is not None for _, _, error in errors[1:])
    doubts = (told.of(site) for site in told.calibrators)
    least = min(doubts, key=lambda one: (not one.doubt, one.finds), default=AS_IS)
    return ReliabilityView(
        _reliability_plot(before.bins, after.bins, id=id),
        sum(one.found for one in after.bins),
        _reliability_points(before.bins) != _reliability_points(after.bins),
        errors,
        types,
        scored - len(types) if types else 0,
        least.doubt,
    )


def _reliability_plot(
    own: Sequence[SureBin], calibrated: Sequence[SureBin], *, id: str, name: str = ""
) -> Markup:
    """Draw the calibrated confidences of all types, or small of the one named, and the model's."""
    points, before = _reliability_points(calibrated), _reliability_points(own)
    shares = ((words.points(right), words.points(mean)) for mean, right, _ in points)
    said = "; ".join(f"{right} right at {mean}" for right, mean in shares)
    return plots.reliability_plot(
        points,
        before=before if before != points else (),
        id=id,
        alternative=f"{name}: {said}." if name else f"{said}.",
        small=name != "",
    )


def _reliability_points(bins: Sequence[SureBin]) -> list[tuple[float, float, float]]:
    """(mean confidence, share that is right, share of all finds) of each bin with finds."""
    found = sum(one.found for one in bins)
    return [(one.mean, one.right / one.found, one.found / found) for one in bins if one.found]


# --- Bootstrap intervals of scores, from what each sentence or bag counted


ALL_SITES = ""
"""The key of all sites together."""
LEVEL = 0.95


def intervals(run: FinishedRun) -> Mapping[str, Range]:
    """The interval of the first kind of score, by site, and of all sites under `ALL_SITES`.

    Where a site did not keep its counts, or they do not belong to its score, there is none. The
    interval of an area under the curve is that of the ranked candidates of each bag.

    Raises RunError if a site's file is damaged.
    """
    kind, found = run.scoring.kinds[0], dict[str, Range]()
    counted = kind in run.scoring.counted
    rows = {
        held.site: (getattr(held, kind) if counted else held.ranked) or [] for held in run.sentences
    }

    def interval(rows: Sequence[Sequence[int]]) -> Interval:
        if counted:
            return bootstrap_interval(np.array(rows, np.int64), level=LEVEL)
        return auc_interval(rows, level=LEVEL)

    try:
        for site, own in rows.items():
            if own:
                _keep(found, site, run.score(kind, site), interval(own))
        scored = {site for site in run.sites if run.site_scores(site).get(run.scoring.unit)}
        if scored and scored == found.keys():
            everything = [row for own in rows.values() for row in own]
            _keep(found, ALL_SITES, run.score(kind), interval(everything))
    except DataError as error:
        raise RunError(error.what, where=str(run.path), expected=error.expected) from error
    return found


def type_intervals(run: FinishedRun) -> Mapping[str, Range]:
    """The interval of the strict F1 of each type, over the sentences of all sites.

    Sentences without the type count too: whether they are drawn changes how often the others are.
    """
    kind = run.scoring.typed[0]
    if kind not in run.scoring.counted or set(run.result.scores.sites) != {
        held.site for held in run.sentences if held.types
    }:
        return {}
    drawn = sum(len(getattr(held, kind) or ()) for held in run.sentences)
    rows: dict[str, list[list[int]]] = {}
    for held in run.sentences:
        for name, own in held.types.items():
            rows.setdefault(name, []).extend(own)
    types = run.overall.get(kind, {}).get("types", {})
    found: dict[str, Range] = {}
    for name, own in rows.items():
        if name in types and len(own) <= drawn:
            table_N3 = np.array([*own, *([[0, 0, 0]] * (drawn - len(own)))], np.int64)
            _keep(found, name, types[name]["f1"], bootstrap_interval(table_N3, level=LEVEL))
    return found


def _keep(found: dict[str, Range], name: str, score: float | None, one: Interval) -> None:
    """Add the interval of a score, if it holds the score."""
    if score is not None and one.low <= score <= one.high:
        found[name] = (one.low, one.high)


# --- Scores by site and by type


Pick = Callable[[FinishedRun, str, str], Scored]
"""Gives the rates of one site or type from a run, its name and a kind of score; may be empty."""


class Column(NamedTuple):
    """A column that every run has: its title, and which rate of which kind of score it shows."""

    title: str
    kind: str
    rate: str = "f1"


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One site, one type or all: the number marked, and each run's rates by column.

    `ranges` holds each run's interval of the first column, if any is known.
    """

    name: str
    support: int | None
    cells: tuple[tuple[float | None, ...], ...]
    ranges: tuple[Range | None, ...] = ()

    @property
    def best(self) -> float | None:
        """The highest value of the first column, if there is more than one run."""
        first = [cell[0] for cell in self.cells if cell[0] is not None]
        return max(first) if len(first) > 1 else None


class ScoreSection(NamedTuple):
    """Rates of all runs by site or by type: the rows, the rows of totals, and a drawing."""

    columns: tuple[Column, ...]
    rows: list[ScoreRow]
    whole: list[ScoreRow]
    plot: Markup


def by_site(views: Sequence[RunView]) -> ScoreSection | None:
    """Every site's scores, of each kind."""

    def pick(run: FinishedRun, name: str, kind: str) -> Scored:
        return _rates(run, run.site_scores(name), kind)

    task = _task(views)
    columns = tuple(Column(task.words.kind(kind), kind) for kind in task.words.shown or task.kinds)
    names = sorted({site for view in views for site in view.run.sites})
    axis = ("sites", task.words.full(columns[0].kind))
    ranges = [intervals(view.run) for view in views]
    return _score_section(views, names, columns, pick=pick, axis=axis, ranges=ranges)


def by_type(views: Sequence[RunView]) -> ScoreSection | None:
    """Every type's rates: strict and relaxed F1 of entities; F1, precision, recall of relations."""
    typed = _task(views).typed
    first = typed[0]

    def pick(run: FinishedRun, name: str, kind: str) -> Scored:
        return dict(run.overall.get(kind, {}).get("types", {}).get(name) or {})

    columns, title = tuple(Column(kind, kind) for kind in typed), f"F1, {first}"
    if len(typed) == 1:
        rates = (("F1", "f1"), ("precision", "precision"), ("recall", "recall"))
        columns, title = tuple(Column(name, first, rate) for name, rate in rates), "F1"
    found = {name for view in views for name in view.run.overall.get(first, {}).get("types", {})}
    weight = {n: max(pick(v.run, n, first).get("support", 0) for v in views) for n in found}
    names = sorted(found, key=lambda name: (-weight[name], name))
    ranges = [type_intervals(view.run) for view in views]
    return _score_section(views, names, columns, pick=pick, axis=("types", title), ranges=ranges)


def _rates(run: FinishedRun, scores: Scored, kind: str) -> Scored:
    """The rates of a kind; a kind that is a single number becomes "f1", with its "support"."""
    found = scores.get(kind)
    if found is None or (isinstance(found, dict) and "f1" in found):
        return dict(found or {})
    return {"f1": run.scoring.value(scores, kind), "support": scores.get("facts")}


def _score_section(
    views: Sequence[RunView],
    names: Sequence[str],
    columns: tuple[Column, ...],
    *,
    pick: Pick,
    axis: tuple[str, str],
    ranges: Sequence[Mapping[str, Range]],
) -> ScoreSection | None:
    """The section, or None without a score; `axis` is the id of the plot and its axis title.

    `ranges` are each run's intervals of the first column, by name.
    """

    def row(name: str, *, columns: Sequence[Column], pick: Pick, key: str) -> ScoreRow:
        supports = (pick(view.run, name, columns[0].kind).get("support") for view in views)
        found = tuple(each.get(key) for each in ranges)
        return ScoreRow(
            name,
            next((support for support in supports if support is not None), None),
            tuple(
                tuple(pick(view.run, name, column.kind).get(column.rate) for column in columns)
                for view in views
            ),
            found if any(found) else (),
        )

    def overall(run: FinishedRun, name: str, kind: str) -> Scored:
        return _rates(run, run.overall, kind)

    rows = [row(name, columns=columns, pick=pick, key=name) for name in names]
    rows = [one for one in rows if any(cell[0] is not None for cell in one.cells)]
    if not rows:
        return None
    kinds = _task(views).kinds
    if len({column.kind for column in columns}) > 1 or columns[0].kind not in kinds:
        whole = [row("all", columns=columns, pick=overall, key=ALL_SITES)]
    else:  # several rates of one kind: a row of totals for each kind
        whole = [
            row(
                kind,
                columns=[column._replace(kind=kind) for column in columns],
                pick=overall,
                key=ALL_SITES,
            )
            for kind in kinds
        ]
    values = [
        (view.look, {r.name: f1 for r in rows if (f1 := r.cells[number][0]) is not None})
        for number, view in enumerate(views)
    ]
    told = "; ".join(
        f"{view.run.label}: " + ", ".join(f"{n} {words.points(f1)}" for n, f1 in value.items())
        for view, (_, value) in zip(views, values, strict=True)
    )
    plot = plots.dots(
        [one.name for one in rows],
        values,
        id=axis[0],
        x_label=axis[1],
        alternative=f"{_spoken(views, columns[0].kind)} on test text. {told}.",
        ranges=ranges,
    )
    return ScoreSection(columns, rows, whole, plot)


# --- Rounds: development scores, and what it cost to reach them


LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Scores on development text for which the page says when they were reached."""
MOST_LEVELS = 6


class Reached(NamedTuple):
    """The first round with this development score, and what it had cost by then.

    `bytes` are those that had left the sites: None for a reference, or if the history does not say.
    `seconds` are those of computing, summed over the sites; None if the history does not say.
    """

    round: int
    bytes: float | None
    seconds: float | None


class ReachedRow(NamedTuple):
    """A score, and when each run reached it; None: never."""

    level: float
    cells: tuple[Reached | None, ...]


def learning_curves(views: Sequence[RunView]) -> list[Markup]:
    """Development scores by round and seconds of computing; for several methods also by bytes."""
    federated, task = [view for view in views if not view.note], _task(views)
    ways = [("rounds", "round", _rounds, views), ("seconds", "seconds", _seconds, views)]
    if len(federated) > 1:
        ways.append(("bytes", "bytes that left the sites", _sent, federated))
    kind, drawn = task.kinds[0], []
    for id, label, x_of, shown in ways:
        lines = []
        for view in shown:
            scored = [
                (x, t.round, _dev(view.run, t))
                for x, t in zip(x_of(view.run), view.run.history, strict=True)
            ]
            points = tuple((x, f1) for x, _, f1 in scored if f1 is not None)
            best = next(
                (
                    (x, f1)
                    for x, n, f1 in scored
                    if f1 is not None and n == view.run.result.best_round
                ),
                None,
            )
            if points:
                lines.append(RunCurve(view.run.label, view.look, points, best))
        if lines:
            told = "; ".join(
                f"{line.label}: from {words.points(line.points[0][1])} to"
                f" {words.points(line.points[-1][1])}"
                + (f", best {words.points(line.best[1])}" if line.best else "")
                for line in lines
            )
            plot = plots.curves(
                lines,
                id=id,
                x_label=label,
                y_label=f"dev {task.words.full(kind)}",
                alternative=f"{_spoken(views, kind)} on development text by {label}. {told}.",
                in_bytes=id == "bytes",
            )
            drawn.append(plot)
    return drawn


def reached(views: Sequence[RunView]) -> list[ReachedRow]:
    """When each run reached which score, in rising order.

    Of the scores that every run reached at its first scoring, only the highest is kept.
    """
    rows: list[ReachedRow] = []
    starts = [_reached(view, -1.0) for view in views]
    for level in LEVELS:
        cells = tuple(_reached(view, level) for view in views)
        if any(cell is not None for cell in cells):
            if list(cells) == starts:
                rows.clear()
            rows.append(ReachedRow(level, cells))
    return rows[-MOST_LEVELS:]


def _reached(view: RunView, level: float) -> Reached | None:
    run = view.run
    for turn, sent, seconds in zip(run.history, _sent(run), _seconds(run), strict=True):
        f1 = _dev(run, turn)
        if f1 is not None and f1 >= level:
            return Reached(turn.round, None if view.note or not sent else sent, seconds or None)
    return None


def _dev(run: FinishedRun, turn: RoundRecord) -> float | None:
    """The first kind of score on development text; None if this round was not scored."""
    return (turn.dev or {}).get(run.scoring.kinds[0])


def _rounds(run: FinishedRun) -> list[float]:
    return [float(turn.round) for turn in run.history]


def _seconds(run: FinishedRun) -> list[float]:
    spent = (t.seconds if t.compute_seconds is None else t.compute_seconds for t in run.history)
    return list(accumulate(seconds or 0.0 for seconds in spent))


def _sent(run: FinishedRun) -> list[float]:
    return list(accumulate(float(turn.bytes.up if turn.bytes else 0) for turn in run.history))


# --- The audit, on the page of a run and as a picture of its own


def audit_svg(audit: Audit) -> str:
    """The drawing of an audit as the text of an SVG file."""
    return plots.svg_file(_audit_figure(audit))


def audit_plot(audit: Audit, *, id: str) -> Markup:
    """The drawing of an audit as an element of a page."""
    sentences = " ".join(f"{name}: {audit_sentence(one)}." for name, one in audit.sites.items())
    return plots.figure_svg(_audit_figure(audit), id=id, alternative=sentences)


def _audit_figure(audit: Audit) -> Figure:
    rows = []
    for name, one in audit.sites.items():
        found = one.strongest.found
        rows.append((name, found.value, (found.low, found.high)))
    units = next(iter(audit.sites.values())).membership.units
    return plots.attack_figure(rows, x_label=f"{units} found of 100 (dashed: by chance)")


# --- The privacy budget: the ε that noise spent, by round, and the limits of its promise


def won(epsilon: float, delta: float) -> float:
    """The share of even bets on one unit that are won at most, once everything has been seen.

    Of a bet that is right with a chance of p, p <= e^ε (1 - p) + δ.

    >>> round(won(1.0, 0.0), 2), won(0.0, 0.0)
    (0.73, 0.5)
    """
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


class PrivacyView(NamedTuple):
    """A run's privacy budget: what it spent, the ε that its settings allow, what an attacker wins.

    `won` is in words, in percent, and never rounded up to all.
    """

    own: Private
    promised: float | None
    won: str
    plot: Markup | None


def privacy_view(run: FinishedRun, *, id: str) -> PrivacyView | None:
    """The view of the privacy budget that a run under noise spent; None without noise."""
    own = run.result.privacy
    if own is None:
        return None
    try:
        table = tomllib.loads(run.settings).get("privacy")
    except tomllib.TOMLDecodeError:
        table = None
    allowed = table.get("epsilon") if isinstance(table, dict) else None
    promised = float(allowed) if isinstance(allowed, (int, float)) else None
    percent = 100 * won(own.epsilon, own.delta)
    share = f"{percent:.0f} %" if percent < 99 else f"{percent:.2f} %"
    told = ((turn.round, (turn.model_extra or {}).get("epsilon")) for turn in run.history)
    points = [(float(n), float(e)) for n, e in told if isinstance(e, (int, float))]
    plot = None
    if points:
        said = f"ε by round: {points[0][1]:.2f} after round {points[0][0]:.0f},"
        said += f" {points[-1][1]:.2f} after round {points[-1][0]:.0f}."
        said += f" The settings allow {promised:g}." if promised is not None else ""
        plot = plots.epsilon_by_round(points, promised=promised, id=id, alternative=said)
    return PrivacyView(own, promised, "more than 99.99 %" if percent > 99.99 else share, plot)


# --- Confusion tables


class ConfusionView(NamedTuple):
    """Counts: a row per gold name, a column per predicted name; `nothing` is shown for ""."""

    columns: list[str]
    rows: list[tuple[str, list[int]]]
    nothing: str


def confusion_view(table: Mapping[str, Mapping[str, int]], learns: str) -> ConfusionView:
    """A confusion table of entities or relations, in alphabetical order.

    After the types comes no entity; after the relations no relation, then, as a column only, pairs
    that were not looked at.
    """
    seen = {*table, *(name for row in table.values() for name in row)}
    names = sorted(seen - {"", NO_RELATION})
    if learns == "entities":
        names = sorted(seen - {""})
        rows = columns = [*names, ""]
    else:
        rows = names + [NO_RELATION] * (NO_RELATION in seen)
        columns = rows + [""] * ("" in seen)
    nothing = TASKS["ner" if learns == "entities" else "re"].words.nothing
    cells = [(gold, [table.get(gold, {}).get(name, 0) for name in columns]) for gold in rows]
    return ConfusionView(columns, cells, nothing)


def relation_confusion(scores: Scored) -> ConfusionView:
    """The confusion of relation scores; missed relations get a column of their own."""
    table = {gold: dict(row) for gold, row in scores["confusion"].items()}
    for relation, support in (scores.get("missed") or {}).items():
        table.setdefault(relation, {})[""] = support
    return confusion_view(table, "relations")


def run_confusion(run: FinishedRun) -> ConfusionView | None:
    """The confusion at all sites together; None if it is not known. Sites' errors tell entities."""
    if run.overall.get("confusion"):
        return relation_confusion(run.overall)
    whole: dict[str, Counter[str]] = {}
    for errors in run.errors:
        if isinstance(errors, EntityErrors):
            for gold, row in errors.confusion.items():
                whole.setdefault(gold, Counter()).update(row)
    return confusion_view(whole, "entities") if whole else None


def site_confusion(errors: Errors) -> ConfusionView:
    """The confusion at one site."""
    return confusion_view(
        errors.confusion, "entities" if isinstance(errors, EntityErrors) else "relations"
    )
