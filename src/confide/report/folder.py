"""A run as the report sees it: its result, its ledger, and what its sites left (errors, counts).

Parts that a run need not have (a ledger, development scores, the sites' errors) may be missing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from rich import box
from rich.table import Table
from rich.text import Text

from confide.errors import RunError
from confide.federation.ledger import Entry, ledger_files, read_ledger
from confide.files import Tree
from confide.runs import folder as run_folder
from confide.runs.folder import AtHome, Audit, RunFolder, SentencesFile
from confide.runs.result import RESULT, Result, RoundRecord, Scores, Traffic, read_record
from confide.runs.status import current_result
from confide.tasks import TASKS, USUAL, Task
from confide.words import points, size

# --- sites/NAME/errors.json
#
# The model's errors and right answers at a site, with the site's text.
#
# A run has it only if the site's text lay in the same process. docs/result.md describes it.


Place = Annotated[int, Field(ge=0, lt=1 << 63)]
Fragment = tuple[Place, Place]
Span = tuple[Place, Place, str] | tuple[Place, Place, str, float | None]
"""Start, end and type; what a model found also has its confidence."""
Confusion = dict[str, dict[str, Place]]
"""Counts by gold and predicted name; "" is no entity, or a pair that was not looked at."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a sentence: one entity's text, or text outside entities (`type` empty)."""

    text: str
    type: str = ""
    confidence: float | None = None
    right: bool = True


class _List(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class SentenceCase(_List):
    """A sentence as it was marked and as the model reads it."""

    text: str
    gold: list[Span]
    predicted: list[Span]
    where: str = ""

    @property
    def marked(self) -> tuple[Piece, ...]:
        """The sentence as its annotators marked it; what the model found too is right."""
        return pieces(self.text, self.gold, right=[span[:3] for span in self.predicted])

    @property
    def found(self) -> tuple[Piece, ...]:
        """The sentence as the model marked it."""
        return pieces(self.text, self.predicted, right=[span[:3] for span in self.gold])


class PairText(_List):
    """A text with the fragments of head and tail; `score`: how strongly it supports a relation."""

    text: str
    head: list[Fragment]
    tail: list[Fragment]
    head_type: str | None = None
    tail_type: str | None = None
    where: str = ""
    score: float | None = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The text with its head and tail marked."""
        roles = (("head", self.head_type, self.head), ("tail", self.tail_type, self.tail))
        ends = [
            (start, end, " ".join(filter(None, (role, type))))
            for role, type, fragments in roles
            for start, end in fragments
        ]
        return tuple(_marked(self.text, ends))


class PairCase(PairText):
    """A pair, the relation that is marked and the one that the model gives it, or none."""

    gold: str
    predicted: str
    confidence: float | None = None


class BagCase(_List):
    """A bag and its likeliest label; its sentences are scored for `relation`."""

    head: str
    tail: str
    names: tuple[str, str]
    gold: list[str]
    predicted: str
    confidence: float
    relation: str
    sentences: list[PairText]
    more: Place


class _Errors(_List):
    site: str
    confusion: Confusion = {}


class EntityErrors(_Errors):
    """Errors of a site that finds entities."""

    worst: list[SentenceCase] = []
    right: list[SentenceCase] = []


class RelationErrors(_Errors):
    """Errors of a site that finds relations."""

    worst: list[PairCase] = []
    right: list[PairCase] = []


class BagErrors(_Errors):
    """Errors of a site that finds facts in bags."""

    worst: list[BagCase] = []
    right: list[BagCase] = []


Errors = EntityErrors | RelationErrors | BagErrors
_ERRORS: dict[str, type[Errors]] = {"ner": EntityErrors, "re": RelationErrors, "bags": BagErrors}
"""By task; a file that names none of them belongs to the usual task."""


def read_errors(file: Path) -> Errors:
    """One site's errors. Raises RunError, which names the first wrong value."""
    return read_record(
        file,
        lambda tree: errors_of(tree, site=file.parent.name),
        "a site's errors.json is damaged",
        fix="leave the sites' text out of the page, or repeat the run",
    )


def errors_of(tree: Tree, *, site: str = "") -> Errors:
    """The errors in one errors.json; `site` owns them if the file does not name its site.

    Raises ValidationError.
    """
    return _ERRORS.get(str(tree.get("task")), EntityErrors).model_validate({"site": site, **tree})


def _marked(text: str, ends: Sequence[tuple[int, int, str]]) -> Iterator[Piece]:
    """The text cut at every border of its ends; a piece where head and tail overlap names both."""
    borders = {min(max(place, 0), len(text)) for start, end, _ in ends for place in (start, end)}
    for start, end in pairwise(sorted({0, *borders, len(text)})):
        names = [name for low, high, name in ends if low <= start and end <= high]
        yield Piece(text[start:end], ", ".join(names))


def pieces(
    text: str, spans: Sequence[Span], *, right: Sequence[tuple[int, int, str]]
) -> tuple[Piece, ...]:
    """The text cut at its spans (start, end, type[, confidence]); those in `right` are right.

    Where spans overlap, the first and longest is shown.
    """
    cut, at = list[Piece](), 0
    for start, end, type, *rest in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start < at or end > len(text) or start >= end:
            continue
        if start > at:
            cut.append(Piece(text[at:start]))
        sure = rest[0] if rest else None
        cut.append(Piece(text[start:end], type, sure, (start, end, type) in right))
        at = end
    if at < len(text):
        cut.append(Piece(text[at:]))
    return tuple(cut)


_NUMBER = re.compile(r"[0-9][0-9.]*(?:e[-+]?[0-9]+)?|inf|nan")


@dataclass(frozen=True, slots=True)
class RefusedReplies:
    """Why the server refused a site's replies to a step: in words, by round."""

    step: str
    whys: dict[int, str]


@dataclass(frozen=True)
class FinishedRun:
    """A run. `label` tells it apart from the other runs of a report.

    `running`: it is not finished, and `result` is what is known so far. `audit` is that of the
    model which the run has now.
    """

    path: Path
    label: str
    result: Result
    settings: str
    environment: Tree
    ledger: tuple[Entry, ...] = ()
    errors: tuple[Errors, ...] = ()
    kept: tuple[AtHome, ...] = ()
    sentences: tuple[SentencesFile, ...] = ()
    running: bool = False
    audit: Audit | None = None

    @property
    def name(self) -> str:
        """The run's name, or its folder's."""
        return self.result.name or self.path.resolve().name

    @property
    def method(self) -> str:
        """The method's name."""
        return self.result.method

    @property
    def task(self) -> str:
        """The name of the run's task, a key of `TASKS`."""
        return self.result.task

    @property
    def scoring(self) -> Task:
        """The run's task, with its kinds of scores."""
        return TASKS[self.task]

    @property
    def sites(self) -> list[str]:
        """The names of all sites that were scored, trained or whose text is described, sorted."""
        trained = [site for turn in self.history[-1:] for site in turn.dev_sites]
        known = (*self.result.scores.sites, *self.result.data.sites)
        return sorted({*known, *(trained if self.running else ())})

    @property
    def there(self) -> set[str]:
        """The sites that were part of the run, also where scores are of all of them together.

        A reference of one site names it after itself.
        """
        asked = {site for turn in self.history for site in turn.sites} - {self.method}
        return {*self.result.data.sites, *asked} or set(self.sites)

    @property
    def history(self) -> list[RoundRecord]:
        """The rounds, first to last."""
        return self.result.history

    @property
    def overall(self) -> Scores:
        """Scores of all sites together on held-out text; empty if nothing was scored."""
        return self.result.scores.overall

    def site_scores(self, site: str) -> Scores:
        """Scores of one site on its held-out text; empty if it was not scored."""
        return self.result.scores.sites.get(site, {})

    def score(self, kind: str, site: str | None = None) -> float | None:
        """The number that stands for one kind of score, of a site or of all.

        None if it is missing, or there was no text to score.
        """
        found = self.overall if site is None else self.site_scores(site)
        return None if self.scoring.empty(found) else self.scoring.value(found, kind)

    @cached_property
    def traffic(self) -> Traffic:
        """Bytes by direction and site, from the result or, failing that, from the ledger."""
        if self.result.bytes is not None:
            return self.result.bytes
        if self.running:  # under no name: only the ledger knows the sites'
            moved = [turn.bytes for turn in self.history if turn.bytes is not None]
            return Traffic(
                up={"": sum(one.up for one in moved)}, down={"": sum(one.down for one in moved)}
            )
        sums: dict[str, dict[str, int]] = {"up": {}, "down": {}}
        by_way = totals(self.ledger, lambda line: (line.direction, line.site))
        for (way, site), bytes in by_way.items():
            sums[way][site] = bytes
        return Traffic(up=sums["up"], down=sums["down"])

    @property
    def senders(self) -> list[str]:
        """Everyone who sent or received something: the sites, or the place with all text."""
        return sorted({*self.traffic.up, *self.traffic.down})

    def bytes(self, direction: str, site: str | None = None) -> int:
        """Bytes of one direction, of one site or of all."""
        by_site = self.traffic.up if direction == "up" else self.traffic.down
        return sum(by_site.values()) if site is None else by_site.get(site, 0)

    def bytes_per_round(self, direction: str) -> float | None:
        """Mean bytes of a round over all sites; None if the history does not say."""
        moved = [turn.bytes for turn in self.history if turn.bytes is not None]
        each = [one.up if direction == "up" else one.down for one in moved]
        return sum(each) / len(each) if each else None

    @property
    def failed(self) -> dict[str, int]:
        """The sites that failed, and in how many rounds."""
        return Counter(site for turn in self.history for site in turn.failed)

    @property
    def refused(self) -> dict[str, list[RefusedReplies]]:
        """By site, why the server refused its replies, and in which rounds.

        Reasons that differ only in their numbers count as one.
        """
        found: dict[str, dict[str, RefusedReplies]] = {}
        for turn in self.history:
            for fault in turn.faults:
                if fault.code in ("refused", "too-far"):
                    whys = found.setdefault(fault.site, {})
                    alike = _NUMBER.sub("#", f"{fault.step} {fault.why}")
                    one = whys.setdefault(alike, RefusedReplies(fault.step, {}))
                    one.whys.setdefault(turn.round, fault.why)
        return {site: list(whys.values()) for site, whys in found.items()}


def load_runs(
    paths: Sequence[Path], *, text: bool = True, unfinished: bool = False
) -> list[FinishedRun]:
    """The runs in the order given, each with a label of its own.

    `text=False` opens no file that holds a site's text; `unfinished` takes runs that go on. Raises
    RunError if a folder holds no finished run or one of a newer schema, or if the runs have
    different tasks.
    """
    runs = [load_run(Path(path), text=text, unfinished=unfinished) for path in paths]
    if not runs:
        raise RunError(
            "there is no run to report on", expected="at least one run folder", fix="name one"
        )
    task_of(runs)
    labels = [run.label for run in runs]
    if len({run.result.name for run in runs}) == 1 and len(runs) > 1:
        labels = [run.method for run in runs]
    if len(set(labels)) < len(labels):
        folders = [run.path.resolve().name for run in runs]
        labels = [f"{label} ({name})" for label, name in zip(labels, folders, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [f"{number}. {label}" for number, label in enumerate(labels, 1)]
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def task_of(runs: Iterable[FinishedRun]) -> str:
    """The task of all runs, or the usual one if there is no run. Raises RunError if they differ."""
    of_task = {run.task: run for run in runs}
    if len(of_task) > 1:
        raise RunError(
            "these runs have different tasks, so their scores cannot be compared",
            where=" and ".join(f"{run.path} ({task})" for task, run in of_task.items()),
            expected="runs of one task",
            fix="make a page for each task",
        )
    return next(iter(of_task), USUAL)


def load_run(path: Path, *, text: bool = True, unfinished: bool = False) -> FinishedRun:
    """One run. Raises RunError as `load_runs` does."""
    if not path.is_dir():
        raise RunError("there is no such run folder", where=str(path), fix="check the path")
    folder, running = RunFolder(path), unfinished and not (path / RESULT).exists()
    result = current_result(path) if running else Result.read(path)
    name = result.name or path.resolve().name
    run = FinishedRun(
        path=path,
        label=name if name == result.method else f"{name}: {result.method}",
        result=result,
        settings=folder.settings_text(),
        environment=folder.environment(),
        running=running,
    )
    if running:  # its ledger has a last line that may be cut off, so it is not read
        return run
    homes = sorted(file.parents[1].name for file in folder.sites.glob(f"*/*/{run_folder.HOME}"))
    counts = folder.sites.glob(f"*/{run_folder.SENTENCES}")
    compared = (run_folder.compared_at_home(folder, site) for site in homes)
    return replace(
        run,
        ledger=tuple(entry for file in ledger_files(path) for entry in read_ledger(file)),
        errors=tuple(map(read_errors, sorted(folder.sites.glob("*/errors.json")))) if text else (),
        kept=tuple(one for one in compared if one is not None),
        sentences=tuple(run_folder.sentences_file(file) for file in sorted(counts)),
        audit=run_folder.audited(folder),
    )


def totals(
    lines: Iterable[Entry], key: Callable[[Entry], tuple[str, ...]]
) -> Counter[tuple[str, ...]]:
    """Sums of the lines' bytes by a key, in the order in which the keys first appear."""
    sums = Counter[tuple[str, ...]]()
    for line in lines:
        sums[key(line)] += line.bytes
    return sums


# --- Tables for the terminal, made from run folders


def results(runs: Mapping[str, FinishedRun], *, title: str = "") -> Table:
    """Scores on test text, in points of 100: a row per site, then all; a column per named run.

    Each cell holds strict F1 with relaxed F1 in brackets (for relations, micro- and macro-F1; for
    bags, the AUC and the mean of P@100, 200 and 300). The best first number of a row is bold.
    Raises RunError if the runs have different tasks.
    """
    task = TASKS[task_of(runs.values())]
    kinds = task.words.shown or task.kinds
    one, other = (task.words.kinds.get(kind) or f"{kind} F1" for kind in kinds)
    table = _table(title, caption=f"{one}, and {other} in brackets; on test text")
    table.add_column("site")
    for name in runs:
        table.add_column(Text(name), justify="right")
    for site in sorted({site for run in runs.values() for site in run.sites}):
        table.add_row(Text(site), *_cells(runs.values(), kinds, site))
    table.add_section()
    table.add_row("all", *_cells(runs.values(), kinds, None))
    return table


def left(run: FinishedRun, *, title: str = "") -> Table:
    """A table of what left the sites in a run, by step and field, with every site's bytes."""
    table = _table(title, caption='"sum": the server\'s code sees the sum over the sites only')
    for name in ("step", "field", "kind", "seen"):
        table.add_column(name)
    for name in run.senders:
        table.add_column(Text(name), justify="right")
    up = [line for line in run.ledger if line.direction == "up"]
    sums = totals(up, lambda line: (line.step, line.field, line.kind, line.seen, line.site))
    for field in dict.fromkeys(key[:4] for key in sums):
        table.add_row(*field, *(size(sums.get((*field, site), 0)) for site in run.senders))
    table.add_section()
    table.add_row("all", "", "", "", *(size(run.bytes("up", site)) for site in run.senders))
    return table


def _cells(runs: Collection[FinishedRun], kinds: Sequence[str], site: str | None) -> list[Text]:
    first, second = kinds
    each = [run.score(first, site) for run in runs]
    best = max((f1 for f1 in each if f1 is not None), default=None)
    cells = []
    for f1, run in zip(each, runs, strict=True):
        style = "bold" if f1 is not None and f1 == best else ""
        other = f"({points(run.score(second, site))})"
        cells.append(Text.assemble((points(f1), style), " ", (other, "dim")))
    return cells


def _table(title: str, *, caption: str) -> Table:
    return Table(
        title=title or None,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
