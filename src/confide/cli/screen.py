"""The two screens of a command: what it gives on stdout, what it says about it on stderr."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, is_dataclass
from datetime import date
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from confide.errors import ConfideError

PIPED_WIDTH = 120
"""Columns of a table that is not shown on a terminal."""

STOPPED = 130
"""The exit code after Ctrl-C, as shells have it."""


def console(stream: IO[str] | None = None) -> Console:
    """A rich console on stdout, or on `stream`; wide where nobody has said how wide."""
    from rich.console import Console

    stream = stream or sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(
        file=stream, width=PIPED_WIDTH if piped else None, highlight=False, soft_wrap=False
    )


def show(*things: RenderableType) -> None:
    """Print tables or rich text to stdout."""
    screen = console()
    for thing in things:
        screen.print(thing)


def say(message: str, *, style: str | None = None) -> None:
    """A line of plain words to stderr, so that stdout can be piped on."""
    console(sys.stderr).print(message, style=style, markup=False, soft_wrap=True)


def put_json(value: Any) -> None:
    """A value as JSON on stdout; dataclasses become objects, paths become strings."""
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def plain(value: Any) -> Any:
    """The value as dicts, lists, strings and numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in (sorted(value) if isinstance(value, set) else value)]
    return str(value) if isinstance(value, (Path, date)) else value


def fail(error: ConfideError) -> None:
    """One clear message on stderr: what is wrong, where, what was expected, what to do."""
    from rich.text import Text

    message = Text.assemble(("error: ", "bold red"), (error.what, "bold"))
    parts = (
        ("where", error.where),
        ("expected", error.expected),
        ("got", error.got),
        ("to fix it", error.fix),
    )
    for label, part in parts:
        if part is not None:
            message.append(f"\n  {label}: ", "dim").append(part)
    console(sys.stderr).print(message, soft_wrap=True)


def clock(seconds: float) -> str:
    """Seconds as minutes or hours.

    >>> clock(7), clock(83), clock(3723)
    ('0:07', '1:23', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
