"""The sections of a page: scores, rounds, intervals, reliability, audit, privacy budget, errors."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from confide.errors import DataError, RunError
from confide.report import plots, words
from confide.report.folder import (
    BagCase,
    BagErrors,
    EntityErrors,
    Errors,
    FinishedRun,
    PairCase,
    RelationErrors,
    SentenceCase,
    task_of,
    totals,
)
from confide.report.plots import (
    COLOURS,
    MOST_ROWS,
    STYLE,
    Line,
    Look,
    Range,
    curves,
    dots,
    figure_of,
    found,
    scores_seen,
    site_curve,
    spent_by_round,
    svg_file,
    traffic,
)
from confide.report.plots import precision_recall as drawn
from confide.report.words import count
from confide.runs.folder import Audit, SiteAudit, told_epsilon, told_of, told_smallest
from confide.runs.result import Calibration, Private, SureBin, Turn
from confide.scoring.calibration import AS_IS
from confide.scoring.counts import Scored
from confide.scoring.intervals import Interval, Table, bootstrap_interval
from confide.scoring.relations import FIRSTS, auc_interval
from confide.tasks import TASKS, Task, Words
from confide.text.document import NO_RELATION

# --- One run as the page shows it: its look, its purpose, and what crossed the wall


REFERENCES = {
    "pooled": "a reference: all text in one place, which real sites could not do",
    "alone": "a reference: every site trains on its own text only",
    "public-only": "a reference: trained on the public set alone, without the sites",
}


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field of a message over the whole run; `seen` is as in the ledger."""

    step: str
    field: str
    kind: str
    seen: str
    messages: int
    bytes: int

    @property
    def each(self) -> float:
        """Mean bytes of a message."""
        return self.bytes / self.messages


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step: how often sites were asked, and the mean bytes of a reply and of an ask."""

    step: str
    asked: int
    up: float | None
    down: float | None


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as the template shows it."""

    run: FinishedRun
    look: Look
    note: str
    traffic: Markup | None
    not_drawn: int
    steps: tuple[StepRow, ...]
    left: tuple[FieldRow, ...]
    reached: tuple[FieldRow, ...]

    @property
    def swatch(self) -> Markup:
        """The run's marker."""
        return Markup(self.look.swatch)


def view_of(number: int, run: FinishedRun) -> RunView:
    """The view of a run, given its number on the page."""
    rows = tuple((site, run.bytes("up", site), run.bytes("down", site)) for site in run.senders)
    told = "; ".join(f"{s}: {words.size(u)} up, {words.size(d)} down" for s, u, d in rows)
    plot = None
    if any(up or down for _, up, down in rows):
        alternative = f"Bytes that left and reached each site. {told}."
        colours = (COLOURS[1], COLOURS[0])
        plot = Markup(
            traffic(rows, id=f"traffic{number}", alternative=alternative, colours=colours)
        )
    return RunView(
        run=run,
        look=Look.of(number),
        note=REFERENCES.get(run.method, ""),
        traffic=plot,
        not_drawn=max(0, len(rows) - MOST_ROWS),
        steps=tuple(_steps(run)),
        left=tuple(_fields(run, "up")),
        reached=tuple(_fields(run, "down")),
    )


def _steps(run: FinishedRun) -> Iterator[StepRow]:
    """The ledger by step. A message has one line per field."""
    lines = Counter((line.step, line.direction, line.field) for line in run.ledger)
    messages: dict[tuple[str, str], int] = {}
    for (step, way, _), number in lines.items():
        messages[step, way] = max(number, messages.get((step, way), 0))
    bytes = totals(run.ledger, lambda line: (line.step, line.direction))
    each = {key: bytes[key] / number for key, number in messages.items()}
    for step in dict.fromkeys(line.step for line in run.ledger):
        asked = max(messages.get((step, way), 0) for way in ("up", "down"))
        yield StepRow(step, asked, each.get((step, "up")), each.get((step, "down")))


def _fields(run: FinishedRun, direction: str) -> Iterator[FieldRow]:
    """One direction of the ledger by field."""
    lines = [line for line in run.ledger if line.direction == direction]
    messages = Counter((x.step, x.field, x.kind, x.seen) for x in lines)
    for key, bytes in totals(lines, lambda x: (x.step, x.field, x.kind, x.seen)).items():
        yield FieldRow(*key, messages=messages[key], bytes=bytes)


# --- Development scores of each site, round by round
#
# One small drawing for each.


MOST_SITES = 12
"""Sites with a drawing of their own."""


@dataclass(frozen=True, slots=True)
class SiteCurve:
    """A site's drawing, and its last score; of several runs, in the first that is no reference."""

    site: str
    plot: Markup
    last: float


@dataclass(frozen=True, slots=True)
class SiteCurves:
    """The drawings, and how many more sites there are."""

    curves: tuple[SiteCurve, ...]
    more: int


def site_curves(views: Sequence[RunView]) -> SiteCurves | None:
    """A drawing for each site, all on the same axes; None for a single site."""
    order = sorted(views, key=lambda view: view.note != "")
    lines = {
        site: [line for view in order if (line := _site_line(view, site)) is not None]
        for site in sorted({site for view in views for site in view.run.sites})
    }
    drawn = {site: own for site, own in lines.items() if own}
    if len(drawn) < 2:
        return None
    points = [point for own in drawn.values() for line in own for point in line.points]
    scores, last = [100 * y for _, y in points], max(x for x, _ in points)
    limits = scores_seen((min(scores), max(scores)))
    shown = list(drawn.items())[:MOST_SITES]
    curves = []
    for number, (site, own) in enumerate(shown):
        told = "; ".join(f"{one.label}: last {words.points(one.points[-1][1])}" for one in own)
        alternative = f"Development scores of {site} by round. {told}."
        plot = site_curve(
            own, id=f"curve{number}", limits=limits, last=last, alternative=alternative
        )
        curves.append(SiteCurve(site, Markup(plot), own[0].points[-1][1]))
    return SiteCurves(tuple(curves), len(drawn) - len(shown))


def _site_line(view: RunView, site: str) -> Line | None:
    points = tuple(
        (float(turn.round), f1)
        for turn in view.run.history
        if (f1 := turn.dev_sites.get(site)) is not None
    )
    return Line(view.run.label, view.look, points) if points else None


# --- Scores by site and type
#
# A map of F1 with a cell for each pair shows which site has trouble with which type.


STRONGEST = 55
"""Percent of colour in the best cell."""


@dataclass(frozen=True, slots=True)
class MapCell:
    """F1 of one type at one site, how many were marked, and percent of colour; None: not there."""

    f1: float | None
    support: int
    share: float


@dataclass(frozen=True, slots=True)
class TypeMap:
    """Rows and columns are types and sites, the longer of the two down the page."""

    across: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MapCell, ...]], ...]
    low: float
    high: float


def type_map(run: FinishedRun) -> TypeMap | None:
    """The map of one run; None unless it has several sites and several types."""
    kind = run.scoring.typed[0]
    tables = {
        site: dict(run.site_scores(site).get(kind, {}).get("types", {})) for site in run.sites
    }
    sites = [site for site, types in tables.items() if types]
    types = sorted({type for table in tables.values() for type in table})
    if len(sites) < 2 or len(types) < 2:
        return None
    values = {
        (site, type): rates["f1"]
        for site in sites
        for type, rates in tables[site].items()
        if rates.get("support") or rates.get("predicted")
    }
    if not values:
        return None
    low, high = min(values.values()), max(values.values())

    def cell(site: str, type: str) -> MapCell:
        f1 = values.get((site, type))
        share = 0.0 if f1 is None else STRONGEST * (f1 - low) / max(high - low, 1e-9)
        return MapCell(f1, tables[site].get(type, {}).get("support", 0), share)

    if len(sites) > len(types):
        rows = tuple((site, tuple(cell(site, type) for type in types)) for site in sites)
        return TypeMap("type", tuple(types), rows, low, high)
    rows = tuple((type, tuple(cell(site, type) for site in sites)) for type in types)
    return TypeMap("site", tuple(sites), rows, low, high)


# --- Precision over recall
#
# Of ranked facts: one drawing for all runs, and a table of areas.


@dataclass(frozen=True, slots=True)
class RankedRow:
    """The numbers of one run's ranking: areas, and precision among the first N."""

    view: RunView
    auc: float | None
    auc_2000: float | None
    firsts: tuple[float | None, ...]
    mean: float | None
    bags: int | None
    facts: int | None


@dataclass(frozen=True, slots=True)
class Ranked:
    """The curves of all runs that have one, and a row for each."""

    plot: Markup
    firsts: tuple[int, ...]
    rows: tuple[RankedRow, ...]


def precision_recall(views: Sequence[RunView]) -> Ranked | None:
    """The ranked facts in the test text of all sites; None if no run ranked any."""
    lines = [
        Line(view.run.label, view.look, tuple((r, p) for r, p in view.run.overall["curve"]))
        for view in views
        if view.run.overall.get("curve")
    ]
    if not lines:
        return None
    told = "; ".join(
        f"{line.label}: precision {words.points(line.points[0][1])} at recall"
        f" {words.points(line.points[0][0])}, {words.points(line.points[-1][1])} at"
        f" {words.points(line.points[-1][0])}"
        for line in lines
    )
    plot = drawn(lines, id="ranked", alternative=f"Precision over recall on test text. {told}.")
    return Ranked(Markup(plot), FIRSTS, tuple(map(_ranked_row, views)))


def _ranked_row(view: RunView) -> RankedRow:
    found = view.run.overall
    first = found.get("precision_at") or {}
    return RankedRow(
        view,
        found.get("auc"),
        found.get("auc_2000"),
        tuple(first.get(str(many)) for many in FIRSTS),
        first.get("mean"),
        found.get("bags"),
        found.get("facts"),
    )


# --- Reliability
#
# A drawing of counts by confidence shows whether a model is as often right as it is sure.


ALL_TYPES = "all"
MOST_TYPES = 12
Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class SureRow:
    """A type, or all: the expected calibration error of its confidences (Naeini et al., AAAI 2015).

    `before` is that of the model's own confidences, `after` of calibrated ones.
    """

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class TypeView:
    """One type: its drawing, and how many finds it shows."""

    name: str
    found: int
    plot: Markup


@dataclass(frozen=True, slots=True)
class SureView:
    """One run: a drawing of confidences as users see them, calibrated; how many finds; the errors.

    `calibrated`: whether they differ from the model's own. `types` are the types with the most
    finds, if there are several; `more` is how many others there are. `doubt` says so if they were
    calibrated on little development text, at the site with the least.
    """

    plot: Markup
    found: int
    calibrated: bool
    rows: tuple[SureRow, ...]
    types: tuple[TypeView, ...] = ()
    more: int = 0
    doubt: str = ""


def reliability(run: FinishedRun, *, id: str) -> SureView | None:
    """The view of the confidences on test text in result.json; None if it says nothing."""
    told = run.result.calibration
    if told is None or not _found(told.after.bins):
        return None
    found = _found(told.after.bins)
    points, before = list(_points(told.after.bins)), list(_points(told.before.bins))
    plot = plots.reliability(
        points, before=_other(before, points), id=id, alternative=_said(points)
    )
    names = sorted({*told.before.types, *told.after.types})
    rows = [SureRow(ALL_TYPES, told.before.error, told.after.error)]
    rows += [SureRow(n, told.before.types.get(n), told.after.types.get(n)) for n in names]
    types = list(_reliable_types(told, id=id))
    more = len([row for row in rows[1:] if row.after is not None]) - len(types) if types else 0
    doubts = (told.of(site) for site in told.calibrators)
    least = min(doubts, key=lambda one: (not one.doubt, one.finds), default=AS_IS)
    calibrated = before != points
    return SureView(
        Markup(plot), found, calibrated, tuple(rows), tuple(types), more, doubt=least.doubt
    )


def _reliable_types(told: Calibration, *, id: str) -> Iterator[TypeView]:
    """The types with the most finds, if there are at least two with any."""
    many = {name: _found(bins) for name, bins in told.after.type_bins.items() if _found(bins)}
    first = sorted(many, key=lambda name: (-many[name], name))[:MOST_TYPES]
    for number, name in enumerate(first if len(many) > 1 else ()):
        points = list(_points(told.after.type_bins[name]))
        before = list(_points(told.before.type_bins.get(name, ())))
        plot = plots.reliability(
            points,
            before=_other(before, points),
            id=f"{id}-{number}",
            alternative=f"{name}: {_said(points)}",
            small=True,
        )
        yield TypeView(name, many[name], Markup(plot))


def _said(points: Sequence[Point]) -> str:
    each = (f"{words.points(right)} right at {words.points(sure)}" for sure, right, _ in points)
    return f"{'; '.join(each)}."


def _other(before: Sequence[Point], points: Sequence[Point]) -> Sequence[Point]:
    """The model's own confidences, if they differ."""
    return before if before != points else ()


def _found(bins: Sequence[SureBin]) -> int:
    return sum(one.found for one in bins)


def _points(bins: Sequence[SureBin]) -> Iterator[Point]:
    """(mean confidence, share that is right, share of all finds) of each bin with finds."""
    found = _found(bins)
    for one in bins:
        if one.found:
            yield one.mean, one.right / one.found, one.found / found


# --- Intervals of scores
#
# Bootstrap intervals from what each sentence or bag counted.


ALL_SITES = ""
"""The key of all sites together."""
LEVEL = 0.95


def intervals(run: FinishedRun) -> Mapping[str, Range]:
    """The interval of the first kind of score, by site, and of all sites under `ALL`.

    Where a site did not keep its counts, or they do not belong to its score, there is none.
    """
    kind = run.scoring.kinds[0]
    if kind not in run.scoring.counted:
        return _ranked(run, kind)
    tables: dict[str, Table] = {}
    for held in run.sentences:
        rows = getattr(held, kind) or ()
        if rows:
            tables[held.site] = np.array(rows, np.int64)
    found: dict[str, Range] = {}
    for site, table_N3 in tables.items():
        _keep(found, site, run.score(kind, site), bootstrap_interval(table_N3, level=LEVEL))
    if _is_whole(run, found):
        all_N3 = np.concatenate(list(tables.values()))
        _keep(found, ALL_SITES, run.score(kind), bootstrap_interval(all_N3, level=LEVEL))
    return found


def _ranked(run: FinishedRun, kind: str) -> Mapping[str, Range]:
    """Intervals of an area under the curve, from the ranked candidates of each bag.

    Raises RunError if a site's file is damaged.
    """
    found: dict[str, Range] = {}
    bags = {held.site: held.ranked for held in run.sentences if held.ranked}
    try:
        for site, ranked in bags.items():
            _keep(found, site, run.score(kind, site), auc_interval(ranked, level=LEVEL))
        if _is_whole(run, found):
            everything = [bag for ranked in bags.values() for bag in ranked]
            _keep(found, ALL_SITES, run.score(kind), auc_interval(everything, level=LEVEL))
    except DataError as error:
        raise RunError(error.what, where=str(run.path), expected=error.expected) from error
    return found


def _is_whole(run: FinishedRun, found: Mapping[str, Range]) -> bool:
    """Return whether every site that has a score has an interval."""
    scored = {site for site in run.sites if run.site_scores(site).get(run.scoring.unit)}
    return bool(scored) and scored == found.keys()


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
            one = bootstrap_interval(table_N3, level=LEVEL)
            _keep(found, name, types[name]["f1"], one)
    return found


def _keep(found: dict[str, Range], name: str, score: float | None, one: Interval) -> None:
    """Add the interval of a score, if it holds the score."""
    if score is not None and one.low <= score <= one.high:
        found[name] = (one.low, one.high)


LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Scores on development text for which the page says when they were reached."""
MOST_LEVELS = 6

Pick = Callable[[FinishedRun, str, str], Scored]
"""Gives the rates of one site or type from a run, its name and a kind of score; may be empty."""


class Column(NamedTuple):
    """A column that every run has: its title, and which rate of which kind of score it shows."""

    title: str
    kind: str
    rate: str = "f1"


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One site, one type or all: how many were marked, and each run's rates by column.

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


@dataclass(frozen=True, slots=True)
class ScoreSection:
    """Rates of all runs by site or by type: the rows, the rows of totals, and a drawing."""

    columns: tuple[Column, ...]
    rows: tuple[ScoreRow, ...]
    whole: tuple[ScoreRow, ...]
    plot: Markup | None


class Reached(NamedTuple):
    """The first round with this development score, and what it had cost by then.

    `bytes` are those that had left the sites: None for a reference, or if the history does not say.
    `seconds` are those of computing, summed over the sites; None if the history does not say.
    """

    round: int
    bytes: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ReachedRow:
    """A score, and when each run reached it; None: never."""

    level: float
    cells: tuple[Reached | None, ...]


# --- scores -------------------------------------------------------------------------------


def by_site(views: Sequence[RunView]) -> ScoreSection | None:
    """Every site's scores, of each kind."""

    def pick(run: FinishedRun, name: str, kind: str) -> Scored:
        return _rates(run, run.site_scores(name), kind)

    shown = _called(views).shown or _kinds(views)
    columns = tuple(Column(_called(views).kind(kind), kind) for kind in shown)
    names = sorted({site for view in views for site in view.run.sites})
    title = _called(views).full(columns[0].kind)
    ranges = [intervals(view.run) for view in views]
    return _section(views, names, columns, pick=pick, drawing=("sites", title), ranges=ranges)


def by_type(views: Sequence[RunView]) -> ScoreSection | None:
    """Every type's rates: strict and relaxed F1 of entities; F1, precision, recall of relations."""
    typed = _task(views).typed
    first = typed[0]

    def pick(run: FinishedRun, name: str, kind: str) -> Scored:
        return dict(run.overall.get(kind, {}).get("types", {}).get(name) or {})

    columns, title = tuple(Column(kind, kind) for kind in typed), f"F1, {first}"
    if len(typed) == 1:
        columns = (
            Column("F1", first),
            Column("precision", first, "precision"),
            Column("recall", first, "recall"),
        )
        title = "F1"
    found = {name for view in views for name in view.run.overall.get(first, {}).get("types", {})}
    weight = {n: max(pick(v.run, n, first).get("support", 0) for v in views) for n in found}
    names = sorted(found, key=lambda name: (-weight[name], name))
    ranges = [type_intervals(view.run) for view in views]
    return _section(views, names, columns, pick=pick, drawing=("types", title), ranges=ranges)


def _kinds(views: Sequence[RunView]) -> tuple[str, ...]:
    return _task(views).kinds


def _called(views: Sequence[RunView]) -> Words:
    return _task(views).words


def _task(views: Sequence[RunView]) -> Task:
    return TASKS[task_of(view.run for view in views)]


def _spoken(views: Sequence[RunView], kind: str) -> str:
    """A kind of score at the start of a sentence."""
    called = _called(views)
    return called.kinds.get(kind) or f"{kind.capitalize()} F1"


def _rates(run: FinishedRun, scores: Scored, kind: str) -> Scored:
    """The rates of a kind; a kind that is a single number becomes "f1", with its "support"."""
    found = scores.get(kind)
    if found is None or (isinstance(found, dict) and "f1" in found):
        return dict(found or {})
    many = scores.get("facts", scores.get("pieces"))
    return {"f1": run.scoring.value(scores, kind), "support": many}


def _section(
    views: Sequence[RunView],
    names: Sequence[str],
    columns: tuple[Column, ...],
    *,
    pick: Pick,
    drawing: tuple[str, str],
    ranges: Sequence[Mapping[str, Range]] = (),
) -> ScoreSection | None:
    """The section, or None without a score; `drawing` is the id of the plot and its axis title.

    `ranges` are each run's intervals of the first column, by name.
    """
    rows = tuple(_row(name, views, columns, pick=pick) for name in names)
    rows = tuple(row for row in rows if any(cell[0] is not None for cell in row.cells))
    if not rows:
        return None
    values = [
        (view.look, {r.name: f1 for r in rows if (f1 := r.cells[number][0]) is not None})
        for number, view in enumerate(views)
    ]
    told = "; ".join(
        f"{view.run.label}: " + ", ".join(f"{n} {words.points(f1)}" for n, f1 in value.items())
        for view, (_, value) in zip(views, values, strict=True)
    )
    id, title = drawing
    what = _spoken(views, columns[0].kind)
    alternative = f"{what} on test text. {told}."
    plot = dots(
        [r.name for r in rows], values, id=id, x_label=title, alternative=alternative, ranges=ranges
    )
    rows = tuple(_ranged(row, row.name, ranges) for row in rows)
    whole = tuple(_ranged(row, ALL_SITES, ranges) for row in _whole(views, columns))
    return ScoreSection(columns, rows, whole, Markup(plot))


def _ranged(row: ScoreRow, name: str, ranges: Sequence[Mapping[str, Range]]) -> ScoreRow:
    found = tuple(each.get(name) for each in ranges)
    return replace(row, ranges=found) if any(found) else row


def _row(name: str, views: Sequence[RunView], columns: Sequence[Column], *, pick: Pick) -> ScoreRow:
    supports = (pick(view.run, name, columns[0].kind).get("support") for view in views)
    return ScoreRow(
        name,
        next((support for support in supports if support is not None), None),
        tuple(
            tuple(pick(view.run, name, column.kind).get(column.rate) for column in columns)
            for view in views
        ),
    )


def _whole(views: Sequence[RunView], columns: Sequence[Column]) -> Iterator[ScoreRow]:
    """The row of totals; if the columns show several rates of one kind, one row for each kind."""

    def overall(run: FinishedRun, name: str, kind: str) -> Scored:
        return _rates(run, run.overall, kind)

    kinds = _kinds(views)
    if len({column.kind for column in columns}) > 1 or columns[0].kind not in kinds:
        yield _row("all", views, columns, pick=overall)
        return
    for kind in kinds:
        yield _row(kind, views, [column._replace(kind=kind) for column in columns], pick=overall)


# --- rounds -------------------------------------------------------------------------------


def learning_curves(views: Sequence[RunView]) -> list[Markup]:
    """Development scores by round and seconds of computing; for several methods also by bytes."""
    federated = [view for view in views if not view.note]
    ways = [("rounds", "round", _rounds, views), ("seconds", "seconds", _seconds, views)]
    if len(federated) > 1:
        ways.append(("bytes", "bytes that left the sites", _sent, federated))
    kind, drawn = _kinds(views)[0], []
    for id, label, x_of, shown in ways:
        lines = [line for view in shown if (line := _line(view, x_of)) is not None]
        if lines:
            told = "; ".join(
                f"{line.label}: from {words.points(line.points[0][1])} to"
                f" {words.points(line.points[-1][1])}"
                + (f", best {words.points(line.best[1])}" if line.best else "")
                for line in lines
            )
            alternative = f"{_spoken(views, kind)} on development text by {label}. {told}."
            drawing = curves(
                lines,
                id=id,
                x_label=label,
                y_label=f"dev {_called(views).full(kind)}",
                alternative=alternative,
                in_bytes=id == "bytes",
            )
            drawn.append(Markup(drawing))
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
    turns = zip(_rounds(run), _sent(run), _seconds(run), run.history, strict=True)
    for round, sent, seconds, turn in turns:
        f1 = _dev(run, turn)
        if f1 is not None and f1 >= level:
            return Reached(int(round), None if view.note or not sent else sent, seconds or None)
    return None


def _dev(run: FinishedRun, turn: Turn) -> float | None:
    """The first kind of score on development text; None if this round was not scored."""
    return (turn.dev or {}).get(run.scoring.kinds[0])


def _rounds(run: FinishedRun) -> list[float]:
    return [float(turn.round) for turn in run.history]


def _seconds(run: FinishedRun) -> list[float]:
    spent = (t.seconds if t.compute_seconds is None else t.compute_seconds for t in run.history)
    return list(accumulate(seconds or 0.0 for seconds in spent))


def _sent(run: FinishedRun) -> list[float]:
    return list(accumulate(float(turn.bytes.up if turn.bytes else 0) for turn in run.history))


def _line(view: RunView, x_of: Callable[[FinishedRun], list[float]]) -> Line | None:
    best_round, points, best = view.run.result.best_round, [], None
    for x, turn in zip(x_of(view.run), view.run.history, strict=True):
        f1 = _dev(view.run, turn)
        if f1 is not None:
            points.append((x, f1))
            best = points[-1] if turn.round == best_round else best
    return Line(view.run.label, view.look, tuple(points), best) if points else None


# --- The audit
#
# Its results, on the page of a run and as a picture of its own.


@dataclass(frozen=True, slots=True)
class AuditView:
    """An audit as a section: the sentences of each site, the drawing, and the other two numbers."""

    sites: tuple[tuple[str, str, SiteAudit], ...]
    plot: Markup
    epsilon: str
    smallest: str
    references: bool
    canaries: bool


def audits(views: Sequence[RunView]) -> list[tuple[RunView, AuditView]]:
    """The audits of the runs that have one."""
    return [
        (view, _audit_view(view.run.audit, id=f"audit{number}"))
        for number, view in enumerate(views)
        if view.run.audit is not None
    ]


def picture(audit: Audit) -> str:
    """The drawing as the text of an SVG file."""
    with matplotlib.rc_context(STYLE):
        return svg_file(_audit_drawn(audit))


def _audit_view(audit: Audit, *, id: str) -> AuditView:
    sentences = [f"{name}: {told_of(one)}." for name, one in audit.sites.items()]
    plot = figure_of(_audit_drawn(audit), id=id, alternative=" ".join(sentences))
    every = audit.sites.values()
    return AuditView(
        tuple((name, told_of(one), one) for name, one in audit.sites.items()),
        Markup(plot),
        told_epsilon(audit),
        told_smallest(audit.crossed),
        any(one.referenced is not None for one in every),
        any(one.canaries is not None for one in every),
    )


def _audit_drawn(audit: Audit) -> Figure:
    rows = [
        (name, one.strongest.found.value, (one.strongest.found.low, one.strongest.found.high))
        for name, one in audit.sites.items()
    ]
    units = next(iter(audit.sites.values())).membership.units
    return found(rows, x_label=f"{units} found of 100 (dashed: by chance)")


# --- The privacy budget
#
# The ε that noise spent, by round, and the limits of its promise.


SIMULATED = (
    "Keys of draws and noise were made from the seed, so that the run can be repeated: nothing is"
    " hidden, and nothing is promised. With keys of the sites' own, ε would be as shown."
)
NEVER_NOISED = (
    "names of types and relations, which the settings name; that a site took part, and how long it"
    " took to answer, beyond what its guard reply_every hides",
    "other runs on the same text: each site keeps its own account over all of them (confide site"
    " status)",
    "the last digits of floating-point numbers that are worked out for several texts at once",
)
OPEN = "scores of held-out text, which left the sites without noise"


@dataclass(frozen=True, slots=True)
class SpentView:
    """A run's privacy budget: in a sentence, by its facts, as a drawing; and its limits.

    `warning` says why nothing is promised; it is empty otherwise.
    """

    said: str
    warning: str
    facts: tuple[tuple[str, str], ...]
    plot: Markup | None
    uncovered: tuple[str, ...]


def spent(views: Sequence[RunView]) -> list[tuple[RunView, SpentView]]:
    """Views of the privacy budget that each run under noise spent."""
    return [
        (view, _spent_view(view.run, view.run.result.privacy, id=f"spent{number}"))
        for number, view in enumerate(views)
        if view.run.result.privacy is not None
    ]


def won(epsilon: float, delta: float) -> float:
    """The share of even bets on one unit that are won at most, once everything has been seen.

    Of a bet that is right with a chance of p, p <= e^ε (1 - p) + δ.

    >>> round(won(1.0, 0.0), 2), won(0.0, 0.0)
    (0.73, 0.5)
    """
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def _spent_view(run: FinishedRun, own: Private, *, id: str) -> SpentView:
    promised = _promised(run)
    plain = f"{own.epsilon:.2f} at δ = {own.delta:g}".replace("e-0", "e-")
    said = f"One {own.unit} changes what anybody sees, the model included, by at most ε = {plain}."
    if own.simulated:
        said = f"ε = {plain} for one {own.unit}."
    right = "would be right" if own.simulated else "is right"
    said += (
        f" An attacker who bets whether a {own.unit} was in the training text, even before he has"
        f" seen anything, {right} at most {_percent(won(own.epsilon, own.delta))} of the time"
        f" afterwards."
    )
    return SpentView(
        said,
        SIMULATED if own.simulated else "",
        tuple(_facts(own, promised)),
        _spent_drawn(run, promised, id=id),
        (*NEVER_NOISED, *([OPEN] if own.held_out == "open" else [])),
    )


def _facts(own: Private, promised: float | None) -> Iterator[tuple[str, str]]:
    yield "what is hidden", f"one {own.unit}"
    yield "ε spent", f"{own.epsilon:.3g}"
    if promised is not None:
        yield "ε of the settings", f"{promised:g}"
    yield "δ", f"{own.delta:g}".replace("e-0", "e-")
    yield "rounds", count(own.rounds)
    yield f"each {own.unit} is drawn with probability", f"{own.rate:g}"
    yield "largest gradient (clip)", f"{own.clip:g}"
    yield "noise (σ), in clips", f"{own.noise:g}"
    yield f"{own.unit}s by the settings", f"{count(own.units)}; nothing was counted"


def _spent_drawn(run: FinishedRun, promised: float | None, *, id: str) -> Markup | None:
    """ε by round; None if the history does not say."""
    told = ((turn.round, (turn.model_extra or {}).get("epsilon")) for turn in run.history)
    points = [(float(n), float(e)) for n, e in told if isinstance(e, (int, float))]
    if not points:
        return None
    last = f"ε by round: {points[0][1]:.2f} after round {points[0][0]:.0f},"
    last += f" {points[-1][1]:.2f} after round {points[-1][0]:.0f}."
    if promised is not None:
        last += f" The settings allow {promised:g}."
    return Markup(spent_by_round(points, promised=promised, id=id, alternative=last))


def _promised(run: FinishedRun) -> float | None:
    """The ε that the run's settings allow, if they name one."""
    try:
        own = tomllib.loads(run.settings).get("privacy")
    except tomllib.TOMLDecodeError:
        return None
    found = own.get("epsilon") if isinstance(own, dict) else None
    return float(found) if isinstance(found, (int, float)) else None


def _percent(share: float) -> str:
    """A share in percent; never rounded up to all.

    >>> _percent(0.731), _percent(0.99966), _percent(0.9999999)
    ('73 %', '99.97 %', 'more than 99.99 %')
    """
    percent = 100 * share
    if percent > 99.99:
        return "more than 99.99 %"
    return f"{percent:.0f} %" if percent < 99 else f"{percent:.2f} %"


# --- Errors of a site
#
# A model's errors and right answers, with their text, and confusion tables, for a page.


@dataclass(frozen=True, slots=True)
class ConfusionView:
    """Counts: a row per gold name, a column per predicted name; `nothing` is shown for ""."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]
    nothing: str


@dataclass(frozen=True, slots=True)
class ErrorsView:
    """One site's confusion, its worst sentences, pairs or bags, and some that are right."""

    site: str
    confusion: ConfusionView
    worst: Sequence[SentenceCase] = ()
    pairs: Sequence[PairCase] = ()
    bags: Sequence[BagCase] = ()
    right: Sequence[SentenceCase] = ()
    right_pairs: Sequence[PairCase] = ()
    right_bags: Sequence[BagCase] = ()


def errors_view(found: Errors) -> ErrorsView:
    """The page's view of one errors.json."""
    table = found.confusion
    if isinstance(found, RelationErrors):
        return ErrorsView(found.site, _labels(table), pairs=found.worst, right_pairs=found.right)
    if isinstance(found, BagErrors):
        return ErrorsView(found.site, _labels(table), bags=found.worst, right_bags=found.right)
    return ErrorsView(found.site, _types(table), worst=found.worst, right=found.right)


def entity_confusion(errors: Sequence[Errors]) -> ConfusionView | None:
    """Which type was found as which at all sites together; None without entities."""
    tables = [found.confusion for found in errors if isinstance(found, EntityErrors)]
    whole: dict[str, dict[str, int]] = {}
    for table in tables:
        for gold, row in table.items():
            for predicted, support in row.items():
                own = whole.setdefault(gold, {})
                own[predicted] = own.get(predicted, 0) + support
    return _types(whole) if whole else None


def relation_confusion(scores: Scored) -> ConfusionView:
    """The confusion of relation scores; missed relations get a column of their own."""
    table = {gold: dict(row) for gold, row in scores["confusion"].items()}
    for relation, support in (scores.get("missed") or {}).items():
        table.setdefault(relation, {})[""] = support
    return _labels(table)


def _types(table: Mapping[str, Mapping[str, int]]) -> ConfusionView:
    """Types in alphabetical order, then no entity."""
    seen = {*table, *(name for row in table.values() for name in row)}
    types = (*sorted(seen - {""}), "")
    return _confusion(table, types, types, nothing=TASKS["ner"].words.nothing)


def _labels(table: Mapping[str, Mapping[str, int]]) -> ConfusionView:
    """Relations in alphabetical order, then no relation, then pairs that were not looked at."""
    seen = {*table, *(name for row in table.values() for name in row)}
    labels = sorted(seen - {"", NO_RELATION}) + [NO_RELATION] * (NO_RELATION in seen)
    columns = labels + [""] * ("" in seen)
    return _confusion(table, labels, columns, nothing=TASKS["re"].words.nothing)


def _confusion(
    table: Mapping[str, Mapping[str, int]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    nothing: str,
) -> ConfusionView:
    cells = ((gold, table.get(gold, {})) for gold in rows)
    return ConfusionView(
        tuple(columns),
        tuple((gold, tuple(row.get(name, 0) for name in columns)) for gold, row in cells),
        nothing,
    )
