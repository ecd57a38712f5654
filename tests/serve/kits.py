"""A site's kit that is set up, for tests of the page Agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from confide.federation.keys import new_key
from confide.flare.kit import Kit
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.sitekit import setup_site
from contract.corpus import write_sites


def kit_in(folder: Path, table: dict[str, Any] | None = None) -> Kit:
    """The kit of `site-1` of a consortium that is founded in `folder`; `table` names its text."""
    made = create_consortium("trial", sites=["site-1"], host="localhost", out=folder / "trial")
    table = table or write_sites(folder / "data", 1, train=24)[0]
    own = {**table, "key": str(new_key(folder / "shared.key"))}
    lines = [f"{name} = {json.dumps(value)}" for name, value in own.items()]
    (folder / "site.toml").write_text("\n".join(lines))
    setup_site(made.kit("site-1"), folder / "site.toml")
    return made.kit("site-1")
