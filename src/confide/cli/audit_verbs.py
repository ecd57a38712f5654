"""The verb `confide audit`: what a run's model and its ledger tell."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from confide.cli import screen
from confide.cli.words import Json, RunFolder


def audit(
    run: RunFolder,
    *,
    site: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this site; all by default.")
    ] = None,
    most: Annotated[
        int, typer.Option(metavar="N", min=20, help="Most documents of each side.")
    ] = 1000,
    as_json: Json = False,
) -> None:
    """Measure what a run's model tells of its sites' text. Nothing is sent."""
    from confide import api
    from confide.jobs.audit import page

    found = api.audit(run, site=site, most=most)
    if as_json:
        screen.put_json(asdict(found))
    else:
        typer.echo(page(found), nl=False)
