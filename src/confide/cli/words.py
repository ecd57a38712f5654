"""Options that several verbs share, so that they are called and explained the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(help="A run's folder.")]
Site = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The site whose model it is, where sites have their own."),
]
Format = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="The files' format; detected if not given.")
]
Scheme = Annotated[
    str | None, typer.Option(metavar="SCHEME", help="The tag scheme; detected if not given.")
]
Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="The files' encoding; UTF-8 if not given.")
]
Key = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The sites' shared key, for a model with a keyed word list."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting.")
]
RunOut = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The run's folder; under runs/ if not given.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")]
SettingsName = Annotated[
    str, typer.Argument(metavar="SETTINGS", help="A settings file, or the name of a recipe.")
]
Both = Annotated[bool, typer.Option("--both", help="Also what goes down to a site.")]
Passphrase = Annotated[
    bool,
    typer.Option(
        "--passphrase",
        help="Encrypt the key; asks, or reads the file that $CONFIDE_PASSPHRASE_FILE names.",
    ),
]
