"""Whole runs beside the same training in Flower's simulation, in turn, each on all cores.

    python benchmarks/speed/flower/run.py --peer /tmp/flower/bin/python \
        [--recipes ncbi-iid10 feded-gad] [--rounds 40 3] [--turns 2]
    python benchmarks/speed/flower/run.py --table

Seconds are those of the whole program, from its start to its scores on test text; processor time is
that of all its processes. Every pair is a line of measured.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
ROUNDS = {"ncbi-iid10": 40, "feded-gad": 10}
MARK = "WHOLE_RUN"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="the Python of an environment with flwr")
    parser.add_argument("--recipes", nargs="+", choices=ROUNDS, default=list(ROUNDS))
    parser.add_argument("--rounds", nargs="+", type=int, help="of each recipe; default: all")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table([json.loads(one) for one in given.keep.read_text().splitlines()])
        return
    rounds = given.rounds or [ROUNDS[one] for one in given.recipes]
    for recipe, count in zip(given.recipes, rounds, strict=True):
        for turn in range(given.turns):
            sides = {"confide": ours, "flower": theirs}
            order = list(sides)[:: 1 if turn % 2 else -1]
            found = {name: sides[name](given, recipe, count) for name in order}
            line = {
                "recipe": recipe, "rounds": count, "seed": given.seed, "turn": turn + 1, **found,
                "machine": f"{os.cpu_count()} x {platform.machine()}", "date": str(date.today()),
            }  # fmt: skip
            print(json.dumps(line), flush=True)
            with open(given.keep, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def ours(given: argparse.Namespace, recipe: str, rounds: int) -> dict[str, object]:
    """`confide run`, with a process for each core."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"rounds={rounds}", f"seed={given.seed}", "key=simulated"]
        own.append(f"workers={os.cpu_count()}")
        command = [sys.executable, "-m", "confide", "run", recipe, "--out", f"{folder}/run"]
        _, taken = timed([*command, *(word for one in own for word in ("--set", one))])
        result = json.loads(Path(folder, "run", "result.json").read_text())
    overall = result["scores"]["overall"]
    kind = "micro" if "micro" in overall else "strict"
    return taken | {"f1": round(100 * overall[kind]["f1"], 2)}


def theirs(given: argparse.Namespace, recipe: str, rounds: int) -> dict[str, object]:
    """Flower's simulation, with a client for each core at a time."""
    command = [given.peer, str(HERE / "peer.py"), recipe, str(rounds), str(given.seed)]
    printed, taken = timed(command)
    return taken | {"f1": json.loads(printed.splitlines()[-1])[-1]}


def timed(command: list[str]) -> tuple[str, dict[str, object]]:
    """What it printed; its seconds on the wall, and those of all its processes."""
    mark = f"{MARK}={time.time_ns()}"
    watch = Watch(mark.encode())
    source = os.environ.get("PYTHONPATH", str(HERE.parents[2] / "src"))
    environment = os.environ | {"PYTHONPATH": source, MARK: mark.partition("=")[2]}
    environment.pop("OMP_NUM_THREADS", None)
    watch.start()
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - started
    watch.stop()
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout, {
        "seconds": round(seconds, 1),
        "processor_seconds": round(sum(watch.used.values()), 1),
    }


class Watch(threading.Thread):
    """Adds up the processor time of all processes with this mark in their environment."""

    def __init__(self, mark: bytes) -> None:
        super().__init__(daemon=True)
        self.mark, self.used, self._over = mark, dict[int, float](), threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.25):
            self.look()

    def look(self) -> None:
        tick = os.sysconf("SC_CLK_TCK")
        for place in Path("/proc").glob("[0-9]*"):
            number = int(place.name)
            try:
                if number not in self.used and self.mark not in (place / "environ").read_bytes():
                    continue
                words = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            self.used[number] = (int(words[11]) + int(words[12])) / tick

    def stop(self) -> None:
        self._over.set()
        self.join()


def table(lines: list[dict]) -> None:
    """Medians over turns, and of the ratios of each turn."""
    print("| recipe, rounds | turns | | seconds | processor seconds | F1 on test text |")
    print("|---|---|---|---|---|---|")
    for recipe, rounds in dict.fromkeys((one["recipe"], one["rounds"]) for one in lines):
        own = [one for one in lines if (one["recipe"], one["rounds"]) == (recipe, rounds)]
        for side in ("confide", "flower"):
            values = [
                statistics.median(one[side][what] for one in own)
                for what in ("seconds", "processor_seconds", "f1")
            ]
            first = f"{recipe}, {rounds}" if side == "confide" else ""
            shown = " | ".join(f"{value:,.1f}" for value in values)
            print(f"| {first} | {len(own)} | {side} | {shown} |")
        ratios = [
            statistics.median(one["flower"][what] / one["confide"][what] for one in own)
            for what in ("seconds", "processor_seconds")
        ]
        print(f"| | | ratio | **{ratios[0]:.1f} ×** | {ratios[1]:.1f} × | |")


if __name__ == "__main__":
    main()
