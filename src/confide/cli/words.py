"""Options that several verbs share, named and explained the same way everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[Path, typer.Argument(help="A run's folder.")]
Site = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Use this site's model, if it has or keeps its own."),
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT", help="The files' format; detected by default. See `confide data formats`."
    ),
]
Scheme = Annotated[
    str | None, typer.Option(metavar="SCHEME", help="The tag scheme; detected by default.")
]
Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="The files' encoding; UTF-8 by default.")
]
SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", help="Name broken documents and leave them out.")
]
Language = Annotated[
    str,
    typer.Option(
        metavar="CODE", help="Language of text without sentences: en, es, fr ... or auto."
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The sites' shared key, for a model with a keyed word list."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
RunAndFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN FILE...",
        help="A run's folder, a release or NER_RUN+RE_RUN, then files (- is stdin).",
    ),
]
As = Annotated[
    list[str] | None,
    typer.Option("--as", metavar="FOUND=KNOWN", help="Rename an entity type to the model's name."),
]
Types = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE,...", help="What is wanted: label entities or relations of these types alone."
    ),
]
DemoOut = Annotated[Path, typer.Option(metavar="DIR", help="Folder for the demo's files.")]
Home = Annotated[
    bool, typer.Option("--home", help="Then let each site keep a better model: `confide home`.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting.")
]
Canaries = Annotated[
    int, typer.Option(metavar="N", min=0, help="Canaries of each site, for `confide audit`.")
]
RunOut = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The run's folder; under runs/ by default.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")]
SettingsName = Annotated[
    str, typer.Argument(metavar="SETTINGS", help="A settings file or a recipe's name.")
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="NAME[=WHERE]",
        help="Also log to jsonl, tensorboard or mlflow; may be repeated.",
    ),
]
Both = Annotated[bool, typer.Option("--both", help="Also show what goes down to a site.")]
Passphrase = Annotated[
    bool,
    typer.Option(
        "--passphrase",
        help="Encrypt the key; asks for a passphrase or reads $CONFIDE_PASSPHRASE_FILE.",
    ),
]


def with_canaries(overrides: list[str] | None, canaries: int) -> list[str]:
    """The overrides, with so many canaries of each site unless that is 0."""
    return [*(overrides or ()), *([f"data.canaries={canaries}"] if canaries else ())]
