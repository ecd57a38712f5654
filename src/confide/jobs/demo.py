"""The demonstration: three made-up sites train one recogniser, compared with each site alone.

It writes the synthetic corpus, runs the same settings three times (each site alone, federated,
pooled), lets the federated model annotate held-out sentences, and writes the report. All text is
synthetic: the scores show how confide works and say nothing about real notes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from confide.data.corpus.synthetic import (
    HABITS,
    TYPES,
    Habit,
    documents,
    must_be_ours,
    write_corpus,
)
from confide.federation.events import Watcher
from confide.jobs.predict import predict
from confide.report import report
from confide.runs.result import AllScores, Traffic
from confide.runs.run import run
from confide.text.document import Document, Sentence
from confide.text.formats import read
from confide.text.retag import retag
from confide.text.segment import segmented

RUNS = {"alone": "alone", "federated": "fedavg", "pooled": "pooled"}
"""The runs of the demonstration: folder name to method."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Marked words: their type in the data, their type from the model, and its confidence.

    A type is empty if the data, or the model, has no entity of exactly these words.
    """

    words: str
    marked: str
    found: str
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Example:
    """A held-out sentence of one site, with its marked entities and what the model finds."""

    site: str
    text: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demonstration made: its folder, three run folders, example sentences and the page.

    `f1` is strict F1 on test text from 0 to 1, by run and then by site ("all": together).
    `left` is what left each site in the federated run, in bytes.
    """

    folder: Path
    settings: Path
    runs: dict[str, Path]
    f1: dict[str, dict[str, float]]
    left: dict[str, int]
    examples: tuple[Example, ...]
    report: Path
    seconds: float


def demo(
    *, out: Path | str = Path("demo-run"), seed: int = 1, on_event: Watcher | None = None
) -> DemoResult:
    """Write a synthetic corpus, train on it in three ways, and give everything to look at.

    Args:
        out: the folder of the demonstration; an earlier demonstration in it is replaced.
        seed: the seed of the corpus and of the training.
        on_event: called with every event, as in `confide.runs.run.run`.

    Raises:
        DataError: `out` holds something else.
    """
    started, out = time.perf_counter(), Path(out)
    _clear(out)
    settings = write_corpus(out / "corpus", seed=seed)
    workers = min(2, os.cpu_count() or 1)
    results = {
        name: run(
            settings,
            overrides=[f"method={method}", f"workers={workers}"],
            out=out / name,
            on_event=on_event,
        ).result
        for name, method in RUNS.items()
    }
    folders = {name: out / name for name in RUNS}
    return DemoResult(
        folder=out,
        settings=settings,
        runs=folders,
        f1={name: _f1(result.scores) for name, result in results.items()},
        left=(results["federated"].bytes or Traffic()).up,
        examples=tuple(_example(habit, out, seed=seed) for habit in HABITS),
        report=report(list(folders.values()), out=out / "report.html"),
        seconds=time.perf_counter() - started,
    )


def _f1(scores: AllScores) -> dict[str, float]:
    parts = {**scores.sites, "all": scores.overall}
    return {name: part["strict"]["f1"] for name, part in parts.items()}


def _clear(out: Path) -> None:
    """Remove an earlier demonstration, and nothing else."""
    mark = out / "corpus" / "README.txt"
    must_be_ours(out, mark, what="demonstration", fix="choose another folder with --out")
    for name in RUNS:
        shutil.rmtree(out / name, ignore_errors=True)


def _example(habit: Habit, out: Path, *, seed: int) -> Example:
    """The site's richest test sentence, chosen without looking at predictions."""
    file = out / "corpus" / habit.path("test")
    common = dict(zip(habit.names, TYPES, strict=True))
    gold = [segmented(note) for note in retag(read(file).documents, common)[0]]
    known = {name for h in HABITS for name in _drugs(documents(h.site, "train", seed=seed))}

    def richness(place: tuple[int, Sentence]) -> tuple[bool, int, int]:
        marked = _within(gold[place[0]], place[1]).values()
        is_new = any(type == "DRUG" and words.lower() not in known for words, type in marked)
        return is_new, len({type for _, type in marked}), -len(place[1].tokens)

    number, sentence = max(
        ((number, s) for number, note in enumerate(gold) for s in note.sentences), key=richness
    )
    predicted = predict(out / "federated", [file])[number]
    return Example(
        habit.site,
        gold[number].text[sentence.start : sentence.end],
        tuple(_marks(gold[number], predicted, sentence)),
    )


def _drugs(notes: Iterable[Document]) -> Iterable[str]:
    return (note.surface(e).lower() for note in notes for e in note.entities if e.type == "DRUG")


def _within(note: Document, sentence: Sentence) -> dict[tuple[int, int], tuple[str, str]]:
    """The words and types of a sentence's entities, in order."""
    return {
        (e.start, e.end): (note.surface(e), e.type)
        for e in note.entities
        if sentence.start <= e.start and e.end <= sentence.end
    }


def _marks(gold: Document, predicted: Document, sentence: Sentence) -> Iterable[Mark]:
    marked, found = _within(gold, sentence), _within(predicted, sentence)
    sure = {(e.start, e.end): e.confidence for e in predicted.entities}
    for place in sorted({*marked, *found}):
        words = (marked.get(place) or found[place])[0]
        yield Mark(
            words,
            marked.get(place, ("", ""))[1],
            found.get(place, ("", ""))[1],
            sure.get(place),
        )
