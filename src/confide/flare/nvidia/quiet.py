"""What may be written down by a resident process: where and what kind, never the content.

FLARE's messages name steps, sites, sizes and times. An exception's message can hold anything that
the failing line had in its hands, so of exceptions only the kind and the lines of code remain.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from types import TracebackType

NEEDED_IN_RUN = ("AbortCommand", "AbortTaskCommand", "ByeCommand", "CheckStatusCommand")
"""The commands of the server that a site's process of a run takes."""

LONGEST = 400
"""Characters of one entry's message; names and times fit, what a message carries does not."""

_CONTENT = re.compile(r"\bb['\"]|\{['\"]")
"""Where printed bytes or a printed dict begin."""


class Plain(logging.Formatter):
    """Formats an entry on one line, without content and without an exception's message."""

    def format(self, record: logging.LogRecord) -> str:
        """The time, level, logger and message; then what kind of exception, and where."""
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        said = f"{stamp} {record.levelname} {record.name}: {without_content(record.getMessage())}"
        error = record.exc_info[1] if record.exc_info else None
        return said if error is None else f"{said} | {where(error)}"


def without_content(message: str) -> str:
    """A message's first line up to where bytes or dicts are printed, and the code lines below it.

    >>> without_content("Can't encode msg=b'Mr Smith'")
    "Can't encode msg=..."
    """
    first, *rest = message.splitlines() or [""]
    code = [line.strip() for line in rest if line.strip().startswith('File "')]
    found = _CONTENT.search(first)
    if found:
        first = first[: found.start()] + "..."
    if len(first) > LONGEST:
        first = first[:LONGEST] + "..."
    return " | ".join((first, *code))


def where(error: BaseException) -> str:
    """An exception's kind and the lines of code it passed, without its message.

    >>> where(ValueError("Mr Smith"))
    'ValueError'
    """
    frames = traceback.extract_tb(error.__traceback__)
    return " ".join((type(error).__name__, *(f"{at.filename}:{at.lineno}" for at in frames)))


def install() -> None:
    """From now on an uncaught exception of this process is told without its message."""
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def seal_run() -> None:
    """To be called in a site's process of a run: `install`, and no command that looks into it.

    FLARE would let the server turn up the run's log, and ask for its latest errors.
    """
    from nvflare.private.fed.client.admin_commands import AdminCommands

    install()
    commands = AdminCommands.commands
    commands[:] = [command for command in commands if type(command).__name__ in NEEDED_IN_RUN]


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        sys.stderr.write(f"uncaught: {where(error)}\n")


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
        sys.stderr.write(f"uncaught in a thread: {where(args.exc_value)}\n")
