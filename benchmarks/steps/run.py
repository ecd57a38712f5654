"""How often sites should talk: F1 against passes over the text and bytes, for batches per round.

    python benchmarks/steps/run.py --out runs/steps [--only CELL]... [--seed N]

NCBI-disease, a quarter of its training text dealt to ten sites, 12 passes over it in every cell. A
cell says how many batches of 16 a site takes between two means; a pass of a site is about nine.
Finished cells are lines of measured.jsonl and are not run again. `--table` prints them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from datetime import date
from pathlib import Path

from confide.runs.run import run

HERE = Path(__file__).parent
PASSES, BATCHES = 12, 9
COMMON = ("data.train_share=0.25", "select.by=last")
SGD = ("training.optimiser=sgd", "training.momentum=0", "training.learning_rate=1")


def steps(batches: int, *more: str) -> tuple[str, ...]:
    """So many batches a round, the rate falling over the passes as in the recipe."""
    rounds = PASSES * BATCHES // batches
    decay = 0.96 ** (batches / BATCHES)
    every = max(1, rounds // PASSES)
    return (
        f"rounds={rounds}", f"training.local_steps={batches}", f"training.decay={decay:.6f}",
        f"select.every={every}", *more,
    )  # fmt: skip


CELLS: dict[str, tuple[str, ...]] = {
    "pooled": ("method=pooled", f"rounds={PASSES}"),
    "epoch": (f"rounds={PASSES}",),
    "3 batches": steps(3, "training.learning_rate=0.004"),
    "1 batch": steps(1, "training.learning_rate=0.002"),
    "1 batch, server adam": steps(1, *SGD, "options.server=adam", "options.server_rate=0.002"),
    "3 batches, server momentum": steps(
        3, "training.learning_rate=0.004", "options.server=momentum",
        "options.server_momentum=0.5", "options.server_rate=0.5",
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/steps"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--only", action="append", default=[], choices=CELLS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    kept = given.keep.read_text().splitlines() if given.keep.exists() else []
    lines = [json.loads(line) for line in kept]
    if given.table:
        table(lines)
        return
    done = {(one["cell"], one["seed"]) for one in lines}
    for cell in given.only or CELLS:
        if (cell, given.seed) not in done:
            line = json.dumps(measured(cell, given.seed, given.out / f"{cell}-{given.seed}"))
            print(line, file=sys.stderr)
            with open(given.keep, "a", encoding="utf-8") as file:
                file.write(line + "\n")


def measured(cell: str, seed: int, folder: Path) -> dict[str, object]:
    """One run, and what it came to."""
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    result = run("ncbi-iid10", overrides=(f"seed={seed}", *COMMON, *CELLS[cell]), out=folder).result
    curve = {turn.round: round(100 * turn.dev["strict"], 2) for turn in result.history if turn.dev}
    return {
        "cell": cell,
        "seed": seed,
        "rounds": result.rounds,
        "dev": curve,
        "test": round(100 * result.scores.overall["strict"]["f1"], 2),
        "up": sum(result.bytes.up.values()),
        "sites": len(result.bytes.up),
        "sentences": sum(turn.sentences for turn in result.history),
        "seconds": round(time.perf_counter() - began, 1),
        "date": date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def table(lines: list[dict]) -> None:
    """A row for each cell."""
    print("| | rounds | development F1, last | best | after | test F1 | MB up, a site | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for one in lines:
        curve = {int(round): value for round, value in one["dev"].items()}
        best = max(curve, key=curve.__getitem__)
        passes = PASSES * best / one["rounds"]
        up = one["up"] / one["sites"] / 1e6
        print(
            f"| {one['cell']} | {one['rounds']} | {list(curve.values())[-1]} | {curve[best]} "
            f"| {passes:.1f} passes | {one['test']} | {up:.1f} | {one['seconds']:.0f} |"
        )


if __name__ == "__main__":
    main()
