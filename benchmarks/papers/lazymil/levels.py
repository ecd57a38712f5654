"""What coarse bids cost: Lazy MIL with exact bids, and with bids of so many values.

    python benchmarks/papers/lazymil/levels.py --out runs/lazymil [--recipes pgr ...] \
        [--seeds 1 2 3]

All else is the same: plain sums, the recipe's settings, every site in every round, as under masks.
`--masked` sums under masks (there 32 values are the default). Lines go to levels.jsonl beside this
file; finished cells are not run again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from confide.runs.run import run

sys.path.append(str(Path(__file__).parents[2]))

from resumable import measure, read_lines

HERE = Path(__file__).parent
KEPT = HERE / "levels.jsonl"
ALL = "federation.fraction=1.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/lazymil"))
    parser.add_argument("--recipes", nargs="+", default=["pgr"])
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 32])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--masked", action="store_true", help="sum under masks")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(KEPT))
        return
    sums = "masked" if given.masked else "plain"
    cells = (
        {"recipe": recipe, "sums": sums, "levels": levels, "seed": seed}
        for recipe in given.recipes
        for seed in given.seeds
        for levels in given.levels
    )
    measure(cells, KEPT, lambda cell: measured(given.out.absolute(), **cell))


def measured(out: Path, *, recipe: str, sums: str, levels: int, seed: int) -> dict[str, Any]:
    """One run; AUC and the mean of P@100, 200 and 300 in points of 100."""
    own, name = [], f"lazymil-{recipe}"
    if recipe.startswith("scattered"):
        corpora = out / "corpora"
        name = str(HERE / "scattered.toml")
        own = [f"split.train={corpora / f'{recipe}.jsonl'}"]
        own += [f"split.test={corpora / 'scattered-test.jsonl'}"]
    own += [ALL, f"options.levels={levels}", f"federation.sums={sums}", f"seed={seed}"]
    folder = out / "levels" / f"{recipe}-{sums}-{levels}-{seed}-{time.time_ns()}"
    started = time.time()
    found = run(name, overrides=own, out=folder).result
    scores, dev = found.scores.overall, found.dev
    return {
        "auc": round(100 * scores["auc"], 2),
        "auc_2000": round(100 * scores["auc_2000"], 2),
        "precision": round(100 * scores["precision_at"]["mean"], 2),
        "dev_auc": round(100 * dev["auc"], 2) if dev else None,
        "rounds": found.rounds,
        "seconds": round(time.time() - started, 1),
    }


def table(lines: list[dict]) -> None:
    """Mean and standard deviation over seeds."""
    cells: dict[tuple, list[dict]] = {}
    for one in lines:
        cells.setdefault((one["recipe"], one["sums"], one["levels"]), []).append(one)
    print("| recipe | sums | values of a bid | AUC | P@N | seeds |")
    print("|---|---|---|---|---|---|")
    for (recipe, sums, levels), some in sorted(cells.items()):
        both = ([one[kind] for one in some] for kind in ("auc", "precision"))
        told = [f"{statistics.mean(x):.1f} ± {statistics.pstdev(x):.1f}" for x in both]
        print(f"| {recipe} | {sums} | {levels or 'any'} | {' | '.join(told)} | {len(some)} |")


if __name__ == "__main__":
    main()
