"""Run folders -> tables for the terminal and one self-contained HTML page.

This room reads what runs wrote (result.json, ledger.jsonl, settings.toml, environment.json, and
where a site left them, its own errors) and never a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def report(runs: Sequence[Path | str], *, out: Path | str | None = None, text: bool = True) -> Path:
    """Writes one HTML page that shows one run, or compares several; gives the page's path.

    The page loads nothing from elsewhere and has no scripts. It goes to `out`, or into the first
    run's folder: report.html for one run, comparison.html for several.

    `text=False` leaves out confusions and worst errors. They come from the errors.json that a site
    writes for itself; only a run whose sites all lay in one process has them in its folder.

    Raises RunError where a folder holds no finished run, a damaged one, or one of a newer schema.
    """
    from confide.report.page import write_page

    return write_page(runs, out=out, text=text)
