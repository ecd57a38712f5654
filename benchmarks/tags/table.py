"""Tables from the runs that run.py made.

    python benchmarks/tags/table.py runs/tags [--keep benchmarks/tags/measured.jsonl]

For the corpora, each kind of model and variant, over draws: strict micro F1 of all entities of the
test text, of those of the types that their site annotates, and of the others; mean and standard
deviation in per cent; bytes up of a site and round, and the share of the model that travels.
`--keep` adds what the finished runs came to, a line each, to a file that can stand in the place of
the folder.
"""

import argparse
import json
import statistics
from datetime import date
from pathlib import Path
from typing import Any

from confide.runfolder import RunFolder

Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("roots", type=Path, nargs="+", help="folders of runs, or kept files")
    parser.add_argument("--keep", type=Path, metavar="FILE")
    given = parser.parse_args()
    found = {key(one): one for root in given.roots for one in records(root)}
    if given.keep:
        there = records(given.keep) if given.keep.exists() else []
        found = {key(one): one for one in there} | found
        given.keep.write_text("".join(json.dumps(found[one]) + "\n" for one in sorted(found)))
    print("| corpora | kind | variant | draws | all | own types | other types | up | share |")
    print("|---|---|---|---|---|---|---|---|---|")
    for names in dict.fromkeys(one[:3] for one in sorted(found)):
        rows = [found[one] for one in sorted(found) if one[:3] == names]
        cells = [spread([100 * one[part] for one in rows]) for part in ("all", "own", "others")]
        up = f"{statistics.median(one['up'] for one in rows):,.0f}"
        share = f"{100 * rows[0]['share']:.1f} %"
        print(f"| {' | '.join(names)} | {len(rows)} | {' | '.join(cells)} | {up} | {share} |")


def key(record: Record) -> tuple[str, str, str, int]:
    return record["corpora"], record["kind"], record["variant"], record["draw"]


def records(root: Path) -> list[Record]:
    """What the finished runs of a folder came to, or what was kept of others."""
    if root.is_file():
        return [json.loads(line) for line in root.read_text().splitlines()]
    return [record(path) for path in sorted(root.glob("*/*/*/result.json"))]


def record(path: Path) -> Record:
    """What a run came to. The day is that on which it ended."""
    result = json.loads(path.read_text())
    variant, _, draw = path.parent.name.rpartition("-")
    knows = {site.name: site.knows for site in RunFolder(path.parent).settings().site}
    counts: dict[str, list[int]] = {"all": [0, 0, 0], "own": [0, 0, 0], "others": [0, 0, 0]}
    for site, scores in result["scores"]["sites"].items():
        for kind, one in scores["strict"]["types"].items():
            part = "own" if kind in knows[site] else "others"
            for name in ("all", part):
                for place, what in enumerate(("true", "predicted", "support")):
                    counts[name][place] += one[what]
    last = result["history"][-1]
    return {
        "corpora": path.parents[2].name,
        "kind": path.parents[1].name,
        "variant": variant,
        "draw": int(draw),
        "knows": knows,
        "rounds": len(result["history"]),
        **{name: f1(*found) for name, found in counts.items()},
        "pseudo": [one["pseudo"] for one in result["history"]],
        "dev": [(one.get("dev") or {}).get("strict") for one in result["history"]],
        "share": last["share"],
        "up": sent(path),
        "seconds": round(result["seconds"]),
        "machine": json.loads((path.parent / "environment.json").read_text())["machine"],
        "date": date.fromtimestamp(path.stat().st_mtime).isoformat(),
    }


def f1(true: int, predicted: int, gold: int) -> float:
    """Of counts; 0 where there is nothing."""
    return 2 * true / (predicted + gold) if predicted + gold else 0.0


def sent(path: Path) -> float:
    """Bytes up of the steps of a round, for a site and round."""
    total: dict[tuple[int, str], int] = {}
    with (path.parent / "ledger.jsonl").open() as file:
        for line in file:
            entry = json.loads(line)
            if entry["step"] in ("weigh", "complete") and entry["direction"] == "up":
                key = entry["round"], entry["site"]
                total[key] = total.get(key, 0) + entry["bytes"]
    return statistics.mean(total.values()) if total else 0.0


def spread(values: list[float]) -> str:
    """Mean ± standard deviation."""
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
