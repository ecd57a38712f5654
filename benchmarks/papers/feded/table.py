"""Tables from the runs that run.py made.

    python benchmarks/papers/feded/table.py runs/feded [--classwise chemprot] \
        [--keep measured.jsonl]

For each row: the median over seeds (and the range) of micro and macro F1 on test text at the round
that was best on development text, the first round whose development F1 reached a goal, and bytes
up and down of a site that trained in a round. `--classwise`: F1 of every relation of that row.
`--keep` adds what the finished runs came to, a line each, to a file that can stand in the place of
the folder, or beside it: measured.jsonl here is where the numbers of the documents come from.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

STEPS = ("train_and_predict", "train", "train_alone", "train_relations", "train_relations_alone")
Record = dict[str, Any]
Runs = dict[tuple[str, str], list[Record]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("roots", type=Path, nargs="+", help="folders of runs, or kept files")
    parser.add_argument("--classwise", metavar="LABEL")
    parser.add_argument("--goals", type=float, nargs="*", default=[0.6, 0.65, 0.7, 0.75])
    parser.add_argument("--keep", type=Path, metavar="FILE")
    given = parser.parse_args()
    found = {(r["label"], r["method"], r["seed"]): r for root in given.roots for r in records(root)}
    if given.keep:
        there = records(given.keep) if given.keep.exists() else []
        found = {(r["label"], r["method"], r["seed"]): r for r in there} | found
        lines = [json.dumps(found[key]) + "\n" for key in sorted(found)]
        given.keep.write_text("".join(lines))
    runs: Runs = {}
    for key in sorted(found):
        runs.setdefault(key[:2], []).append(found[key])
    if given.classwise:
        classwise(runs, given.classwise)
        return
    goals = [f"rounds to dev {100 * goal:.0f}" for goal in given.goals]
    head("run", "method", "seeds", "micro F1", "macro F1", *goals, "up", "down", "seconds")
    for (label, method), results in runs.items():
        overall = [result["overall"] for result in results]
        row(
            label,
            method,
            len(results),
            spread([100 * one["micro"]["f1"] for one in overall]),
            spread([100 * one["macro"]["f1"] for one in overall]),
            *(reached(results, goal) for goal in given.goals),
            *(f"{statistics.median(one[way] for one in results):,.0f}" for way in ("up", "down")),
            f"{statistics.median(one['seconds'] for one in results):.0f}",
        )
    for label in dict.fromkeys(label for label, _ in runs):
        first = next(results for (one, _), results in runs.items() if one == label)[0]["overall"]
        if set(first["micro"]["types"]) == {"related"}:
            gold, pairs = first["micro"]["support"], first["examples"]
            always = 100 * 2 * gold / (pairs + gold)
            print(f"\n{label}: who always says `related` has F1 {always:.1f}")


def records(root: Path) -> list[Record]:
    """What the finished runs of a folder came to, or what was kept of others."""
    if root.is_file():
        return [json.loads(line) for line in root.read_text().splitlines()]
    return [record(path) for path in sorted(root.glob("*/*/result.json"))]


def record(path: Path) -> Record:
    """What a run came to. The day is that on which it ended."""
    result = json.loads(path.read_text())
    machine = json.loads((path.parent / "environment.json").read_text())["machine"]
    overall = result["scores"]["overall"]
    return {
        "label": path.parent.parent.name,
        "method": result["method"],
        "seed": result["seed"],
        "rounds": result["rounds"],
        "seconds": round(result["seconds"]),
        "up": sent(path, "up"),
        "down": sent(path, "down"),
        "dev": {one["round"]: one["dev"]["micro"] for one in result["history"] if one.get("dev")},
        "overall": {kind: overall[kind] for kind in ("micro", "macro", "examples")},
        "machine": machine,
        "date": date.fromtimestamp(path.stat().st_mtime).isoformat(),
    }


def classwise(runs: Runs, label: str) -> None:
    """F1 of every relation, the most frequent first."""
    mine = {method: found for (one, method), found in runs.items() if one == label}
    first = next(iter(mine.values()))[0]["overall"]["micro"]["types"]
    head("relation", "test pairs", *mine)
    for name in sorted(first, key=lambda name: -first[name]["support"]):
        cells = [
            spread([100 * f1_of(result, name) for result in results]) for results in mine.values()
        ]
        row(name, first[name]["support"], *cells)


def f1_of(result: dict[str, Any], relation: str) -> float:
    types = result["overall"]["micro"]["types"]
    return float(types.get(relation, {}).get("f1", 0.0))


def reached(results: list[dict[str, Any]], goal: float) -> str:
    """The median first round that reached the goal; > N where half of the runs never did."""
    firsts = []
    for result in results:
        rounds = [int(number) for number, score in result["dev"].items() if score >= goal]
        firsts.append(min(rounds, default=float("inf")))
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
