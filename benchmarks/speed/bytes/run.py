"""Bytes and F1 by how weights travel: as they are, none given twice, or changes in codes.

    python benchmarks/speed/bytes/run.py --out runs/bytes [--data NAME...] [--cells NAME...] \\
        [--seeds N...]
    python benchmarks/speed/bytes/run.py --table

A cell is `up, down`, as `federation.up` and `federation.down` have them. Finished cells are lines
of measured.jsonl and are not run again; runs that stand in --out are only read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from confide.runs.folder import RunFolder
from confide.tasks import TASKS

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished, measure, read_lines

HERE = Path(__file__).parent
TUNING = HERE.parents[1] / "defaults" / "tuning"
LORA = (
    "method=fedavg", "encoder.tune=lora", "encoder.rank=8", "encoder.alpha=16",
    "training.learning_rate=2e-3", "training.batch_size=8", "training.optimiser=adamw",
    "training.decay=1.0", "training.local_epochs=1",
)  # fmt: skip
DATA: dict[str, tuple[str, tuple[str, ...]]] = {
    "ncbi": ("ncbi-iid10", ()),
    "ncbi, masked": ("ncbi-iid10", ("federation.sums=masked",)),
    "crossner": ("crossner-domains", ()),
    "gad": (str(TUNING / "gad.toml"), (*LORA, "rounds=10", "data.train_share=0.3")),
}
"""The settings of each corpus: a recipe or a file, and what is changed."""
CELLS = (
    "rows, whole", "rows, once", "float16, float16", "int8, int8", "int4, int4", "int4, int2",
    "int2, int2", "top, top", "float16, int2", "int8, int2",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bytes"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--data", nargs="+", default=["ncbi"], choices=DATA)
    parser.add_argument("--cells", nargs="+", default=list(CELLS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    cells = (
        {"data": data, "cell": cell, "seed": seed}
        for seed in given.seeds
        for data in given.data
        for cell in given.cells
    )
    measure(cells, given.keep, lambda own: measured(**own, out=given.out))


def measured(data: str, cell: str, seed: int, out: Path) -> dict[str, Any]:
    """One run, and what it came to: F1 in percent, and megabytes of a site."""
    settings, own = DATA[data]
    up, down = cell.split(", ")
    folder = out / data / f"{up}-{down}-{seed}"
    overrides = (*own, f"seed={seed}", f"federation.up={up}", f"federation.down={down}")
    began, there = time.process_time(), RunFolder(folder).is_taken()
    result = finished(settings, overrides, folder)
    task = TASKS[result.task]
    assert result.bytes is not None
    return {
        "rounds": result.rounds,
        "f1": 100 * (task.value(result.scores.overall, task.kinds[0]) or 0.0),
        "dev": [
            [turn.round, 100 * (task.value(turn.dev, task.kinds[0]) or 0.0)]
            for turn in result.history
            if turn.dev
        ],
        "up": statistics.mean(result.bytes.up.values()) / 1e6,
        "down": statistics.mean(result.bytes.down.values()) / 1e6,
        "cpu": None if there else round(time.process_time() - began),
    }


def table(lines: list[dict[str, Any]]) -> None:
    """One row for each corpus and cell: mean F1 over the seeds, and what it costs."""
    print("| corpus | up, down | seeds | test F1 | MB up, a site | MB down, a site | cpu seconds |")
    print("|---|---|---|---|---|---|---|")
    for data in DATA:
        for cell in CELLS:
            rows = [one for one in lines if (one["data"], one["cell"]) == (data, cell)]
            if not rows:
                continue
            f1 = [one["f1"] for one in rows]
            spread = f" ± {statistics.stdev(f1):.1f}" if len(f1) > 1 else ""
            means = [statistics.mean(one[way] for one in rows) for way in ("up", "down")]
            cpu = [one["cpu"] for one in rows if one["cpu"]]
            print(
                f"| {data} | {cell} | {len(rows)} | {statistics.mean(f1):.1f}{spread} |"
                f" {means[0]:.3g} | {means[1]:.3g} | {round(statistics.mean(cpu)) if cpu else ''} |"
            )


if __name__ == "__main__":
    main()
