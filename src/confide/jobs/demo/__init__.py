"""The demonstration: one model for three sites on made-up text, and a page about it.

It writes the synthetic corpus and trains one recogniser for all sites, with each site alone and all
text in one place to compare. If asked, it goes on with four more parts: a recogniser for each site
that keeps its own names, one recogniser of sites that mark different things, relations without
sending a weight, and facts that nobody marked. Then it writes index.html, which shows each part,
and what left the sites.

All text is synthetic: the scores show how confide works and say nothing about real notes.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from confide.corpora import synthetic
from confide.federation.events import Event, Watcher, unwatched
from confide.jobs.initialise import usable_cores
from confide.jobs.predict import predict
from confide.methods import wire
from confide.report.folder import load_run
from confide.report.page import report
from confide.runs.result import Traffic
from confide.runs.run import run
from confide.tasks import TASKS
from confide.text.checking import retag
from confide.text.document import Document, Sentence
from confide.text.formats import read
from confide.text.segment import segmented
from confide.version import __version__
from confide.words import templates

# --- Finds of the demonstration's recogniser in held-out sentences, beside what is marked there


@dataclass(frozen=True, slots=True)
class DemoMark:
    """Marked words: their type in the data, their type from the model, and its confidence.

    A type is empty if the data, or the model, has no entity of exactly these words. The first of
    them begins at the sign `start` of the sentence.
    """

    words: str
    marked: str
    found: str
    confidence: float | None
    start: int

    @property
    def end(self) -> int:
        """One past the last sign of the words."""
        return self.start + len(self.words)


@dataclass(frozen=True, slots=True)
class DemoExample:
    """A held-out sentence of one site, with its marked entities and what the model finds."""

    site: str
    text: str
    marks: tuple[DemoMark, ...]


def find_example(habit: synthetic.Habit, run: Path, file: Path, *, seed: int) -> DemoExample:
    """The site's richest test sentence, chosen without looking at predictions."""
    common = dict(zip(habit.names, synthetic.TYPES, strict=True))
    gold = [segmented(note) for note in retag(read(file).documents, common)[0]]
    trained = (
        note
        for site in synthetic.HABITS
        for note in synthetic.documents(site.site, "train", seed=seed)
    )
    known = {n.surface(e).lower() for n in trained for e in n.entities if e.type == "DRUG"}

    def richness(place: tuple[int, Sentence]) -> tuple[bool, int, int]:
        marked = _entities_in(gold[place[0]], place[1]).values()
        is_new = any(type == "DRUG" and words.lower() not in known for words, type, _ in marked)
        return is_new, len({type for _, type, _ in marked}), -len(place[1].tokens)

    number, sentence = max(
        ((number, s) for number, note in enumerate(gold) for s in note.sentences), key=richness
    )
    marked = _entities_in(gold[number], sentence)
    found = _entities_in(predict(run, [file])[number], sentence)
    marks = []
    for place in sorted({*marked, *found}):
        words, type, _ = marked.get(place) or found[place]
        _, predicted, confidence = found.get(place, ("", "", None))
        start = place[0] - sentence.start
        marks.append(DemoMark(words, type if place in marked else "", predicted, confidence, start))
    return DemoExample(habit.site, gold[number].text[sentence.start : sentence.end], tuple(marks))


def _entities_in(
    note: Document, sentence: Sentence
) -> dict[tuple[int, int], tuple[str, str, float | None]]:
    """The words, types and confidences of a sentence's entities, by place."""
    return {
        (e.start, e.end): (note.surface(e), e.type, e.confidence)
        for e in note.entities
        if sentence.start <= e.start and e.end <= sentence.end
    }


# --- The parts of the demonstration: their plans in parts.toml, their runs, and their results


_FRAME = "names of fields and their lengths, around what a message holds"
_RELATION_SENTENCES, _BAG_SENTENCES = 64, 160


@dataclass(frozen=True)
class DemoPlan:
    """A part before it has run.

    `runs` has the method of each run by name, `federated` is the name of the one that is about, and
    `pair` its method and kind as `confide wire` names them.
    """

    name: str
    title: str
    paper: str
    text: str
    pair: str
    runs: dict[str, str]
    federated: str

    @property
    def method(self) -> str:
        """The method of the federated run."""
        return self.runs[self.federated]


def _plans() -> Iterator[DemoPlan]:
    text = files("confide.jobs.demo").joinpath("parts.toml").read_text(encoding="utf-8")
    yield from (DemoPlan(**table) for table in tomllib.loads(text)["part"])


PLANS = tuple(_plans())
"""The parts, in order; the demonstration shows the first alone unless asked for all."""


@dataclass(frozen=True, slots=True)
class LeftField:
    """A field that left the sites in a run: what it carries, how it is seen, bytes of all sites."""

    step: str
    field: str
    what: str
    seen: str
    bytes: int


@dataclass(frozen=True)
class DemoPart(DemoPlan):
    """A part that has run.

    Attributes:
        folders: the run folders by name.
        scores: by run, the number that stands for the task, from 0 to 1, over all sites; `score`
            names it.
        left: what left the sites in the federated run, the largest field first.
        bytes: what left each site in it.
        report: the report of the runs.
    """

    folders: dict[str, Path]
    scores: dict[str, float]
    score: str
    left: tuple[LeftField, ...]
    bytes: dict[str, int]
    report: Path


def write_settings(part: str, folder: Path, *, seed: int = 1) -> Path:
    """Write the settings of a further part beside its files, and return their path."""
    text = files("confide.jobs.demo").joinpath(f"{part}.toml").read_text(encoding="utf-8")
    comment, _, rest = text.partition("\n")
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "settings.toml"
    settings.write_text(f"{comment}\nseed = {seed}\n{rest}", encoding="utf-8")
    return settings


def _finished(plan: DemoPlan, folders: dict[str, Path], page: Path) -> DemoPart:
    """The results of a part's runs, and the report about them, which is written."""
    finished = {name: load_run(path) for name, path in folders.items()}
    trained = finished[plan.federated]
    task = TASKS[trained.task]
    kind = task.kinds[0]
    what = {(row.step, row.field): row.what for row in wire(plan.pair) if row.direction == "up"}
    sums = Counter[tuple[str, str, str]]()
    for line in trained.ledger:
        if line.direction == "up":
            sums[line.step, line.field, line.seen] += line.bytes
    return DemoPart(
        **asdict(plan),
        folders=folders,
        scores={name: one.score(kind) or 0.0 for name, one in finished.items()},
        score=task.words.kinds.get(kind) or f"{kind} F1",
        left=tuple(
            LeftField(step, field, what.get((step, field), _FRAME), seen, bytes)
            for (step, field, seen), bytes in sums.most_common()
        ),
        bytes=dict(trained.traffic.up),
        report=report(list(folders.values()), out=page),
    )


# --- The demonstration's page, and its picture: scores, finds, and what left the sites


MOST_FIELDS = 4
"""Fields of a part that the page and the picture name; its report has them all."""
WIDEST = 108
"""Signs in a line of an example."""
_NAMES = {"alone": "each site alone", "pooled": "all text in one place"}
"""The names of runs; a run that is not named here is the federated one."""


@dataclass(frozen=True, slots=True)
class LineMark:
    """A marked piece of a line: its first sign and its length; and what is said below it.

    `right`: the model found what the data marks. A mark that goes on in the next line says nothing
    there.
    """

    at: int
    length: int
    said: str
    right: bool


def write_demo_page(
    page: Path, parts: Sequence[DemoPart], examples: Sequence[DemoExample], *, seconds: float
) -> Path:
    """Write the page and return its path. It loads nothing from elsewhere and has no scripts."""
    reports = {part.name: os.path.relpath(part.report, page.parent) for part in parts}
    html = (
        templates("confide.jobs.demo")
        .get_template("demo.html.j2")
        .render(
            version=__version__,
            parts=parts,
            reports={name: Path(path).as_posix() for name, path in reports.items()},
            names=_NAMES,
            examples=examples,
            seconds=seconds,
            most=MOST_FIELDS,
        )
    )
    page.write_text(html, encoding="utf-8")
    return page


def write_picture(picture: Path, part: DemoPart, examples: Sequence[DemoExample]) -> Path:
    """Write the first part and its examples as an SVG, and return its path."""
    left = []
    for one in part.left[:MOST_FIELDS]:
        # the first words of what it carries; of what is "right, predicted, …" the counts
        head, _, tail = one.what.partition(":")
        head = f"counts of {head}" if tail.startswith(" right") else re.split("[,;]", head)[0]
        left.append((textwrap.shorten(head, 44, placeholder=" …"), one.seen, one.bytes))
    if rest := part.left[MOST_FIELDS:]:
        left.append((f"{len(rest)} smaller fields", "", sum(one.bytes for one in rest)))
    svg = (
        templates("confide.jobs.demo")
        .get_template("demo.svg.j2")
        .render(
            part=part,
            names=_NAMES,
            left=left,
            examples=[(example.site, list(example_lines(example))) for example in examples],
        )
    )
    picture.write_text(svg, encoding="utf-8")
    return picture


def example_lines(example: DemoExample) -> Iterator[tuple[str, list[LineMark]]]:
    """The sentence in lines of at most `WIDEST` signs, with its marks where they stand.

    Of what the model missed, those marks are left out over which it found something else. Where two
    marks stand close together, the first says only its type.
    """
    found = [mark for mark in example.marks if mark.found]
    shown = [
        mark
        for mark in example.marks
        if mark.found or not any(o.start < mark.end and mark.start < o.end for o in found)
    ]
    at = 0
    for text in textwrap.wrap(example.text, WIDEST, break_on_hyphens=False):
        at = example.text.index(text, at)
        marks = []
        for mark in shown:
            start, end = max(mark.start, at), min(mark.end, at + len(text))
            if start < end:
                said = f"{mark.found} {100 * (mark.confidence or 0):.0f}"
                said = (said if mark.found else "not found") if mark.start >= at else ""
                marks.append(LineMark(start - at, end - start, said, mark.found == mark.marked))
        for number, (one, after) in enumerate(pairwise(marks)):
            if one.right and after.at - one.at < len(one.said) + 1:
                marks[number] = replace(one, said=one.said.partition(" ")[0])
        yield text, marks
        at += len(text)


# --- The whole demonstration


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demonstration's output: its folder, the run folders, example sentences and the pages.

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
    examples: tuple[DemoExample, ...]
    report: Path
    parts: tuple[DemoPart, ...]
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
    started, out, watch = time.perf_counter(), Path(out), on_event or unwatched
    # an earlier demonstration goes, and nothing else
    mark = out / "corpus" / "README.txt"
    synthetic.must_be_ours(out, mark, what="demonstration", fix="choose another folder with --out")
    for name in (*PLANS[0].runs, *(plan.name for plan in PLANS)):
        shutil.rmtree(out / name, ignore_errors=True)
    corpus = synthetic.write_corpus(out / "corpus", seed=seed)
    if every:
        synthetic.write_relations(out / "relations", seed=seed, sentences=_RELATION_SENTENCES)
        synthetic.write_bags(out / "distant", seed=seed, sentences=_BAG_SENTENCES)
    plans, parts = PLANS if every else PLANS[:1], []
    for number, plan in enumerate(plans, start=1):
        folder, settings = out, corpus  # the first part's runs stand beside the corpus
        if number > 1:
            folder = out / plan.name
            settings = write_settings(plan.name, folder, seed=seed)
        folders = {}
        for name, method in plan.runs.items():
            place = f"{number} of {len(plans)}, " if len(plans) > 1 else ""
            watch(Event("part", message=f"{place}{plan.title}: {name}"))
            overrides = [f"method={method}", f"workers={min(2, usable_cores())}"]
            folders[name] = run(
                settings, overrides=overrides, out=folder / name, on_event=on_event
            ).folder
        parts.append(_finished(plan, folders, folder / "report.html"))
    first = parts[0]
    examples = tuple(
        find_example(habit, out / "federated", out / "corpus" / habit.path("test"), seed=seed)
        for habit in synthetic.HABITS
    )
    write_picture(out / "demo.svg", first, examples)
    results = {name: load_run(path).result for name, path in first.folders.items()}
    f1 = {}
    for name, result in results.items():
        scores = {**result.scores.sites, "all": result.scores.overall}
        f1[name] = {site: found["strict"]["f1"] for site, found in scores.items()}
    seconds = time.perf_counter() - started
    return DemoResult(
        folder=out,
        settings=corpus,
        runs=first.folders,
        f1=f1,
        left=(results["federated"].bytes or Traffic()).up,
        examples=examples,
        report=first.report,
        parts=tuple(parts),
        page=write_demo_page(out / "index.html", parts, examples, seconds=seconds),
        seconds=seconds,
    )
