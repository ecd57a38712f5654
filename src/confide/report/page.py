"""The HTML page: what its template shows, worked out from run folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from confide import __version__
from confide.errors import RunError
from confide.report import words
from confide.report.folder import RunFolder, load_runs, totals
from confide.report.mistakes import ErrorsView, errors_view
from confide.report.plots import COLOURS, MOST_ROWS, Line, Look, curves, dots, traffic

Pick = Callable[[RunFolder, str, str], dict[str, Any]]
"""The rates of one site or type: of a run, by name, "strict" or "relaxed"; may be empty."""

REFERENCES = {
    "pooled": "a reference: all text in one place, which real sites could not do",
    "alone": "a reference: every site trains on its own text only",
}


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One site, one type, or all: gold entities, and (strict, relaxed) F1 of every run."""

    name: str
    support: int | None
    cells: tuple[tuple[float | None, float | None], ...]

    @property
    def best(self) -> float | None:
        """The highest strict F1 of the row, if there is more than one."""
        strict = [cell[0] for cell in self.cells if cell[0] is not None]
        return max(strict) if len(strict) > 1 else None


@dataclass(frozen=True, slots=True)
class ScoreSection:
    """F1 of all runs by site or by type: rows, the row of the whole, and a drawing."""

    rows: tuple[ScoreRow, ...]
    whole: ScoreRow
    plot: Markup | None


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field of a message over the whole run: `seen` as in the ledger."""

    step: str
    field: str
    kind: str
    seen: str
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as the template shows it."""

    run: RunFolder
    look: Look
    note: str
    traffic: Markup | None
    not_drawn: int
    left: tuple[FieldRow, ...]
    reached: tuple[FieldRow, ...]

    @property
    def swatch(self) -> Markup:
        """The run's marker."""
        return Markup(self.look.swatch)


def write_page(
    runs: Sequence[Path | str], *, out: Path | str | None = None, text: bool = True
) -> Path:
    """See `confide.report.report`."""
    folders = load_runs([Path(run) for run in runs], text=text)
    name = "report.html" if len(folders) == 1 else "comparison.html"
    page = Path(out) if out is not None else folders[0].path / name
    html = render(folders)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(html, encoding="utf-8")
    except OSError as error:
        raise RunError(f"the page cannot be written: {error.strerror}", where=str(page)) from error
    return page


def render(runs: Sequence[RunFolder]) -> str:
    """The page as text."""
    views = [_view(number, run) for number, run in enumerate(runs)]
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
        title=", ".join(dict.fromkeys(str(r.result.get("name") or r.path.name) for r in runs)),
        lede=_lede(runs),
        notices=_notices(runs),
        views=views,
        curves=_curves(views),
        by_site=_by_site(views),
        by_type=_by_type(views),
        shown_rows=MOST_ROWS,
        errors=_errors(runs),
        same_data=_same_data(runs),
    )


# --- one run ------------------------------------------------------------------------------


def _view(number: int, run: RunFolder) -> RunView:
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
        left=tuple(_fields(run, "up")),
        reached=tuple(_fields(run, "down")),
    )


def _fields(run: RunFolder, direction: str) -> Iterator[FieldRow]:
    """One direction of the ledger, by field."""
    lines = [line for line in run.ledger if line.direction == direction]
    messages = Counter((x.step, x.field, x.kind, x.seen) for x in lines)
    for key, bytes in totals(lines, lambda x: (x.step, x.field, x.kind, x.seen)).items():
        yield FieldRow(*key, messages=messages[key], bytes=bytes)


# --- all runs -----------------------------------------------------------------------------


def _lede(runs: Sequence[RunFolder]) -> str:
    """One sentence for who reads no further."""
    sites = len({site for run in runs for site in run.sites})
    what = f"{sites} sites" if sites != 1 else "one site"
    f1 = {run.method: run.overall.get("strict", {}).get("f1") for run in runs}
    federated = [run for run in runs if run.method not in REFERENCES and f1[run.method] is not None]
    if len(federated) != 1 or not _same_data(runs):
        return f"{len(runs)} runs on {what}." if len(runs) > 1 else f"One run on {what}."
    own = "a model for each" if federated[0].personal else "one model"
    told = f"{what[0].upper()}{what[1:]} trained {own} without sharing text"
    told += f": {words.points(f1[federated[0].method])} F1"
    if f1.get("alone") is not None:
        told += f"; each site by itself reaches {words.points(f1['alone'])}"
    if f1.get("pooled") is not None:
        told += f"; all text in one place, {words.points(f1['pooled'])}"
    return told + "."


def _notices(runs: Sequence[RunFolder]) -> list[str]:
    """What a reader must know before comparing."""
    found = []
    if not _same_data(runs):
        found.append("The runs were made on different data: their scores cannot be compared.")
    for run in runs:
        if not run.overall:
            found.append(f"{run.label}: nothing was held out for testing, so there are no scores.")
        for site, rounds in sorted(run.failed.items()):
            found.append(
                f"{run.label}: site {site} failed in {rounds} of {len(run.history)} rounds and"
                " was left out of them."
            )
        if wrong := run.overall.get("malformed"):
            found.append(f"{run.label}: {wrong} predicted tag sequences were malformed and mended.")
    return found


def _same_data(runs: Sequence[RunFolder]) -> bool:
    return len({run.result.get("data", {}).get("fingerprint") for run in runs}) == 1


def _curves(views: Sequence[RunView]) -> list[Markup]:
    """Development F1 over rounds and over seconds of computing."""
    drawn = []
    for id, label, x_of in (("rounds", "round", _rounds), ("seconds", "seconds", _seconds)):
        lines = [line for view in views if (line := _line(view, x_of)) is not None]
        if lines:
            told = "; ".join(
                f"{line.label}: from {words.points(line.points[0][1])} to"
                f" {words.points(line.points[-1][1])}"
                + (f", best {words.points(line.best[1])}" if line.best else "")
                for line in lines
            )
            alternative = f"Strict F1 on development text by {label}. {told}."
            drawn.append(Markup(curves(lines, id=id, x_label=label, alternative=alternative)))
    return drawn


def _rounds(run: RunFolder) -> list[float]:
    return [float(turn.get("round", n)) for n, turn in enumerate(run.history, 1)]


def _seconds(run: RunFolder) -> list[float]:
    passed, at = 0.0, []
    for turn in run.history:
        passed += float(turn.get("compute_seconds", turn.get("seconds")) or 0.0)
        at.append(passed)
    return at


def _line(view: RunView, x_of: Callable[[RunFolder], list[float]]) -> Line | None:
    best_round, points, best = view.run.result.get("best_round"), [], None
    for x, turn in zip(x_of(view.run), view.run.history, strict=True):
        f1 = (turn.get("dev") or {}).get("strict")
        if f1 is not None:
            points.append((x, float(f1)))
            best = points[-1] if turn.get("round") == best_round else best
    return Line(view.run.label, view.look, tuple(points), best) if points else None


def _by_site(views: Sequence[RunView]) -> ScoreSection | None:
    def pick(run: RunFolder, name: str, how: str) -> dict[str, Any]:
        return run.site_scores(name).get(how) or {}

    return _section(views, sorted({s for v in views for s in v.run.sites}), pick, id="sites")


def _by_type(views: Sequence[RunView]) -> ScoreSection | None:
    def pick(run: RunFolder, name: str, how: str) -> dict[str, Any]:
        return dict(run.overall.get(how, {}).get("types", {}).get(name) or {})

    found = {name for view in views for name in view.run.overall.get("strict", {}).get("types", {})}
    weight = {n: max(pick(v.run, n, "strict").get("support", 0) for v in views) for n in found}
    return _section(views, sorted(found, key=lambda n: (-weight[n], n)), pick, id="types")


def _section(
    views: Sequence[RunView],
    names: Sequence[str],
    pick: Pick,
    *,
    id: str,
) -> ScoreSection | None:
    def row(name: str, pick: Pick) -> ScoreRow:
        picked = [(pick(v.run, name, "strict"), pick(v.run, name, "relaxed")) for v in views]
        support = next((s["support"] for s, _ in picked if "support" in s), None)
        return ScoreRow(name, support, tuple((s.get("f1"), r.get("f1")) for s, r in picked))

    rows = tuple(row(name, pick) for name in names)
    rows = tuple(r for r in rows if any(cell[0] is not None for cell in r.cells))
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
    plot = dots(
        [r.name for r in rows], values, id=id, alternative=f"Strict F1 on test text. {told}."
    )
    whole = row("all", lambda run, _, how: run.overall.get(how) or {})
    return ScoreSection(rows, whole, Markup(plot))


def _errors(runs: Sequence[RunFolder]) -> list[tuple[RunFolder, list[ErrorsView]]]:
    try:
        return [(run, [errors_view(found) for found in run.errors]) for run in runs if run.errors]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            "an errors.json of a site is damaged",
            where=", ".join(str(run.path / "sites") for run in runs if run.errors),
            fix="leave the sites' text out of the page, or make the run again",
        ) from error
