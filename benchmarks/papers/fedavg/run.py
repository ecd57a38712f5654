"""The runs behind the FedAvg tables of README.md: recipes × methods × seeds.

    python benchmarks/papers/fedavg/run.py --out runs/fedavg [--recipe NAME]... [KEY=VALUE]...

Finished runs are kept, unfinished ones are resumed, so the command can be stopped and given again.
`table.py` turns the folder into tables.
"""

import argparse
import sys
import time
from pathlib import Path

from confide.runs.folder import RunFolder
from confide.runs.run import run

RECIPES = ("ncbi-iid10", "bc5cdr-iid10", "wnut-iid10", "crossner-domains")
METHODS = ("pooled", "fedavg", "alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", action="append", default=[])
    parser.add_argument("--method", action="append", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--label", default="", help="added to the folders' names")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_intermixed_args()
    for seed in given.seeds:
        for recipe in given.recipe or RECIPES:
            for method in given.method or METHODS:
                name = recipe + (f"-{given.label}" if given.label else "")
                once(given.out / name / f"{method}-{seed}", recipe, method, seed, given.overrides)


def once(folder: Path, recipe: str, method: str, seed: int, more: list[str]) -> None:
    if (folder / "result.json").exists():
        return
    start = time.time()
    overrides = [f"method={method}", f"seed={seed}", *more]
    result = run(recipe, overrides=overrides, out=folder, resume=RunFolder(folder).is_taken())
    f1 = 100 * result.result.scores.overall["strict"]["f1"]
    print(f"{folder}: strict F1 {f1:.2f}, {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
