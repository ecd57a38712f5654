"""Tables from the runs that run.py made.

    python benchmarks/tags/table.py runs/tags [--keep benchmarks/tags/measured.jsonl]

For the corpora, each kind of model and variant, over draws: strict micro F1 of all entities of the
test text, of those of the types that their site annotates, and of the others; mean and standard
deviation in per cent; how much of the first `whole` has more, over the same draws, and the 95%
interval of that mean (Student's t, over draws); bytes up of a site and round, the share of the
model that travels, and seconds of a run. Then the same of each site. `--keep` adds what the
finished runs came to, a line each, to a file that can stand in the place of the folder.
"""

import argparse
import json
import statistics
from collections import Counter, defaultdict
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

from scipy import stats

from confide.runfolder import RunFolder

Record = dict[str, Any]
EVERY = "all"
PARTS = ("own", "others")
"""The types that an entity's site annotates, and those that it does not."""


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
    head = ("corpora", "kind", "variant", "draws", "all", "own types", "other types")
    print(f"| {' | '.join(head)} | whole less it | up | share | seconds |\n{'|---' * 11}|")
    for names in dict.fromkeys(one[:3] for one in sorted(found)):
        rows = [found[one] for one in sorted(found) if one[:3] == names]
        cells = [spread([100 * one[part] for one in rows]) for part in (EVERY, *PARTS)]
        whole = [found.get((*names[:2], "whole", one["draw"])) for one in rows]
        more = [100 * (w["all"] - one["all"]) for w, one in zip(whole, rows, strict=True) if w]
        cells.append(interval(more) if more and names[2] != "whole" else "")
        up = f"{statistics.median(one['up'] for one in rows):,.0f}"
        share = f"{100 * rows[0]['share']:.1f} %"
        seconds = f"{statistics.median(one['seconds'] for one in rows):.0f}"
        cells += [up, share, seconds]
        print(f"| {' | '.join(names)} | {len(rows)} | {' | '.join(cells)} |")
    by_site(found)


def by_site(found: dict[tuple[str, str, str, int], Record]) -> None:
    """A line for each site: what it annotates, and what others do."""
    print(f"\n| corpora | kind | variant | site | own types | other types |\n{'|---' * 6}|")
    for names in dict.fromkeys(one[:3] for one in sorted(found)):
        rows = [found[one]["sites"] for one in sorted(found) if one[:3] == names]
        for site in rows[0]:
            parts = [spread([100 * row[site][part] for row in rows]) for part in PARTS]
            print(f"| {' | '.join(names)} | {site} | {' | '.join(parts)} |")


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
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for site, scores in result["scores"]["sites"].items():
        for kind, one in scores["strict"]["types"].items():
            part = PARTS[kind not in knows[site]]
            for place in product((site, EVERY), (part, EVERY)):
                counts[place].update({what: one[what] for what in ("true", "predicted", "support")})
    last = result["history"][-1]
    return {
        "corpora": path.parents[2].name,
        "kind": path.parents[1].name,
        "variant": variant,
        "draw": int(draw),
        "knows": knows,
        "rounds": len(result["history"]),
        EVERY: f1(counts[EVERY, EVERY]),
        **{part: f1(counts[EVERY, part]) for part in PARTS},
        "sites": {site: {part: f1(counts[site, part]) for part in PARTS} for site in knows},
        "pseudo": [one["pseudo"] for one in result["history"]],
        "dev": [(one.get("dev") or {}).get("strict") for one in result["history"]],
        "share": last["share"],
        "up": sent(path),
        "seconds": round(result["seconds"]),
        "machine": json.loads((path.parent / "environment.json").read_text())["machine"],
        "date": date.fromtimestamp(path.stat().st_mtime).isoformat(),
    }


def f1(found: Counter[str]) -> float:
    """Of counts; 0 where there is nothing."""
    return 2 * found["true"] / max(found["predicted"] + found["support"], 1)


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


def interval(values: list[float]) -> str:
    """The mean and its 95% interval."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:+.1f}"
    error = statistics.stdev(values) / len(values) ** 0.5
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=error)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def spread(values: list[float]) -> str:
    """Mean ± standard deviation."""
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
