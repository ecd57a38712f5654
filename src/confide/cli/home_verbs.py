"""The verb `confide home`: each site keeps the model that is best for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from confide.cli import screen
from confide.cli.words import Json, Key, Quiet, RunFolder

if TYPE_CHECKING:
    from rich.table import Table

    from confide.runs.athome import AtHome


def home(
    run: RunFolder,
    *,
    site: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this site; all by default.")
    ] = None,
    passes: Annotated[
        int, typer.Option(metavar="N", min=0, help="Most passes to tune the run's model; 0: none.")
    ] = 10,
    alone: Annotated[
        bool, typer.Option("--alone/--no-alone", help="Also train a model at home from the start.")
    ] = True,
    key: Key = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Let each site compare the run's model with its own, and keep the best. Nothing is sent."""
    from confide import api

    found = api.home(
        Path(run),
        site=site,
        passes=passes,
        alone=alone,
        key=key,
        say=None if quiet or as_json else screen.say,
    )
    if as_json:
        screen.put_json({name: one.model_dump() for name, one in found.items()})
    else:
        screen.show(table_of(found))


def table_of(found: Mapping[str, AtHome], *, first: str = "site") -> Table:
    """What each site compared, or one site after each run, in percent, and what it keeps."""
    from confide.cli.tables import titled
    from confide.runs.athome import CANDIDATES

    table = titled("Score on development text / test text, in percent")
    table.add_column(first)
    for name in CANDIDATES:
        table.add_column(name, justify="right")
    table.add_column("keeps")
    for title, one in found.items():
        cells = [
            f"{_percent(model.dev)} / {_percent(model.test)}"
            if (model := one.candidates.get(name))
            else "-"
            for name in CANDIDATES
        ]
        told = " (too little to tell)" if one.undecided else ""
        table.add_row(title, *cells, one.kept + told)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
