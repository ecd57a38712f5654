"""Run fuzzers over seeds, and print what came of it; the exit code is 1 where something was found.

    python benchmarks/security/fuzz/run.py readers --count 100000 --seed 1
    python benchmarks/security/fuzz/run.py all --seed 1 --to 100 --seconds 600 --record fuzz.jsonl
    python benchmarks/security/fuzz/run.py all --nights 30 --count 5000 --record nights.jsonl

Every seed is a batch of `--count` inputs, and all fuzzers take their turns. Where `--seconds` of a
fuzzer's processor time are over, it begins no other batch. Each batch is a line of `--record`; the
same command goes on after the last of them, and begins no batch twice.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tally import Tally

FUZZERS = ("messages", "replies", "readers", "settings")
Batch = dict[str, Any]
"""What one seed of one fuzzer came to."""


def main(arguments: list[str] | None = None) -> int:
    """Attack, and say how many inputs were refused and accepted, and what failed."""
    given = _asked(arguments)
    seeds: Sequence[int] = range(given.seed, (given.to or given.seed) + 1)
    if given.nights:
        first = datetime.date.today()
        days = (first + datetime.timedelta(days=n) for n in range(given.nights))
        seeds = [int(f"{day:%Y%m%d}") for day in days]
    done = _recorded(given.record)
    found = []
    for fuzzer in FUZZERS if given.fuzzer == "all" else (given.fuzzer,):
        found += _attacked(fuzzer, seeds, given, done)
    _show(found)
    return 1 if any(one["failures"] for one in found) else 0


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fuzzer", choices=(*FUZZERS, "all"))
    parser.add_argument("--count", type=int, default=1000, help="how many inputs of each seed")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same inputs")
    parser.add_argument("--to", type=int, help="the last seed; only --seed by default")
    parser.add_argument("--nights", type=int, help="instead: as many dates from today on")
    parser.add_argument("--seconds", type=float, help="processor time of each fuzzer, about")
    parser.add_argument("--record", type=Path, help="a file of lines, one for each batch")
    parser.add_argument("--format", action="append", help="readers: only this one; repeat for more")
    return parser.parse_args(arguments)


def _recorded(path: Path | None) -> list[Batch]:
    found = []
    for line in path.read_text().splitlines() if path and path.exists() else ():
        with suppress(ValueError):  # torn, when it was stopped
            found.append(json.loads(line))
    return found


def _attacked(
    fuzzer: str, seeds: Sequence[int], given: argparse.Namespace, done: Sequence[Batch]
) -> list[Batch]:
    """Every seed's batch: those done before, and as many more as there is time for."""
    more = (given.format,) if given.format else ()
    found, begun = [], time.process_time()
    for seed in seeds:
        mark = {"fuzzer": fuzzer, "seed": seed, "count": given.count, "format": given.format}
        before = next((one for one in done if mark.items() <= one.items()), None)
        if before is not None:
            found.append(before)
            continue
        start = time.process_time()
        if given.seconds is not None and start - begun > given.seconds:
            break
        tally: Tally = importlib.import_module(fuzzer).attack(given.count, seed, *more)
        batch = mark | asdict(tally) | {"seconds": time.process_time() - start}
        found.append(batch)
        if given.record is not None:
            with given.record.open("a") as file:
                file.write("\n" + json.dumps(batch))
    return found


def _show(found: Sequence[Batch]) -> None:
    print("| fuzzer    |     seeds | inputs | refused | accepted | slowest | all | failures |")
    print("|---|---|---|---|---|---|---|---|")
    for fuzzer in dict.fromkeys(one["fuzzer"] for one in found):
        of = [one for one in found if one["fuzzer"] == fuzzer]
        inputs, refused, accepted = (
            sum(one[name] for one in of) for name in ("inputs", "refused", "accepted")
        )
        first, last = of[0]["seed"], of[-1]["seed"]
        print(
            f"| {fuzzer:9} | {first if first == last else f'{first}-{last}':>9} | {inputs:,}"
            f" | {refused:,} | {accepted:,} | {max(one['slowest_seconds'] for one in of):.2f} s"
            f" | {sum(one['seconds'] for one in of):.0f} s"
            f" | {sum(len(one['failures']) for one in of)} |"
        )
    for one in found:
        for failure in one["failures"]:
            print(f"{one['fuzzer']}, seed {one['seed']}: {failure}")


if __name__ == "__main__":
    sys.exit(main())
