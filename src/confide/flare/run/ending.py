"""Ends a run over real sites before its time: nothing of it goes on until it is resumed.

Its checkpoints at the server and its memory at the sites stay where they are.
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
"""Seconds in which a submission has ended, once the server was asked to end it. A server that was
started again calls what it lost running for a while."""
AGAIN = 2.0
"""Seconds between two looks, and until the server is asked again."""
SETTLED = 6.0
"""Seconds for which a submission that had not begun has to stay ended: a server that is just about
to begin it takes no notice."""


@dataclass(frozen=True)
class Ending:
    """What came of it: `stopped` says whether anything went on, `finished` that the run is over.

    `folder` is the lead's, and `run` the name of the run at the server and at every site.
    """

    folder: Path
    run: str
    stopped: bool
    finished: bool


def end_run(folder: RunFolder, connect: Callable[[], Session]) -> Ending:
    """End every submission of the run in this folder, and see that it has ended.

    Whoever watches the run is told, and does not submit it again. To end a run that has ended is no
    error. Raises RunError where there is no run; EngineError where the server cannot be reached, or
    does not end it in time.
    """
    if not (folder.path / notes.NOTES).exists():
        raise RunError(
            "there is no run over real sites in this folder, and so nothing to end",
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
    """Whether it went on, and was ended. Raises EngineError where it does not end."""
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
                fix="give the same command again; or ask who runs the server to restart it",
            )
        if not status.startswith(FINISHED):
            ended = time.monotonic()
            session.stop(submission)
        time.sleep(AGAIN)
        status = session.status(submission)
    return not status.endswith(OF_ITSELF)
