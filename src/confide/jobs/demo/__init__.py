"""The demonstration: one model for three sites on made-up text, and a page about it.

It writes the synthetic corpus and trains one recogniser for all sites, with each site alone and all
text in one place to compare. If asked, it goes on with four more parts: a recogniser for each site
that keeps its own names, one recogniser of sites that mark different things, relations without
sending a weight, and facts that nobody marked. Then it writes index.html, which shows each part,
and what left the sites.

All text is synthetic: the scores show how confide works and say nothing about real notes.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from confide.data.corpus.synthetic import HABITS, must_be_ours, write_corpus
from confide.federation.events import Watcher
from confide.jobs.demo.examples import Example, Mark, example
from confide.jobs.demo.page import write_page
from confide.jobs.demo.parts import PARTS, RUNS, Part, entities, further
from confide.jobs.demo.picture import write_picture
from confide.report.folder import load_run
from confide.runs.result import AllScores, Traffic

PICTURE = "demo.svg"
"""The first part in one picture."""

__all__ = ["RUNS", "DemoResult", "Example", "Mark", "Part", "demo"]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demonstration made: its folder, the run folders, example sentences and the pages.

    `runs` are those of the first part: alone, federated, pooled. `f1` is their strict F1 on test
    text from 0 to 1, by run and then by site ("all": together). `left` is what left each site in
    the federated run, in bytes. `report` compares these three runs, `parts` are the parts that ran,
    each with its own runs and report, and `page` shows everything.
    """

    folder: Path
    settings: Path
    runs: dict[str, Path]
    f1: dict[str, dict[str, float]]
    left: dict[str, int]
    examples: tuple[Example, ...]
    report: Path
    parts: tuple[Part, ...]
    page: Path
    seconds: float


def demo(
    *,
    out: Path | str = Path("demo-run"),
    seed: int = 1,
    every: bool = False,
    on_event: Watcher | None = None,
) -> DemoResult:
    """Write a synthetic corpus, train on it, and give everything to look at.

    Args:
        out: the folder of the demonstration; an earlier demonstration in it is replaced.
        seed: the seed of the corpus and of the training.
        every: show the methods of all five papers, instead of the first alone.
        on_event: called with every event, as in `confide.runs.run.run`.

    Raises:
        DataError: `out` holds something else.
    """
    started, out = time.perf_counter(), Path(out)
    _clear(out)
    settings = write_corpus(out / "corpus", seed=seed)
    first = entities(settings, out, of=1 + len(PARTS) * every, on_event=on_event)
    examples = tuple(
        example(habit, out / "federated", out / "corpus" / habit.path("test"), seed=seed)
        for habit in HABITS
    )
    write_picture(out / PICTURE, first, examples)
    parts = (first, *(further(out, seed=seed, on_event=on_event) if every else ()))
    results = {name: load_run(path).result for name, path in first.runs.items()}
    seconds = time.perf_counter() - started
    return DemoResult(
        folder=out,
        settings=settings,
        runs=first.runs,
        f1={name: _f1(result.scores) for name, result in results.items()},
        left=(results["federated"].bytes or Traffic()).up,
        examples=examples,
        report=first.report,
        parts=parts,
        page=write_page(out / "index.html", parts, examples, seconds=seconds),
        seconds=seconds,
    )


def _f1(scores: AllScores) -> dict[str, float]:
    parts = {**scores.sites, "all": scores.overall}
    return {name: part["strict"]["f1"] for name, part in parts.items()}


def _clear(out: Path) -> None:
    """Remove an earlier demonstration, and nothing else."""
    mark = out / "corpus" / "README.txt"
    must_be_ours(out, mark, what="demonstration", fix="choose another folder with --out")
    for name in (*RUNS, *(plan.name for plan in PARTS)):
        shutil.rmtree(out / name, ignore_errors=True)
