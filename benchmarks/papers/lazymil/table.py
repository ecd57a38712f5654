"""Tables from the runs that run.py made.

    python benchmarks/papers/lazymil/table.py runs/lazymil [--only pgr] [--keep measured.jsonl]

For each corpus and method, mean and standard deviation over seeds, in per cent: the area under the
whole curve on test text at the round that was best on development text, the area over the first
2,000 candidates, P@100, P@200, P@300 (if all runs of the line kept them) and their mean, micro F1
of the best labels; and how much of `auc` Lazy MIL has more, over the same seeds. Of runs that
picks.py watched, which sentences were right, medians over seeds, and how many of the winners had
won in the round before. `--keep` adds what the finished runs came to, a line each, to a file that
can stand in the place of the folder, or beside it: measured.jsonl here is where the numbers of the
documents come from.
"""

import argparse
import json
import statistics
from datetime import date
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Runs = dict[str, dict[str, dict[int, Record]]]
ROUNDS = ("1", "2", "3", "5", "10", "20", "30")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("roots", type=Path, nargs="+", help="folders of runs, or kept files")
    parser.add_argument("--only", nargs="*", metavar="CORPUS")
    parser.add_argument("--keep", type=Path, metavar="FILE")
    given = parser.parse_args()
    found = {key(one): one for root in given.roots for one in records(root)}
    if given.keep:
        there = records(given.keep) if given.keep.exists() else []
        found = {key(one): one for one in there} | found
        given.keep.write_text("".join(json.dumps(found[one]) + "\n" for one in sorted(found)))
    runs: Runs = {}
    for label, method, seed in sorted(found):
        if not given.only or label in given.only:
            here = runs.setdefault(label, {}).setdefault(method, {})
            here[seed] = found[label, method, seed]
    names = "AUC | AUC 2000 | P@100 | P@200 | P@300 | P@N | micro F1"
    print(f"| corpus | method | seeds | {names} | lazy-mil less it |")
    print("|---" * 11 + "|")
    for label, methods in runs.items():
        for method, results in methods.items():
            row(label, method, results, methods.get("lazy-mil", {}))
    print("\n| corpus | method | seeds | of these right, % | " + " | ".join(ROUNDS) + " |")
    print("|---" * (4 + len(ROUNDS)) + "|")
    for label, methods in runs.items():
        for method, results in methods.items():
            picked(label, method, [one["picks"] for one in results.values() if one.get("picks")])


def row(label: str, method: str, found: dict[int, Record], lazy: dict[int, Record]) -> None:
    """A line of the table."""
    names = ("auc", "auc_2000", "p100", "p200", "p300", "precision", "f1")
    cells = [
        spread([100 * one[name] for one in found.values()])
        if all(name in one for one in found.values())
        else ""
        for name in names
    ]
    pairs = [100 * (lazy[n]["auc"] - one["auc"]) for n, one in found.items() if n in lazy]
    more = spread(pairs, "{:+.1f}") if pairs and method != "lazy-mil" else ""
    print(f"| {label} | {method} | {len(found)} | {' | '.join(cells)} | {more} |")


def picked(label: str, method: str, found: list[dict[str, list[int]]]) -> None:
    """Lines of the second table: shares of sentences, by round; none of a warm round."""
    kinds = ("all", "each site's best", "winners", "winners that won before")
    for place, what in zip((0, 2, 4, 6), kinds, strict=True):
        cells = []
        for number in ROUNDS:
            rows = [one[number] for one in found if len(one.get(number, ())) > place]
            shares = [100 * row[place] / max(row[place + 1], 1) for row in rows]
            cells.append(f"{statistics.median(shares):.1f}" if shares else "")
        if any(cells):
            print(f"| {label} | {method} | {len(found)} | {what} | {' | '.join(cells)} |")


def key(record: Record) -> tuple[str, str, int]:
    return record["label"], record["method"], record["seed"]


def records(root: Path) -> list[Record]:
    """What the finished runs of a folder came to, or what was kept of others."""
    if root.is_file():
        return [json.loads(line) for line in root.read_text().splitlines()]
    return [record(path) for path in sorted(root.glob("runs/*/*/result.json"))]


def record(path: Path) -> Record:
    """What a run came to. The day is that on which it ended."""
    result = json.loads(path.read_text())
    method, _, seed = path.parent.name.rpartition("-")
    overall = result["scores"]["overall"]
    watched = path.parent / "picks.json"
    return {
        "label": path.parent.parent.name,
        "method": method,
        "seed": int(seed),
        "rounds": result["rounds"],
        "seconds": round(result["seconds"]),
        "best": result["best_round"],
        "auc": overall["auc"],
        "auc_2000": overall["auc_2000"],
        "precision": overall["precision_at"]["mean"],
        **{f"p{n}": overall["precision_at"][str(n)] for n in (100, 200, 300)},
        "f1": overall["micro"]["f1"],
        "picks": json.loads(watched.read_text()) if watched.exists() else None,
        "machine": json.loads((path.parent / "environment.json").read_text())["machine"],
        "date": date.fromtimestamp(path.stat().st_mtime).isoformat(),
    }


def spread(values: list[float], form: str = "{:.1f}") -> str:
    """Mean ± standard deviation."""
    mean = form.format(statistics.mean(values))
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
