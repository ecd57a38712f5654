"""The progress of a run: a live display on a terminal, plain lines everywhere else.

A progress is a context manager; the run calls it with every event.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from confide.cli.screen import clock, close_in, console
from confide.report.words import points, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from confide.federation.events import Event


_REMEMBERED = (
    "round", "rounds", "site", "step", "loss", "dev_f1", "best_f1", "bytes_up", "bytes_down",
    "seconds_left", "score", "folder",
)  # fmt: skip


@dataclass(slots=True)
class Standing:
    """Where a run stands: the newest value of everything that its events report."""

    round: int = 0
    rounds: int | None = None
    done: int = 0
    site: str = ""
    step: str = ""
    loss: float | None = None
    dev_f1: float | None = None
    best_f1: float | None = None
    federation: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    seconds_left: float | None = None
    score: str = "F1"
    folder: str = ""

    def take(self, event: Event) -> None:
        """Remember what the event reports."""
        for name in _REMEMBERED:
            value = getattr(event, name)
            if value is not None:
                setattr(self, name, value)
        if event.kind == "round":
            self.done = self.round
            self.federation = event.site or ""

    @property
    def where(self) -> str:
        """The round, such as "round 3/20"; a federation of one site puts its name before it."""
        turn = f"round {self.round}/{self.rounds}" if self.rounds else f"round {self.round}"
        return f"{self.federation}: {turn}" if self.federation else turn

    @property
    def facts(self) -> str:
        """Loss, development F1, bytes and the time left, as far as they are known."""
        parts = []
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.dev_f1 is not None:
            best = "" if self.best_f1 is None else f" (best {points(self.best_f1)})"
            parts.append(f"dev {self.score} {points(self.dev_f1)}{best}")
        if self.bytes_up or self.bytes_down:
            parts.append(f"up {size(self.bytes_up)}, down {size(self.bytes_down)}")
        if self.seconds_left is not None:
            parts.append(f"{clock(self.seconds_left)} left")
        return " · ".join(parts)


class Progress:
    """Shows a run on stderr while it happens; `quiet` shows failures only."""

    def __init__(self, *, quiet: bool = False, screen: Console | None = None) -> None:
        self.standing = Standing()
        self._quiet = quiet
        self._screen = screen or console(sys.stderr)
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._screen.is_terminal and not self._quiet:
            self._bar = _bar(self._screen)
            self._task = self._bar.add_task("starting", total=None, now="", facts="")
            self._bar.start()
            close_in()  # rich reads colours out of what is written to its own streams
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Take in an event and show what has changed."""
        if event.kind == "start":
            self.standing = Standing()
        self.standing.take(event)
        loud = event.kind == "failed" or not self._quiet
        if event.message and loud and event.kind != "end":  # the verb names the run's folder
            self._print(event.message)
        elif event.kind == "round" and self._bar is None and not self._quiet:
            self._print(f"{self.standing.where} · {self.standing.facts}")
        if self._bar is not None and self._task is not None:
            self._show()

    def _print(self, line: str) -> None:
        self._screen.print(line, soft_wrap=True)

    def _show(self) -> None:
        assert self._bar is not None and self._task is not None
        standing = self.standing
        self._bar.update(
            self._task,
            description=standing.where,
            completed=standing.done,
            total=standing.rounds,
            now=" · ".join(part for part in (standing.site, standing.step) if part),
            facts=standing.facts,
        )


def _bar(screen: Console) -> Bar:
    from rich.console import RenderableType
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class TwoLines(Bar):
        """A bar with the facts on a line of their own, so that they fit."""

        def get_renderables(self) -> Iterator[RenderableType]:
            """The bar's line, then the facts' line."""
            yield self.make_tasks_table(self.tasks)
            for task in self.tasks:
                yield Text(task.fields["facts"], style="dim", overflow="ellipsis", no_wrap=True)

    return TwoLines(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=32),
        TextColumn("{task.fields[now]}", style="cyan", markup=False),
        console=screen,
        transient=True,
    )
