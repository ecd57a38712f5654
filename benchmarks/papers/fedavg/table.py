"""Tables from the runs that run.py made: F1 as mean ± deviation over seeds, and what it cost.

    python benchmarks/papers/fedavg/table.py runs/fedavg

Cost is counted in passes: sentences trained on, over all sites, per sentence of training text. The
second table gives the passes until development F1 first reaches the pooled run's best less so many
points, of the federated and of the pooled run, and their ratio, seed by seed.
"""

import json
import statistics
import sys
from pathlib import Path

MARGINS = (0.5, 1.0, 2.0, 4.0)


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
    heads = ["strict F1", "relaxed F1", "P", "R", "dev F1", "passes", "up / site / round", "s"]
    print("| method | seeds | " + " | ".join(heads) + " |")
    print("|" + "---|" * (len(heads) + 2))
    for method in sorted(runs, key=["pooled", "fedavg", "alone"].index):
        results = runs[method]
        overall = [result["scores"]["overall"] for result in results.values()]
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
            f"{statistics.mean(map(bytes_up, results.values())) / 1e6:.2f} MB",
            spread([result["compute_seconds"] for result in results.values()], 0),
        ]
        print("| " + " | ".join(cells) + " |")
    if runs.get("pooled") and runs.get("fedavg"):
        cost(runs["fedavg"], runs["pooled"])


def cost(federated: dict[int, dict], pooled: dict[int, dict]) -> None:
    """What the federated runs cost until they are as good as the pooled ones, less a margin."""
    print("\n| development F1 | federated: rounds | passes | pooled: passes | ratio |")
    print("|---|---|---|---|---|")
    for margin in MARGINS:
        found = []
        for seed in sorted(federated.keys() & pooled.keys()):
            goal = best_dev(pooled[seed]) - margin / 100
            found.append((reach(federated[seed], goal), reach(pooled[seed], goal)))
        both = [(ours, theirs) for ours, theirs in found if ours and theirs]
        missed = len(found) - len(both)
        cells = [f"pooled − {margin:g}"]
        if both:
            cells += [
                spread([ours[0] for ours, _ in both], 0),
                spread([ours[1] for ours, _ in both], 1),
                spread([theirs[1] for _, theirs in both], 1),
                spread([ours[1] / theirs[1] for ours, theirs in both], 1),
            ]
        else:
            cells += ["–"] * 4
        if missed:
            cells[1] += f" ({missed} of {len(found)} never)"
        print("| " + " | ".join(cells) + " |")


def best_dev(result: dict) -> float:
    """Development F1 of the selected round; for `alone`, the mean of the sites' last rounds."""
    if result.get("dev"):
        return result["dev"]["strict"]["f1"]
    return max(turn["dev"]["strict"] for turn in result["history"] if "dev" in turn)


def passes(result: dict, rounds: int) -> float:
    text = sum(site["train"] for site in result["data"]["sites"].values())
    return sum(turn["sentences"] for turn in result["history"][:rounds]) / text


def reach(result: dict, goal: float) -> tuple[int, float] | None:
    """Rounds and passes until development F1 first reaches the goal."""
    for turn in result["history"]:
        if turn.get("dev", {}).get("strict", 0.0) >= goal:
            return turn["round"], passes(result, turn["round"])
    return None


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
