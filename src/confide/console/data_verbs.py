"""The verbs `confide data …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from confide.console import screen
from confide.console.words import Format, Json, Scheme

data = typer.Typer(no_args_is_help=True, help="Check, convert, split and count annotated files.")

By = Literal["iid", "file", "domain", "dirichlet", "quantity"]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Annotated files.")]


@data.command("split")
def split(
    files: Files,
    *,
    sites: Annotated[int, typer.Option(metavar="N", help="How many sites.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for the sites' files.")],
    by: Annotated[By, typer.Option(help="How documents are dealt.")] = "iid",
    alpha: Annotated[
        float | None, typer.Option(help="For dirichlet and quantity: small is uneven.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed deals the same.")] = 1,
    format: Format = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="Written format; the same if not given."),
    ] = None,
) -> None:
    """Deal a corpus to sites, reproducibly: one file or folder each."""
    from confide import api
    from confide.console import tables

    dealt = api.split(
        files,
        sites,
        by=by,
        alpha=alpha,
        seed=seed,
        out=out,
        format=format,
        to=to,
    )
    screen.show(tables.shares(dealt))
    screen.say(f"written to {out}, described in {out / 'split.json'}")


@data.command("stats")
def stats(
    files: Files, *, format: Format = None, scheme: Scheme = None, as_json: Json = False
) -> None:
    """Count documents, tokens, entities, their shapes, and sentences that stand twice."""
    from confide import api
    from confide.console import tables

    found = api.stats(files, format=format, scheme=scheme)
    if as_json:
        screen.put_json(found.to_json())
    else:
        screen.show(*tables.statistics(found))
