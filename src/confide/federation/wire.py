"""The wire table: every step of a method, and every field that its messages carry.

A checked-in copy of it is the wire lock (tests/wire), so that review sees every change to what
leaves a site.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confide.federation.forms import forms_of
from confide.federation.steps import Step


@dataclass(frozen=True, slots=True)
class WireRow:
    """One field of one message. Direction "down" goes to a site, "up" leaves it."""

    step: str
    direction: str
    field: str
    kind: str
    what: str
    seen: str


def wire_table(steps: Iterable[Step]) -> list[WireRow]:
    """The rows of these steps, in their order: first the ask, then the reply."""
    rows = []
    for step in steps:
        for direction, message in (("down", step.ask), ("up", step.reply)):
            seen = "by the site" if direction == "down" else step.seen_as
            for name, form in forms_of(message).items():
                rows.append(WireRow(step.name, direction, name, form.kind, form.what, seen))
    return rows
