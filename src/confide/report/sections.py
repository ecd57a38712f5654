"""The scores of a page: by site, by type, and how soon each run reached which score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from markupsafe import Markup

from confide.report import words
from confide.report.folder import FinishedRun, task_of
from confide.report.intervals import ALL, intervals, type_intervals
from confide.report.plots import Line, Range, curves, dots
from confide.report.views import RunView
from confide.runs.result import Turn
from confide.scoring.scores import Scored
from confide.tasks import TASKS, Task, Words

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
        [r.name for r in rows],
        values,
        id=id,
        x_label=title,
        alternative=alternative,
        ranges=ranges,
    )
    rows = tuple(_ranged(row, row.name, ranges) for row in rows)
    whole = tuple(_ranged(row, ALL, ranges) for row in _whole(views, columns))
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
