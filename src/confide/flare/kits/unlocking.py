"""Checks that a site's processes, which have no terminal, can open an encrypted shared key."""

from __future__ import annotations

from pathlib import Path

from confide.errors import ConfideError
from confide.federation.keys import unlock
from confide.flare.kits.startup import Kit


def check_key(kit: Kit) -> None:
    """Raise LockedKeyError if the key that a site's own file names could not be opened.

    A site in the background has no terminal to ask at, so it is better to fail now than in the
    middle of a run. Other faults of that file are left to `setup` and to the run.
    """
    file = kit.path / "local" / "site.toml"
    if kit.kind != "site" or not file.exists():
        return
    from confide.settings import load_site  # slow to import, and only a site needs it

    try:
        key = Path(load_site(file).key)
    except ConfideError:
        return
    unlock([key], ask=False)
