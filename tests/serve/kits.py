"""A site's kit that is set up, for tests of the page Agree."""

from __future__ import annotations

from pathlib import Path

from confide.federation.keys import new_key
from confide.flare.kits.startup import Kit
from confide.flare.nvidia.founding import init
from confide.flare.run.sitekit import setup
from contract.corpus import write_sites


def kit_in(folder: Path) -> Kit:
    """The kit of `site-1` of a consortium that is founded in `folder`."""
    made = init("trial", sites=["site-1"], host="localhost", out=folder / "trial")
    table = write_sites(folder / "data", 1, train=24)[0]
    key = new_key(folder / "shared.key")
    lines = [f'{name} = "{value}"' for name, value in {**table, "key": key}.items()]
    (folder / "site.toml").write_text("\n".join(lines))
    setup(made.kit("site-1"), folder / "site.toml")
    return made.kit("site-1")
