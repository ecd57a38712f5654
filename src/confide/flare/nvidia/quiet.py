"""What a resident process may log: what kind of thing happened and where, never any content.

FLARE's log messages name steps, sites, sizes and times. An exception's message can hold anything
that the failing line worked on, so only its kind and the lines of code are logged.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from types import TracebackType

NEEDED_IN_RUN = ("AbortCommand", "AbortTaskCommand", "ByeCommand", "CheckStatusCommand")
"""The server's commands that a site's process of a run accepts."""

LONGEST = 400
"""The most characters of one entry; names and times fit, the content of a message does not."""

_CONTENT = re.compile(r"\bb['\"]|\{['\"]")
"""The beginning of printed bytes or of a printed dict."""


class Plain(logging.Formatter):
    """Formats an entry on one line, without content and without exception messages."""

    def format(self, record: logging.LogRecord) -> str:
        """The time, level, logger and message; then the kind of exception, and where it was."""
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        said = f"{stamp} {record.levelname} {record.name}: {without_content(record.getMessage())}"
        error = record.exc_info[1] if record.exc_info else None
        return said if error is None else f"{said} | {where(error)}"


def without_content(message: str) -> str:
    """A message's first line, cut where bytes or a dict begin, and the lines of code below it.

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
    """An exception's kind and the lines of code that it passed through, without its message.

    >>> where(ValueError("Mr Smith"))
    'ValueError'
    """
    frames = traceback.extract_tb(error.__traceback__)
    return " ".join((type(error).__name__, *(f"{at.filename}:{at.lineno}" for at in frames)))


def install() -> None:
    """From now on, print uncaught exceptions of this process without their messages."""
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def seal_run() -> None:
    """In a site's process of a run: `install`, and reject commands that look into the process.

    FLARE would let the server turn up the run's log and ask for its latest errors.
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
