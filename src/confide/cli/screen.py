"""The screen of a command: its two streams and its progress.

A command's result goes to stdout, and what it says about it to stderr.

Both are printable: names, text and errors come from other places, and a terminal obeys what they
hold. Whatever is written while a command runs passes through an `Exit`, or through a `console`,
whose colours are its own. Only the content of a file goes into another file or a pipe as it is.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from datetime import date
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, TYPE_CHECKING, Any, Self
from unicodedata import bidirectional

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from confide.errors import ConfideError, Note, RunError, SettingsError, printable
from confide.federation.events import Event
from confide.words import duration, points, size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PIPED_WIDTH = 120
"""Columns of a table that does not go to a terminal."""

STOPPED, TERMINATED = 130, 143
"""The exit codes after Ctrl-C and after SIGTERM, as in shells."""

AGAIN = "stopped; no file was left by half, and the same command starts again"
"""The default message of a verb that was stopped."""

_DISKS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some disk space"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "name a place that you may write to"),
    errno.EIO: "see that the disk is sound",
}
"""Advice for a disk that takes no more, by the system's error number."""


_ISOLATED = re.compile("(\u2068[^\u2066-\u2069]*\u2069)")
_ISOLATES = {0x2068: None, 0x2069: None}


def sanitise(text: str, encoding: str | None = None) -> str:
    r"""Text that is safe to show, line by line: what is unprintable, or not in `encoding`, is `?`.

    Of the marks that change the direction of writing, the pair that `isolate` puts stays.

    >>> sanitise("a\x1b[2Jb\nc\u202e")
    'a?[2Jb\nc?'
    """
    if not text.replace("\n", "").isprintable():
        text = "".join(
            "\n".join(f"\u2068{line}\u2069" for line in _clean(part).split("\n"))
            if odd % 2
            else _clean(part)
            for odd, part in enumerate(_ISOLATED.split(text))
        )
    if encoding is not None and not encoding.lower().startswith("utf"):
        text = text.encode(encoding, "replace").decode(encoding)
    return text


def _clean(text: str) -> str:
    kept = text.translate(_ISOLATES)
    return "".join(one if one.isprintable() or one in "\n\t" else "?" for one in kept)


def isolate(text: str) -> str:
    """Text that may run from right to left, kept from turning round the words beside it."""
    if any(bidirectional(character) in ("R", "AL", "AN") for character in text):
        return f"\u2068{text}\u2069"
    return text


class SafeStream(io.TextIOBase):
    """A stream to which only what is safe to show gets through.

    It is no terminal to who asks, so that nobody writes colours to it: consoles write below it.
    """

    def __init__(self, below: IO[str]) -> None:
        self.below = below

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream below."""
        return _encoding(self.below)

    def write(self, text: str) -> int:
        """Write what is safe of a text."""
        self.below.write(sanitise(text, self.encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream below."""
        self.below.flush()

    def fileno(self) -> int:
        """The file descriptor of the stream below."""
        return self.below.fileno()

    def writable(self) -> bool:
        """It is."""
        return True


def _encoding(stream: object) -> str:
    """The encoding of a stream; UTF-8 if it has none."""
    return getattr(stream, "encoding", None) or "utf-8"


def guard_streams() -> None:
    """Let nothing get to stdout and stderr but through a `SafeStream`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, SafeStream):
            setattr(sys, name, SafeStream(stream))


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Guard stdout and stderr in a block."""
    streams = sys.stdout, sys.stderr
    guard_streams()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _below(stream: IO[str]) -> IO[str]:
    return stream.below if isinstance(stream, SafeStream) else stream


class SafeConsole(Console):
    """A console that shows only what is safe, in its own colours."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of what is shown, each safe."""
        for one in super().render(renderable, options):
            yield one if one.control else Segment(sanitise(one.text, self.encoding), one.style)


def _help_console(*, stderr: bool = False, **how: Any) -> Console:
    """The console of typer's help page."""
    return SafeConsole(file=_below(sys.stderr if stderr else sys.stdout), **how)


def console(stream: IO[str] | None = None) -> Console:
    """A rich console on stdout or on `stream`; wide if it is no terminal and COLUMNS is unset."""
    stream = _below(stream or sys.stdout)
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    width = PIPED_WIDTH if piped else None
    return SafeConsole(
        file=stream, width=width, highlight=False, soft_wrap=False, markup=False, emoji=False
    )


def show(*things: RenderableType) -> None:
    """Print tables or rich text to stdout."""
    screen = console()
    for thing in things:
        screen.print(thing)


def say(*lines: str | Text, style: str | None = None) -> None:
    """Print lines to stderr, which leaves stdout to be piped on."""
    screen = console(sys.stderr)
    for line in lines:
        screen.print(line, style=style, soft_wrap=True)


def confirm(question: str) -> bool:
    """Ask a question whose default is yes; without a terminal the answer is yes."""
    return not sys.stdin.isatty() or typer.confirm(question, default=True, err=True)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a verb in as good order as Ctrl-C does."""


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the block; a second one ends the process at once."""
    heard = False

    def end(*_: object) -> None:
        nonlocal heard
        heard = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except (Terminated, SystemExit) as stop:
        said = isinstance(stop, SystemExit) and stop.code == TERMINATED
        if said or not heard:
            raise
        say(AGAIN)  # it came before or after the verb, where typer makes Ctrl-C of it
        sys.exit(TERMINATED)


def stop_exit(by: KeyboardInterrupt, how: str) -> typer.Exit:
    """Say in one sentence that a verb was stopped and how to go on; the exit to raise."""
    say(how)
    return typer.Exit(TERMINATED if isinstance(by, Terminated) else STOPPED)


def disk_error(error: OSError) -> ConfideError | None:
    """The message for an error of a disk that is full or cannot be written; None of any other."""
    if (fix := _DISKS.get(error.errno or 0)) is None:
        return None
    what = f"what the command makes could not be written ({error.strerror})"
    where = None if error.filename is None else printable(error.filename, 500)
    return RunError(what, where=where, fix=f"{fix}, then repeat the command")


@contextmanager
def print_notes() -> Iterator[None]:
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
    sys.stdout.write(json_text(value, indent=2) + "\n")


def json_text(tree: object, *, indent: int | None = None) -> str:
    r"""JSON in which every unprintable character is escaped, so that nothing is lost.

    >>> json_text({"a": "é\x1b\u202e"})
    '{"a": "é\\u001b\\u202e"}'
    """
    narrow = not _encoding(sys.stdout).lower().startswith("utf")
    text = json.dumps(tree, indent=indent, ensure_ascii=narrow, default=_plain)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text
    )


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (Path, date)):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def put_file(text: str) -> None:
    """Print a file's content to stdout: in UTF-8 as it is, but on a terminal what is safe of it."""
    below = _below(sys.stdout)
    binary = getattr(below, "buffer", None)
    if below.isatty():
        sys.stdout.write(text)
    elif binary is None:
        below.write(text)
    else:
        below.flush()
        binary.write(text.encode("utf-8"))


def answer(value: object, *things: RenderableType, as_json: bool) -> None:
    """Print what a verb found: `value` as JSON, or `things` for people."""
    if as_json:
        put_json(value)
    else:
        show(*things)


def fail(error: ConfideError) -> None:
    """Print one clear message to stderr: what is wrong, where, what was expected, what to do."""
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
    say(message)


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
    vars(sys.modules["typer.rich_utils"])["Console"] = _help_console


# --- The progress of a run
#
# A live display on a terminal, plain lines everywhere else.
#
# A progress is a context manager; the run calls it with every event.


class ProgressDisplay:
    """Shows a run on stderr while it happens; `quiet` shows failures only."""

    def __init__(self, *, quiet: bool = False, screen: Console | None = None) -> None:
        self.latest = Event("start")
        """The newest value of everything that events have reported."""
        self._quiet = quiet
        self._screen = screen or console(sys.stderr)
        self._federation, self._done = "", 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._screen.is_terminal and not self._quiet:
            self._bar = _bar(self._screen)
            self._task = self._bar.add_task("starting", total=None, now="", facts="")
            self._bar.start()
            guard_streams()  # rich reads colours out of what is written to its own streams
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Take in an event and show what has changed."""
        if event.kind == "start":
            self.latest, self._federation, self._done = event, "", 0
        news = {name: value for name, value in asdict(event).items() if value is not None}
        self.latest = replace(self.latest, **news)
        if event.kind == "round":  # a federation of one site puts its name before the round
            self._federation, self._done = event.site or "", self.latest.round or 0
        loud = event.kind == "failed" or not self._quiet
        if event.message and loud and event.kind != "end":  # the verb names the run's folder
            self._screen.print(event.message, soft_wrap=True)
        elif event.kind == "round" and self._bar is None and not self._quiet:
            self._screen.print(f"{self._where()} · {self._facts()}", soft_wrap=True)
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                description=self._where(),
                completed=self._done,
                total=self.latest.rounds,
                now=" · ".join(filter(None, (self.latest.site, self.latest.step))),
                facts=self._facts(),
            )

    def _where(self) -> str:
        """The round, such as "round 3/20"."""
        of = f"/{self.latest.rounds}" if self.latest.rounds else ""
        turn = f"round {self.latest.round or 0}{of}"
        return f"{self._federation}: {turn}" if self._federation else turn

    def _facts(self) -> str:
        """Loss, development F1, bytes and the time left, as far as they are known."""
        latest, parts = self.latest, []
        if latest.loss is not None:
            parts.append(f"loss {latest.loss:.4g}")
        if latest.dev_f1 is not None:
            best = "" if latest.best_f1 is None else f" (best {points(latest.best_f1)})"
            parts.append(f"dev {latest.score or 'F1'} {points(latest.dev_f1)}{best}")
        if latest.bytes_up or latest.bytes_down:
            parts.append(f"up {size(latest.bytes_up or 0)}, down {size(latest.bytes_down or 0)}")
        if latest.seconds_left is not None:
            parts.append(f"{duration(latest.seconds_left)} left")
        return " · ".join(parts)


def _bar(screen: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn

    class TwoLines(Progress):
        """A bar with the facts on a line of their own, so that they fit."""

        def get_renderables(self) -> Iterator[RenderableType]:
            """The bar's line, then the facts' line."""
            yield self.make_tasks_table(self.tasks)
            for task in self.tasks:
                yield Text(task.fields["facts"], style="dim", overflow="ellipsis", no_wrap=True)

    return TwoLines(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=32),
        TextColumn("{task.fields[now]}", style="cyan", markup=False),
        console=screen,
        transient=True,
    )
