"""What a site has agreed to and what it refuses, as tables in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from confide.cli.tables import titled

if TYPE_CHECKING:
    from confide.flare.run.sitekit import Consent
    from confide.flare.run.standing import Guarded, Standing

_EMPTY = {"sites": "no one in particular", "private": "none"}


def bounds(found: Consent) -> Table:
    """How far a run may go: the agreed bounds, and beside them what a run asks if they differ."""
    table = titled(f"How far a run of {found.method} may go here")
    differ = [line for line in found.lines if found.agreed != "no" and line.agreed != line.asked]
    table.add_column("")
    names = (
        ("agreed", "asked", "") if differ else ("proposed" if found.agreed == "no" else "agreed",)
    )
    for name in names:
        table.add_column(name, overflow="fold")
    for line in found.lines:
        cells = [_words(line.name, line.asked)]
        if differ:
            more = "more than agreed" if line.outside else ""
            cells = [_words(line.name, line.agreed), *cells, more]
        table.add_row(f"{line.name}: {line.says}", *cells)
    return table


def guards(held: Sequence[Guarded]) -> Table:
    """A site's guards, and which of them its own file sets."""
    table = titled("What this site refuses, whatever it has agreed to")
    for name in ("guard", "value", "from", "the site"):
        table.add_column(name, overflow="fold")
    for guard in held:
        table.add_row(guard.name, _words(guard.name, guard.value), guard.source, guard.says)
    return table


def standings(held: Sequence[Standing]) -> Table:
    """A site's agreements: until when, for how many runs, with which lead."""
    table = titled("What this site has agreed to")
    for name in ("method", "until", "runs", "lead", ""):
        table.add_column(name, overflow="fold")
    for one in held:
        used = "?" if one.used is None else one.used
        lead = _words("lead", one.lead)
        table.add_row(one.method, f"{one.until}", f"{used} of {one.runs}", lead, one.warning)
    return table


def _words(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        shown = ("anyone" if name == "lead" and one == "*" else str(one) for one in value)
        return ", ".join(shown) or _EMPTY.get(name, "")
    return f"{value:g}" if isinstance(value, float) else str(value)
