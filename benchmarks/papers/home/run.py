"""What each site keeps by its own development text: the federated model, tuned, or one of its own.

    python benchmarks/papers/home/run.py --out runs/home [--cells NAME...] [--seeds N...]
    python benchmarks/papers/home/run.py --table

Finished cells are lines of measured.jsonl and are not run again; runs that stand in --out are only
read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from confide.jobs.personalise import personalise
from confide.runs.folder import RunFolder

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished, measure, read_lines

HERE = Path(__file__).parent
CELLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fedner, medical": ("fedner-medical", ()),
    "fedner, four": (str(HERE / "four.toml"), ()),
    "fedavg, CrossNER": ("crossner-domains", ()),
}
"""The settings of each cell, a recipe or a file, and what is changed."""
MODELS = "federated", "tuned", "alone"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/home"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    cells = ({"cell": cell, "seed": seed} for seed in given.seeds for cell in given.cells)
    measure(cells, given.keep, lambda own: measured(**own, out=given.out))


def measured(cell: str, seed: int, out: Path) -> dict[str, Any]:
    """One run, and what each of its sites came to keep: F1 in percent, seconds of the run."""
    settings, own = CELLS[cell]
    folder = out / cell.replace(", ", "-") / str(seed)
    began, there = time.process_time(), RunFolder(folder).is_taken()
    finished(settings, (*own, f"seed={seed}"), folder)
    ran = time.process_time() - began
    sites = personalise(folder, passes=20)
    return {
        "sites": {
            name: {
                "kept": found.kept,
                **{
                    which: [percent(one.dev), percent(one.test), one.passes, round(one.seconds)]
                    for which, one in found.candidates.items()
                },
            }
            for name, found in sites.items()
        },
        "cpu": None if there else round(ran),
    }


def percent(score: float | None) -> float | None:
    return None if score is None else 100 * score


def table(lines: list[dict[str, Any]]) -> None:
    """Test F1 of each model and of the one that is kept, by site: means over the seeds."""
    print("| run | site | seeds | federated | tuned | alone | kept | kept − alone | what is kept |")
    print("|---|---|---|---|---|---|---|---|---|")
    for cell in CELLS:
        rows = [one["sites"] for one in lines if one["cell"] == cell]
        if not rows:
            continue
        scores: dict[str, list[list[float]]] = {}
        for site in rows[0]:
            runs = [row[site] for row in rows]
            scores[site] = [
                [one[model][1] for model in MODELS] + [one[one["kept"]][1]] for one in runs
            ]
            shown(cell, site, scores[site], ", ".join(one["kept"] for one in runs))
        means = [
            [statistics.mean(column) for column in zip(*of_seed, strict=True)]
            for of_seed in zip(*scores.values(), strict=True)
        ]
        shown(cell, "*mean*", means, "")


def shown(cell: str, site: str, of_seeds: list[list[float]], kept: str) -> None:
    columns = [spread(list(column)) for column in zip(*of_seeds, strict=True)]
    columns[3] = f"**{columns[3]}**"
    gain = spread([one[3] - one[2] for one in of_seeds], sign="+")
    print(f"| {cell} | {site} | {len(of_seeds)} | {' | '.join(columns)} | {gain} | {kept} |")


def spread(numbers: list[float], sign: str = "") -> str:
    around = f" ± {statistics.stdev(numbers):.1f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):{sign}.1f}{around}"


if __name__ == "__main__":
    main()
