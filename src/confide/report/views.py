"""One run as the page shows it: its look, its purpose, and what crossed the wall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from confide.report import words
from confide.report.folder import FinishedRun, totals
from confide.report.plots import COLOURS, MOST_ROWS, Look, traffic

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
