"""How large the uploads of honest training are: the norm of each, as a guard `max_norm` sees it.

Runs a recipe, or a settings file, for a few rounds in this process, and notes every norm.

    python benchmarks/defaults/norms/norms.py ncbi-iid10 rounds=2 --json FILE
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from confide import api
from confide.federation import guards


def listen() -> list[float]:
    """Let the guard `max_norm` note each norm before it bounds; the list that they are noted in."""
    bounded, near, found = guards.bounded, guards.near, []

    def noting(change, most, *, times=1.0):
        found.append(guards.norm_of(change.values()) / times)
        return bounded(change, most, times=times)

    def noting_near(weights, before, most, *, times=1.0):
        found.append(guards.norm_of(guards._apart(weights, before)) / times)
        return near(weights, before, most, times=times)

    guards.bounded, guards.near = noting, noting_near
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", help="a recipe or a settings file")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--json", type=Path, help="add what was measured to this file")
    given = parser.parse_args()
    found, start = listen(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        overrides = ["guards.max_norm=1e15", "workers=1", *given.overrides]
        api.run(given.settings, overrides=overrides, out=Path(folder) / "run")
    measured = {
        "settings": given.settings,
        "overrides": given.overrides,
        "uploads": len(found),
        "largest": round(max(found), 2),
        "median": round(float(np.median(found)), 2),
        "seconds": round(time.perf_counter() - start),
    }
    print(json.dumps(measured))
    if given.json:
        before = json.loads(given.json.read_text()) if given.json.exists() else []
        given.json.write_text(json.dumps([*before, measured], indent=1) + "\n")


if __name__ == "__main__":
    main()
