"""The page Watch: runs in a folder, finished or not, one run closely, two runs compared."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from markupsafe import Markup, escape
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from confide.errors import ConfideError, GuardError, printable
from confide.federation.ledger import ledger
from confide.files import Tree, inside, json_of, plain_name
from confide.jobs.comparison import RunComparison, compare
from confide.runs.folder import RunFolder
from confide.runs.result import RESULT, Result, Turn
from confide.serve.gate import Limits, Pages, Refused
from confide.settings import Settings
from confide.tasks import TASKS

QUIET = 120.0
"""Seconds without a new line or checkpoint after which a run is said to be quiet, at least."""
TAIL = 16_384


@dataclass(frozen=True)
class Seen:
    """A run as its folder shows it. `state` is "finished", "running", "quiet" or "unreadable".

    `now` is the round that is being done, by the ledger. `value` is the latest score on
    development text, or that on test text of a finished run; `left` is in seconds.
    """

    name: str
    state: str
    method: str = ""
    task: str = ""
    settings: Settings | None = None
    history: tuple[Turn, ...] = ()
    rounds: int = 0
    now: int = 0
    result: Result | None = None
    changed: float = 0.0

    @property
    def done(self) -> int:
        """The last round that is complete."""
        return self.history[-1].round if self.history else 0

    @property
    def left(self) -> float | None:
        """Seconds to the last round, if the next rounds take as long as the last five."""
        spent = [turn.seconds for turn in self.history[-5:] if turn.seconds is not None]
        if self.state != "running" or not spent:
            return None
        return fmean(spent) * max(0, self.rounds - self.done)

    @property
    def kind(self) -> str:
        """The name of the score that counts for the task."""
        return TASKS[self.task].kinds[0] if self.task else ""

    @property
    def value(self) -> float | None:
        """The latest score: on test text if the run is finished, or else on development text."""
        if self.result is not None and self.result.scores.overall:
            return TASKS[self.task].value(self.result.scores.overall, self.kind)
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
        names = {site for turn in self.history for site in (*turn.sites, *turn.failed)}
        return sorted(names)

    def rounds_of(self, site: str) -> int:
        """Count the rounds that a site took part in."""
        return sum(site in turn.sites for turn in self.history)

    def refused(self, site: str) -> dict[str, int]:
        """Count the rounds without a site's part, by the reason's code."""
        codes = (turn.failed[site] for turn in self.history if site in turn.failed)
        return dict(Counter(codes))

    def curve(self, what: str) -> list[tuple[float, float]]:
        """Points by round: "dev" the score on development text, "loss", or "up", megabytes."""
        points = []
        for turn in self.history:
            moved = turn.bytes.up / 1e6 if turn.bytes else None
            found = {"dev": (turn.dev or {}).get(self.kind), "loss": turn.loss, "up": moved}
            value = found[what]
            if value is not None and value == value and abs(value) < 1e300:
                points.append((float(turn.round), float(value)))
        return points


class Runs:
    """The runs in one folder, each read again only when its files have changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, tuple[object, Seen]] = {}

    def names(self) -> list[str]:
        """The folders that hold a run."""
        try:
            found = [path.name for path in self.folder.iterdir() if _is_run(path)]
        except OSError:
            return []
        return sorted(name for name in found if _is_plain(name))

    def all(self) -> list[Seen]:
        """All runs, those that changed last first."""
        return sorted((self.of(name) for name in self.names()), key=lambda one: -one.changed)

    def of(self, name: str) -> Seen:
        """One run. Raises GuardError if the name is not one of a run here."""
        path = inside(self.folder, name)
        if not _is_run(path):
            raise GuardError("there is no such run here")
        mark = _mark(path)
        known = self._seen.get(name)
        if known is None or known[0] != mark:
            known = self._seen[name] = (mark, _read(path, changed=_newest(mark)))
        return _aged(known[1])


def _is_plain(name: str) -> bool:
    try:
        return bool(plain_name(name, "a run"))
    except GuardError:
        return False


def _is_run(path: Path) -> bool:
    """Return whether a run was started here; settings alone are only settings."""
    if path.is_symlink() or not (path / "settings.toml").is_file():
        return False
    return any((path / name).exists() for name in ("environment.json", "ledger.jsonl", "sites"))


def _mark(path: Path) -> list[tuple[str, float]]:
    """A stamp that changes whenever a run writes: its files' times."""
    files = [path / name for name in ("settings.toml", "ledger.jsonl", RESULT)]
    files += sorted(path.glob("checkpoints/*.ckpt"))
    files += sorted(path.glob("alone/*/ledger.jsonl"))
    found = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((f"{file.name} {status.st_size}", status.st_mtime))
    return found or [("", 0.0)]


def _newest(mark: list[tuple[str, float]]) -> float:
    """The last time of a mark. Times to come do not count: the clock was set back since."""
    soon = time.time() + QUIET
    return max((at for _, at in mark if at < soon), default=0.0)


def _read(path: Path, *, changed: float) -> Seen:
    folder = RunFolder(path)
    try:
        settings = folder.settings()
        result = folder.result() if (path / RESULT).exists() else None
        history = tuple(result.history) if result else _history(folder)
    except (ConfideError, ValidationError, ValueError, OSError):
        return Seen(path.name, "unreadable", changed=changed)
    return Seen(
        path.name,
        "finished" if result else "running",
        settings.method,
        settings.task,
        settings,
        history,
        settings.rounds,
        max(_round_now(path / "ledger.jsonl"), history[-1].round if history else 0),
        result,
        changed,
    )


def _history(folder: RunFolder) -> tuple[Turn, ...]:
    """The rounds up to the last checkpoint. Raises CheckpointError, ValueError."""
    store = folder.store()
    rounds = store.rounds()
    if not rounds:
        return ()
    progress: Tree = json_of(store.load(rounds[-1]).progress)
    return tuple(Turn.model_validate(turn) for turn in progress.get("history", ()))


def _round_now(ledger: Path) -> int:
    """The round of the last whole line of a ledger that may be in the midst of a write."""
    try:
        with open(ledger, "rb") as file:
            file.seek(max(0, ledger.stat().st_size - TAIL))
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


def _aged(seen: Seen) -> Seen:
    """A run that has written nothing for long is quiet: stopped, or in a long step."""
    if seen.state != "running":
        return seen
    spent = [turn.seconds for turn in seen.history[-5:] if turn.seconds is not None]
    patience = max(QUIET, 5 * fmean(spent) if spent else 0.0)
    if time.time() - seen.changed <= patience:
        return seen
    return replace(seen, state="quiet")


# --- A small line plot
#
# SVG without style attributes, which our pages' policy refuses.


Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 440, 220, 44, 28, 10


def plot(lines: Sequence[tuple[str, Points]], *, title: str, top: float | None = None) -> Markup:
    """Lines over rounds, the first solid, the second dashed; `top` fixes the upper end.

    Empty if no line has a point.
    """
    points = [point for _, line in lines for point in line]
    if not points:
        return Markup("")
    last = max(2.0, max(x for x, _ in points))
    high = top or max(max(y for _, y in points) * 1.05, 1e-9)

    def at(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - 12) * (x - 1) / (last - 1)
        down = ABOVE + (HEIGHT - ABOVE - BELOW) * (1 - min(max(y / high, 0), 1))
        return f"{across:.1f},{down:.1f}"

    parts = [_axes(at, last=last, high=high)]
    for number, (_, line) in enumerate(lines):
        kind = Markup(' class="b"') if number else Markup("")
        where = " ".join(at(x, y) for x, y in line)
        parts.append(Markup('<polyline{} points="{}"/>').format(kind, where))
        if line:
            across, down = at(*line[-1]).split(",")
            parts.append(Markup('<circle{} cx="{}" cy="{}" r="3"/>').format(kind, across, down))
    ends = "; ".join(f"{name or 'now'} {line[-1][1]:.3g}" for name, line in lines if line)
    return Markup(
        '<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, f"{title} by round: {ends}", Markup("").join(parts))


def _axes(at: object, *, last: float, high: float) -> Markup:
    assert callable(at)
    parts = []
    for share in (0.0, 0.5, 1.0):
        left, y = at(1, share * high).split(",")
        right = at(last, 0).split(",")[0]
        kind = "axis" if share == 0 else "grid"
        parts.append(
            Markup('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
                kind, left, right, y, y
            )
        )
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(
                float(left) - 6, float(y) + 4, escape(f"{share * high:.3g}")
            )
        )
    for x in sorted({1, round(last)}):
        across, down = at(x, 0).split(",")
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
                across, float(down) + 18, x
            )
        )
    return Markup("").join(parts)


# --- The page Watch
#
# Runs in a folder as they go, one run closely, two runs compared.


EVERY = 2.0
"""Seconds between two looks at the runs."""
ALIVE = 15.0
"""Seconds after which a stream that has nothing to say says so, to find callers that left."""


@dataclass
class Watch:
    """The runs, and how many streams and comparisons are going on."""

    runs: Runs
    limits: Limits
    streams: int = 0
    every: float = EVERY
    one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock)

    def run(self, name: str) -> Seen:
        """The run of that name. Raises Refused."""
        try:
            return self.runs.of(name)
        except GuardError:
            raise Refused(404, "no-run", "there is no such run here") from None


def routes(watch: Watch, pages: Pages) -> list[Route]:
    """The routes of the page."""

    async def overview(ask: Request) -> Response:
        seen = await asyncio.to_thread(watch.runs.all)
        rows = [(run, _share(run), _left(run)) for run in seen]
        return pages.page("watch", title="Watch", runs=rows)

    async def one(ask: Request) -> Response:
        seen = await asyncio.to_thread(watch.run, ask.query_params.get("name", ""))
        rows = await asyncio.to_thread(_ledger_of, watch, seen)
        return pages.page("run", title=seen.name, run=seen, left=_left(seen), ledger=rows,
                          plots=_plots([seen]), share=_share(seen))  # fmt: skip

    async def two(ask: Request) -> Response:
        names = [ask.query_params.get(key, "") for key in ("first", "second")]
        first, second = [await asyncio.to_thread(watch.run, name) for name in names]
        found, why = await _compared(watch, first, second)
        return pages.page("two", title=f"{first.name} and {second.name}", first=first,
                          second=second, found=found, why=why, types=_types(first, second),
                          plots=_plots([first, second]))  # fmt: skip

    async def events(ask: Request) -> Response:
        if watch.streams >= watch.limits.streams:
            raise Refused(503, "busy", "too many pages are watching")
        return _Stream(watch)

    return [
        Route("/watch", overview),
        Route("/watch/run", one),
        Route("/watch/compare", two),
        Route("/watch/events", events),
    ]


class _Stream(StreamingResponse):
    """A stream of events, counted from the moment it is promised to its end."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(_events(watch), media_type="text/event-stream")
        self._watch = watch
        watch.streams += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak until the caller leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watch.streams -= 1


async def _events(watch: Watch) -> AsyncIterator[bytes]:
    """The state of all runs whenever it has changed: names and numbers, never text."""
    last, quiet = "", 0.0
    while True:
        seen = await asyncio.to_thread(watch.runs.all)
        said = json.dumps([_said(run) for run in seen])
        quiet += watch.every
        if said != last:
            last, quiet = said, 0.0
            yield f"data: {said}\n\n".encode()
        elif quiet >= ALIVE:
            quiet = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(watch.every)


def _said(run: Seen) -> dict[str, object]:
    return {
        "name": run.name,
        "state": run.state,
        "done": run.done,
        "now": run.now,
        "rounds": run.rounds,
        "value": run.value,
    }


def _share(run: Seen) -> int:
    """The progress of the run, in percent."""
    if run.state == "finished":
        return 100
    return round(100 * run.done / run.rounds) if run.rounds else 0


def _left(run: Seen) -> str:
    """The time left, in words.

    >>> _left(Seen("r", "finished"))
    ''
    """
    if run.left is None:
        return ""
    minutes, seconds = divmod(round(run.left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _plots(runs: list[Seen]) -> list[tuple[str, object]]:
    """A title and a plot for each thing that was measured round by round."""
    by = runs[0].kind
    words = TASKS[runs[0].task].words if runs[0].task else None
    title = f"{words.full(by)}, development text" if words else ""
    several = len(runs) > 1
    found: list[tuple[str, object]] = []
    for name, what, top in ((title, "dev", 1.0), ("Training loss", "loss", None),
                            ("Megabytes from all sites", "up", None)):  # fmt: skip
        lines = [(run.name if several else "", run.curve(what)) for run in runs]
        drawn = plot(lines, title=name, top=top if what == "dev" else None)
        if drawn:
            found.append((name, drawn))
    return found


def _ledger_of(watch: Watch, seen: Seen) -> list[object] | None:
    """Rows of what left the sites; None while the ledger is being written."""
    try:
        rows = ledger(RunFolder(watch.runs.folder / seen.name).path)
    except (ConfideError, OSError):
        return None
    return [row for row in rows if row.direction == "up"]


def _types(first: Seen, second: Seen) -> list[tuple[str, float | None, float | None]]:
    """The F1 of each type in both runs, on test text."""
    tables = [_by_type(run) for run in (first, second)]
    names = sorted({*tables[0], *tables[1]})
    return [(name, tables[0].get(name), tables[1].get(name)) for name in names]


def _by_type(run: Seen) -> dict[str, float]:
    overall = run.result.scores.overall if run.result else {}
    scored = overall.get(run.kind) or {}
    types = scored.get("types", {}) if isinstance(scored, dict) else {}
    return {name: rates["f1"] for name, rates in types.items() if "f1" in rates}


async def _compared(watch: Watch, first: Seen, second: Seen) -> tuple[RunComparison | None, str]:
    """Compare two runs as `confide compare` does, or say why not."""
    paths = [watch.runs.folder / run.name for run in (first, second)]
    async with watch.one_by_one:
        try:
            return await asyncio.to_thread(compare, paths[0], paths[1], samples=1000), ""
        except ConfideError as error:
            return None, printable(error.what, 300)
