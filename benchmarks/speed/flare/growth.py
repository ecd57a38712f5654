"""Does memory grow with the rounds? Two hundred rounds over real processes, and what each holds.

A server and three sites as real processes on loopback train a small tagger under masked sums, with
development text scored after every round. Of each process the median resident memory of the second
tenth of the run's time is set against that of the last tenth.

    python benchmarks/speed/flare/growth.py --json growth.jsonl [--rounds 200]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from kits import Seen, founded, measured

from confide.corpora.synthetic import HABITS, documents

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
"""


def told(result: Any, seen: Seen) -> dict[str, Any]:
    """Megabytes of each process early and late, and how much it grew between."""
    processes = {name: grown(sizes) for name, sizes in sorted(seen.items())}
    return {"rounds": result.rounds, "processes": processes}


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
        settings = RUN.format(rounds=given.rounds)
        measured(kits, settings, given.travel, told, folder=folder, keep=given.json)


if __name__ == "__main__":
    main()
