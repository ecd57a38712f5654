"""Tables from the runs that run.py made.

    python benchmarks/feded/table.py runs/feded [--classwise chemprot]

For each row: the median over seeds (and the range) of micro and macro F1 on test text at the round
that was best on development text, the first round whose development F1 reached a goal, and bytes
up and down of a site that trained in a round. `--classwise`: F1 of every relation of that row.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

NONE = "no-relation"
STEPS = ("train_and_predict", "train_relations", "train_relations_alone")
Runs = dict[tuple[str, str], list[tuple[Path, dict[str, Any]]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--classwise", metavar="LABEL")
    parser.add_argument("--goals", type=float, nargs="*", default=[0.6, 0.65, 0.7, 0.75])
    given = parser.parse_args()
    runs: Runs = {}
    for path in sorted(given.root.glob("*/*/result.json")):
        result = json.loads(path.read_text())
        runs.setdefault((path.parent.parent.name, result["method"]), []).append((path, result))
    if given.classwise:
        classwise(runs, given.classwise)
        return
    goals = [f"rounds to dev {100 * goal:.0f}" for goal in given.goals]
    head("run", "method", "seeds", "micro F1", "macro F1", *goals, "up", "down", "seconds")
    for (label, method), found in runs.items():
        results = [result for _, result in found]
        overall = [result["scores"]["overall"] for result in results]
        row(
            label,
            method,
            len(results),
            spread([100 * one["micro"]["f1"] for one in overall]),
            spread([100 * one["macro"]["f1"] for one in overall]),
            *(reached(results, goal) for goal in given.goals),
            *(
                f"{statistics.median(sent(path, way) for path, _ in found):,.0f}"
                for way in ("up", "down")
            ),
            f"{statistics.median(one['seconds'] for one in results):.0f}",
        )
    for label in dict.fromkeys(label for label, _ in runs):
        confusion = next(f for (one, _), f in runs.items() if one == label)[0][1]["scores"][
            "overall"
        ]["confusion"]
        if set(confusion) | {NONE} == {"related", NONE}:
            gold = sum(confusion["related"].values())
            pairs = sum(sum(one.values()) for one in confusion.values())
            print(
                f"\n{label}: who always says `related` has F1 {100 * 2 * gold / (pairs + gold):.1f}"
            )


def classwise(runs: Runs, label: str) -> None:
    """F1 of every relation, the most frequent first."""
    mine = {method: [r for _, r in found] for (one, method), found in runs.items() if one == label}
    first = next(iter(mine.values()))[0]["scores"]["overall"]["micro"]["types"]
    head("relation", "test pairs", *mine)
    for name in sorted(first, key=lambda name: -first[name]["support"]):
        cells = [
            spread([100 * f1_of(result, name) for result in results]) for results in mine.values()
        ]
        row(name, first[name]["support"], *cells)


def f1_of(result: dict[str, Any], relation: str) -> float:
    types = result["scores"]["overall"]["micro"]["types"]
    return float(types.get(relation, {}).get("f1", 0.0))


def reached(results: list[dict[str, Any]], goal: float) -> str:
    """The median first round that reached the goal; > N where half of the runs never did."""
    firsts = []
    for result in results:
        rounds = [t["round"] for t in result["history"] if t.get("dev", {}).get("micro", 0) >= goal]
        firsts.append(rounds[0] if rounds else float("inf"))
    middle = statistics.median_high(firsts)
    return f"> {results[0]['rounds']}" if middle == float("inf") else f"{middle:.0f}"


def sent(path: Path, way: str) -> float:
    """Bytes of the training step's messages, for a site and round."""
    total: dict[tuple[int, str], int] = {}
    for line in (path.parent / "ledger.jsonl").open():
        entry = json.loads(line)
        if entry["step"] in STEPS and entry["direction"] == way:
            key = entry["round"], entry["site"]
            total[key] = total.get(key, 0) + entry["bytes"]
    return statistics.mean(total.values()) if total else 0.0


def spread(values: list[float], form: Callable[[float], str] = "{:.1f}".format) -> str:
    """The median, and from which to which."""
    if len(values) == 1:
        return form(values[0])
    return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"


def head(*cells: object) -> None:
    row(*cells)
    print("|" + "---|" * len(cells))


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
