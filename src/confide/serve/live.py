"""The page Watch: runs in a folder as they go, one run closely, two runs compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from confide.errors import ConfideError, GuardError, printable
from confide.federation.ledger import ledger
from confide.jobs.comparison import RunComparison, compare
from confide.runs.folder import RunFolder
from confide.serve.curves import plot
from confide.serve.gate import Refused
from confide.serve.limits import Limits
from confide.serve.pages import Pages
from confide.serve.watching import Runs, Seen
from confide.tasks import TASKS

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
    """How much of the run is done, in percent."""
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
    """What left the sites; None while the ledger is being written."""
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
    """What `confide compare` says of two runs, or why it says nothing."""
    paths = [watch.runs.folder / run.name for run in (first, second)]
    async with watch.one_by_one:
        try:
            return await asyncio.to_thread(compare, paths[0], paths[1], samples=1000), ""
        except ConfideError as error:
            return None, printable(error.what, 300)
