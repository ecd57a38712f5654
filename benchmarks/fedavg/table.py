"""Tables from the runs that run.py made: F1 as mean ± deviation over seeds, and what it cost.

    python benchmarks/fedavg/table.py runs/fedavg

Cost is counted in passes: sentences trained on, over all sites, per sentence of training text. The
passes to a score are those until development F1 first reaches the pooled run's best minus 0.5
points, seed by seed.
"""

import json
import statistics
import sys
from pathlib import Path

MARGIN = 0.005


def main(root: Path) -> None:
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        runs: dict[str, dict[int, dict]] = {}
        for path in sorted(folder.glob("*/result.json")):
            result = json.loads(path.read_text())
            runs.setdefault(result["method"], {})[result["seed"]] = result
        if runs:
            table(folder.name, runs)


def table(name: str, runs: dict[str, dict[int, dict]]) -> None:
    print(f"\n### {name}\n")
    print(
        "| method | seeds | strict F1 | relaxed F1 | P | R | dev F1 | passes | passes to "
        "pooled − 0.5 | rounds to it | up / site / round | compute s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for method in sorted(runs, key=["pooled", "fedavg", "alone"].index):
        results = runs[method]
        overall = [result["scores"]["overall"] for result in results.values()]
        reached = [reach(result, runs.get("pooled", {}).get(s)) for s, result in results.items()]
        cells = [
            method,
            str(len(results)),
            *(
                spread([100 * score[kind]["f1"] for score in overall])
                for kind in ("strict", "relaxed")
            ),
            *(
                spread([100 * score["strict"][part] for score in overall])
                for part in ("precision", "recall")
            ),
            spread([100 * best_dev(result) for result in results.values()]),
            spread([passes(result, len(result["history"])) for result in results.values()], 1),
            reach_text([r and r[1] for r in reached], 1),
            reach_text([r and r[0] for r in reached], 0),
            f"{statistics.mean(map(bytes_up, results.values())) / 1e6:.2f} MB",
            spread([result["compute_seconds"] for result in results.values()], 0),
        ]
        print("| " + " | ".join(cells) + " |")


def best_dev(result: dict) -> float:
    """Development F1 of the selected round; for `alone`, the mean of the sites' last rounds."""
    if result.get("dev"):
        return result["dev"]["strict"]["f1"]
    return max(turn["dev"]["strict"] for turn in result["history"] if "dev" in turn)


def passes(result: dict, rounds: int) -> float:
    text = sum(site["train"] for site in result["data"]["sites"].values())
    return sum(turn["sentences"] for turn in result["history"][:rounds]) / text


def reach(result: dict, pooled: dict | None) -> tuple[int, float] | None:
    """Rounds and passes until pooled's best development F1 minus the margin."""
    if pooled is None or result["method"] == "alone":
        return None
    goal = best_dev(pooled) - MARGIN
    for turn in result["history"]:
        if turn.get("dev", {}).get("strict", 0.0) >= goal:
            return turn["round"], passes(result, turn["round"])
    return None


def reach_text(values: list[float | None], digits: int) -> str:
    got = [value for value in values if value is not None]
    if not got:
        return "–"
    missed = len(values) - len(got)
    return spread(got, digits) + (f" ({missed} of {len(values)} never)" if missed else "")


def bytes_up(result: dict) -> float:
    sent = sum(result["bytes"]["up"].values())
    return sent / max(1, len(result["history"])) / max(1, len(result["bytes"]["up"]))


def spread(values: list[float], digits: int = 2) -> str:
    mean = statistics.mean(values)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {statistics.stdev(values):.{digits}f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
