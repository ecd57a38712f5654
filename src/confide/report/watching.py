"""A page that is renewed while its run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from confide.errors import RunError
from confide.report.folder import load_run
from confide.report.page import write_page
from confide.runs.folder import RunFolder
from confide.runs.result import RESULT
from confide.runs.standing import reached

LOOK = 1.0
"""Seconds between two looks at the run's folder."""


def watch(
    run: Path | str,
    *,
    out: Path | str | None = None,
    text: bool = True,
    on_page: Callable[[Path, str], None] | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Path:
    """Write the page of a run anew whenever a round was scored, until the run is finished.

    Until then the page shows the rounds so far, and asks the browser to load it again every few
    seconds. The folder may still be empty or missing. `on_page` is told the page and where the run
    stands, each time. Gives the page of the finished run.

    Raises RunError as `report` does.
    """
    folder, before = Path(run), None
    while True:
        now = reached(folder) if RunFolder(folder).is_taken() else None
        if now is not None and now != before:
            before = now
            finished = (folder / RESULT).exists()
            page = write_page([folder], out=out, text=text, renewed=True)
            if on_page is not None:
                on_page(page, "finished" if finished else _where(folder))
            if finished:
                return page
        wait(LOOK)


def _where(folder: Path) -> str:
    try:
        run = load_run(folder, text=False, unfinished=True)
    except RunError:  # it moved on in between
        return "running"
    rounds = f" of {run.result.rounds}" if run.result.rounds else ""
    return f"round {len(run.history)}{rounds}"
