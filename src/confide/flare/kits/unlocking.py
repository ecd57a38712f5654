"""An encrypted shared key, and processes of a site that can ask nobody for its passphrase."""

from __future__ import annotations

from pathlib import Path

from confide.errors import ConfideError
from confide.federation.keys import unlock
from confide.flare.kits.startup import Kit


def check_key(kit: Kit) -> None:
    """Raise LockedKeyError where the key that a site's own file names would stay closed.

    A site that starts in the background has no terminal; better now than in the middle of a run.
    What else may be wrong with that file, `setup` says, and a run.
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
