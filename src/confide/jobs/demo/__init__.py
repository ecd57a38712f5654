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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from confide.corpora.synthetic import (
    HABITS,
    TYPES,
    Habit,
    documents,
    must_be_ours,
    write_bags,
    write_corpus,
    write_relations,
)
from confide.federation.events import Event, Watcher, unwatched
from confide.jobs.initialise import usable_cores
from confide.jobs.predict import predict
from confide.methods import wire
from confide.report import words
from confide.report.folder import FinishedRun, load_run
from confide.report.page import report
from confide.report.words import points, size
from confide.runs.result import AllScores, Traffic
from confide.runs.run import run
from confide.tasks import TASKS
from confide.text.checking import retag
from confide.text.document import Document, Sentence
from confide.text.formats import read
from confide.text.segment import segmented
from confide.version import __version__

# --- Finds in held-out sentences
#
# Those of the demonstration's recogniser, beside what is marked there.


@dataclass(frozen=True, slots=True)
class Mark:
    """Marked words: their type in the data, their type from the model, and its confidence.

    A type is empty if the data, or the model, has no entity of exactly these words. The first of
    them begins at the sign `start` of the sentence.
    """

    words: str
    marked: str
    found: str
    confidence: float | None
    start: int


@dataclass(frozen=True, slots=True)
class Example:
    """A held-out sentence of one site, with its marked entities and what the model finds."""

    site: str
    text: str
    marks: tuple[Mark, ...]


def example(habit: Habit, run: Path, file: Path, *, seed: int) -> Example:
    """The site's richest test sentence, chosen without looking at predictions."""
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
    predicted = predict(run, [file])[number]
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
            place[0] - sentence.start,
        )


# --- The parts of the demonstration
#
# Their training, their runs, and their results.


RUNS = {"alone": "alone", "federated": "fedavg", "pooled": "pooled"}
"""The runs of the first part: folder name to method."""
_FRAME = "names of fields and their lengths, around what a message holds"
_RELATION_SENTENCES, _BAG_SENTENCES = 64, 160


@dataclass(frozen=True, slots=True)
class Plan:
    """A part before it has run: its folder and settings, its run and what to compare that with.

    `named` is the pair of method and kind, as `confide wire` names it.
    """

    name: str
    title: str
    paper: str
    told: str
    method: str
    named: str
    against: tuple[str, ...] = ("alone",)


@dataclass(frozen=True, slots=True)
class Left:
    """A field that left the sites in a run: what it carries, how it is seen, bytes of all sites."""

    step: str
    field: str
    what: str
    seen: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part that has run.

    Attributes:
        name, title, paper, told: what it is, whose method it shows, and what to know about it.
        method: the method of its federated run.
        runs: run folders by name, the federated one among them under `federated`.
        federated: which of `runs` is the federated one.
        scores: by run, the number that stands for the task, from 0 to 1, over all sites; `score`
            names it.
        left: what left the sites in the federated run, the largest field first.
        bytes: what left each site in it.
        report: the report of the runs.
    """

    name: str
    title: str
    paper: str
    told: str
    method: str
    runs: dict[str, Path]
    federated: str
    scores: dict[str, float]
    score: str
    left: tuple[Left, ...]
    bytes: dict[str, int]
    report: Path


FIRST = Plan(
    "entities",
    "One recogniser for all sites",
    "fedavg: Luboshnikov & Makarov, AIST 2020",
    "Each site marks drugs, doses, adverse effects and reasons in its own file format and under its"
    " own names. Settings map the names; in each round every site trains, and the server averages"
    " the weights. Words travel as keyed digests.",
    "fedavg",
    "fedavg-tagger",
)
PARTS = (
    Plan(
        "own",
        "A recogniser for each site, in its own words",
        "fedner: Ge et al., arXiv 2003.09288",
        "Nobody maps names: oncology still says Medication and practice says med. The sites share"
        " the lower part of the model and keep the upper part, which holds their tags, to"
        " themselves. Compare with each site alone, in part 1.",
        "fedner",
        "fedner-tagger",
        against=(),
    ),
    Plan(
        "types",
        "Sites that mark different things",
        "pseudo-complete: Wang et al., Findings of ACL 2023",
        "Every site marks drugs and one thing more: cardiology doses, oncology adverse effects,"
        " practice reasons. One model learns to find all four. A site alone can only find what it"
        " marks; test text is marked in full.",
        "pseudo-complete",
        "pseudo-complete-tagger",
    ),
    Plan(
        "relations",
        "Relations, without sending a weight",
        "feded: Sui et al., EMNLP 2020",
        "Does the drug cause the complaint, treat it, or neither? The sites send what their models"
        " predict for public sentences, a few kilobytes, and the server learns from the mean of"
        " these predictions. Weights travel to the sites only. On this little text each site alone"
        " does about as well; what to see here is what leaves.",
        "feded",
        "feded-relations",
        against=(),
    ),
    Plan(
        "distant",
        "Facts that nobody marked",
        "lazy-mil: Sui et al., Findings of EMNLP 2021",
        "A knowledge base says which drug causes or treats what, and labels every sentence that"
        " names both; a third of these labels are wrong. The sites bid, under keyed digests, for"
        " the sentences that state a fact, and train on those that win.",
        "lazy-mil",
        "lazy-mil-bags",
    ),
)


def entities(settings: Path, out: Path, *, of: int = 1, on_event: Watcher | None = None) -> Part:
    """Run the first of `of` parts: its runs stand beside the corpus, its report beside them."""
    runs = {}
    for name, method in RUNS.items():
        _say(on_event, (f"1 of {of}, " if of > 1 else "") + f"{FIRST.title}: {name}")
        runs[name] = _run(settings, out / name, method=method, on_event=on_event)
    return _part(FIRST, runs, "federated", out / "report.html")


def further(out: Path, *, seed: int = 1, on_event: Watcher | None = None) -> Iterator[Part]:
    """Run the other parts, each in a folder of its name."""
    write_relations(out / "relations", seed=seed, sentences=_RELATION_SENTENCES)
    write_bags(out / "distant", seed=seed, sentences=_BAG_SENTENCES)
    for number, plan in enumerate(PARTS, start=2):
        folder = out / plan.name
        settings = write_settings(plan.name, folder, seed=seed)
        runs = {}
        for method in (*plan.against, plan.method):
            _say(on_event, f"{number} of {1 + len(PARTS)}, {plan.title}: {method}")
            runs[method] = _run(settings, folder / method, method=method, on_event=on_event)
        yield _part(plan, runs, plan.method, folder / "report.html")


def write_settings(part: str, folder: Path, *, seed: int = 1) -> Path:
    """Write the settings of a further part beside its files, and return their path."""
    text = files("confide.jobs.demo").joinpath(f"{part}.toml").read_text(encoding="utf-8")
    comment, _, rest = text.partition("\n")
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "settings.toml"
    settings.write_text(f"{comment}\nseed = {seed}\n{rest}", encoding="utf-8")
    return settings


def _run(settings: Path, out: Path, *, method: str, on_event: Watcher | None) -> Path:
    workers = min(2, usable_cores())
    overrides = [f"method={method}", f"workers={workers}"]
    return run(settings, overrides=overrides, out=out, on_event=on_event).folder


def _say(on_event: Watcher | None, message: str) -> None:
    (on_event or unwatched)(Event("part", message=message))


# --- what came out -----------------------------------------------------------------------


def _part(plan: Plan, runs: Mapping[str, Path], federated: str, page: Path) -> Part:
    finished = {name: load_run(path) for name, path in runs.items()}
    task = TASKS[finished[federated].task]
    kind = task.kinds[0]
    trained = finished[federated]
    return Part(
        name=plan.name,
        title=plan.title,
        paper=plan.paper,
        told=plan.told,
        method=plan.method,
        runs=dict(runs),
        federated=federated,
        scores={name: one.score(kind) or 0.0 for name, one in finished.items()},
        score=task.words.kinds.get(kind) or f"{kind} F1",
        left=_left(plan.named, trained),
        bytes=dict(trained.traffic.up),
        report=report(list(runs.values()), out=page),
    )


def _left(named: str, trained: FinishedRun) -> tuple[Left, ...]:
    """Rows of what left, by step and field; the wire table says what a field carries."""
    what = {(row.step, row.field): row.what for row in wire(named) if row.direction == "up"}
    sums = Counter[tuple[str, str, str]]()
    for line in trained.ledger:
        if line.direction == "up":
            sums[line.step, line.field, line.seen] += line.bytes
    return tuple(
        Left(step, field, what.get((step, field), _FRAME), seen, bytes)
        for (step, field, seen), bytes in sums.most_common()
    )


# --- The demonstration's page
#
# The results of each part, and the bytes that left the sites.


TOGETHER = "together"
WORDS = {"alone": "each site alone", "pooled": "all text in one place"}
"""The page's names for runs; a run that is not named here is the federated one."""
MOST_FIELDS = 4
"""Fields of a part that the page names; its report has them all."""


def templates() -> Environment:
    """The templates of the demonstration; what they are given is escaped."""
    return Environment(
        loader=PackageLoader("confide.jobs.demo", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(
    page: Path, parts: Sequence[Part], examples: Sequence[Example], *, seconds: float
) -> Path:
    """Write the page and return its path. It loads nothing from elsewhere and has no scripts."""
    environment = templates()
    environment.filters |= {
        "points": words.points,
        "size": words.size,
        "duration": words.duration,
        "link": lambda path: Path(os.path.relpath(path, page.parent)).as_posix(),
        "called": lambda name: WORDS.get(name, TOGETHER),
    }
    html = environment.get_template("demo.html.j2").render(
        version=__version__,
        parts=parts,
        examples=examples,
        seconds=seconds,
        most=MOST_FIELDS,
        widths={part.name: _width(part) for part in parts},
    )
    page.write_text(html, encoding="utf-8")
    return page


def _width(part: Part) -> dict[str, str]:
    """The length of each run's bar, in percent of the line."""
    return {name: f"{100 * score:.1f}%" for name, score in part.scores.items()}


# --- The demonstration in one picture
#
# Scores, what the model finds, and what left the sites.


WIDEST = 108
"""Signs in a line of an example."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A marked piece of a line: its first sign and how many there are; and what is said below it.

    `right`: the model found what the data marks. A mark that goes on in the next line says nothing
    there.
    """

    at: int
    length: int
    said: str
    right: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an example, and its marked pieces."""

    text: str
    marks: tuple[Placed, ...]


def write_picture(picture: Path, part: Part, examples: Sequence[Example]) -> Path:
    """Write the first part and its examples as an SVG, and return its path."""
    left = [(_short(one.what), one.seen, size(one.bytes)) for one in part.left[:MOST_FIELDS]]
    if rest := part.left[MOST_FIELDS:]:
        small = f"{len(rest)} smaller fields"
        left.append((small, "", size(sum(one.bytes for one in rest))))
    svg = (
        templates()
        .get_template("demo.svg.j2")
        .render(
            scores=[
                (WORDS.get(name, "federated"), name == part.federated, score, points(score))
                for name, score in part.scores.items()
            ],
            score=part.score,
            left=left,
            total=size(sum(part.bytes.values())),
            examples=[(example.site, tuple(lines(example))) for example in examples],
        )
    )
    picture.write_text(svg, encoding="utf-8")
    return picture


def lines(example: Example) -> Iterator[Line]:
    """The sentence in lines of at most `WIDEST` signs, with its marks where they stand."""
    places = [(mark.start, mark.start + len(mark.words), mark) for mark in _shown(example.marks)]
    at = 0
    for text in textwrap.wrap(example.text, WIDEST, break_on_hyphens=False):
        at = example.text.index(text, at)
        inside = (
            (max(start, at), min(end, at + len(text)), start >= at, mark)
            for start, end, mark in places
        )
        marks = [
            Placed(start - at, end - start, _said(mark) if first else "", mark.found == mark.marked)
            for start, end, first, mark in inside
            if start < end
        ]
        yield Line(text, tuple(_apart(marks)))
        at += len(text)


def _apart(marks: Sequence[Placed]) -> Iterator[Placed]:
    """The marks of a line; where two stand close together, the first says only its type."""
    for mark, after in zip_longest(marks, marks[1:]):
        close = after is not None and after.at - mark.at < len(mark.said) + 1
        yield replace(mark, said=mark.said.partition(" ")[0]) if close and mark.right else mark


def _shown(marks: Sequence[Mark]) -> Iterator[Mark]:
    """Marks of what the model found, and of what it missed where it found nothing else."""
    found = [(mark.start, mark.start + len(mark.words)) for mark in marks if mark.found]
    for mark in marks:
        end = mark.start + len(mark.words)
        if mark.found or not any(low < end and mark.start < high for low, high in found):
            yield mark


def _said(mark: Mark) -> str:
    """The type that the model found, and how sure it is in percent."""
    return f"{mark.found} {100 * (mark.confidence or 0):.0f}" if mark.found else "not found"


def _short(what: str) -> str:
    """The first words of what a field carries; of what is "right, predicted, …" the counts."""
    head, _, tail = what.partition(":")
    head = f"counts of {head}" if tail.startswith(" right") else re.split("[,;]", head)[0]
    return textwrap.shorten(head, 44, placeholder=" …")


PICTURE = "demo.svg"
"""The first part in one picture."""


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


__all__ = ["RUNS", "DemoResult", "Example", "Mark", "Part", "demo"]
