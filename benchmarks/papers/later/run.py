"""Sites and types that come later: CrossNER's domains arrive one by one, in three orders.

    python benchmarks/papers/later/run.py --out runs/later [--rows NAME...] [--orders 1 2]
    python benchmarks/papers/later/run.py --table

Each domain annotates types of its own, as in the recipe `tags-crossner`. Every step goes on from
the model of the step before with the new domain's text alone; `anew` trains on all text so far.
Finished cells are lines of measured.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confide.recipes import recipe_path
from confide.runs.loading import open_models
from confide.scoring import f1, micro
from confide.scoring.counts import sum_counts
from confide.settings import parse, read_tree
from confide.text.checking import retag
from confide.text.formats import read
from confide.text.published.catalogue import locate
from confide.training.batches import only

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished, measure, read_lines

HERE = Path(__file__).parent
ORDERS = (
    ("ai", "literature", "music", "politics", "science"),
    ("science", "politics", "music", "literature", "ai"),
    ("music", "ai", "science", "literature", "politics"),
)
OPEN = "training.unannotated_types=1"
TEACH = ("method=pseudo-complete", "options.teacher=start", "options.instance_weights=false")
ROWS: dict[str, tuple[str, ...]] = {
    "anew": ("method=fedavg", OPEN),
    "anew, longer": ("method=fedavg", OPEN),
    "plain": ("method=fedavg",),
    "ignore": ("method=fedavg", OPEN),
    "teacher": TEACH,
    "teacher, ignore": (*TEACH, OPEN),
}
"""How a step is trained. The first two are no continuation; the second takes as many rounds as the
steps of one took together."""
MODEL = (
    "base=fedavg", "model.kind=tagger", "model.context=minilm", "model.character=none",
    "model.bilstm_hidden=64", "training.optimiser=adam", "training.learning_rate=0.005",
    "training.batch_size=16", "training.local_epochs=3", "rounds=6", "select.every=6",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/later"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--orders", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=5, help="the domains that arrive")
    parser.add_argument("--set", nargs="+", default=[], help="settings to try, for every run")
    parser.add_argument("--part", choices=("dev", "test"), default="test", help="what is scored")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    cells = (
        {"row": row, "order": order, "seed": seed, "step": step, "set": given.set}
        for seed in given.seeds
        for order in given.orders
        for row in given.rows
        for step in range(1, given.steps + 1)
    )
    measure(cells, given.keep, lambda cell: measured(cell, given))


def measured(cell: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """One step: train, and score every domain that has come so far."""
    begun = time.process_time()
    order, step = cell["order"], cell["step"]
    folder = trained(cell["row"], order, cell["seed"], step, given)
    seconds = time.process_time() - begun
    sites = {one["name"]: one for one in read_tree(recipe_path("tags-crossner"))["site"]}
    come = [sites[name] for name in ORDERS[order - 1][:step]]
    return {
        "domains": [one["name"] for one in come],
        given.part: scored(folder, come, given.part),
        "cpu": round(seconds, 1),
    }  # fmt: skip


def trained(row: str, order: int, seed: int, step: int, given: argparse.Namespace) -> Path:
    """The run of a step, which goes on from that of the step before; all rows share the first."""
    row = row if step > 1 else "plain"
    label = "-".join([row, str(order), str(seed), str(step), *given.set]).replace("/", "_")
    folder = given.out / label.replace(", ", "-")
    if (folder / "result.json").exists():
        return folder
    tree = read_tree(recipe_path("tags-crossner"))
    come = ORDERS[order - 1][:step]
    anew = row.startswith("anew")
    there = come if anew else come[-1:]
    tree["site"] = [one for one in tree["site"] if one["name"] in there]
    for one in tree["site"]:
        del one["test"]  # scored below, once
    own = [*MODEL, *ROWS[row], f"seed={seed}"]
    if row == "anew, longer":
        own += [f"rounds={6 * step}", f"select.every={6 * step}"]
    if step > 1 and not anew:
        own.append(f"start_from={trained(row, order, seed, step - 1, given)}")
    finished(parse(tree, [*own, *given.set]), (), folder)
    return folder


def scored(folder: Path, come: Sequence[dict[str, Any]], part: str) -> dict[str, float]:
    """F1 of each domain in its own types, and of all in all types that have come."""
    extract = open_models(folder).entities
    assert extract is not None
    so_far = {name for one in come for name in one["annotates"]}
    found, every = {}, []
    for one in come:
        gold, _ = retag(read(locate(one[part]), format="conll").documents, one["tags"])
        known = so_far & {*one["annotates"], *one["test_annotates"]}
        every.append(extract.report(only(gold, known), known).counts)
        own = {name: every[-1].strict[name] for name in known & {*one["annotates"]}}
        found[one["name"]] = 100 * f1(micro(own))
    return {**found, "all": 100 * f1(micro(sum_counts(every).strict))}


def table(lines: list[dict[str, Any]]) -> None:
    """By row, the mean over orders and seeds after the last step, and what was forgotten."""
    print("| row | runs | all types, all domains | new domain | old domains | forgotten | s |")
    print("|---|---|---|---|---|---|---|")
    lines = sorted(lines, key=lambda one: one["step"])
    for row in ROWS:
        chains: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for one in lines:
            if one["row"] == row and "test" in one and not one["set"]:
                chains.setdefault((one["order"], one["seed"]), []).append(one)
        chains = {key: own for key, own in chains.items() if len(own) == len(ORDERS[0])}
        if chains:
            print(line_of(row, [*chains.values()]))


def line_of(row: str, chains: list[list[dict[str, Any]]]) -> str:
    """One line: after the last step, but for the new domain, which is of steps 2 to 5."""
    last = [own[-1] for own in chains]
    new = [one["test"][one["domains"][-1]] for own in chains for one in own[1:]]
    old = [end["test"][name] for end in last for name in end["domains"][:-1]]
    forgotten = [
        max(one["test"][name] for one in own if name in one["test"]) - own[-1]["test"][name]
        for own in chains
        for name in own[-1]["domains"][:-1]
    ]
    cells = [
        row, str(len(chains)), spread([one["test"]["all"] for one in last]),
        f"{statistics.mean(new):.1f}", f"{statistics.mean(old):.1f}",
        f"{statistics.mean(forgotten):.1f}",
        f"{statistics.mean(sum(one['cpu'] for one in own[1:]) for own in chains):.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    more = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{more}"


if __name__ == "__main__":
    main()
