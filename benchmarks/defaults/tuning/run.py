"""F1, bytes and seconds of each way to tune an encoder: federated, pooled, and the tagger beside.

One run for each data set, way and method; a line is added to `measured.jsonl` when a run has ended,
and a run whose line is there is not run again. `table.py` makes the table.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from datetime import date
from pathlib import Path

from confide.api import run
from confide.tasks import TASKS

HERE = Path(__file__).parent
ENTITIES, RELATIONS = ("crossner", "ncbi"), ("gad", "chemprot")
RATES = {"all": 1e-4, "top": 2e-4, "lora": 2e-3, "bias": 2e-3, "frozen": 5e-3}
"""Learning rates: the fewer numbers are trained, the larger."""
TAGGER = "tagger"
"""The BiLSTM-CRF that reads the states of the same encoder, frozen."""


def overrides(args: argparse.Namespace, data: str, way: str, method: str) -> list[str]:
    """What a run's settings are besides its file."""
    own = [
        f"method={method}", f"seed={args.seed}", f"split.seed={args.seed}", f"rounds={args.rounds}",
        f"select.every={args.rounds}", "select.by=last", "training.local_epochs=1",
        f"data.train_share={args.share}",
    ]  # fmt: skip
    if way == TAGGER:
        return [
            *own, "model.kind=tagger", "model.context=minilm", "training.optimiser=adam",
            "training.learning_rate=0.004", "training.batch_size=8",
        ]  # fmt: skip
    return [
        *own, f"encoder.tune={way}", "encoder.layers=2", "encoder.rank=8", "encoder.alpha=16",
        f"training.learning_rate={RATES[way]}", "training.batch_size=8", "training.optimiser=adamw",
        "training.decay=1.0",
    ]  # fmt: skip


def measured(args: argparse.Namespace, data: str, way: str, method: str) -> dict[str, object]:
    """One run's numbers."""
    out = args.work / f"{data}-{way}-{method}-{args.seed}"
    started = time.perf_counter()
    found = run(HERE / f"{data}.toml", overrides=overrides(args, data, way, method), out=out)
    seconds = time.perf_counter() - started
    task = TASKS[found.result.task]
    ledger = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    rounds = [one for one in ledger if one.get("step") == "train"]
    up = sum(one["bytes"] for one in rounds if one.get("direction") == "up")
    down = sum(one["bytes"] for one in rounds if one.get("direction") == "down")
    sites = len({one["site"] for one in rounds})
    return {
        "data": data, "tune": way, "method": method, "seed": args.seed, "rounds": args.rounds,
        "share": args.share, "f1": task.value(found.result.scores.overall, task.kinds[0]),
        "up_mb_a_site": up / 1e6 / sites, "down_mb_a_site": down / 1e6 / sites,
        "seconds": seconds, "machine": platform.machine(),
        "date": date.today().isoformat(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=[*ENTITIES, *RELATIONS])
    parser.add_argument("--tune", nargs="+", default=[*RATES, TAGGER])
    parser.add_argument("--method", nargs="+", default=["fedavg", "pooled"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.1, help="of the training text")
    parser.add_argument("--work", type=Path, default=Path("build/tuning"))
    args = parser.parse_args()
    file = HERE / "measured.jsonl"
    there = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for method in args.method:
        for data in args.data:
            for way in args.tune:
                key = {"data": data, "tune": way, "method": method, "seed": args.seed}
                key |= {"rounds": args.rounds, "share": args.share}
                if (way == TAGGER and data in RELATIONS) or any(
                    key.items() <= one.items() for one in there
                ):
                    continue
                line = json.dumps(measured(args, data, way, method))
                with open(file, "a", encoding="utf-8") as out:
                    out.write(line + "\n")
                print(line, flush=True)


if __name__ == "__main__":
    main()
