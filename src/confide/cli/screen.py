"""A command's two streams: its result goes to stdout, what it says about it to stderr."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any
from unicodedata import bidirectional

from confide.errors import Note, SettingsError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from confide.errors import ConfideError

PIPED_WIDTH = 120
"""Columns of a table that does not go to a terminal."""

STOPPED = 130
"""The exit code after Ctrl-C, as in shells."""


def console(stream: IO[str] | None = None) -> Console:
    """A rich console on stdout or on `stream`; wide if it is no terminal and COLUMNS is unset."""
    from rich.console import Console

    stream = stream or sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(
        file=stream, width=PIPED_WIDTH if piped else None, highlight=False, soft_wrap=False
    )


def isolated(text: str) -> str:
    """Text that may run from right to left, kept from turning round the words beside it."""
    if any(bidirectional(character) in ("R", "AL", "AN") for character in text):
        return f"\u2068{text}\u2069"
    return text


def show(*things: RenderableType) -> None:
    """Print tables or rich text to stdout."""
    screen = console()
    for thing in things:
        screen.print(thing)


def say(message: str, *, style: str | None = None) -> None:
    """Print a line of plain words to stderr, which leaves stdout to be piped on."""
    console(sys.stderr).print(message, style=style, markup=False, soft_wrap=True)


def agreed(question: str) -> bool:
    """The answer to a question whose default is yes; yes where nobody sits at a terminal."""
    import typer

    return not sys.stdin.isatty() or typer.confirm(question, default=True, err=True)


@contextmanager
def saying_notes() -> Iterator[None]:
    """Say a `Note` about a result in one line, where Python would show a line of code."""
    shows = warnings.showwarning

    def show_warning(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, Note):
            say(f"note: {message}")
        else:
            shows(message, category, *rest)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Note)
        warnings.showwarning = show_warning  # type: ignore[assignment]
        yield


def put_json(value: object) -> None:
    """Print a value as JSON to stdout; dataclasses become objects, paths become strings."""
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def answer(value: object, *things: RenderableType, as_json: bool) -> None:
    """Print what a verb found: `value` as JSON, or `things` for people."""
    if as_json:
        put_json(value)
    else:
        show(*things)


def plain(value: object) -> Any:
    """The value made of dicts, lists, strings and numbers only."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in (sorted(value) if isinstance(value, set) else value)]
    return str(value) if isinstance(value, (Path, date)) else value


def fail(error: ConfideError) -> None:
    """Print one clear message to stderr: what is wrong, where, what was expected, what to do."""
    from rich.text import Text

    several = error.parts if isinstance(error, SettingsError) else ()
    what = error.what.partition(":")[0] if several else error.what
    message = Text.assemble(("error: ", "bold red"), (what, "bold"))
    for number, one in enumerate(several, start=1):
        message.append(f"\n  {number}. {one}")
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


def import_help() -> None:
    """Import typer's help page without Markdown and tracebacks.

    `typer.rich_utils` imports both, and with them markdown-it and Pygments, for features that are
    off here. Placeholders stand in for them during that import, which halves its time.
    """
    unused = [name for name in ("rich.markdown", "rich.traceback") if name not in sys.modules]
    for name in unused:
        placeholder = ModuleType(name)
        placeholder.__dict__["__getattr__"] = lambda _: object
        sys.modules[name] = placeholder
    import_module("typer.rich_utils")
    for name in unused:
        del sys.modules[name]
