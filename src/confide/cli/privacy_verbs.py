"""The verb `confide privacy plan`: what noise a run needs for the ε that it may spend."""

from __future__ import annotations

from typing import Annotated

import typer

from confide.cli import screen
from confide.cli.words import Json, Overrides, SettingsName

privacy = typer.Typer(no_args_is_help=True, help="Work out noise and ε before a run.")


@privacy.callback()
def _options() -> None:
    pass


@privacy.command("plan")
def plan(
    settings: SettingsName,
    *,
    overrides: Overrides = None,
    units: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many units all sites have together, about."),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="E", help="The ε that may be spent; the rest is proposed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the noise, ε by round, and what colluding and lost sites change. Reads no text.

    What the settings leave open is proposed, with its reason, as lines to add.
    """
    from confide import api
    from confide.cli import privacy_tables

    found = api.privacy_plan(settings, overrides=overrides or (), units=units, epsilon=epsilon)
    screen.answer(found, *privacy_tables.planned(found), as_json=as_json)
    if not as_json:
        for line in privacy_tables.said(found):
            screen.say(line)
        typer.echo("\n".join(privacy_tables.lines_to_add(found, settings)))
