"""The verb `confide export`: a trained model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from confide.cli import screen
from confide.cli.words import Key, RunFolder, Site


def export(
    run: RunFolder,
    *,
    to: Annotated[
        Literal["onnx", "hf", "peft", "spacy"], typer.Option(help="The program it is for.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new or empty folder.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="ONNX only: a byte for each weight of linear layers.")
    ] = False,
    site: Site = None,
    key: Key = None,
) -> None:
    """Write the model for other programs: ONNX, transformers, peft or spaCy."""
    from confide import api

    folder = api.export(run, to=to, out=out, site=site, key=key, int8=int8, say=screen.say)
    screen.say(f"{folder}: written for {to}")
