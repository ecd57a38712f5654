"""The parts of the demonstration: what each trains, runs of it, and what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from confide.data.corpus.synthetic_pairs import write_bags, write_relations
from confide.federation.events import Event, Watcher, unwatched
from confide.jobs.initialise.rule import usable_cores
from confide.methods import wire
from confide.report import report
from confide.report.folder import FinishedRun, load_run
from confide.runs.run import run
from confide.tasks import TASKS

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
    """Run the first part, of so many: its runs stand beside the corpus, its report beside them."""
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
    """What left, by step and field, from the ledger; the wire table says what a field carries."""
    what = {(row.step, row.field): row.what for row in wire(named) if row.direction == "up"}
    sums = Counter[tuple[str, str, str]]()
    for line in trained.ledger:
        if line.direction == "up":
            sums[line.step, line.field, line.seen] += line.bytes
    return tuple(
        Left(step, field, what.get((step, field), _FRAME), seen, bytes)
        for (step, field, seen), bytes in sums.most_common()
    )
