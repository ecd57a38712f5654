"""The resident process of a kit: FLARE, hardened. `python -m confide.flare.nvidia.service KIT`.

It starts FLARE's server or site in our environment, and holds the kit's lock. SIGTERM and Ctrl-C
end it in good order and with 0; any other end has another code, so a service manager starts it
again. A site accepts only the FLARE commands that a run needs, so whoever controls the server
cannot look into it, restart it or turn up its log.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from confide.files import write_atomically
from confide.flare.kit import (
    HEARTBEAT_EVERY,
    OUTCOME,
    SERVER,
    Kit,
    gone_from,
    open_kit,
    organisation,
)
from confide.flare.nvidia.processes import lock_kit

# --- Logs of a resident process
#
# They tell what kind of thing happened and where, never any content.
#
# FLARE's log messages name steps, sites, sizes and times. An exception's message can hold anything
# that the failing line worked on, so only its kind and the lines of code are logged.


NEEDED_IN_RUN = ("AbortCommand", "AbortTaskCommand", "ByeCommand", "CheckStatusCommand")
"""The server's commands that a site's process of a run accepts."""

LONGEST = 400
"""The most characters of one entry; names and times fit, the content of a message does not."""

_CONTENT = re.compile(r"\bb['\"]|\{['\"]")
"""The beginning of printed bytes or of a printed dict."""


class LogFormatter(logging.Formatter):
    """Formats an entry on one line, without content and without exception messages.

    FLARE makes one in each process of a kit before that connects, also in that of a run, which it
    starts by itself; so from here on such a process connects as `connecting` says.
    """

    def __init__(self, fmt: str | None = None, datefmt: str | None = None) -> None:
        super().__init__(fmt, datefmt)
        from confide.flare.nvidia.connecting import connect_safely  # imports much of FLARE

        connect_safely()

    def format(self, record: logging.LogRecord) -> str:
        """The time, level, logger and message; then the kind of exception, and where it was."""
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        said = f"{stamp} {record.levelname} {record.name}: {without_content(record.getMessage())}"
        error = record.exc_info[1] if record.exc_info else None
        return said if error is None else f"{said} | {error_without_message(error)}"


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


def error_without_message(error: BaseException) -> str:
    """An exception's kind and the lines of code that it passed through, without its message.

    >>> error_without_message(ValueError("Mr Smith"))
    'ValueError'
    """
    frames = traceback.extract_tb(error.__traceback__)
    return " ".join((type(error).__name__, *(f"{at.filename}:{at.lineno}" for at in frames)))


def hide_error_messages() -> None:
    """From now on, print uncaught exceptions of this process without their messages."""
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def seal_run() -> None:
    """In a site's process of a run: `install`, and reject commands that look into the process.

    FLARE would let the server turn up the run's log and ask for its latest errors.
    """
    from nvflare.private.fed.client.admin_commands import AdminCommands

    os.umask(0o077)  # it may have been started by another than the site's own process
    hide_error_messages()
    commands = AdminCommands.commands
    commands[:] = [command for command in commands if type(command).__name__ in NEEDED_IN_RUN]


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        sys.stderr.write(f"uncaught: {error_without_message(error)}\n")


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
        sys.stderr.write(f"uncaught in a thread: {error_without_message(args.exc_value)}\n")


NEEDED = (
    "AbortAppProcessor",
    "AbortTaskProcessor",
    "CancelResourceProcessor",
    "CheckResourceProcessor",
    "DeleteRunNumberProcessor",
    "DeployProcessor",
    "NotifyJobStatusProcessor",
    "StartJobProcessor",
)
"""The server's commands that a site accepts. It answers others with "invalid"."""


def say_whose_process_ended() -> None:
    """At the server, leave with a submission whose process ended it; FLARE keeps that to its log.

    The process of the run may not be there yet.
    """
    from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey
    from nvflare.private.fed.server import fed_server

    end = fed_server.FederatedServer.process_job_failure

    def noted(server: Any, asked: Any) -> Any:
        site = server.client_manager.clients.get(asked.get_header(CellMessageHeaderKeys.TOKEN))
        said = asked.payload if isinstance(asked.payload, dict) else {}
        run, failed = said.get(JobFailureMsgKey.JOB_ID), said.get(JobFailureMsgKey.REASON)
        runs, pending = server.engine.run_processes, server.engine.job_runner
        ours = isinstance(run, str) and run in runs  # and so a plain name
        if site and failed and ours and pending.is_client_outcome_pending(run, site.name):
            data = json.dumps({"state": "running", "why": gone_from([site.name])}).encode()
            with contextlib.suppress(OSError):
                write_atomically(Path.cwd() / str(run) / OUTCOME, data)
        return end(server, asked)

    fed_server.FederatedServer.process_job_failure = noted


_signals: list[int] = []
"""The signals that asked this process to end; no Event, for whose lock a handler could wait."""


def run_service(path: str) -> None:
    """Be the resident process of the kit at `path` until asked to end."""
    os.umask(0o077)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    kit = open_kit(Path(path))
    held = lock_kit(kit.path)
    if held is None:
        sys.exit(f"the {kit.kind} is already running")
    hide_error_messages()
    from nvflare.fuel.f3.mpm import MainProcessMonitor

    flare = _flare(kit)
    sys.argv = [sys.argv[0], *_arguments(kit)]
    args = flare.parse_arguments()

    def serve(**given: Any) -> int:
        try:
            flare.main(**given)
        except Exception:
            if not _signals:
                raise
        return 0 if _signals else 1

    with held:
        code = MainProcessMonitor.run(
            serve, run_dir=args.workspace, shutdown_grace_time=1, args=args
        )
    if code:
        sys.stderr.write(f"the {kit.kind} ended by itself; its log: {kit.path / 'log.txt'}\n")
    sys.exit(code)


def _flare(kit: Kit) -> ModuleType:
    """FLARE's module for this kind of kit, with a site's commands cut down to `NEEDED`."""
    if kit.kind == SERVER:
        say_whose_process_ended()
        return import_module("nvflare.private.fed.app.server.server_train")
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    commands = ClientRequestProcessors.request_processors
    commands[:] = [command for command in commands if type(command).__name__ in NEEDED]
    return import_module("nvflare.private.fed.app.client.client_train")


def _arguments(kit: Kit) -> list[str]:
    kind, *own = ("server",) if kit.kind == SERVER else ("client", f"uid={kit.name}")
    values = ["secure_train=true", f"org={organisation(kit.consortium)}", "config_folder=config"]
    values += [f"heart_beat_interval={HEARTBEAT_EVERY}", *own]
    return ["-m", str(kit.path), "-s", f"fed_{kind}.json", "--set", *values]


def _end(number: int, frame: FrameType | None) -> None:
    """Shut down in good order: stop runs, and tell the server that the site is leaving."""
    from confide.flare.nvidia.watch import StatusWriter

    _signals.append(number)
    if StatusWriter.engine is None or not StatusWriter.registered:
        os._exit(0)
    leave = getattr(StatusWriter.engine, "shutdown_server", None) or StatusWriter.engine.shutdown
    threading.Thread(target=leave, daemon=True).start()


if __name__ == "__main__":
    run_service(sys.argv[1])
