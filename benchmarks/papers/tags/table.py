"""Tables from the runs that run.py made.

    python benchmarks/papers/tags/table.py runs/tags [--keep benchmarks/papers/tags/measured.jsonl]

For each of the corpora three tables, in per cent. Scores: of each kind of model and variant the
strict micro F1 of all entities of the test text, by draw and mean with standard deviation; of those
of the types that their site annotates, and of the others; how much more the same draws have with
distillation and weighting; bytes up of a site and round, the share of the model that travels, and
seconds of a run. Gains: what distillation adds to FedAvg, weighting to that, and both, by draw,
with the mean and its 95% interval (Student's t, over draws). Sites: F1 of the types that each
annotates, and of the others. Where all sites annotate all types (complete), a site's own types are
those that the draw would have left to it. `--keep` adds what the finished runs came to, a line
each, to a file that can stand in the place of the folder.
"""

import argparse
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

from run import COMPLETE, KINDS, OPENED, RIVALS, SWEEPS, VARIANTS, annotated, drawn
from scipy import stats

from confide.recipes import recipe_path
from confide.runs.folder import RunFolder
from confide.settings import read_tree

Record = dict[str, Any]
EVERY = "all"
PARTS = ("own", "others")
"""The types that an entity's site annotates, and those that it does not."""
PLAIN, DISTIL, WHOLE = "plain", "distil", "whole"
NAMES = {PLAIN: "FedAvg", DISTIL: "with distillation", WHOLE: "with both"}
ORDER = [*KINDS, *VARIANTS, *OPENED, *RIVALS, *SWEEPS, COMPLETE]
GAINS = ((PLAIN, DISTIL), (DISTIL, WHOLE), (PLAIN, WHOLE))
Cells = tuple[str, ...]
Found = dict[tuple[str, str], dict[int, Record]]
"""By kind and variant: each draw's run."""


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
    for corpora in sorted({name for name, *_ in found}):
        of_these: Found = defaultdict(dict)
        for one in sorted(found, key=place):
            if one[0] == corpora:
                of_these[one[1:3]][one[3]] = found[one]
        print(f"{corpora}\n")
        put(scores(of_these))
        put(gains(of_these))
        put(sites(of_these))


def scores(found: Found) -> Iterator[Cells]:
    """A line for each kind and variant."""
    draws = sorted({draw for rows in found.values() for draw in rows})
    head = ("", *map(str, draws), "mean", "own types", "other types")
    yield (*head, "more with both", "up", "share", "seconds")
    for (kind, variant), rows in found.items():
        each = [f"{100 * rows[draw][EVERY]:.1f}" if draw in rows else "" for draw in draws]
        parts = [spread([100 * one[part] for one in rows.values()]) for part in (EVERY, *PARTS)]
        more = differences(rows, found.get((kind, WHOLE), {})) if variant != WHOLE else []
        up = f"{statistics.median(one['up'] for one in rows.values()) / 1e6:.2f} MB"
        share = f"{100 * next(iter(rows.values()))['share']:.1f} %"
        seconds = f"{statistics.median(one['seconds'] for one in rows.values()):.0f}"
        name = f"{kind}, {NAMES.get(variant, variant)}"
        yield (name, *each, *parts, interval(more) if more else "", up, share, seconds)


def gains(found: Found) -> Iterator[Cells]:
    """A line for each kind that has them: what each part of the method adds."""
    yield ("more F1 by", "distillation", "weighting on top of it", "both")
    for kind in dict.fromkeys(kind for kind, _ in found):
        cells = []
        for less, more in GAINS:
            by_draw = differences(found.get((kind, less), {}), found.get((kind, more), {}))
            each = ", ".join(f"{one:+.1f}" for one in by_draw)
            cells.append(f"{each}: {interval(by_draw)}" if by_draw else "")
        if any(cells):
            yield (kind, *cells)


def sites(found: Found) -> Iterator[Cells]:
    """A line for each kind and variant: F1 of each site's own types / of the others."""
    names = sorted(
        {site for rows in found.values() for one in rows.values() for site in one["sites"]}
    )
    yield ("own / other types", *names)
    for (kind, variant), rows in found.items():
        of_sites = [[one["sites"][site] for one in rows.values()] for site in names]
        cells = (
            " / ".join(spread([100 * one[part] for one in each]) for part in PARTS)
            for each in of_sites
        )
        yield (f"{kind}, {NAMES.get(variant, variant)}", *cells)


def put(lines: Iterable[Cells]) -> None:
    """Print a table whose first line is its head."""
    for number, cells in enumerate(lines):
        print(f"| {' | '.join(cells)} |")
        if not number:
            print("|---" * len(cells) + "|")
    print()


def differences(less: dict[int, Record], more: dict[int, Record]) -> list[float]:
    """By draw that both have: F1 of all entities of the second less that of the first."""
    return [100 * (more[one][EVERY] - less[one][EVERY]) for one in sorted(less) if one in more]


def place(one: tuple[str, str, str, int]) -> tuple[int, int, str, int]:
    """Where a run of this kind, variant and draw stands in the tables of its corpora.

    A line of a file may say more after a comma ("complete, gpu") and then follows its variant.
    """
    _, kind, variant, draw = one
    return ORDER.index(kind), ORDER.index(variant.partition(",")[0]), variant, draw


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
    corpora = path.parents[2].name
    knows = {site.name: list(site.annotates) for site in RunFolder(path.parent).settings().site}
    if variant == COMPLETE:  # the types that the draw would have left to each site
        knows = drawn(annotated(read_tree(recipe_path(f"tags-{corpora}"))), int(draw))
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for site, scores in result["scores"]["sites"].items():
        for kind, one in scores["strict"]["types"].items():
            part = PARTS[kind not in knows[site]]
            for place in product((site, EVERY), (part, EVERY)):
                counts[place].update({what: one[what] for what in ("true", "predicted", "support")})
    last = result["history"][-1]
    return {
        "corpora": corpora,
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
