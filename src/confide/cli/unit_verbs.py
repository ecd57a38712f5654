"""What `--unit` of `confide server start` and `confide site start` does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from confide.cli import screen

UnitFile = Annotated[
    Path | None,
    typer.Option("--unit", metavar="FILE", help="Write a hardened systemd unit; start nothing."),
]


def write(path: Path, kind: Literal["server", "site"], file: Path) -> None:
    """Write the unit of this kit, and say how to install it."""
    from confide.flare.kits import startup
    from confide.flare.kits.unit import write_unit
    from confide.flare.run.standing import site_of

    kit = startup.open_kit(path, kind)
    writable = [Path(site_of(kit).memory)] if kind == "site" else []
    write_unit(kit, file, writable=writable)
    screen.say(f"{file}: read it, then, as root:", style="bold")
    screen.say(f"  install -m 644 {file} /etc/systemd/system/")
    screen.say(f"  systemctl daemon-reload && systemctl enable --now {file.name}")
