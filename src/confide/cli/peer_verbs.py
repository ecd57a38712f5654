"""The verb `confide peers`: the identity keys that a server, a site or a lead has pinned."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from confide.cli import screen
from confide.cli.kit_verbs import KitFolder
from confide.cli.words import Json

if TYPE_CHECKING:
    from rich.table import Table

    from confide.flare.kits.peers import Known


def peers(
    kit: KitFolder,
    *,
    pin: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--pin",
            metavar="NAME FINGERPRINT",
            help="Pin a peer whose fingerprint you have compared.",
        ),
    ] = None,
    compared: Annotated[
        str | None,
        typer.Option("--compared", metavar="NAME", help="Record that you have compared this pin."),
    ] = None,
    forget: Annotated[
        str | None,
        typer.Option("--forget", metavar="NAME", help="Unpin; the next key it shows gets pinned."),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new identity key; peers must pin it again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the fingerprints of this kit and its peers, to compare by telephone."""
    from confide.flare.kits import peers as held
    from confide.flare.kits.startup import open_kit

    opened = open_kit(kit)
    if renew:
        held.renew(opened)
    if forget is not None:
        held.forget(opened, forget)
    if pin is not None:
        held.pin(opened, pin[0], pin[1])
    if compared is not None:
        held.mark_compared(opened, compared)
    known = held.known_to(opened)
    if as_json:
        screen.put_json(asdict(known))
        return
    screen.show(_table(known))
    if not known.fingerprint:
        screen.say("no identity key yet; setup, start or the first run makes one")
    elif any(not one.compared for one in known.peers.values()):
        screen.say(
            "read the groups to each other by telephone, on a number you already know; if they"
            " match, record it with `--compared NAME`"
        )


def _table(known: Known) -> Table:
    from rich.table import Table

    from confide.flare.kits.identity import shown

    table = Table(title=f"{known.name} and its peers", title_justify="left")
    for column in ("name", "fingerprint", ""):
        table.add_column(column, overflow="fold")
    if known.fingerprint:
        table.add_row(known.name, _grouped(shown(known.fingerprint)), "this place")
    for name, one in known.peers.items():
        state = "compared" if one.compared else "not compared"
        table.add_row(name, _grouped(shown(one.fingerprint)), state)
    return table


def _grouped(text: str) -> str:
    """The sixteen groups on two lines of eight."""
    groups = text.split()
    return " ".join(groups[:8]) + "\n" + " ".join(groups[8:])
