"""How much faster two worker processes are than one process, one thread each; the same numbers.

`api.run` with `workers = 1` and `workers = 2` (or more), in turn, several times. Timed are
the whole run (files are read, workers are spawned and import torch, sites report their errors), and
its rounds (training, scoring of development text, checkpoints). On a machine that others use, only
the seconds on a core mean something: workers must not need more of them than one process does.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import keep, medians, settings_for, text_files

from confide.federation.keys import new_key
from confide.federation.memory import CheckpointStore
from confide.runs.run import run
from confide.settings import Settings


def measure(settings: Settings, workers: int, out: Path) -> tuple[dict[str, float], Any]:
    """Seconds of one run, and all that must not depend on how many workers there are."""
    started, used = time.perf_counter(), _cpu()
    result = run(settings.model_copy(update={"workers": workers}), out=out).result
    seconds = time.perf_counter() - started
    rounds = sum(one.seconds for one in result.history)
    times = {"whole": seconds, "rounds": rounds, "cpu": _cpu() - used}
    state = CheckpointStore(out / "checkpoints").load(settings.rounds).state.tobytes()
    losses = [one.loss for one in result.history]
    return times, (state, losses, result.scores, result.dev, result.bytes)


def _cpu() -> float:
    """Seconds on a core, of this process and of workers that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of the corpus")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--synthetic", action="store_true", help="made-up notes, no $CONFIDE_DATA")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = text_files(folder / "text", share=args.share, synthetic=args.synthetic)
        settings = settings_for(
            files, sites=args.sites, rounds=args.rounds, key=f'"{new_key(folder / "shared.key")}"'
        )
        first = settings.model_copy(update={"rounds": 1})
        measure(first, 1, folder / "warm")
        for turn in range(args.repeat):
            alone, one = measure(settings, 1, folder / f"one-{turn}")
            several, same = measure(settings, args.workers, folder / f"several-{turn}")
            assert one == same, "the numbers depend on the workers"
            row = {}
            for part in ("whole", "rounds"):
                row[f"{part}_sequential"] = alone[part]
                row[f"{part}_workers"] = several[part]
                row[f"{part}_speedup"] = alone[part] / several[part]
            row["cpu_sequential"], row["cpu_workers"] = alone["cpu"], several["cpu"]
            rows.append(row)
            print("  ".join(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
    middle = medians(rows)
    print(f"\nmedians of {args.repeat}, {args.sites} sites, {args.rounds} rounds; equal numbers")
    print(f"{args.workers} workers on {os.cpu_count()} cores")
    for part in ("whole", "rounds"):
        print(
            f"{part:7} sequential {middle[part + '_sequential']:7.2f} s"
            f"  workers {middle[part + '_workers']:7.2f} s"
            f"  {middle[part + '_speedup']:.2f} x faster"
        )
    one, two = middle["cpu_sequential"], middle["cpu_workers"]
    print(f"on a core: sequential {one:7.2f} s  workers {two:7.2f} s")
    options = {name: value for name, value in vars(args).items() if name != "json"}
    keep(args.json, {"benchmark": "workers", **options, "medians": middle, "rows": rows})


if __name__ == "__main__":
    main()
