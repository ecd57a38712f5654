"""Stops a run over real sites early; it can be resumed.

Its checkpoints at the server and its memory at the sites are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confide.errors import EngineError, RunError
from confide.flare.run import notes
from confide.flare.run.coordinating import FINISHED, OF_ITSELF, RUNNING, Session
from confide.runs.folder import RunFolder

WITHIN = 90.0
"""Seconds to wait for a submission to end, once the server was asked to end it. A server that was
restarted reports submissions that it lost as running for a while."""
AGAIN = 2.0
"""Seconds between two checks, after which the server is asked again."""
SETTLED = 6.0
"""Seconds that a submission that had not begun must stay ended: a server that is just about to
begin it ignores the request."""


@dataclass(frozen=True)
class Ending:
    """The outcome: `stopped` if something was running, `finished` if the run is complete.

    `folder` is the lead's, and `run` the name of the run at the server and at every site.
    """

    folder: Path
    run: str
    stopped: bool
    finished: bool


def end_run(folder: RunFolder, connect: Callable[[], Session]) -> Ending:
    """End every submission of the run in this folder, and wait until it has ended.

    A process that follows the run is told, and does not submit it again. Ending a run twice is not
    an error. Raises RunError if there is no run, EngineError if the server cannot be reached or
    does not end it in time.
    """
    if not (folder.path / notes.NOTES).exists():
        raise RunError(
            "there is no run over real sites in this folder to end",
            where=str(folder.path),
            fix="name the run's folder with --out",
        )
    run = notes.read(folder).run
    if (folder.path / "result.json").exists():
        return Ending(folder.path, run, stopped=False, finished=True)
    notes.mark_ended(folder)
    session = connect()
    try:
        stopped = [_end(session, one) for one in session.submissions(run)]
    finally:
        session.close()
    return Ending(folder.path, run, any(stopped), finished=False)


def _end(session: Session, submission: str) -> bool:
    """Whether it was running and was ended. Raises EngineError if it does not end in time."""
    first = status = session.status(submission)
    if first.startswith(FINISHED):
        return False
    settle = 0.0 if first == RUNNING else SETTLED
    start = ended = time.monotonic()
    while time.monotonic() - ended < settle or not status.startswith(FINISHED):
        if time.monotonic() - start > WITHIN:
            raise EngineError(
                "the server was asked to end the run, and has not done so yet",
                got=status,
                fix="run the same command again, or ask whoever runs the server to restart it",
            )
        if not status.startswith(FINISHED):
            ended = time.monotonic()
            session.stop(submission)
        time.sleep(AGAIN)
        status = session.status(submission)
    return not status.endswith(OF_ITSELF)
