"""Updates of low rank among three sites: both factors averaged, B alone (FFA-LoRA), FedEx-LoRA.

    python benchmarks/papers/lowrank/run.py --out runs/lowrank [--data NAME...] [--encoder NAME...]
                                            [--set compute.precision=bfloat16]
    python benchmarks/papers/lowrank/run.py --table

Finished cells are lines of measured.jsonl and are not run again; a stopped one begins anew, as its
only checkpoint is the last round's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from confide.tasks import TASKS

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished, measure, read_lines

HERE = Path(__file__).parent
SETTINGS = HERE.parents[1] / "defaults" / "tuning"
DATA = {"ncbi": "NCBI-disease", "gad": "GAD"}
WAYS: dict[str, tuple[str, ...]] = {
    "averaged": ("method=fedavg", "encoder.tune=lora"),
    "b": ("method=fedavg", "encoder.tune=lora", "encoder.factors=b"),
    "fedex": ("method=fedex",),
    "pooled": ("method=pooled", "encoder.tune=lora"),
}
"""Both factors averaged, B alone, the exact mean, and all text in one place."""
ENCODERS = ("minilm", "mpnet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/lowrank"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=DATA)
    parser.add_argument("--encoder", nargs="+", default=list(ENCODERS), choices=ENCODERS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1, help="of a site in a round")
    parser.add_argument("--share", type=float, default=0.1, help="of the training text")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    same = {name: getattr(given, name) for name in ("rate", "rounds", "epochs", "share", "set")}
    cells = (
        {"data": data, "encoder": encoder, "way": way, "seed": seed, **same}
        for seed in given.seeds
        for encoder in given.encoder
        for data in given.data
        for way in given.ways
    )
    measure(cells, given.keep, lambda cell: measured(cell, given.out))


def measured(cell: dict[str, Any], out: Path) -> dict[str, Any]:
    """One run: F1 on test text, megabytes of training steps at a site, and processor time."""
    folder = out / "-".join(str(value) for value in cell.values() if value)
    passes = cell["rounds"] * cell["epochs"]
    pooled = cell["way"] == "pooled"
    overrides = (
        *WAYS[cell["way"]], f"seed={cell['seed']}", f"split.seed={cell['seed']}", "split.sites=3",
        f"rounds={passes if pooled else cell['rounds']}", "select.by=last",
        f"select.every={passes if pooled else cell['rounds']}",
        f"training.local_epochs={1 if pooled else cell['epochs']}",
        f"data.train_share={cell['share']}", f"classifier.encoder={cell['encoder']}",
        "encoder.rank=8", "encoder.alpha=16", f"training.learning_rate={cell['rate']}",
        "training.batch_size=8", "training.optimiser=adamw", "training.decay=1.0", *cell["set"],
    )  # fmt: skip
    began, clock = time.process_time(), time.perf_counter()
    result = finished(SETTINGS / f"{cell['data']}.toml", overrides, folder)
    task = TASKS[result.task]
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    trained = [one for one in rows if one.get("step", "").startswith("train")]
    sites = len({one["site"] for one in trained}) or 1
    sent = {
        way: sum(one["bytes"] for one in trained if one["direction"] == way) / 1e6 / sites
        for way in ("up", "down")
    }
    return {
        "f1": 100 * (task.value(result.scores.overall, task.kinds[0]) or 0.0),
        "loss": result.history[-1].loss,
        **sent,
        "cpu": round(time.process_time() - began),
        "seconds": round(time.perf_counter() - clock),
    }


def table(lines: list[dict[str, Any]]) -> None:
    """One row for a corpus, an encoder, a way and how long it trained: means over the seeds."""
    print("| corpus | encoder | way | rate | rounds | text | seeds | F1 | MB up | MB down | s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    keys = ("data", "encoder", "rate", "rounds", "epochs", "share", "way")
    order = {name: place for place, name in enumerate((*DATA, *ENCODERS, *WAYS))}
    cells = {tuple(one[key] for key in keys) for one in lines}
    for cell in sorted(cells, key=lambda one: tuple(order.get(part, part) for part in one)):
        rows = [one for one in lines if tuple(one[key] for key in keys) == cell]
        data, encoder, rate, rounds, epochs, share, way = cell
        f1 = [one["f1"] for one in rows]
        spread = f" ± {statistics.stdev(f1):.1f}" if len(f1) > 1 else ""
        up, down, cpu = (statistics.mean(one[key] for one in rows) for key in ("up", "down", "cpu"))
        print(
            f"| {DATA[data]} | {encoder} | {way} | {rate:g} | {rounds} × {epochs} | {share:g} |"
            f" {len(rows)} | {statistics.mean(f1):.1f}{spread} | {up:.3g} | {down:.3g} |"
            f" {cpu:.0f} |"
        )


if __name__ == "__main__":
    main()
