"""Cells that are measured once: a finished one is a line of a file, and is not run again."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """What is measured already; nothing if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(cells: Iterable[Line], path: Path, measured: Callable[[Line], Line]) -> None:
    """Measure each cell that no line of the file has, and add its line with date and machine."""
    done = read_lines(path)
    for cell in cells:
        if any(cell.items() <= line.items() for line in done):
            continue
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
        line = cell | measured(cell) | {"date": date.today().isoformat(), "machine": machine}
        print(json.dumps(line)[:300], file=sys.stderr, flush=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
