"""How far confidences can be trusted, before and after calibrating: one run for each kind.

    python benchmarks/papers/tags/small_bart.py --out bart
    python benchmarks/defaults/calibration/run.py --out runs/calibration [--cells NAME...] \
        [--seed N]
    python benchmarks/defaults/calibration/run.py --read NAME=RUN_FOLDER...
    python benchmarks/defaults/calibration/run.py --table

Finished cells are lines of measured.jsonl and are not run again. --read adds a run that stands.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from confide.runs.folder import RunFolder
from confide.runs.result import ReliabilityScores, Result

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished, measure, read_lines

HERE = Path(__file__).parent
CELLS: dict[str, tuple[str, ...]] = {
    "tagger, NCBI-disease": ("ncbi-iid10", "rounds=20"),
    "tagger, CrossNER": ("crossner-domains", "rounds=40"),
    "tagger, FedNER's corpora": ("fedner-medical",),
    "relations, GAD": ("feded-gad", "method=fedavg", "rounds=5"),
    "relations, ChemProt": ("feded-chemprot", "method=fedavg", "rounds=5"),
    "bags, GIDS": ("lazymil-gids", "rounds=5"),
    "encoder, medical": (
        "tags-medical", "model.kind=encoder", "data.train_share=0.1", "rounds=8", "select.every=8",
        "training.optimiser=adam", "training.learning_rate=0.0002",
    ),
    "LightNER, NCBI-disease": (
        "ncbi-iid10", "options.rows=all", "model.kind=lightner", "lightner.bart={bart}",
        "lightner.hidden=50", "data.train_share=0.2", "split.sites=3", "rounds=10",
        "select.every=10", "training.batch_size=8", "training.learning_rate=0.001",
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bart", default="bart", help="the BART that LightNER starts from")
    parser.add_argument("--read", nargs="+", default=[], metavar="NAME=RUN_FOLDER")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    named = (one.partition("=") for one in given.read)
    read = {cell: RunFolder(Path(folder)).result() for cell, _, folder in named}
    cells = [{"cell": cell, "seed": one.seed} for cell, one in read.items()]
    cells = cells or [{"cell": cell, "seed": given.seed} for cell in given.cells]
    measure(
        cells, given.keep, lambda own: confidences(read.get(own["cell"]) or ran(own["cell"], given))
    )


def ran(cell: str, given: argparse.Namespace) -> Result:
    """The run of a cell."""
    recipe, *named = CELLS[cell]
    overrides = [one.format(bart=given.bart) for one in named]
    folder = given.out / f"{cell.replace(', ', '-').replace(' ', '-')}-{given.seed}"
    return finished(recipe, (f"seed={given.seed}", *overrides), folder)


def confidences(result: Result) -> dict[str, Any]:
    """What a run's result says of its confidences."""
    found = result.calibration
    assert found is not None, "it found nothing with a confidence"
    return {
        "method": result.method,
        "calibrators": {name: vars_of(one) for name, one in found.calibrators.items()},
        "finds": sum(one.found for one in found.before.bins),
        "before": errors(found.before),
        "after": errors(found.after),
    }


def vars_of(one: object) -> dict[str, float]:
    return {name: getattr(one, name) for name in ("temperature", "offset")}


def errors(found: ReliabilityScores) -> dict[str, object]:
    """The error of all finds, and the largest and the smallest of a type."""
    types = [value for value in found.types.values() if value is not None]
    return {
        "error": found.error,
        "types": dict(found.types),
        "mean of types": sum(types) / len(types) if types else None,
    }


def table(lines: list[dict]) -> None:
    """A row for each run; errors in points."""
    print("| | finds | temperature | offset | before | after | mean of types: before | after |")
    print("|---" * 8 + "|")
    for one in lines:
        numbers = one["calibrators"].get("") or next(iter(one["calibrators"].values()))
        several = "" if len(one["calibrators"]) == 1 else " (of several)"
        cells = [
            f"{one['cell']}, seed {one['seed']}", f"{one['finds']:,}",
            f"{numbers['temperature']:.2f}{several}", f"{numbers['offset']:+.2f}",
            *(points(one[part]["error"]) for part in ("before", "after")),
            *(points(one[part]["mean of types"]) for part in ("before", "after")),
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |")


def points(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


if __name__ == "__main__":
    main()
