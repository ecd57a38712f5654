"""How often sites should talk: F1 against passes over the text and bytes, by batches per round.

    python benchmarks/papers/steps/run.py --out runs/steps [--corpora NAME...] [--cells NAME...] \
        [--seeds N...]
    python benchmarks/papers/steps/run.py --table
    python benchmarks/papers/steps/run.py --plot steps.svg

A cell says how many batches of which size a site takes between two means, and how. Finished cells
are lines of measured.jsonl and are not run again; runs that stand in --out are only read.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confide.runs.folder import RunFolder
from confide.runs.result import Result

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished, measure, read_lines

HERE = Path(__file__).parent
CORPORA = {
    "ncbi-iid10": "ncbi-iid10", "bc5cdr-iid10": "bc5cdr-iid10", "wnut-iid10": "wnut-iid10",
    "crossner-domains": "crossner-domains", "encoder": str(HERE / "encoder.toml"),
}  # fmt: skip
"""The recipe or file of each."""
ADAM = (
    "training.optimiser=sgd", "training.momentum=0", "training.learning_rate=1",
    "training.decay=1", "training.local_steps=1", "options.server=adam",
    "options.server_floor=1e-8",
)  # fmt: skip
KEPT = ("training.optimiser_state=keep",)


def steps(batches: int, rounds: int, rate: float, decay: float, *more: str) -> tuple[str, ...]:
    """So many batches of a site's Adam in each of so many rounds."""
    return (
        f"training.local_steps={batches}", f"rounds={rounds}", f"training.learning_rate={rate}",
        f"training.decay={decay}", *more,
    )  # fmt: skip


def scored(every: int, average: int) -> tuple[str, ...]:
    """How often development text is scored, and over how many rounds weights are averaged."""
    return (f"select.every={every}", f"select.average={average}")


CELLS: dict[str, tuple[str, ...]] = {
    "pooled": ("method=pooled",),
    "a pass": (),  # the recipe: one pass of a site between two means
    "a pass, kept": (*KEPT, *scored(1, 3)),
    "8 of 16, fresh": steps(8, 100, 0.006, 0.99, "select.every=4"),
    "8 of 16, kept": steps(8, 85, 0.012, 0.985, *KEPT, *scored(4, 4)),
    "4 of 16, kept": steps(4, 145, 0.008, 0.987, *KEPT, *scored(6, 8)),
    "1 of 16, server, no mean": (
        *ADAM[:-1], "rounds=600", "options.server_rate=0.003", "select.every=17",
    ),
    "1 of 16, server": (*ADAM, "rounds=600", "options.server_rate=0.003", *scored(17, 50)),
    "8 of 4, kept": steps(8, 204, 0.004, 0.99, "training.batch_size=4", *KEPT, *scored(8, 10)),
    "1 of 4, server": (
        *ADAM, "training.batch_size=4", "rounds=1360", "options.server_rate=0.002",
        "options.server_decay=0.999", *scored(68, 100),
    ),
    "1 of 4, server, long": (
        *ADAM, "training.batch_size=4", "rounds=2720", "options.server_rate=0.002",
        "options.server_decay=0.9995", *scored(68, 100),
    ),
    "1 of 8, server, long": (
        *ADAM, "training.batch_size=8", "rounds=3000", "options.server_rate=0.003",
        "options.server_decay=0.9995", *scored(100, 150),
    ),
    "4 of 8, encoder": steps(4, 48, 1e-4, 1.0, *KEPT, *scored(6, 6)),
    "1 of 4, encoder": (
        *ADAM, "training.batch_size=4", "rounds=352", "options.server_rate=0.0001",
        *scored(44, 44),
    ),
}  # fmt: skip
"""The settings of each cell; "mean" is that of the last rounds (`select.average`)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/steps"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--corpora", nargs="+", default=["ncbi-iid10"], choices=CORPORA)
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--table", action="store_true", help="print what was measured")
    parser.add_argument("--plot", type=Path, help="draw what was measured, as SVG")
    given = parser.parse_args()
    lines = read_lines(given.keep)
    if given.table:
        table(lines)
    if given.plot:
        plot([one for one in lines if one["corpus"] == given.corpora[0]], given.plot)
    if given.table or given.plot:
        return
    cells = (
        {"corpus": corpus, "cell": cell, "seed": seed}
        for seed in given.seeds
        for corpus in given.corpora
        for cell in given.cells
    )
    measure(cells, given.keep, lambda own: measured(**own, out=given.out))


def measured(corpus: str, cell: str, seed: int, out: Path) -> dict[str, Any]:
    """One run, and what it came to; the seconds of a run that was made in one go."""
    folder = out / corpus / f"{cell.replace(' ', '-').replace(',', '')}-{seed}"
    began, there = time.process_time(), RunFolder(folder).is_taken()
    result = finished(CORPORA[corpus], (f"seed={seed}", *CELLS[cell]), folder)
    return {
        "rounds": result.rounds,
        "curve": curve(result),
        "test": percent(result.scores.overall["strict"]["f1"]),
        "test_sites": {
            site: percent(one["strict"]["f1"]) for site, one in result.scores.sites.items()
        },
        "cpu": None if there else round(time.process_time() - began),
    }


def curve(result: Result) -> list[dict[str, float]]:
    """Where development text was scored: round, passes, megabytes up a site, and strict F1."""
    text = sum(site.train for site in result.data.sites.values())
    sites = max(1, len(result.bytes.up) if result.bytes else 1)
    sentences = up = 0
    points = []
    for turn in result.history:
        sentences += turn.sentences
        up += turn.bytes.up if turn.bytes else 0
        if turn.dev:
            points.append(
                {
                    "round": turn.round,
                    "passes": round(sentences / text, 2),
                    "mb": round(up / sites / 1e6, 1),
                    "dev": percent(turn.dev["strict"]),
                }
            )
    return points


def percent(value: float | None) -> float:
    return round(100 * (value or 0.0), 2)


def best(one: dict) -> dict[str, float]:
    return max(one["curve"], key=lambda point: point["dev"])


def reached(one: dict, goal: float) -> dict[str, float] | None:
    """The first scoring that comes up to a goal; None if none does."""
    return next((point for point in one["curve"] if point["dev"] >= goal), None)


def table(lines: list[dict]) -> None:
    """A row for each cell: scores, and what it cost to come within a point of the pooled run."""
    for corpus in dict.fromkeys(one["corpus"] for one in lines):
        own = [one for one in lines if one["corpus"] == corpus]
        pooled = {one["seed"]: one for one in own if one["cell"] == "pooled"}
        print(f"\n### {corpus}\n")
        print(
            "| batches a round | seeds | test F1 | development F1 | rounds | passes | MB up, a site"
            " | passes to pooled - 1 | × pooled's | MB | seconds of one core |"
        )
        print("|---" * 11 + "|")
        for cell in [cell for cell in CELLS if any(one["cell"] == cell for one in own)]:
            runs = [one for one in own if one["cell"] == cell]
            goals = {one["seed"]: best(pooled[one["seed"]])["dev"] - 1 for one in runs
                     if one["seed"] in pooled}  # fmt: skip
            there = {seed: reached(one, goals[seed]) for one in runs
                     if (seed := one["seed"]) in goals}  # fmt: skip
            first = [point for point in there.values() if point]
            times = [
                point["passes"] / reached(pooled[seed], goals[seed])["passes"]  # type: ignore[index]
                for seed, point in there.items()
                if point
            ]
            missed = f" ({len(there) - len(first)} never)" if len(first) < len(there) else ""
            cells = [
                cell, str(len(runs)), spread(one["test"] for one in runs),
                spread(best(one)["dev"] for one in runs), str(runs[0]["rounds"]),
                f"{runs[0]['curve'][-1]['passes']:.0f}", f"{runs[0]['curve'][-1]['mb']:.0f}",
                spread((point["passes"] for point in first), 1) + missed if first
                else "never" if there else "",
                spread(times, 1) if times else "", spread((p["mb"] for p in first), 0),
                spread((one["cpu"] for one in runs if one["cpu"]), 0),
            ]  # fmt: skip
            print("| " + " | ".join(cells) + " |")


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Mean and deviation of some values; empty without any."""
    found = list(values)
    if not found:
        return ""
    mean = f"{statistics.mean(found):.{digits}f}"
    return mean if len(found) == 1 else f"{mean} ± {statistics.stdev(found):.{digits}f}"


def plot(lines: list[dict], path: Path) -> None:
    """Development F1 of one seed against bytes, and against rounds."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, (bytes_, rounds) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    first = min(one["seed"] for one in lines)
    for place, one in enumerate(one for one in lines if one["seed"] == first):
        style = {"label": one["cell"], "marker": "osd^vPX<>"[place % 9], "markersize": 3}
        scores = [point["dev"] for point in one["curve"]]
        if one["cell"] == "pooled":
            for axes in (bytes_, rounds):
                axes.axhline(max(scores), color="grey", linestyle=":", label="pooled, best")
            continue
        bytes_.plot([point["mb"] for point in one["curve"]], scores, **style)
        rounds.plot([point["round"] for point in one["curve"]], scores, **style)
    for axes, name in ((bytes_, "megabytes up, a site"), (rounds, "rounds")):
        axes.set_xscale("log")
        axes.set_xlabel(name)
        axes.set_ylim(40, 86)
        axes.grid(alpha=0.2)
    bytes_.set_ylabel("strict F1 on development text")
    rounds.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
