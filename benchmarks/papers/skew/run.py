"""Methods for sites that differ: what each gains over FedAvg, each site alone and all text pooled.

    python benchmarks/papers/skew/run.py --out runs/skew [--data NAME...] [--methods NAME...]
    python benchmarks/papers/skew/run.py --table

Finished cells are lines of measured.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from confide.tasks import TASKS

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished, measure, read_lines

HERE = Path(__file__).parent
DATA: dict[str, tuple[str, tuple[str, ...]]] = {
    "CrossNER, five domains": ("crossner-domains", ("rounds=20", "select.every=2")),
    "ChemProt, Dirichlet 0.1": (
        str(HERE / "chemprot.toml"),
        ("rounds=8", "select.every=4"),
    ),
    "CrossNER, an encoder": (
        "crossner-domains",
        (
            "rounds=6", "select.every=2", "model.kind=encoder", "training.learning_rate=1e-4",
            "training.optimiser=adamw", "options.rows=all",
        ),
    ),
}  # fmt: skip
"""The settings of each corpus: a recipe or a file, and what is changed."""
WHOLE = ("scaffold", "feddyn")
"""Methods whose corrections need every row of a table in every round."""
EVERY = {"dev": 10, "test": 4}
"""Every n-th line of ChemProt's held-out text is scored: the rest would cost more than training."""
METHODS = ("alone", "fedavg", "fedprox", "scaffold", "ditto", "feddyn", "fedbn", "pooled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/skew"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=DATA)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--set", nargs="+", default=[], help="settings of the method to try")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    cells = (
        {"data": data, "method": method, "seed": seed, "set": given.set}
        for seed in given.seeds
        for data in given.data
        for method in given.methods
    )
    measure(cells, given.keep, lambda own: measured(own["data"], own["method"], own["seed"], given))


def measured(data: str, method: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """One run: F1 over all sites and at each, on test and development text, bytes and seconds."""
    settings, own = DATA[data]
    if data.startswith("ChemProt"):
        own = (*own, *(f"split.{part}={fewer(part, n, given.out)}" for part, n in EVERY.items()))
    if method in WHOLE:  # the recipe's `options.rows` is FedAvg's
        own = (*own, "options={}")
    label = "-".join([method, str(seed), *given.set]).replace("/", "_")
    folder = given.out / data.replace(" ", "-") / label
    if method in ("alone", "pooled"):
        own = tuple(one for one in own if not one.startswith("rounds"))
    overrides = (*own, f"method={method}", f"seed={seed}", *given.set)
    began = time.process_time()
    result = finished(settings, overrides, folder)
    task = TASKS[result.task]
    score = lambda scores: 100 * (task.value(scores, task.kinds[0]) or 0.0)  # noqa: E731
    return {
        "rounds": result.rounds,
        "f1": score(result.scores.overall),
        "sites": {site: score(own) for site, own in result.scores.sites.items()},
        "dev": score(result.dev) if result.dev else None,
        "up": statistics.mean(result.bytes.up.values()) / 1e6 if result.bytes else 0.0,
        "cpu": round(time.process_time() - began),
    }  # fmt: skip


def fewer(part: str, n: int, out: Path) -> Path:
    """A file with every n-th line of a part of ChemProt."""
    source = Path(os.environ["CONFIDE_DATA"]) / "chemprot_re" / f"{part}.txt"
    target = (out / f"chemprot-{part}.txt").resolve()
    if not target.exists():
        out.mkdir(parents=True, exist_ok=True)
        target.write_text(
            "".join(source.read_text("utf-8").splitlines(keepends=True)[::n]), "utf-8"
        )
    return target


def table(lines: list[dict[str, Any]]) -> None:
    """One row a corpus, method and what was set: mean over the seeds, the worst site, the cost."""
    print("| corpus | method | seeds | test F1 | dev F1 | mean of sites | worst site | MB up | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for data in DATA:
        found = [one for one in lines if one["data"] == data]
        for method, chosen in sorted(
            {(one["method"], tuple(one["set"])) for one in found},
            key=lambda one: (METHODS.index(one[0]), one[1]),
        ):
            rows = [one for one in found if (one["method"], tuple(one["set"])) == (method, chosen)]
            f1 = [one["f1"] for one in rows]
            spread = f" ± {statistics.stdev(f1):.1f}" if len(f1) > 1 else ""
            mean = statistics.mean(statistics.mean(one["sites"].values()) for one in rows)
            worst = statistics.mean(min(one["sites"].values()) for one in rows)
            dev = [one["dev"] for one in rows if one["dev"] is not None]
            tuned = f"{statistics.mean(dev):.1f}" if dev else ""
            name = " ".join([method, *chosen])
            up, cpu = (statistics.mean(one[key] for one in rows) for key in ("up", "cpu"))
            print(
                f"| {data} | {name} | {len(rows)} | {statistics.mean(f1):.1f}{spread} |"
                f" {tuned} | {mean:.1f} | {worst:.1f} | {up:.3g} | {cpu:.0f} |"
            )


if __name__ == "__main__":
    main()
