"""Tables for the terminal, made from run folders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from confide.report.folder import FinishedRun, task_of, totals
from confide.report.words import points, size
from confide.tasks import TASKS


def results(runs: Mapping[str, FinishedRun], *, title: str = "") -> Table:
    """Scores on test text, in points of 100: a row per site, then all; a column per named run.

    Each cell holds strict F1 with relaxed F1 in brackets (for relations, micro- and macro-F1; for
    bags, the AUC and the mean of P@100, 200 and 300). The best first number of a row is bold.
    Raises RunError if the runs have different tasks.
    """
    task = TASKS[task_of(runs.values())]
    kinds = task.words.shown or task.kinds
    one, other = (task.words.kinds.get(kind) or f"{kind} F1" for kind in kinds)
    table = _table(title, caption=f"{one}, and {other} in brackets; on test text")
    table.add_column("site")
    for name in runs:
        table.add_column(escape(name), justify="right")
    for site in sorted({site for run in runs.values() for site in run.sites}):
        table.add_row(escape(site), *_cells(runs.values(), kinds, site))
    table.add_section()
    table.add_row("all", *_cells(runs.values(), kinds, None))
    return table


def left(run: FinishedRun, *, title: str = "") -> Table:
    """A table of what left the sites in a run, by step and field, with every site's bytes."""
    table = _table(title, caption='"sum": the server\'s code sees the sum over the sites only')
    for name in ("step", "field", "kind", "seen"):
        table.add_column(name)
    for name in run.senders:
        table.add_column(escape(name), justify="right")
    up = [line for line in run.ledger if line.direction == "up"]
    sums = totals(up, lambda line: (line.step, line.field, line.kind, line.seen, line.site))
    for field in dict.fromkeys(key[:4] for key in sums):
        table.add_row(*field, *(size(sums.get((*field, site), 0)) for site in run.senders))
    table.add_section()
    table.add_row("all", "", "", "", *(size(run.bytes("up", site)) for site in run.senders))
    return table


def _cells(runs: Collection[FinishedRun], kinds: Sequence[str], site: str | None) -> list[str]:
    first, second = kinds
    each = [run.score(first, site) for run in runs]
    best = max((f1 for f1 in each if f1 is not None), default=None)
    cells = []
    for f1, run in zip(each, runs, strict=True):
        cell = f"[bold]{points(f1)}[/bold]" if f1 is not None and f1 == best else points(f1)
        cells.append(f"{cell} [dim]({points(run.score(second, site))})[/dim]")
    return cells


def _table(title: str, *, caption: str) -> Table:
    return Table(
        title=title or None,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
