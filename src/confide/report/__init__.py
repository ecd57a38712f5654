"""Run folders -> tables for the terminal and one self-contained HTML page.

This room reads only what runs wrote: result.json, ledger.jsonl, settings.toml, environment.json
and, if a site left them, its own errors and counts; of a run that goes on, its newest checkpoint.
It never opens a model. The one page about files of a user's is `confide.report.review`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path


def report(runs: Sequence[Path | str], *, out: Path | str | None = None, text: bool = True) -> Path:
    """Write one HTML page that shows one run or compares several, and return its path.

    The page loads nothing from elsewhere and has no scripts. It goes to `out`, or into the first
    run's folder: report.html for one run, comparison.html for several.

    `text=False` leaves out what the model gets right and wrong at each site, with its text. That
    comes from the errors.json that each site writes for itself; a run folder holds them only if all
    sites ran in one process.

    The page of a single run that was stopped shows what its last checkpoint says.

    Raises RunError if a folder holds no run, a damaged one, or one of a newer schema, or if one of
    several is not finished.
    """
    from confide.report.page import write_page

    return write_page(runs, out=out, text=text)


def watch_report(
    run: Path | str,
    *,
    out: Path | str | None = None,
    text: bool = True,
    on_page: Callable[[Path, str], None] | None = None,
) -> Path:
    """Write the page of a run that goes on, again after each scored round, until it is finished.

    Browsers load that page again every few seconds. `on_page` is told the page and where the run
    stands. Raises RunError as `report` does.
    """
    from confide.report.page import watch

    return watch(run, out=out, text=text, on_page=on_page)
