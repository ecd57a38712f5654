"""The verb `confide serve`: a page and a REST interface at one local address."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confide.cli import screen
from confide.cli.words import Key
from confide.errors import SettingsError

HELP = "Runs, releases or NER_RUN+RE_RUN; RUN@SITE for a site's own. A folder of runs is watched."


def serve(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help=HELP)] = None,
    *,
    corrections: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Correct, and keep corrections here.")
    ] = None,
    texts: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="Text to correct; may be repeated."),
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A site's kit: see and agree in a browser.")
    ] = None,
    asked: Annotated[
        str | None,
        typer.Option("--for", metavar="SETTINGS", help="With --kit: what the lead asks for."),
    ] = None,
    key: Key = None,
    at: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address; port 0 is any that is free.")
    ] = "127.0.0.1:8765",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the token here, for the next start too; `none`: every account of this"
            " machine may enter.",
        ),
    ] = None,
) -> None:
    """Read, correct and watch in a browser, and predict by REST. Stop it with Ctrl-C."""
    try:
        from confide.serve import app, running
    except ModuleNotFoundError as error:
        raise SettingsError(
            "the server is not installed", got=str(error.name), fix="pip install 'confide[serve]'"
        ) from error
    pages = app.Shown({}, corrections=corrections, kit=kit, asked=asked)
    where = running.Address.of(at, token_file)
    running.serve(runs or (), where, pages=pages, key=key, texts=texts or (), say=screen.say)
