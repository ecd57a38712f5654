"""The verb `confide budget`: how often sites should talk, for the bytes that they may send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confide.cli import screen
from confide.cli.words import Json, RunFolder


def budget(
    run: RunFolder,
    *,
    megabytes: Annotated[
        float, typer.Option(metavar="MB", help="What a site may upload in the whole run.")
    ],
    passes: Annotated[
        float | None, typer.Option(metavar="N", help="Over the text; by default those of the run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Propose how often sites should talk, from a run and the bytes that a site may upload."""
    from dataclasses import asdict

    from confide import api

    found = api.budget(Path(run), megabytes=megabytes, passes=passes)
    if as_json:
        screen.put_json(asdict(found))
        return
    screen.say(
        f"one upload: {found.each:.3g} MB; {found.rounds} rounds of {found.local_steps} batches:"
        f" {found.passes:.3g} passes, {found.megabytes:.4g} MB a site"
    )
    typer.echo(" ".join(f"--set {one}" for one in found.overrides()))
