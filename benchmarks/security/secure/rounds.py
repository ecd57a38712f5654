"""A few rounds of FedAvg in a process of its own, for `run.py`: seconds and bytes, as JSON.

python benchmarks/security/secure/rounds.py RECIPE OUT plain|masked SITES ROUNDS
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from confide.federation.events import Event
from confide.runs.run import run


def main() -> None:
    """Run, and print what it took."""
    recipe, out, sums, sites, rounds = sys.argv[1:]
    torch.set_num_threads(1)
    overrides = [
        f'federation.sums="{sums}"',
        f"split.sites={sites}",
        f"rounds={rounds}",
        *(["federation.max_norm_ratio=inf"] if sums == "plain" else []),
    ]
    marks: list[tuple[float, float]] = []

    def watch(event: Event) -> None:
        if (event.round or 0) >= 1:
            marks.append((time.process_time(), time.perf_counter()))

    run(recipe, overrides=overrides, out=out, on_event=watch)
    up = 0
    for line in next(Path(out).rglob("ledger.jsonl")).read_text().splitlines():
        entry = json.loads(line)
        if entry.get("direction") == "up" and entry.get("round", 0) >= 1:
            up += entry.get("bytes", 0)
    (cpu, wall), (cpu_end, wall_end) = marks[0], marks[-1]
    print(json.dumps({"cpu_s": cpu_end - cpu, "wall_s": wall_end - wall, "up": up}))


if __name__ == "__main__":
    main()
