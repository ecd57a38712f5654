"""Every benchmark of speed at two commits, in turns on the same machine.

    python benchmarks/speed/beside/run.py 5a6484b --turns 3 [--only tagger] [--json measured.json]

The other commit is checked out beside this one, with its own benchmarks. In a turn both commits run
the same command at the same time, one on each core, then once more with the cores exchanged; the
ratio of a turn is the geometric mean of the two, so neither a slow core nor a slow minute favours a
side. Where a benchmark times a peer in its own turns, what is compared is how much faster than the
peer ours is: the peer is the same code at both commits. Shown is how many times as long this commit
takes as the other: the median over turns, and the least and largest turn.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def reads(*path: str, rate: bool = False) -> tuple[tuple[str, ...], bool]:
    """Where a benchmark's JSON has a time of ours, and whether more of it is better instead."""
    return path, rate


CRF = ("32 x 40 x 11", "32 x 40 x 11, ragged", "10 x 25 x 9, ragged", "32 x 40 x 73")
BENCHMARKS: dict[str, tuple[list[str], list[tuple[tuple[str, ...], bool]]]] = {
    "tagger": (
        ["tagger/run.py", "--sentences", "300", "--repeats", "3"],
        [reads("measured", f"{what}: plain", "ours_is_faster_by", rate=True)
         for what in ("train", "label")],
    ),
    "crf": (
        ["crf/run.py", "--repeats", "60"],
        [reads("measured", size, what, rate=True)
         for size in CRF for what in ("loss_ratio", "decode_ratio")],
    ),
    "bags": (
        ["bags/speed.py", "--sentences", "800", "--repeats", "3"],
        [*(reads("measured", words, "ours faster by", rate=True) for words in ("20000", "400000")),
         *(reads("measured", words, what) for words in ("20000", "400000")
           for what in ("sentences s", "bid s"))],
    ),
    "relations/training": (
        ["relations/training.py", "--repeats", "2", "--examples", "60", "--long", "16"],
        [reads("training", "measured", f"ours is faster by, {what}", rate=True)
         for what in ("128 pieces", "GAD's lengths")],
    ),
    "relations/scoring": (
        ["relations/scoring.py", "--repeats", "3", "--examples", "200"],
        [reads("scoring", "measured", "ours, faster than plain by", rate=True)],
    ),
    "relations/startup": (
        ["relations/startup.py", "--repeats", "3"],
        [reads("startup", "measured", f"{what}: processor time, median")
         for what in ("classifier", "confide run")],
    ),
    "tokens": (
        ["tokens/run.py", "--sentences", "60", "--repeats", "3"],
        [reads("measured", what) for what in (
            "gradients, classifier: one pass, s", "gradients, CRF: one pass, s",
            "loss, 11 tags: by token, s", "loss, 11 tags: of the sentence, s",
            "loss, 37 tags: by token, s", "loss, 37 tags: of the sentence, s",
            "classifier: annotated, s", "CRF: annotated, s", "CRF: prepared, s",
        )],
    ),
    "federation": (
        ["federation/overhead.py", "--share", "0.15", "--repeat", "2"],
        [reads("overhead", "medians", what) for what in ("whole_cpu_run", "training_cpu_run")],
    ),
}  # fmt: skip


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder with the files of another commit."""
    with tempfile.TemporaryDirectory(prefix="beside") as made:
        tree = Path(made) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), revision], check=True, text=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def begun(tree: Path, command: list[str], core: int, found: Path) -> subprocess.Popen[bytes]:
    """A benchmark of one tree, on one core, writing to `found`."""
    found.unlink(missing_ok=True)
    places = (tree / "benchmarks" / "speed", tree / "benchmarks")  # now; before there were rooms
    return subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, *command, "--json", str(found)],
        cwd=next(place for place in places if (place / command[0]).is_file()),
        env=os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )


def value(found: Path, path: tuple[str, ...]) -> float:
    """One number of what a benchmark wrote."""
    read: Any = json.loads(found.read_text(encoding="utf-8"))
    for key in path:
        read = read[key]
    return float(read)


def turn(trees: dict[str, Path], name: str, folder: Path) -> dict[str, float]:
    """By number, how many times as long this commit takes as the other."""
    command, numbers = BENCHMARKS[name]
    logs: dict[str, list[float]] = {}
    for order in ((0, 1), (1, 0)):
        files = {side: folder / f"{side}.json" for side in trees}
        running = [
            begun(tree, command, core, files[side])
            for core, (side, tree) in zip(order, trees.items(), strict=True)
        ]
        if any(process.wait() for process in running):
            raise SystemExit(f"{name}: a benchmark failed; run it by itself to see why")
        for path, rate in numbers:
            here, other = (value(files[side], path) for side in ("here", "other"))
            log = math.log(other / here if rate else here / other)
            logs.setdefault(", ".join(path), []).append(log)
    return {number: math.exp(statistics.fmean(pair)) for number, pair in logs.items()}


def main() -> None:
    """Compare, and print a line for each number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--json", type=Path, help="write what was measured, beside what is there")
    given = parser.parse_args()
    with checked_out(given.revision) as other, tempfile.TemporaryDirectory() as made:
        trees = {"here": ROOT, "other": other}
        for name in given.only:
            turns = [turn(trees, name, Path(made)) for _ in range(given.turns)]
            rows = {number: sorted(one[number] for one in turns) for number in turns[0]}
            for number, row in rows.items():
                middle = statistics.median(row)
                print(f"{name}: {number}: {middle:.3f} ({row[0]:.3f} to {row[-1]:.3f})")
            sys.stdout.flush()
            if given.json:
                held = json.loads(given.json.read_text()) if given.json.exists() else {}
                held[name] = {"with": given.revision, "turns": given.turns, "ratios": rows}
                given.json.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
