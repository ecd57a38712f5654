"""The same means under confide's masks, Flower's SecAgg+ and NVIDIA FLARE's homomorphic filters.

    FLOWER_PYTHON=... FLARE_PYTHON=... python benchmarks/security/secure/beside.py [--numbers 1.3e6]
        [--sites 10 50] [--lost 0 0.2] [--only confide flower flare] [--repeat 1] [--memory]

`FLOWER_PYTHON` and `FLARE_PYTHON` are interpreters of environments of their own (`pip install
flwr`; `pip install nvflare tenseal`). Each library runs its own code for a site and for the server,
in one process of its environment, in turns: floating-point vectors go in at the sites, and their
mean comes out where the library has it. Nothing travels: seconds are those of the processor, by
side, without transport; bytes are those of the messages of one site. Every measurement is a line in
`measured.jsonl`, with the load of the machine and the ratios to confide in the same turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from run import note

HERE = Path(__file__).parent
PYTHONS = {
    "confide": sys.executable,
    "flower": os.environ.get("FLOWER_PYTHON", ""),
    "flare": os.environ.get("FLARE_PYTHON", ""),
}


def once(library: str, sites: int, numbers: int, lost: int, *, memory: bool) -> dict[str, Any]:
    """One mean in a process of the library's own environment."""
    python = PYTHONS[library]
    if not python:
        raise SystemExit(f"set {library.upper()}_PYTHON to an interpreter that has it")
    command = [python, str(HERE / f"beside_{library}.py"), str(sites), str(numbers), str(lost)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if library == "confide":
        environment = dict(os.environ)
    command += ["memory"] if memory else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every number of seconds; the rest of the last run."""
    seconds = [key for key in runs[0] if key.endswith("_s")]
    return runs[-1] | {
        key: round(statistics.median(one[key] for one in runs), 4) for key in seconds
    }


def measure(sites: int, numbers: int, lost: int, options: argparse.Namespace) -> None:
    """Every library in turns; a line for each."""
    runs: dict[str, list[dict[str, Any]]] = {library: [] for library in options.only}
    load = [round(os.getloadavg()[0], 2)]
    for _ in range(options.repeat):
        for library, done in runs.items():
            done.append(once(library, sites, numbers, lost, memory=options.memory))
    load.append(round(os.getloadavg()[0], 2))
    if len({one["seen"] for done in runs.values() for one in done}) != 1:
        raise SystemExit("the libraries did not sum the same vectors")
    found = {library: middle(done) for library, done in runs.items()}
    for library, line in found.items():
        own = {**line, "sites": sites, "numbers": numbers, "lost": lost, "repeat": options.repeat}
        if "confide" in found and library != "confide":
            own |= {
                f"{key}_ratio": round(line[key] / found["confide"][key], 1)
                for key in ("site_s", "server_s", "up_bytes")
                if line[key]
            }
        note(what="memory beside" if options.memory else "beside", **own, load=load)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--numbers", type=float, nargs="+", default=[1.3e6])
    parser.add_argument("--sites", type=int, nargs="+", default=[10])
    parser.add_argument("--lost", type=float, nargs="+", default=[0, 0.2])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(PYTHONS), default=list(PYTHONS))
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    for numbers in options.numbers:
        for sites in options.sites:
            for share in options.lost:
                measure(sites, int(numbers), round(share * sites), options)


if __name__ == "__main__":
    main()
