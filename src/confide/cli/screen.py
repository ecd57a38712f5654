"""The screen of a command: its two streams, its progress, and options that verbs share.

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
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, TYPE_CHECKING, Annotated, Any, Self
from unicodedata import bidirectional

import typer

from confide.errors import Note, RunError, SettingsError, printable
from confide.report.words import points, size

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import Progress as Bar
    from rich.progress import TaskID
    from rich.segment import Segment

    from confide.errors import ConfideError
    from confide.federation.events import Event


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


def safe(text: str, encoding: str | None = None) -> str:
    r"""Text made safe to show, line by line: what is unprintable, or not in `encoding`, is `?`.

    Of the marks that change the direction of writing, the pair that `isolated` puts stays.

    >>> safe("a\x1b[2Jb\nc\u202e")
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


def isolated(text: str) -> str:
    """Text that may run from right to left, kept from turning round the words beside it."""
    if any(bidirectional(character) in ("R", "AL", "AN") for character in text):
        return f"\u2068{text}\u2069"
    return text


class Exit(io.TextIOBase):
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
        self.below.write(safe(text, self.encoding))
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


def close_in() -> None:
    """Let nothing get to stdout and stderr but through an `Exit`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Exit):
            setattr(sys, name, Exit(stream))


@contextmanager
def closed_in() -> Iterator[None]:
    """Measure the time of a block."""
    streams = sys.stdout, sys.stderr
    close_in()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _below(stream: IO[str]) -> IO[str]:
    return stream.below if isinstance(stream, Exit) else stream


@cache
def _console_class() -> type[Console]:
    from rich.console import Console
    from rich.segment import Segment

    class Printable(Console):
        """A console that shows only what is safe, in its own colours."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            """The segments of what is shown, each safe."""
            for one in super().render(renderable, options):
                yield one if one.control else Segment(safe(one.text, self.encoding), one.style)

    return Printable


def _help_console(*, stderr: bool = False, **how: Any) -> Console:
    """The console of typer's help page."""
    return _console_class()(file=_below(sys.stderr if stderr else sys.stdout), **how)


def console(stream: IO[str] | None = None) -> Console:
    """A rich console on stdout or on `stream`; wide if it is no terminal and COLUMNS is unset."""
    stream = _below(stream or sys.stdout)
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return _console_class()(
        file=stream,
        width=PIPED_WIDTH if piped else None,
        highlight=False,
        soft_wrap=False,
        markup=False,
        emoji=False,
    )


def show(*things: RenderableType) -> None:
    """Print tables or rich text to stdout."""
    screen = console()
    for thing in things:
        screen.print(thing)


def say(message: str, *, style: str | None = None) -> None:
    """Print a line of plain words to stderr, which leaves stdout to be piped on."""
    console(sys.stderr).print(message, style=style, soft_wrap=True)


def agreed(question: str) -> bool:
    """The answer to a question whose default is yes; yes where nobody sits at a terminal."""
    import typer

    return not sys.stdin.isatty() or typer.confirm(question, default=True, err=True)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a verb in as good order as Ctrl-C does."""


@contextmanager
def heeding_sigterm() -> Iterator[None]:
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


def stopped(by: KeyboardInterrupt, how: str) -> typer.Exit:
    """Say in one sentence that a verb was stopped and how to go on; the exit to raise."""
    import typer

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
    sys.stdout.write(json_text(plain(value), indent=2) + "\n")


def json_text(tree: object, *, indent: int | None = None) -> str:
    r"""JSON in which every unprintable character is escaped, so that nothing is lost.

    >>> json_text({"a": "é\x1b\u202e"})
    '{"a": "é\\u001b\\u202e"}'
    """
    narrow = not _encoding(sys.stdout).lower().startswith("utf")
    text = json.dumps(tree, indent=indent, ensure_ascii=narrow)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text
    )


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
    vars(sys.modules["typer.rich_utils"])["Console"] = _help_console


# --- The progress of a run
#
# A live display on a terminal, plain lines everywhere else.
#
# A progress is a context manager; the run calls it with every event.


_REMEMBERED = (
    "round", "rounds", "site", "step", "loss", "dev_f1", "best_f1", "bytes_up", "bytes_down",
    "seconds_left", "score", "folder",
)  # fmt: skip


@dataclass(slots=True)
class Standing:
    """Where a run stands: the newest value of everything that its events report."""

    round: int = 0
    rounds: int | None = None
    done: int = 0
    site: str = ""
    step: str = ""
    loss: float | None = None
    dev_f1: float | None = None
    best_f1: float | None = None
    federation: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    seconds_left: float | None = None
    score: str = "F1"
    folder: str = ""

    def take(self, event: Event) -> None:
        """Remember what the event reports."""
        for name in _REMEMBERED:
            value = getattr(event, name)
            if value is not None:
                setattr(self, name, value)
        if event.kind == "round":
            self.done = self.round
            self.federation = event.site or ""

    @property
    def where(self) -> str:
        """The round, such as "round 3/20"; a federation of one site puts its name before it."""
        turn = f"round {self.round}/{self.rounds}" if self.rounds else f"round {self.round}"
        return f"{self.federation}: {turn}" if self.federation else turn

    @property
    def facts(self) -> str:
        """Loss, development F1, bytes and the time left, as far as they are known."""
        parts = []
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.dev_f1 is not None:
            best = "" if self.best_f1 is None else f" (best {points(self.best_f1)})"
            parts.append(f"dev {self.score} {points(self.dev_f1)}{best}")
        if self.bytes_up or self.bytes_down:
            parts.append(f"up {size(self.bytes_up)}, down {size(self.bytes_down)}")
        if self.seconds_left is not None:
            parts.append(f"{clock(self.seconds_left)} left")
        return " · ".join(parts)


class Progress:
    """Shows a run on stderr while it happens; `quiet` shows failures only."""

    def __init__(self, *, quiet: bool = False, screen: Console | None = None) -> None:
        self.standing = Standing()
        self._quiet = quiet
        self._screen = screen or console(sys.stderr)
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._screen.is_terminal and not self._quiet:
            self._bar = _bar(self._screen)
            self._task = self._bar.add_task("starting", total=None, now="", facts="")
            self._bar.start()
            close_in()  # rich reads colours out of what is written to its own streams
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
            self.standing = Standing()
        self.standing.take(event)
        loud = event.kind == "failed" or not self._quiet
        if event.message and loud and event.kind != "end":  # the verb names the run's folder
            self._print(event.message)
        elif event.kind == "round" and self._bar is None and not self._quiet:
            self._print(f"{self.standing.where} · {self.standing.facts}")
        if self._bar is not None and self._task is not None:
            self._show()

    def _print(self, line: str) -> None:
        self._screen.print(line, soft_wrap=True)

    def _show(self) -> None:
        assert self._bar is not None and self._task is not None
        standing = self.standing
        self._bar.update(
            self._task,
            description=standing.where,
            completed=standing.done,
            total=standing.rounds,
            now=" · ".join(part for part in (standing.site, standing.step) if part),
            facts=standing.facts,
        )


def _bar(screen: Console) -> Bar:
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class TwoLines(Bar):
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


# --- Options of several verbs
#
# They are named and explained the same way everywhere.


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
    """The overrides, with `canaries` canaries of each site unless that is 0."""
    return [*(overrides or ()), *([f"data.canaries={canaries}"] if canaries else ())]
