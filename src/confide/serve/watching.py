"""Runs in a folder, finished or not: how far they are, by what they have written so far."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pydantic import ValidationError

from confide.errors import ConfideError, GuardError
from confide.federation.files import inside, plain_name
from confide.runs.folder import RunFolder
from confide.runs.result import RESULT, Result, Turn
from confide.settings import Settings
from confide.tasks import TASKS
from confide.userfiles import Tree, json_of

QUIET = 120.0
"""Seconds without a new line or checkpoint after which a run is said to be quiet, at least."""
TAIL = 16_384


@dataclass(frozen=True)
class Seen:
    """A run as its folder shows it. `state` is "finished", "running", "quiet" or "unreadable".

    `now` is the round that is being done, by the ledger. `value` is the latest score on
    development text, or that on test text of a finished run; `left` is in seconds.
    """

    name: str
    state: str
    method: str = ""
    task: str = ""
    settings: Settings | None = None
    history: tuple[Turn, ...] = ()
    rounds: int = 0
    now: int = 0
    result: Result | None = None
    changed: float = 0.0

    @property
    def done(self) -> int:
        """The last round that is complete."""
        return self.history[-1].round if self.history else 0

    @property
    def left(self) -> float | None:
        """Seconds to the last round, if the next rounds take as long as the last five."""
        spent = [turn.seconds for turn in self.history[-5:] if turn.seconds is not None]
        if self.state != "running" or not spent:
            return None
        return fmean(spent) * max(0, self.rounds - self.done)

    @property
    def kind(self) -> str:
        """The name of the score that counts for the task."""
        return TASKS[self.task].kinds[0] if self.task else ""

    @property
    def value(self) -> float | None:
        """The latest score: on test text if the run is finished, or else on development text."""
        if self.result is not None and self.result.scores.overall:
            return TASKS[self.task].value(self.result.scores.overall, self.kind)
        found = [turn.dev.get(self.kind) for turn in self.history if turn.dev]
        return found[-1] if found else None

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that left the sites, and that reached them, in all rounds so far."""
        moved = [turn.bytes for turn in self.history if turn.bytes is not None]
        return sum(one.up for one in moved), sum(one.down for one in moved)

    @property
    def sites(self) -> list[str]:
        """The sites that took part in a round, or were refused in one."""
        names = {site for turn in self.history for site in (*turn.sites, *turn.failed)}
        return sorted(names)

    def rounds_of(self, site: str) -> int:
        """How many rounds a site took part in."""
        return sum(site in turn.sites for turn in self.history)

    def refused(self, site: str) -> dict[str, int]:
        """How often a site's part was missing, by the reason's code."""
        codes = (turn.failed[site] for turn in self.history if site in turn.failed)
        return dict(Counter(codes))

    def curve(self, what: str) -> list[tuple[float, float]]:
        """Points by round: "dev" the score on development text, "loss", or "up", megabytes."""
        points = []
        for turn in self.history:
            moved = turn.bytes.up / 1e6 if turn.bytes else None
            found = {"dev": (turn.dev or {}).get(self.kind), "loss": turn.loss, "up": moved}
            value = found[what]
            if value is not None and value == value and abs(value) < 1e300:
                points.append((float(turn.round), float(value)))
        return points


class Runs:
    """The runs in one folder, each read again only when its files have changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, tuple[object, Seen]] = {}

    def names(self) -> list[str]:
        """The folders that hold a run."""
        try:
            found = [path.name for path in self.folder.iterdir() if _is_run(path)]
        except OSError:
            return []
        return sorted(name for name in found if _is_plain(name))

    def all(self) -> list[Seen]:
        """All runs, those that changed last first."""
        return sorted((self.of(name) for name in self.names()), key=lambda one: -one.changed)

    def of(self, name: str) -> Seen:
        """One run. Raises GuardError if the name is not one of a run here."""
        path = inside(self.folder, name)
        if not _is_run(path):
            raise GuardError("there is no such run here")
        mark = _mark(path)
        known = self._seen.get(name)
        if known is None or known[0] != mark:
            known = self._seen[name] = (mark, _read(path, changed=_newest(mark)))
        return _aged(known[1])


def _is_plain(name: str) -> bool:
    try:
        return bool(plain_name(name, "a run"))
    except GuardError:
        return False


def _is_run(path: Path) -> bool:
    """Whether a run was started here; settings alone are only settings."""
    if path.is_symlink() or not (path / "settings.toml").is_file():
        return False
    return any((path / name).exists() for name in ("environment.json", "ledger.jsonl", "sites"))


def _mark(path: Path) -> list[tuple[str, float]]:
    """What changes whenever a run writes: its files' times."""
    files = [path / name for name in ("settings.toml", "ledger.jsonl", RESULT)]
    files += sorted(path.glob("checkpoints/*.ckpt"))
    files += sorted(path.glob("alone/*/ledger.jsonl"))
    found = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((f"{file.name} {status.st_size}", status.st_mtime))
    return found or [("", 0.0)]


def _newest(mark: list[tuple[str, float]]) -> float:
    """The last time of a mark. Times to come do not count: the clock was set back since."""
    soon = time.time() + QUIET
    return max((at for _, at in mark if at < soon), default=0.0)


def _read(path: Path, *, changed: float) -> Seen:
    folder = RunFolder(path)
    try:
        settings = folder.settings()
        result = folder.result() if (path / RESULT).exists() else None
        history = tuple(result.history) if result else _history(folder)
    except (ConfideError, ValidationError, ValueError, OSError):
        return Seen(path.name, "unreadable", changed=changed)
    return Seen(
        path.name,
        "finished" if result else "running",
        settings.method,
        settings.task,
        settings,
        history,
        settings.rounds,
        max(_round_now(path / "ledger.jsonl"), history[-1].round if history else 0),
        result,
        changed,
    )


def _history(folder: RunFolder) -> tuple[Turn, ...]:
    """The rounds up to the last checkpoint. Raises CheckpointError, ValueError."""
    store = folder.store()
    rounds = store.rounds()
    if not rounds:
        return ()
    progress: Tree = json_of(store.load(rounds[-1]).progress)
    return tuple(Turn.model_validate(turn) for turn in progress.get("history", ()))


def _round_now(ledger: Path) -> int:
    """The round of the last whole line of a ledger that may be in the midst of a write."""
    try:
        with open(ledger, "rb") as file:
            file.seek(max(0, ledger.stat().st_size - TAIL))
            lines = file.read(TAIL).split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines[:-1]):
        try:
            round = json.loads(line).get("round")
        except (ValueError, AttributeError):
            continue
        if type(round) is int and 0 <= round < 10**9:
            return round
    return 0


def _aged(seen: Seen) -> Seen:
    """A run that has written nothing for long is quiet: stopped, or in a long step."""
    if seen.state != "running":
        return seen
    spent = [turn.seconds for turn in seen.history[-5:] if turn.seconds is not None]
    patience = max(QUIET, 5 * fmean(spent) if spent else 0.0)
    if time.time() - seen.changed <= patience:
        return seen
    return replace(seen, state="quiet")
