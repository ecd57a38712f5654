"""Runs and cells that are made once: a finished run is read, a measured cell is in a file."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from confide.runs.folder import RunFolder
from confide.runs.result import Result
from confide.runs.run import run
from confide.settings import Settings

Line = dict[str, Any]


def finished(settings: str | Path | Settings, overrides: Sequence[str], out: Path) -> Result:
    """The result of the run in folder `out`, which is made, continued, or only read if it ended."""
    folder, began = RunFolder(out), time.perf_counter()
    if folder.is_finished():
        return folder.result()
    made = run(settings, overrides=overrides, out=out, resume=folder.is_taken())
    print(f"{out}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return made.result


def read_lines(path: Path) -> list[Line]:
    """What is measured already; nothing if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(cells: Iterable[Line], path: Path, measured: Callable[[Line], Line]) -> None:
    """Measure each cell that no line of the file has, and add its line with date and machine."""
    done = read_lines(path)
    for cell in cells:
        if any(cell.items() <= line.items() for line in done):
            continue
        line = cell | measured(cell) | machine()
        print(json.dumps(line)[:300], file=sys.stderr, flush=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def machine() -> Line:
    """The date, and where this is measured."""
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {"date": date.today().isoformat(), "machine": where}
