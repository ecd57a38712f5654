"""What `confide demo` shows at its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from confide.cli.tables import titled
from confide.report.folder import load_run
from confide.report.tables import left, results
from confide.report.words import duration, points, size

if TYPE_CHECKING:
    from confide.jobs.demo import DemoResult, Example, Mark, Part


def demonstration(shown: DemoResult) -> Iterator[RenderableType]:
    """Scores, what the model finds in held-out sentences, what left the sites, what to do next."""
    runs = {name: load_run(path) for name, path in shown.runs.items()}
    yield Text("\nSYNTHETIC text from three made-up sites: scores say nothing about real notes.\n")
    yield results(runs, title="Does training together help?")
    yield found(shown.examples)
    yield left(runs["federated"], title="What left the sites in the federated run")
    if len(shown.parts) > 1:
        yield methods(shown.parts)
    yield Text.assemble(
        f"\nDone in {duration(shown.seconds)}. Open ",
        (str(shown.page), "bold"),
        " in a browser, or continue:\n\n",
        f"  confide predict {shown.runs['federated']} FILE.txt\n",
        f"  confide ledger {shown.runs['federated']}\n",
        "  confide init YOUR_FILES\n",
        "" if len(shown.parts) > 1 else "  confide demo --all     # the methods of five papers\n",
    )


def methods(parts: tuple[Part, ...]) -> Table:
    """The five parts: the method, its score on test text beside those to compare, what left."""
    table = titled("Five methods, and what left the sites under each")
    for name in ("method", "shows", "score", "alone", "together", "left the sites"):
        table.add_column(name, justify="left" if name in ("method", "shows", "score") else "right")
    for part in parts:
        alone, together = part.scores.get("alone"), part.scores[part.federated]
        bytes = size(sum(part.bytes.values()))
        table.add_row(part.method, part.title, part.score, points(alone), points(together), bytes)
    return table


def found(examples: tuple[Example, ...]) -> Table:
    """One held-out sentence per site: each marked mention, what the model says, how sure it is."""
    table = titled("What the federated model finds in held-out sentences")
    for name in ("site", "words", "marked as", "found as", "confidence"):
        table.add_column(name, justify="right" if name == "confidence" else "left")
    for example in examples:
        table.add_row(example.site, Text(example.text, style="italic"), "", "", "")
        for mark in example.marks:
            table.add_row("", Text(f"  {mark.words}"), mark.marked, *_said(mark))
        table.add_section()
    return table


def _said(mark: Mark) -> tuple[Text, str]:
    if not mark.found:
        return Text("not found", style="dim"), ""
    right = mark.found == mark.marked
    return Text(mark.found, style="green" if right else "red"), points(mark.confidence)
