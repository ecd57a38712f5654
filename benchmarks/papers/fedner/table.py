"""Tables from the runs that run.py made: strict and relaxed F1 per site, mean ± deviation.

python benchmarks/papers/fedner/table.py runs/fedner
"""

import json
import statistics
import sys
from pathlib import Path


def main(root: Path) -> None:
    rows: dict[tuple[str, str], list[dict]] = {}
    for path in sorted(root.glob("*/*/result.json")):
        result = json.loads(path.read_text())
        rows.setdefault((path.parent.parent.name, result["method"]), []).append(result)
    if not rows:
        sys.exit(f"{root}: no finished run")
    sites = sorted(next(iter(rows.values()))[0]["scores"]["sites"])
    heads = [f"{site} {kind}" for site in sites for kind in ("strict", "relaxed")]
    print("| run | method | seeds | " + " | ".join(heads) + " | mean strict | seconds |")
    print("|" + "---|" * (len(heads) + 5))
    for (label, method), results in rows.items():
        cells = [
            spread([100 * one["scores"]["sites"][site][kind]["f1"] for one in results])
            for site in sites
            for kind in ("strict", "relaxed")
        ]
        means = [
            statistics.mean(100 * one["scores"]["sites"][site]["strict"]["f1"] for site in sites)
            for one in results
        ]
        seconds = statistics.mean(one["seconds"] for one in results)
        shown = " | ".join([*cells, spread(means), f"{seconds:.0f}"])
        print(f"| {label} | {method} | {len(results)} | {shown} |")


def spread(values: list[float]) -> str:
    mean = statistics.mean(values)
    return f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
