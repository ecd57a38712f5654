"""The verbs `confide key …`: the key that the sites share, and keys at rest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from confide.cli import screen
from confide.cli.words import Passphrase

keys = typer.Typer(
    no_args_is_help=True, help="Make the sites' shared key; encrypt keys with a passphrase."
)

KeyPath = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="The sites' shared key, or a private key (PEM)."),
]


@keys.command("new")
def new(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the key.")],
    *,
    passphrase: Passphrase = False,
) -> None:
    """Make a random key for the sites to share; only its owner can read the file."""
    from confide import api
    from confide.federation.passphrase import new_passphrase_for

    secret = new_passphrase_for(path) if passphrase else None
    made = api.new_key(path, passphrase=secret)
    screen.say(f"{made}: give it to the other sites, never to the server")


@keys.command("protect")
def protect(path: KeyPath) -> None:
    """Encrypt a key with a passphrase."""
    from confide import api

    screen.say(f"{api.protect_key(path)} is encrypted", style="bold")
    screen.say("the unencrypted key may still be on the disk and in backups")


@keys.command("unprotect")
def unprotect(path: KeyPath) -> None:
    """Remove a key's encryption."""
    from confide import api

    screen.say(
        f"{api.unprotect_key(path)} is no longer encrypted; only its owner can read it",
        style="bold",
    )
