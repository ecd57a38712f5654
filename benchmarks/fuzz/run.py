"""Run one of the fuzzers, and print what it came to; the exit code is 1 where it found something.

python benchmarks/fuzz/run.py readers --count 100000 --seed 1
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time

FUZZERS = ("messages", "replies", "readers", "settings")


def main(arguments: list[str] | None = None) -> int:
    """Attack, and say how many inputs were refused and accepted, and what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fuzzer", choices=FUZZERS)
    parser.add_argument("--count", type=int, default=1000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same inputs")
    parser.add_argument("--format", action="append", help="readers: only this one; repeat for more")
    given = parser.parse_args(arguments)
    more = (given.format,) if given.format else ()
    start = time.process_time()
    tally = importlib.import_module(given.fuzzer).attack(given.count, given.seed, *more)
    seconds = time.process_time() - start
    print(
        f"| {'fuzzer':9} | {'seed':>4} | inputs | refused | accepted | slowest | all | failures |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {given.fuzzer:9} | {given.seed:>4} | {tally.inputs:,} | {tally.refused:,}"
        f" | {tally.accepted:,} | {tally.slowest_seconds:.2f} s | {seconds:.0f} s"
        f" | {len(tally.failures)} |"
    )
    for failure in tally.failures:
        print(failure)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
