"""Tables from the runs that run.py made.

    python benchmarks/lazymil/table.py runs/lazymil [--only pgr]

For each corpus and method, mean and standard deviation over seeds, in per cent: the area under the
whole curve on test text at the round that was best on development text, the area over the first
2,000 candidates, the mean of P@100, P@200 and P@300, micro F1 of the best labels; and how much of
`auc` Lazy MIL has more, over the same seeds.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

Results = dict[int, dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    runs: dict[str, dict[str, Results]] = {}
    for path in sorted(given.root.glob("runs/*/*/result.json")):
        method, _, seed = path.parent.name.rpartition("-")
        overall = json.loads(path.read_text())["scores"]["overall"]
        runs.setdefault(path.parent.parent.name, {}).setdefault(method, {})[int(seed)] = overall
    print("| corpus | method | seeds | AUC | AUC 2000 | P@N | micro F1 | lazy-mil less it |")
    print("|---|---|---|---|---|---|---|---|")
    for label, methods in runs.items():
        if given.only and label not in given.only:
            continue
        lazy = methods.get("lazy-mil", {})
        for method, found in methods.items():
            cells = [
                spread([100 * of(one) for one in found.values()])
                for of in (
                    lambda one: one["auc"],
                    lambda one: one["auc_2000"],
                    lambda one: one["precision_at"]["mean"],
                    lambda one: one["micro"]["f1"],
                )
            ]
            pairs = [
                100 * (lazy[seed]["auc"] - one["auc"])
                for seed, one in found.items()
                if seed in lazy
            ]
            more = spread(pairs, "{:+.1f}") if pairs and method != "lazy-mil" else ""
            print(f"| {label} | {method} | {len(found)} | {' | '.join(cells)} | {more} |")


def spread(values: list[float], form: str = "{:.1f}") -> str:
    """Mean ± standard deviation."""
    mean = form.format(statistics.mean(values))
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
