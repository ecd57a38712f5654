"""Distillation of entities, beside weights and the public set alone: F1 and bytes.

    python benchmarks/papers/feded/entities.py --out runs/entities [--cells NAME...] [--seeds 1 2 3]
                                        [--set KEY=VALUE...] [--keep FILE]
    python benchmarks/papers/feded/entities.py --table

Ten sites; a fifth of the training text is the public set, which FedAvg ignores. The tagger reads
the states of a frozen MiniLM. Every finished run is a line of entities.jsonl and is not run again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from table import head, row, sent

from confide.runs.run import run

sys.path.append(str(Path(__file__).parents[2]))

from resumable import measure, read_lines

HERE = Path(__file__).parent
DISTIL = ("method=feded", "options.temperature=1", "options.distil_epochs=2")
METHODS: dict[str, tuple[str, ...]] = {
    "FedED, labels": DISTIL,
    "FedED, no labels": (*DISTIL, "public.labelled=false"),
    "FedAvg": ("method=fedavg",),
    "public set alone": ("method=public-only",),
    "pooled": ("method=pooled",),
}
CORPORA = {"ncbi": "NCBI-disease", "bc5cdr": "BC5CDR"}
CELLS = [f"{corpus}, {method}" for corpus in CORPORA.values() for method in METHODS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/entities"))
    parser.add_argument("--keep", type=Path, default=HERE / "entities.jsonl")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    cells = (
        {"cell": cell, "seed": seed, "set": given.set}
        for seed in given.seeds
        for cell in given.cells
    )
    measure(
        cells,
        given.keep,
        lambda own: measured(own["cell"], own["seed"], out=given.out, own=given.set),
    )


def measured(cell: str, seed: int, *, out: Path, own: list[str]) -> dict[str, Any]:
    """One run; F1 in percent at the round that was best on development text."""
    corpus, _, method = cell.partition(", ")
    file = next(short for short, name in CORPORA.items() if name == corpus)
    chosen = [*METHODS[method], f"seed={seed}", "key=simulated", *own]
    folder = out / f"{file}-{method}-{seed}-{time.time_ns()}".replace(", ", "-").replace(" ", "-")
    started = time.process_time()
    found = run(HERE / f"{file}.toml", overrides=chosen, out=folder).result
    return {
        "f1": round(100 * found.scores.overall["strict"]["f1"], 2),
        "dev": {one.round: round(100 * one.dev["strict"], 2) for one in found.history if one.dev},
        "up": round(sent(folder / "result.json", "up")),
        "down": round(sent(folder / "result.json", "down")),
        "rounds": found.rounds,
        "processor_seconds": round(time.process_time() - started, 1),
    }


def table(lines: list[dict]) -> None:
    """Means over seeds."""
    head("", "seeds", "F1 on test text", "best on development text", "kB up", "seconds")
    places = dict.fromkeys((one["cell"], tuple(one["set"])) for one in lines)
    for cell, own in places:
        found = [one for one in lines if (one["cell"], tuple(one["set"])) == (cell, own)]
        best = [max(one["dev"].values()) for one in found]
        alone = cell.endswith(("alone", "pooled"))  # nothing travels
        row(
            " ".join([cell, *own]),
            len(found),
            spread([one["f1"] for one in found]),
            spread(best),
            "" if alone else f"{statistics.mean(one['up'] for one in found) / 1000:,.0f}",
            f"{statistics.median(one['processor_seconds'] for one in found):.0f}",
        )


def spread(values: list[float]) -> str:
    more = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{more}"


if __name__ == "__main__":
    main()
