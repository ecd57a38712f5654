"""A run folder as the report sees it: what result.json, the ledger and the sites' files say.

Only files are read; nothing here knows how a run is made. Parts that a run need not have (a
ledger, development scores, errors of the sites) may be missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from confide.errors import RunError
from confide.federation.ledger import Entry, ledger_files, read_ledger
from confide.tasks import TASKS, USUAL, Task

SCHEMA = 1

Key = TypeVar("Key")


_NUMBER = re.compile(r"[0-9][0-9.]*(?:e[-+]?[0-9]+)?|inf|nan")


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the server refused the replies of a site to a step: in words, by round."""

    step: str
    whys: dict[int, str]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A finished run on disk. `label` tells it from the other runs of the same report."""

    path: Path
    label: str
    result: dict[str, Any]
    ledger: tuple[Entry, ...]
    settings: str
    environment: dict[str, Any]
    errors: tuple[dict[str, Any], ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.result.get("method", "?"))

    @property
    def task(self) -> str:
        """What the model finds: "ner" entities, "re" relations, "bags" facts."""
        return str(self.result.get("task", USUAL))

    @property
    def scoring(self) -> Task:
        """The kinds of its scores."""
        return TASKS[self.task]

    @property
    def personal(self) -> bool:
        """Whether every site ended with a model of its own."""
        return bool(self.result.get("personal"))

    @property
    def sites(self) -> list[str]:
        """The sites that were scored or sent something, by name."""
        names = set(self.result.get("scores", {}).get("sites", {}))
        return sorted(names | set(self.result.get("data", {}).get("sites", {})))

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rounds, first to last."""
        return list(self.result.get("history") or [])

    @property
    def overall(self) -> dict[str, Any]:
        """Scores of all sites together on held-out text; empty where nothing was scored."""
        return dict(self.result.get("scores", {}).get("overall") or {})

    def site_scores(self, site: str) -> dict[str, Any]:
        """Scores of one site on its held-out text; empty where it was not scored."""
        return dict(self.result.get("scores", {}).get("sites", {}).get(site) or {})

    def score(self, kind: str, site: str | None = None) -> float | None:
        """The number of one kind of scores, of a site or of all; None where there is none."""
        return self.scoring.value(self.overall if site is None else self.site_scores(site), kind)

    @property
    def senders(self) -> list[str]:
        """Who sent or received something: the sites, or the one place that holds all text."""
        by_way = self.result.get("bytes", {})
        return sorted({*by_way.get("up", {}), *by_way.get("down", {})})

    def bytes(self, direction: str, site: str | None = None) -> int:
        """Bytes of one direction, of one site or of all."""
        by_site: dict[str, int] = self.result.get("bytes", {}).get(direction) or {}
        return sum(by_site.values()) if site is None else by_site.get(site, 0)

    def bytes_per_round(self, direction: str) -> float | None:
        """Mean bytes of a round over all its sites; None where the history does not say."""
        moved = [turn["bytes"][direction] for turn in self.history if "bytes" in turn]
        return sum(moved) / len(moved) if moved else None

    @property
    def failed(self) -> dict[str, int]:
        """Sites that failed in some rounds, and in how many."""
        failures: dict[str, int] = {}
        for turn in self.history:
            for site in turn.get("failed") or {}:
                failures[site] = failures.get(site, 0) + 1
        return failures

    @property
    def refused(self) -> dict[str, list[Refused]]:
        """By site, why the server refused its replies, and in which rounds.

        Reasons that differ only in their numbers, as those of every round do, are one.
        """
        found: dict[str, dict[str, Refused]] = {}
        for turn in self.history:
            for fault in turn.get("faults") or []:
                if fault["code"] in ("refused", "too-far"):
                    step, why = fault["step"], fault["why"]
                    whys = found.setdefault(fault["site"], {})
                    one = whys.setdefault(_NUMBER.sub("#", f"{step} {why}"), Refused(step, {}))
                    one.whys.setdefault(turn["round"], why)
        return {site: list(whys.values()) for site, whys in found.items()}


def load_runs(paths: Sequence[Path], *, text: bool = True) -> list[RunFolder]:
    """The runs in the order given, each with a label of its own.

    `text=False` leaves every file unread that holds a site's text. Raises RunError where a folder
    holds no finished run, or one of a newer schema; or where runs are of several tasks.
    """
    runs = [load_run(Path(path), text=text) for path in paths]
    if not runs:
        raise RunError("there is no run to report on", expected="at least one run folder")
    task_of(runs)
    return _told_apart(runs)


def task_of(runs: Iterable[RunFolder]) -> str:
    """What all these runs find; "ner" where there is none. Raises RunError: not the same."""
    of_task = {run.task: run for run in runs}
    if len(of_task) > 1:
        raise RunError(
            "one run finds entities and another relations, or facts: there is no score to compare",
            where=" and ".join(f"{run.path} ({task})" for task, run in of_task.items()),
            expected="runs of one `task`",
            fix="make a page for each task",
        )
    return next(iter(of_task), USUAL)


def load_run(path: Path, *, text: bool = True) -> RunFolder:
    """One run. Raises RunError as `load_runs` does."""
    result = _result(path)
    name, method = result.get("name") or path.resolve().name, result.get("method", "?")
    ledger = tuple(entry for file in ledger_files(path) for entry in read_ledger(file))
    result.setdefault("bytes", _weighed(ledger))  # a real site's result does not say
    return RunFolder(
        path=path,
        label=str(name) if name == method else f"{name}: {method}",
        result=result,
        ledger=ledger,
        settings=_text(path / "settings.toml"),
        environment=_object(path / "environment.json", default={}),
        errors=tuple(_errors(path)) if text else (),
    )


def totals(lines: Iterable[Entry], key: Callable[[Entry], Key]) -> dict[Key, int]:
    """Bytes by a key of the lines, in the order in which the keys first appear."""
    sums: dict[Key, int] = {}
    for line in lines:
        sums[key(line)] = sums.get(key(line), 0) + line.bytes
    return sums


def _weighed(ledger: Iterable[Entry]) -> dict[str, dict[str, int]]:
    """Bytes by direction and site."""
    by_way: dict[str, dict[str, int]] = {"up": {}, "down": {}}
    for (way, site), bytes in totals(ledger, lambda line: (line.direction, line.site)).items():
        by_way[way][site] = bytes
    return by_way


def _told_apart(runs: list[RunFolder]) -> list[RunFolder]:
    labels = [run.label for run in runs]
    if len({run.result.get("name") for run in runs}) == 1 and len(runs) > 1:
        labels = [run.method for run in runs]
    if len(set(labels)) < len(labels):
        folders = [run.path.resolve().name for run in runs]
        labels = [f"{label} ({name})" for label, name in zip(labels, folders, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [f"{number}. {label}" for number, label in enumerate(labels, 1)]
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _result(path: Path) -> dict[str, Any]:
    file = path / "result.json"
    if not path.is_dir():
        raise RunError("there is no such run folder", where=str(path))
    if not file.exists():
        raise RunError(
            "the run is not finished",
            expected="a result.json, which a run writes at its end",
            where=str(path),
            fix="continue it with `confide run … --resume`",
        )
    result = _object(file)
    schema = result.get("schema")
    if not isinstance(schema, int):
        raise RunError("this is not a run's result", expected='a "schema" number', where=str(file))
    if schema > SCHEMA:
        raise RunError(
            "the run was written by a newer confide",
            expected=f"schema {SCHEMA} or older",
            got=f"schema {schema}",
            where=str(file),
            fix="upgrade confide",
        )
    if result.get("task", USUAL) not in TASKS:
        raise RunError(
            "the run has a task that this confide does not know",
            expected=" or ".join(TASKS),
            got=repr(result["task"]),
            where=str(file),
            fix="upgrade confide",
        )
    return result


def _errors(path: Path) -> Iterator[dict[str, Any]]:
    for file in sorted((path / "sites").glob("*/errors.json")):
        found = _object(file)
        yield {"confusion": {}, "worst": [], **found, "site": found.get("site", file.parent.name)}


def _object(file: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not file.exists():
        return default
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError("the file cannot be read as JSON", where=str(file)) from error
    if not isinstance(value, dict):
        raise RunError("the file does not hold a JSON object", where=str(file))
    return value


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise RunError("the file cannot be read", where=str(file)) from error
