"""How far honest sites' updates are from each other: norms in medians of their round.

    python benchmarks/security/attacks/honest.py --out runs/attacks [--only NAME]... [--seed N]

`federation.max_norm_ratio` must be above the largest of these, or honest sites are refused. Nothing
is refused here; every step's norms are noted as the server sees them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import confide.runs.run
from confide.federation.combining import Combining

sys.path.append(str(Path(__file__).parents[2]))

from resumable import machine

CASES: dict[str, tuple[str, ...]] = {
    "ncbi, 10 equal sites, fedavg": ("ncbi-iid10", "rounds=2"),
    "ncbi, 5 sites of skewed sizes, fedavg": (
        "ncbi-iid10", "rounds=2", "split.sites=5", "split.by=quantity", "split.alpha=0.5",
    ),
    "ncbi, 5 sites of skewed sizes, rows of one's own, weighted": (
        "ncbi-iid10", "rounds=2", "split.sites=5", "split.by=quantity", "split.alpha=0.5",
        "options.rows=all", "options.weighting=sentences",
    ),
    "crossner, 5 domains, fedavg": ("crossner-domains", "rounds=2"),
    "ncbi, 5 sites, fedner, batches of 2": (
        "ncbi-iid10", "method=fedner", "options={}", "split.sites=5", "rounds=150",
        "training.batch_size=10", "training.learning_rate=0.001",
    ),
    "ncbi, 5 sites, fedner, batches of 13": (
        "ncbi-iid10", "method=fedner", "options={}", "split.sites=5", "rounds=100",
        "training.batch_size=64", "training.learning_rate=0.001",
    ),
    "four medical corpora, fedner without an encoder": (
        "fedner-medical", "model.context=none", "rounds=40", "training.batch_size=32",
    ),
    "crossner, 5 tag sets, pseudo-complete-tagger": (
        "tags-crossner", "model.kind=tagger", "rounds=3", "options.warmup_rounds=1",
    ),
    "pgr, 10 sites, lazy-mil": (
        "lazymil-pgr", "rounds=2", "federation.fraction=1",
        "options.warmup_rounds=0", "options.factor=1.0",
    ),
    "pgr, 10 sites, fedavg of bags": (
        "lazymil-pgr", "method=fedavg", "rounds=2", "federation.fraction=1",
    ),
    "eu-adr, 5 sites, fedavg of relations": (
        "feded-euadr", "method=fedavg", "split.sites=5", "federation.fraction=1", "rounds=2",
    ),
    "eu-adr, 5 sites, feded": (
        "feded-euadr", "split.sites=5", "federation.fraction=1", "rounds=1",
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name, (recipe, *overrides) in CASES.items():
        if not given.only or any(part in name for part in given.only):
            line = measured(name, recipe, [*overrides, f"seed={given.seed}"])
            with open(given.out / "honest.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


def measured(name: str, recipe: str, overrides: list[str]) -> dict[str, Any]:
    ratios: list[float] = []

    def too_far(self: Combining, norms: Mapping[str, float]) -> dict[str, str]:
        said = [norm for norm in norms.values() if norm > 0]
        if len(said) >= 3:
            ratios.extend(np.array(said) / np.median(said))
        return {}

    Combining.too_far = too_far  # type: ignore[method-assign]
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        last = ["select.by=last", "select.every=1000"]
        confide.runs.run.run(recipe, overrides=[*overrides, *last], out=Path(folder) / "run")
    found = np.array(ratios)
    return {
        "case": name,
        "recipe": recipe,
        "overrides": overrides,
        "updates": len(found),
        "largest": round(float(found.max()), 3),
        "quantile_99": round(float(np.quantile(found, 0.99)), 3),
        "smallest": round(float(found.min()), 3),
        "above": {str(most): int((found > most).sum()) for most in (2, 3, 4, 5, 6, 8)},
        "finite": bool(math.isfinite(found.sum())),
        "seconds": round(time.time() - start, 1),
    } | machine()


if __name__ == "__main__":
    main()
