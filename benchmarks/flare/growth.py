"""Does memory grow with the rounds? Two hundred rounds over real processes, and what each holds.

A server and three sites as real processes on loopback train a small tagger under masked sums, with
development text scored after every round. Of each process the median resident memory of the second
tenth of the run's time is set against that of the last tenth.

    python benchmarks/flare/growth.py --json benchmarks/flare/growth.jsonl [--rounds 200]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from kits import Memory, founded

from confide.data.corpus.synthetic import HABITS, documents
from confide.flare.nvidia import processes
from confide.flare.nvidia.lead import coordinate

RUN = """
method = "fedavg"
rounds = {rounds}
[model]
character_dim = 16
character_filters = 16
word_dim = 32
bilstm_hidden = 32
[training]
local_epochs = 1
[federation]
up = "{up}"
down = "{down}"
"""


def measured(kits: list[Any], out: Path, rounds: int, up: str, down: str) -> dict[str, Any]:
    """One run: megabytes of each process early and late, and how much it grew between."""
    file = out.with_suffix(".toml")
    file.write_text(RUN.format(rounds=rounds, up=up, down=down))
    memory, start = Memory(), time.perf_counter()
    memory.start()
    try:
        coordinate(file, kit=kits[-1].path, out=out)
    finally:
        seen = memory.stop()
    return {
        "travel": f"{up}, {down}",
        "rounds": rounds,
        "seconds": round(time.perf_counter() - start),
        "processes": {name: grown(sizes) for name, sizes in sorted(seen.items())},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": date.today().isoformat(),
    }


def grown(sizes: list[tuple[float, int]]) -> dict[str, float]:
    """Megabytes in the second and in the last tenth of the time, the peak, and the growth in %."""
    first, last = sizes[0][0], sizes[-1][0]
    tenth = (last - first) / 10
    early = statistics.median(
        size for when, size in sizes if first + tenth <= when < first + 2 * tenth
    )
    late = statistics.median(size for when, size in sizes if when >= last - tenth)
    return {
        "early": round(early / 1e6, 1),
        "late": round(late / 1e6, 1),
        "peak": round(max(size for _, size in sizes) / 1e6, 1),
        "grown": round(100 * (late / early - 1), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=60, help="of each site")
    parser.add_argument("--travel", nargs="+", default=["rows, whole", "int8, int2"])
    parser.add_argument("--json", type=Path, help="append a line for each run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {
            part: [one for habit in HABITS for one in documents(habit.site, part, sentences=size)]
            for part, size in (("train", given.sentences), ("dev", 20), ("test", 20))
        }
        names = [f"site-{number}" for number in range(1, given.sites + 1)]
        bounds = [f"rounds={given.rounds}"]
        kits = founded(folder, parts, sites=names, agreed=["fedavg"], bounds=bounds)
        try:
            for kit in kits[:-1]:
                processes.start(kit, wait=120.0)
            for number, travel in enumerate(given.travel):
                up, down = travel.split(", ")
                line = json.dumps(measured(kits, folder / f"run-{number}", given.rounds, up, down))
                print(line, flush=True)
                if given.json:
                    with given.json.open("a", encoding="utf-8") as out:
                        out.write(line + "\n")
        finally:
            for kit in kits[-2::-1]:
                processes.stop(kit)


if __name__ == "__main__":
    main()
