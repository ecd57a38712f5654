"""Whole runs beside the same training in Flower's simulation, each on all cores.

Seconds are those of the whole program, from its start to its scores on test text; processor time is
that of all its processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
MARK = "WHOLE_RUN"


def ours(recipe: str, rounds: int, *, seed: int) -> dict[str, object]:
    """`confide run`, with a process for each core."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"rounds={rounds}", f"seed={seed}", "key=simulated"]
        own.append(f"workers={os.cpu_count()}")
        command = [sys.executable, "-m", "confide", "run", recipe, "--out", f"{folder}/run"]
        _, taken = timed([*command, *(word for one in own for word in ("--set", one))])
        result = json.loads(Path(folder, "run", "result.json").read_text())
    overall = result["scores"]["overall"]
    kind = "micro" if "micro" in overall else "strict"
    return taken | {"f1": round(100 * overall[kind]["f1"], 2)}


def theirs(recipe: str, rounds: int, *, seed: int, python: str) -> dict[str, object]:
    """Flower's simulation, with a client for each core at a time."""
    command = [python, str(HERE / "peer.py"), recipe, str(rounds), str(seed)]
    printed, taken = timed(command)
    return taken | {"f1": json.loads(printed.splitlines()[-1])[-1]}


def timed(command: list[str]) -> tuple[str, dict[str, object]]:
    """What it printed; its seconds on the wall, and those of all its processes."""
    mark = f"{MARK}={time.time_ns()}"
    watch = Watch(mark.encode())
    source = os.environ.get("PYTHONPATH", str(HERE.parents[3] / "src"))
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
