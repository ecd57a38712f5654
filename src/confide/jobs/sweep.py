"""A sweep: the same settings under each combination of some values, with several seeds.

sweep.toml            the settings as they were, the grid, the seeds
cells/02/seed-1       a run's folder; what was stopped goes on from its last checkpoint
cells/02/seed-1.log   what a process of its own said
slurm.sh              a job for each cell, if it was asked for

A cell is one combination. Development text alone decides which cell is chosen; its test scores are
then compared with another cell's (`confide.jobs.comparison`). Whoever looks at the test scores of
all cells and then picks one has chosen on test text.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated

import tomli_w
from pydantic import Field, ValidationError

from confide.errors import ConfideError, RunError, SettingsError, os_errors_as, printable, together
from confide.federation.events import Event, Watcher, unwatched
from confide.files import Tree, write_of_run
from confide.jobs.comparison import compare, f1_interval
from confide.jobs.sweep_table import Cell, OnTest, Spread, SweepReport
from confide.methods import method_of
from confide.recipes import settings_file
from confide.runs.folder import RunFolder
from confide.runs.result import Result, first_wrong
from confide.runs.run import run
from confide.settings import Settings, parse, read_tree
from confide.settings.reading import parse_assignment
from confide.settings.tables import Table
from confide.settings.toml import read_toml
from confide.tasks import TASKS

SCHEMA = 1
PLAN, CELLS, SLURM = "sweep.toml", "cells", "slurm.sh"
MOST_FAULTS = 8
"""The most faults of cells that are told at once."""
_BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}


class Plan(Table):
    """The contents of sweep.toml. Values of the grid are texts, as after `--set KEY=`."""

    schema_: Annotated[int, Field(alias="schema", ge=1, le=SCHEMA)] = SCHEMA
    name: str
    folder: str
    """where relative paths of the settings start"""
    overrides: tuple[str, ...] = ()
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    grid: dict[str, tuple[str, ...]]
    settings: Tree


def sweep(
    settings: str | Path,
    *,
    grid: Sequence[str] = (),
    seeds: int | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
) -> Sweep:
    """Lay out a sweep in a folder, or open the one that is there; `Sweep.train` trains it.

    Args:
        settings: a settings file, a recipe's name, or the folder of a sweep.
        grid: `KEY=VALUE,VALUE,...` texts; each combination of values is a cell.
        seeds: runs of each cell, with the settings' seed and those that follow it; None: one.
        overrides: `key=value` texts for all cells.
        out: the sweep's folder; by default `runs/NAME-sweep`.

    Every cell's settings are checked here, before the first run.

    Raises:
        SettingsError: a cell's settings make no sense, or a sweep's folder is given with a grid.
        RunError: the folder holds another sweep or something else, or cannot be written.
    """
    if (Path(settings) / PLAN).is_file():
        if grid or overrides or seeds is not None or out is not None:
            raise SettingsError(
                "a sweep's folder has its own settings, grid and seeds",
                where=str(settings),
                fix="leave out --grid, --seeds, --set and --out, or name the settings file",
            )
        return Sweep(Path(settings), _read_plan(Path(settings)))
    if seeds is not None and seeds < 1:
        raise SettingsError("a cell needs a seed", expected="at least 1 of --seeds", got=str(seeds))
    file = settings_file(settings)
    plan = Plan(
        name=file.stem,
        folder=str(file.parent.resolve()),
        overrides=tuple(overrides),
        seeds=(1,),
        grid=read_grid(grid),
        settings=read_tree(file),
    )
    first = _checked(plan)
    plan = plan.model_copy(
        update={
            "name": first.name or plan.name,
            "seeds": tuple(range(first.seed, first.seed + (seeds or 1))),
        }
    )
    folder = Path(out) if out is not None else Path("runs") / f"{plan.name}-sweep"
    _lay_out(plan, folder)
    return Sweep(folder, plan)


def read_grid(grid: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The values of each key. Commas in brackets or quotes separate no values.

    Raises SettingsError.

    >>> read_grid(["rounds=2,5", "model.cnn_widths=[3],[3, 5]"])
    {'rounds': ('2', '5'), 'model.cnn_widths': ('[3]', '[3, 5]')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in grid:
        key, equals, listed = (part.strip() for part in text.partition("="))
        values = tuple(_parts(listed))
        if not equals or not key or not all(values):
            raise SettingsError(
                "--grid takes a key and its values",
                expected="KEY=VALUE,VALUE,...",
                got=printable(repr(text)),
            )
        if key == "seed":
            raise SettingsError("the grid holds no seeds", fix="say how many: --seeds N")
        read = [repr(parse_assignment(f"{key}={value}")[1]) for value in values]
        twice = next((one for one in values if read.count(read[values.index(one)]) > 1), None)
        if key in found or twice is not None:
            raise SettingsError(
                f"the grid has {key if key in found else f'{key} = {twice}'} twice",
                got=printable(repr(text)),
            )
        found[key] = values
    return found


def _parts(listed: str) -> Iterator[str]:
    """The texts between the commas that stand in no bracket and no quotes."""
    depth, quote, start = 0, "", 0
    for place, one in enumerate(listed):
        if quote:
            quote = "" if one == quote else quote
        elif one in "\"'":
            quote = one
        elif one == "," and depth == 0:
            yield listed[start:place].strip()
            start = place + 1
        depth += 0 if quote else _BRACKETS.get(one, 0)
    yield listed[start:].strip()


def _checked(plan: Plan) -> Settings:
    """The settings of the first cell. Raises SettingsError for all cells that make no sense."""
    faults: dict[str, SettingsError] = {}
    found: list[Settings] = []
    for number, values in enumerate(_cells(plan), start=1):
        try:
            settings = _settings(plan, values)
            method_of(settings)(settings)  # reports wrong options
            found.append(settings)
        except SettingsError as error:
            said = ", ".join(f"{key}={value}" for key, value in values.items())
            faults.setdefault(str(error), error.at(f"cell {number} ({said})" if said else "--set"))
    if faults:
        raise together(list(faults.values())[:MOST_FAULTS])
    if len(tasks := {one.task for one in found}) > 1:
        raise SettingsError(
            "the cells of a sweep have several tasks, and their scores cannot be compared",
            expected="one task",
            got=", ".join(sorted(tasks)),
        )
    return found[0]


def _cells(plan: Plan) -> list[dict[str, str]]:
    """The values of each cell; the last key of the grid changes fastest."""
    return [dict(zip(plan.grid, values, strict=True)) for values in product(*plan.grid.values())]


def _settings(plan: Plan, values: dict[str, str], *more: str) -> Settings:
    changes = [*plan.overrides, *(f"{key}={value}" for key, value in values.items()), *more]
    return parse(plan.settings, changes, folder=Path(plan.folder))


def _lay_out(plan: Plan, folder: Path) -> None:
    """Write the plan, unless it is there. Raises RunError if something else is."""
    if (folder / PLAN).exists():
        there = _read_plan(folder)
        for what in ("settings", "folder", "overrides", "grid", "seeds"):
            before, now = getattr(there, what), getattr(plan, what)
            if before != now:
                long = what == "settings"
                raise RunError(
                    f"this folder holds a sweep with other {what}"
                    + " of paths" * (what == "folder"),
                    where=str(folder),
                    expected=None if long else printable(before),
                    got=None if long else printable(now),
                    fix=f"continue that one with `confide sweep {shlex.quote(str(folder))}`, or"
                    " choose another folder with --out",
                )
        return
    with os_errors_as(RunError, "the sweep's folder cannot be read", where=folder):
        if folder.exists() and any(folder.iterdir()):
            raise RunError(
                "the folder holds something else than a sweep",
                where=str(folder),
                fix="choose a new or empty folder with --out",
            )
    RunFolder(folder).close()
    tree = plan.model_dump(mode="json", by_alias=True)
    write_of_run(folder / PLAN, tomli_w.dumps(tree).encode())


def _read_plan(folder: Path) -> Plan:
    """Read sweep.toml. Raises RunError."""
    path = folder / PLAN
    try:
        return Plan.model_validate(read_toml(path))
    except SettingsError as error:
        raise RunError(f"the sweep's plan cannot be read: {error}") from error
    except ValidationError as error:
        raise first_wrong(error, "this is not the plan of a sweep", path) from error


# --- A sweep in its folder


@dataclass(frozen=True)
class Sweep:
    """A sweep in a folder. Cells count from 1."""

    folder: Path
    plan: Plan

    @property
    def cells(self) -> list[dict[str, str]]:
        """The values of each cell, by key."""
        return _cells(self.plan)

    def settings(self, cell: int, seed: int) -> Settings:
        """The settings of one run."""
        found = _settings(self.plan, self.cells[cell - 1], f"seed={seed}")
        return found.model_copy(update={"name": f"{self.plan.name}-{cell}"})

    def run_folder(self, cell: int, seed: int) -> RunFolder:
        """The folder of one run."""
        digits = max(2, len(str(len(self.cells))))
        return RunFolder(self.folder / CELLS / f"{cell:0{digits}}" / f"seed-{seed}")

    def train(
        self, *, workers: int = 1, cell: str | None = None, on_event: Watcher | None = None
    ) -> dict[str, str]:
        """Train the runs that are not finished, and say what became of those that failed.

        `workers` processes train a run each. `cell` is a cell's number, such as "3", or one run,
        CELL-SEED ("3-1"). Gives the failures by CELL-SEED; that of a single run is raised.
        """
        watch = on_event or unwatched
        if workers < 1:
            raise SettingsError("no process trains", expected="at least 1 worker", got=str(workers))
        chosen = self._chosen(cell)
        left = [one for one in chosen if not self.run_folder(*one).is_finished()]
        if cell is not None and "-" in cell:
            for one in left:
                self._run(*one, watch)
            return {}
        if workers > 1 and len(left) > 1:
            return self._in_processes(left, workers, watch)
        failed = {}
        for cell_number, seed in left:
            self._say(watch, cell_number, seed, "begins")
            try:
                self._run(cell_number, seed, watch)
            except Exception as error:  # the other runs do not depend on it
                said = printable(error, 600) or "without a word"
                kind = "" if isinstance(error, ConfideError) else type(error).__name__
                failed[f"{cell_number}-{seed}"] = f"{kind}: {said}" if kind else said
                self._say(watch, cell_number, seed, f"failed: {said}")
        return failed

    def _chosen(self, cell: str | None) -> list[tuple[int, int]]:
        """The runs of a cell, or of all. Raises SettingsError if there is no such cell or run."""
        every = [(n + 1, seed) for n in range(len(self.cells)) for seed in self.plan.seeds]
        if cell is None:
            return every
        found = [one for one in every if cell in (str(one[0]), f"{one[0]}-{one[1]}")]
        if not found:
            seeds = ", ".join(map(str, self.plan.seeds))
            raise SettingsError(
                "the sweep has no such cell",
                expected=f"1 to {len(self.cells)}, or CELL-SEED with a seed of {seeds}",
                got=printable(repr(cell), 40),
            )
        return found

    def _run(self, cell: int, seed: int, watch: Watcher) -> None:
        folder = self.run_folder(cell, seed)
        run(self.settings(cell, seed), out=folder.path, resume=folder.is_taken(), on_event=watch)

    def _in_processes(
        self, left: Sequence[tuple[int, int]], workers: int, watch: Watcher
    ) -> dict[str, str]:
        """Train each run in a process of its own: one that is killed takes no other with it."""
        waiting, running = deque(left), dict[tuple[int, int], subprocess.Popen[bytes]]()
        failed = {}
        command = [sys.executable, "-m", "confide", "sweep", str(self.folder.resolve()), "--quiet"]
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    cell, seed = one = waiting.popleft()
                    log = self._log(*one)
                    RunFolder(log.parent).close()
                    with os_errors_as(RunError, "the log cannot be written", where=log):
                        file = log.open("wb")
                    with file:
                        words = [*command, "--cell", f"{cell}-{seed}"]
                        running[one] = subprocess.Popen(
                            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file
                        )
                    self._say(watch, cell, seed, "begins")
                for one, process in list(running.items()):
                    if process.poll() is None:
                        continue
                    del running[one]
                    if process.returncode == 0 and self.run_folder(*one).is_finished():
                        self._say(watch, *one, "is finished")
                        continue
                    said = _last_words(self._log(*one), process.returncode)
                    failed[f"{one[0]}-{one[1]}"] = said
                    self._say(watch, *one, f"failed: {said}")
                time.sleep(0.05)
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()
        return failed

    def _log(self, cell: int, seed: int) -> Path:
        return self.run_folder(cell, seed).path.with_suffix(".log")

    def _say(self, watch: Watcher, cell: int, seed: int, what: str) -> None:
        values = ", ".join(f"{key}={value}" for key, value in self.cells[cell - 1].items())
        named = f"cell {cell} of {len(self.cells)}" + f" ({values})" * bool(values)
        watch(Event("cell", message=f"{named}, seed {seed} {what}"))

    def slurm(self) -> Path:
        """Write a job array for Slurm, a cell to a task; nothing is run. Raises RunError."""
        cores = max(
            one.threads * one.workers
            for one in (self.settings(n + 1, self.plan.seeds[0]) for n in range(len(self.cells)))
        )
        folder = shlex.quote(str(self.folder.resolve()))
        python = shlex.quote(sys.executable)
        name = re.sub(r"[^A-Za-z0-9._-]", "-", self.plan.name)
        lines = [
            "#!/bin/bash",
            f"#SBATCH --job-name={name}",
            f"#SBATCH --array=1-{len(self.cells)}",
            f"#SBATCH --cpus-per-task={cores}",
            "# Add what your cluster wants: --partition, --gres, --mem, --time.",
            f'exec {python} -m confide sweep {folder} --quiet --cell "$SLURM_ARRAY_TASK_ID"',
        ]
        path = self.folder / SLURM
        write_of_run(path, ("\n".join(lines) + "\n").encode())
        return path

    def report(self, *, against: int = 1, every: bool = False) -> SweepReport:
        """The table of the sweep, as far as it is finished.

        The chosen cell, whose mean development score over seeds is the highest, shows its test
        scores and how they compare with those of the cell `against`; with `every`, all cells do.

        Raises SettingsError for a cell that is not there, RunError for damaged results.
        """
        if not 1 <= against <= len(self.cells):
            self._chosen(str(against))
        return _report(self, against=against, every=every)


def _last_words(log: Path, code: int) -> str:
    """A failed process's error, from its log."""
    with os_errors_as(RunError, "the log cannot be read", where=log):
        text = log.read_text(encoding="utf-8", errors="replace").strip()
    if code < 0:
        return f"ended by signal {-code}; {log}"
    place = text.rfind("error: ")
    lines = text[place + len("error: ") :].splitlines() if place >= 0 else text.splitlines()[-1:]
    return printable("; ".join(line.strip() for line in lines) or f"exit code {code}", 600)


# --- What the runs of a sweep say


def _report(of: Sweep, *, against: int, every: bool) -> SweepReport:
    """The report; only cells whose runs are all finished are compared, and one of them chosen."""
    first = of.settings(1, of.plan.seeds[0])
    task = TASKS[first.task]
    rules = {of.settings(n + 1, of.plan.seeds[0]).select.by for n in range(len(of.cells))}
    kind = rules.pop() if len(rules) == 1 else task.kinds[0]
    kind = kind if kind in task.kinds else task.kinds[0]
    results: dict[int, list[Result]] = {}
    for n in range(1, len(of.cells) + 1):
        folders = (of.run_folder(n, seed) for seed in of.plan.seeds)
        results[n] = [folder.result() for folder in folders if folder.is_finished()]
    whole = {n for n, found in results.items() if len(found) == len(of.plan.seeds)}
    dev = {n: _spread([_development(one, kind) for one in found]) for n, found in results.items()}
    candidates = [n for n in sorted(whole) if dev[n] is not None]
    chosen = max(candidates, key=lambda n: _mean_of(dev[n]), default=None)
    notes, rows = [], []
    for n, values in enumerate(of.cells, start=1):
        found, test = results[n], None
        if n in whole and (every or n == chosen):
            test, why = _test_score(of, n, against if against in whole else n, kind, found)
            notes += [f"cell {n} is not compared with cell {against}: {why}"] if why else []
        rows.append(
            Cell(
                cell=n,
                values=values,
                finished=len(found),
                chosen=n == chosen,
                dev=dev[n],
                test=test,
                bytes_up=_mean([sum(one.bytes.up.values()) for one in found if one.bytes]),
                seconds=_mean([one.seconds for one in found if one.seconds is not None]),
            )
        )
    return SweepReport(
        name=of.plan.name,
        keys=tuple(of.plan.grid),
        seeds=of.plan.seeds,
        task=task.name,
        kind=kind,
        against=against,
        every=every,
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _development(result: Result, kind: str) -> float | None:
    """A run's development score at its best round; of `alone`, the mean of all sites' own."""
    task = TASKS[result.task]
    if result.dev:
        return task.value(result.dev, kind)
    if "" in result.best_rounds or kind != task.kinds[0]:
        return None
    at = {turn.round: turn.dev_sites for turn in result.history}
    own = [at.get(turn, {}).get(site) for site, turn in result.best_rounds.items()]
    return _mean([value for value in own if value is not None])


def _test_score(
    of: Sweep, cell: int, against: int, kind: str, found: Sequence[Result]
) -> tuple[OnTest | None, str]:
    """Test scores of a cell, compared with another's; and why they are not, if they are not."""
    task = TASKS[found[0].task]
    spread = _spread([task.value(one.scores.overall, kind) for one in found])
    matching = next((one for one in task.counted if one == kind), None)
    if spread is None:
        return None, ""
    if matching is None:
        return OnTest(spread), ""
    ours = [of.run_folder(cell, seed).path for seed in of.plan.seeds]
    try:
        interval = f1_interval(ours, matching=matching)
    except RunError as error:
        return OnTest(spread), error.what
    score = OnTest(spread, interval.low, interval.high)
    if cell == against:
        return score, ""
    theirs = [of.run_folder(against, seed).path for seed in of.plan.seeds]
    try:
        return score.against(compare(theirs, ours, matching=matching).overall), ""
    except RunError as error:
        return score, error.what


def _spread(values: Sequence[float | None]) -> Spread | None:
    """Mean, deviation and ends; None if there is no value, or one lacks."""
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    deviation = stdev(numbers) if len(numbers) > 1 else None
    return Spread(fmean(numbers), deviation, min(numbers), max(numbers))


def _mean_of(spread: Spread | None) -> float:
    return -1.0 if spread is None else spread.mean


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
