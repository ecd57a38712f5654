"""The verb `confide audit`: what a run's model and its ledger tell."""

from __future__ import annotations

from typing import Annotated

import typer

from confide.cli import screen
from confide.cli.words import Json, Key, Quiet, RunFolder


def audit(
    run: RunFolder,
    *,
    site: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this site; all by default.")
    ] = None,
    references: Annotated[
        int,
        typer.Option(
            metavar="K", min=0, help="Models trained on halves of the text, for a stronger attack."
        ),
    ] = 0,
    most: Annotated[
        int, typer.Option(metavar="N", min=20, help="Most documents of each side.")
    ] = 1000,
    key: Key = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure what a run's model and ledger tell of its sites' text. Nothing is sent."""
    from confide import api
    from confide.jobs.audit import told

    found = api.audit(
        run,
        site=site,
        most=most,
        references=references,
        key=key,
        say=None if quiet or as_json else screen.say,
    )
    if as_json:
        screen.put_json(found.model_dump(by_alias=True))
    else:
        for line in told(found):
            typer.echo(line)
