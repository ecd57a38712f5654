"""The verb `confide serve`: a page and a REST interface at one local address."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confide.cli import screen
from confide.cli.words import Key
from confide.errors import SettingsError

HELP = "One or more runs, releases or NER_RUN+RE_RUN; RUN@SITE for a site's own model."


def serve(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help=HELP)] = None,
    *,
    key: Key = None,
    host: Annotated[
        str,
        typer.Option(metavar="NAME", help="Address to listen at; only this machine reaches it."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0: any that is free.")
    ] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ask for the token in this file; made if there is none."),
    ] = None,
    corrections: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Correct, and keep corrections here.")
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Text to correct; may be repeated."),
    ] = None,
) -> None:
    """Read, correct and watch in a browser, and predict by REST. Stop it with Ctrl-C."""
    try:
        from confide.serve import running
    except ModuleNotFoundError as error:
        raise SettingsError(
            "the server is not installed", got=str(error.name), fix="pip install 'confide[serve]'"
        ) from error
    at = running.Address(host, port, token_file)
    running.serve(
        runs or (), key=key, corrections=corrections, texts=text or (), at=at, say=screen.say
    )
