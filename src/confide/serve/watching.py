"""The page Watch: runs in a folder, finished or not, one run closely, two runs compared."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from confide.errors import ConfideError, GuardError, printable
from confide.federation.ledger import ledger
from confide.files import path_inside, plain_names
from confide.jobs.comparison import RunComparison, compare
from confide.runs.folder import RunFolder
from confide.runs.result import RESULT, Result, RoundRecord
from confide.runs.status import current_result
from confide.serve.gate import CallerLimits, HttpError, Pages, fill
from confide.tasks import TASKS
from confide.words import duration

QUIET = 120.0
"""Seconds without a new line or checkpoint after which a run is said to be quiet, at least."""
TAIL = 16_384


@dataclass(frozen=True)
class WatchedRun:
    """A run as its folder shows it. `state` is "finished", "running", "quiet" or "unreadable".

    `result` is that of the rounds so far; None if it is unreadable. `now` is the round that is
    being done, by the ledger, and `changed` the time of the last change.
    """

    name: str
    state: str
    result: Result | None = None
    now: int = 0
    changed: float = 0.0

    @property
    def method(self) -> str:
        """The method's name."""
        return self.result.method if self.result else ""

    @property
    def rounds(self) -> int:
        """The rounds that are planned."""
        return (self.result.rounds or 0) if self.result else 0

    @property
    def history(self) -> Sequence[RoundRecord]:
        """The rounds that are complete."""
        return self.result.history if self.result else ()

    @property
    def done(self) -> int:
        """The last round that is complete."""
        return self.history[-1].round if self.history else 0

    @property
    def share(self) -> int:
        """The progress of the run, in percent."""
        if self.state == "finished":
            return 100
        return round(100 * self.done / self.rounds) if self.rounds else 0

    @property
    def pace(self) -> float | None:
        """The mean seconds of the last five rounds."""
        spent = [turn.seconds for turn in self.history[-5:] if turn.seconds is not None]
        return fmean(spent) if spent else None

    @property
    def left(self) -> str:
        """The time to the last round, in words, if the next rounds take as long as the last ones.

        >>> WatchedRun("r", "finished").left
        ''
        """
        if self.state != "running" or self.pace is None:
            return ""
        return duration(self.pace * max(0, self.rounds - self.done))

    @property
    def kind(self) -> str:
        """The name of the score that counts for the task."""
        return TASKS[self.result.task].kinds[0] if self.result else ""

    @property
    def value(self) -> float | None:
        """The latest score: on test text if the run is finished, or else on development text."""
        if self.result is not None and self.result.scores.overall:
            return TASKS[self.result.task].value(self.result.scores.overall, self.kind)
        found = [turn.dev.get(self.kind) for turn in self.history if turn.dev]
        return found[-1] if found else None

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that left the sites, and that reached them, in all rounds so far."""
        moved = [turn.bytes for turn in self.history if turn.bytes is not None]
        return sum(one.up for one in moved), sum(one.down for one in moved)

    @property
    def sites(self) -> list[str]:
        """The sites that took part in a round, or were refused in one."""
        return sorted({site for turn in self.history for site in (*turn.sites, *turn.failed)})

    def rounds_of(self, site: str) -> int:
        """Count the rounds that a site took part in."""
        return sum(site in turn.sites for turn in self.history)

    def refused(self, site: str) -> dict[str, int]:
        """Count the rounds without a site's part, by the reason's code."""
        return dict(Counter(turn.failed[site] for turn in self.history if site in turn.failed))

    def curve(self, what: str) -> list[tuple[float, float]]:
        """Points by round: "dev" the score on development text, "loss", or "up", megabytes."""
        points = []
        for turn in self.history:
            moved = turn.bytes.up / 1e6 if turn.bytes else None
            found = {"dev": (turn.dev or {}).get(self.kind), "loss": turn.loss, "up": moved}
            value = found[what]
            if value is not None and math.isfinite(value) and abs(value) < 1e300:
                points.append((float(turn.round), float(value)))
        return points

    def f1_by_type(self) -> dict[str, float]:
        """The F1 of each type on test text."""
        scored = (self.result.scores.overall if self.result else {}).get(self.kind) or {}
        types = scored.get("types", {}) if isinstance(scored, dict) else {}
        return {name: rates["f1"] for name, rates in types.items() if "f1" in rates}


class Runs:
    """The runs in one folder, each read again only when its files have changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._views: dict[str, tuple[object, WatchedRun]] = {}

    def names(self) -> list[str]:
        """The folders that hold a run."""
        try:
            found = [path.name for path in self.folder.iterdir() if _is_run(path)]
        except OSError:
            return []
        return sorted(plain_names(found))

    def all(self) -> list[WatchedRun]:
        """All runs, those that changed last first."""
        return sorted((self.view(name) for name in self.names()), key=lambda one: -one.changed)

    def view(self, name: str) -> WatchedRun:
        """One run. Raises GuardError if the name is not one of a run here."""
        path = path_inside(self.folder, name)
        if not _is_run(path):
            raise GuardError("there is no such run here")
        stamp = _stamp(path)
        known = self._views.get(name)
        if known is None or known[0] != stamp:
            # Times to come do not count: the clock was set back since
            soon = time.time() + QUIET
            changed = max((at for _, at in stamp if at < soon), default=0.0)
            known = self._views[name] = (stamp, _read_run(path, changed=changed))
        view = known[1]
        patience = max(QUIET, 5 * (view.pace or 0.0))
        silent = view.state == "running" and time.time() - view.changed > patience
        return replace(view, state="quiet") if silent else view  # stopped, or in a long step


def _is_run(path: Path) -> bool:
    """Return whether a run was started here; settings alone are only settings."""
    if path.is_symlink() or not (path / "settings.toml").is_file():
        return False
    return any((path / name).exists() for name in ("environment.json", "ledger.jsonl", "sites"))


def _stamp(path: Path) -> list[tuple[str, float]]:
    """A stamp that changes whenever a run writes: its files' names, sizes and times."""
    files = [path / name for name in ("settings.toml", "ledger.jsonl", RESULT)]
    files += [*sorted(path.glob("checkpoints/*.ckpt")), *sorted(path.glob("alone/*/ledger.jsonl"))]
    found = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((f"{file.name} {status.st_size}", status.st_mtime))
    return found or [("", 0.0)]


def _read_run(path: Path, *, changed: float) -> WatchedRun:
    finished = (path / RESULT).exists()
    try:
        result = RunFolder(path).result() if finished else current_result(path)
    except (ConfideError, ValueError, OSError):
        return WatchedRun(path.name, "unreadable", changed=changed)
    done = result.history[-1].round if result.history else 0
    now = max(_round_now(path / "ledger.jsonl"), done)
    return WatchedRun(path.name, "finished" if finished else "running", result, now, changed)


def _round_now(path: Path) -> int:
    """The round of the last whole line of a ledger that may be in the midst of a write."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read(TAIL).split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines[:-1]):
        try:
            round = json.loads(line).get("round")
        except (ValueError, AttributeError):
            continue
        if type(round) is int and 0 <= round < 10**9:
            return round
    return 0


# --- A small line plot: SVG without style attributes, which our pages' policy refuses


Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 440, 220, 44, 28, 10


def plot_lines(
    lines: Sequence[tuple[str, Points]], *, title: str, top: float | None = None
) -> Markup:
    """Lines over rounds, the first solid, the second dashed; `top` fixes the upper end.

    Empty if no line has a point.
    """
    points = [point for _, line in lines for point in line]
    if not points:
        return Markup("")
    last = max(2.0, max(x for x, _ in points))
    high = top or max(max(y for _, y in points) * 1.05, 1e-9)

    def across(x: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 12) * (x - 1) / (last - 1), 1)

    def down(y: float) -> float:
        return round(ABOVE + (HEIGHT - ABOVE - BELOW) * (1 - min(max(y / high, 0), 1)), 1)

    ends = "; ".join(f"{name or 'now'} {line[-1][1]:.3g}" for name, line in lines if line)
    svg = fill(
        "plot.svg",
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=across(last),
        label=f"{title} by round: {ends}",
        scale=[(down(share * high), f"{share * high:.3g}") for share in (0.0, 0.5, 1.0)],
        rounds=[(across(x), x) for x in sorted({1, round(last)})],
        lines=[[(across(x), down(y)) for x, y in line] for _, line in lines],
    )
    return Markup(svg)  # the template escapes what it is given


# --- The page


EVERY = 2.0
"""Seconds between two looks at the runs."""
ALIVE = 15.0
"""Seconds after which a stream that has nothing to say says so, to find callers that left."""


@dataclass
class RunWatch:
    """The runs, and how many streams and comparisons are going on."""

    runs: Runs
    limits: CallerLimits
    streams: int = 0
    every: float = EVERY
    one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock)

    def run(self, name: str) -> WatchedRun:
        """The run of that name. Raises HttpError."""
        try:
            return self.runs.view(name)
        except GuardError:
            raise HttpError(404, "no-run", "there is no such run here") from None

    async def events(self) -> AsyncIterator[bytes]:
        """The state of all runs whenever it has changed: names and numbers, never text."""
        names = ("name", "state", "done", "now", "rounds", "value")
        last, quiet = "", 0.0
        while True:
            views = await asyncio.to_thread(self.runs.all)
            news = json.dumps([{name: getattr(one, name) for name in names} for one in views])
            quiet += self.every
            if news != last:
                last, quiet = news, 0.0
                yield f"data: {news}\n\n".encode()
            elif quiet >= ALIVE:
                quiet = 0.0
                yield b": still here\n\n"
            await asyncio.sleep(self.every)

    async def compare(
        self, first: WatchedRun, second: WatchedRun
    ) -> tuple[RunComparison | None, str]:
        """Compare two runs as `confide compare` does, or say why not."""
        paths = [self.runs.folder / run.name for run in (first, second)]
        async with self.one_by_one:
            try:
                return await asyncio.to_thread(compare, paths[0], paths[1], samples=1000), ""
            except ConfideError as error:
                return None, printable(error.what, 300)


class _Stream(StreamingResponse):
    """A stream of events, counted from the moment it is promised to its end."""

    def __init__(self, watch: RunWatch) -> None:
        super().__init__(watch.events(), media_type="text/event-stream")
        self._watch = watch
        watch.streams += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak until the caller leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watch.streams -= 1


def watch_routes(watch: RunWatch, pages: Pages) -> list[Route]:
    """The routes of the page."""

    async def overview(ask: Request) -> Response:
        runs = await asyncio.to_thread(watch.runs.all)
        return pages.page("watch", title="Watch", runs=runs)

    async def show_one(ask: Request) -> Response:
        run = await asyncio.to_thread(watch.run, ask.query_params.get("name", ""))
        try:
            rows = await asyncio.to_thread(ledger, watch.runs.folder / run.name)
            sent = [row for row in rows if row.direction == "up"]
        except (ConfideError, OSError):
            sent = None  # it is being written
        return pages.page("run", title=run.name, run=run, ledger=sent, plots=_plots([run]))

    async def show_two(ask: Request) -> Response:
        names = [ask.query_params.get(key, "") for key in ("first", "second")]
        first, second = [await asyncio.to_thread(watch.run, name) for name in names]
        found, why = await watch.compare(first, second)
        one, other = first.f1_by_type(), second.f1_by_type()
        types = [(name, one.get(name), other.get(name)) for name in sorted({*one, *other})]
        title = f"{first.name} and {second.name}"
        return pages.page("two", title=title, first=first, second=second, found=found, why=why,
                          types=types, plots=_plots([first, second]))  # fmt: skip

    async def events(ask: Request) -> Response:
        if watch.streams >= watch.limits.streams:
            raise HttpError(503, "busy", "too many pages are watching")
        return _Stream(watch)

    return [
        Route("/watch", overview),
        Route("/watch/run", show_one),
        Route("/watch/compare", show_two),
        Route("/watch/events", events),
    ]


def _plots(runs: Sequence[WatchedRun]) -> list[tuple[str, Markup]]:
    """A title and a plot for each thing that was measured round by round."""
    score = ""
    if (result := runs[0].result) is not None:
        score = f"{TASKS[result.task].words.full(runs[0].kind)}, development text"
    measured = ((score, "dev"), ("Training loss", "loss"), ("Megabytes from all sites", "up"))
    found = []
    for title, what in measured:
        lines = [(run.name if len(runs) > 1 else "", run.curve(what)) for run in runs]
        found.append((title, plot_lines(lines, title=title, top=1.0 if what == "dev" else None)))
    return [(title, drawn) for title, drawn in found if drawn]
