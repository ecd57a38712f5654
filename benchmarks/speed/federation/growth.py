"""Seconds and memory of a whole run as sites, sentences and rounds grow, and the slope of each.

Every size is a process of its own that reads the text, trains and writes a run's folder. What does
not grow is small: 5,000 sentences where sites grow, a step of each site in a round, 20 sentences of
a site where rounds grow. The slope is the steepest between two sizes, in logarithms: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from common import keep, settings_for

MB = 1024 * 1024 if sys.platform == "darwin" else 1024
SIZES = {
    "sites": (10, 100, 1_000),
    "sentences": (10_000, 100_000, 1_000_000),
    "rounds": (5, 50, 500),
}


def write_text(path: Path, sentences: int) -> None:
    """Generated columns: 20 words a sentence by Zipf's law of 60,000, an entity in three of ten."""
    draws = random.Random(7)
    words = [f"w{number}" for number in range(60_000)]
    weights = list(accumulate(1 / (rank + 1) for rank in range(len(words))))
    with path.open("w", encoding="utf-8") as file:
        for _ in range(sentences):
            length = draws.randint(8, 32)
            entity = draws.randrange(length) if draws.random() < 0.3 else -1
            for place, word in enumerate(draws.choices(words, cum_weights=weights, k=length)):
                file.write(f"{word}\t{'B-Drug' if place == entity else 'O'}\n")
            file.write("\n")


def child(options: dict[str, Any]) -> dict[str, float]:
    """What one process measures of itself."""
    import torch

    from confide.runs import run as running

    torch.set_num_threads(1)
    folder = Path(options["folder"])
    sizes = {"sites": 10, "sentences": 5_000, "rounds": 1, options["axis"]: options["size"]}
    if options["axis"] == "rounds":
        sizes["sentences"] = 20 * sizes["sites"]
    files = {}
    for part, count in (("train", sizes["sentences"]), ("dev", 20), ("test", 20)):
        files[part] = str(folder / f"{part}-{count}.conll")
        if not Path(files[part]).exists():
            write_text(Path(files[part]), count)
    settings = settings_for(
        files,
        sites=sizes["sites"],
        rounds=sizes["rounds"],
        key="simulated",
        **{"training.local_steps": 1, "model.bilstm_hidden": 16},
    )
    before = time.process_time()
    running.run(settings, out=folder / f"run-{options['axis']}-{options['size']}")
    return {
        "seconds": time.process_time() - before,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB,
    }


def slopes(sizes: list[int], values: list[float]) -> float:
    """The steepest slope between neighbours, in logarithms."""
    found = [
        math.log(max(after, 1e-9) / max(before, 1e-9)) / math.log(larger / smaller)
        for (smaller, larger), (before, after) in zip(
            pairwise(sizes), pairwise(values), strict=True
        )
    ]
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of the usual ones")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child)))
        return
    found: dict[str, Any] = {"benchmark": "growth"}
    print("| | size | seconds of a core | peak MB |\n|---|---|---|---|")
    for axis in args.only:
        rows = []
        for size in args.sizes or SIZES[axis]:
            with tempfile.TemporaryDirectory() as folder:
                options = json.dumps({"axis": axis, "size": size, "folder": folder})
                command = [sys.executable, __file__, "--child", options]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            row = {"size": size, **json.loads(done.stdout.splitlines()[-1])}
            rows.append(row)
            print(
                f"| {axis} | {size:,} | {row['seconds']:.1f} | {row['peak_mb']:.0f} |", flush=True
            )
        sizes = [row["size"] for row in rows]
        steepest = {
            name: slopes(sizes, [row[name] for row in rows]) for name in ("seconds", "peak_mb")
        }
        print(f"| {axis} | slope | {steepest['seconds']:.2f} | {steepest['peak_mb']:.2f} |")
        found[axis] = {"rows": rows, "slopes": steepest}
    keep(args.json, found)


if __name__ == "__main__":
    main()
