"""The verbs `confide data …`."""

from __future__ import annotations

import typer

data = typer.Typer(no_args_is_help=True, help="Check, convert, split and count annotated files.")
