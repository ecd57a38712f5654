"""`confide report`: the page of finished runs, and of one that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confide.cli import screen
from confide.errors import SettingsError


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One or more run folders.")],
    *,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page to write.")] = None,
    text: Annotated[
        bool, typer.Option("--text/--no-text", help="Show sites' text: right and wrong answers.")
    ] = True,
    watch: Annotated[
        bool, typer.Option("--watch", help="Renew the page of one run until it is finished.")
    ] = False,
) -> None:
    """Write one self-contained HTML page that shows and compares runs."""
    from confide import api

    if not watch:
        typer.echo(str(api.report(runs, out=out, text=text)))
        return
    if len(runs) > 1:
        raise SettingsError("only one run can be watched", got=f"{len(runs)} runs")
    api.watch_report(
        runs[0], out=out, text=text, on_page=lambda page, where: screen.say(f"{page}: {where}")
    )
