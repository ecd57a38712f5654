"""The runs behind the FedAvg tables of README.md: recipes × methods × seeds.

    python benchmarks/papers/fedavg/run.py --out runs/fedavg [--recipe NAME]... [KEY=VALUE]...

Finished runs are kept, unfinished ones are resumed, so the command can be stopped and given again.
`table.py` turns the folder into tables.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished

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
                overrides = [f"method={method}", f"seed={seed}", *given.overrides]
                found = finished(recipe, overrides, given.out / name / f"{method}-{seed}")
                f1 = 100 * found.scores.overall["strict"]["f1"]
                print(f"{name}, {method}, seed {seed}: strict F1 {f1:.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
