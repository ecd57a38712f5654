"""What the tests compare of two runs, and engines that watch, repeat, break or forge."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.federation import Delivery
from confide.federation.ledger import read_ledger
from confide.federation.site import Site, SiteHost
from confide.runs.folder import RunFolder
from confide.runs.run import run
from confide.settings import Settings
from contract.corpus import tiny
from federation.secure.summed import without_masks

TIMING = {
    "seconds", "train_seconds", "compute_seconds", "slowest_seconds",
    "sentences_per_second",
    "peak_rss_mb", "peak_rss_mb_worker",
}  # fmt: skip


def steady(value: Any) -> Any:
    """A result without what a clock or the machine's memory decides."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if key not in TIMING}
    return [steady(item) for item in value] if isinstance(value, list) else value


def result(folder: Path) -> Any:
    """The steady part of a run's result.json."""
    return steady(json.loads((folder / "result.json").read_text()))


def bare_and_masked(folder: Path, *overrides: str) -> dict[str, Path]:
    """The same run under masks, and with its whole numbers in the clear."""
    found = {}
    for how in ("bare", "masked"):
        with pytest.MonkeyPatch.context() as patch:
            if how == "bare":
                without_masks(patch)
            settings = tiny(folder, *overrides, "federation.sums=masked")
            found[how] = run(settings, out=folder / how).folder
    return found


def states(folder: Path) -> dict[str, bytes]:
    """The state in every checkpoint of a run, by file."""
    found = {}
    for path in sorted(folder.rglob("*.ckpt")):
        part = path.parent.parent.name if path.parent.parent != folder else ""
        store = RunFolder(folder).store(part)
        round = int(path.stem.removeprefix("round-"))
        found[str(path.relative_to(folder))] = store.load(round).state.tobytes()
    return found


def ledger_lines(folder: Path) -> list[str]:
    """The entries of a run's ledgers that count, sorted: sites may answer in any order."""
    paths = sorted(folder.rglob("ledger.jsonl"))
    return sorted(str(entry) for path in paths for entry in read_ledger(path))


def same_run(one: Path, other: Path) -> None:
    """Both runs came to the same numbers, weights and messages, bit for bit."""
    assert not list(differences(result(one), result(other)))
    assert not list(differences(states(one), states(other)))
    missing = Counter(ledger_lines(one))
    missing.subtract(ledger_lines(other))
    assert not [line for line, count in missing.items() if count]


def but_bytes(one: Path, other: Path) -> list[str]:
    """Where the results differ, but for how many bytes travelled and whose came down."""
    odd = differences(result(one), result(other))
    return [line for line in odd if "bytes" not in line and "down" not in line]


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two trees differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
    elif one != other:
        yield f"{path}: {str(one)[:80]} is not {str(other)[:80]}"


def memory_files(folder: Path) -> dict[str, bytes]:
    """Everything that sites remember."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.glob("sites/*/memory/*"))
    }


Change = Callable[[str, str, int, bytes], bytes]
"""(step, site, round, reply) -> what the server gets instead."""


class Forging(SequentialEngine):
    """An engine whose replies are changed after the sites' own guards."""

    change: Change

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        for found in super().deliver(step, round, asks=asks, timeout=timeout):
            reply = self.change(step, found.site, round, found.reply)
            yield Delivery(found.site, reply, found.seconds)


class Asking(SequentialEngine):
    """An engine that shows every ask and its reply, and may ask again."""

    look: Callable[[Asking, str, int, str, bytes, bytes], None]

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        for found in super().deliver(step, round, asks=asks, timeout=timeout):
            type(self).look(self, step, round, found.site, asks[found.site], found.reply)
            yield found

    def again(self, step: str, round: int, site: str, ask: bytes) -> bytes:
        """The reply to an ask that was answered before."""
        return self._hosts[site].answer(step, round, ask)


def use_engine(patch: pytest.MonkeyPatch, kind: type[SequentialEngine], **members: Any) -> None:
    """Let `run` use this engine; `members` are set on a class of its own."""
    patch.setattr("confide.runs.run.SequentialEngine", type(kind.__name__, (kind,), members))


@dataclass(frozen=True)
class Crossed:
    """One ask and its reply, as bytes."""

    step: str
    round: int
    site: str
    ask: bytes
    reply: bytes


@dataclass(frozen=True)
class Straight:
    """A run from start to end, which many tests compare theirs with. Nobody writes there."""

    settings: Settings
    folder: Path
    events: list[Any]
    crossed: list[Crossed]

    def copy(self, folder: Path) -> Path:
        """A copy of the run that may be changed."""
        return Path(shutil.copytree(self.folder, folder))


def straight_run(folder: Path, *overrides: str, sites: int = 3) -> Straight:
    """A tiny run, with all that crossed in it."""
    settings = tiny(folder, *overrides, sites=sites)
    events: list[Any] = []
    crossed: list[Crossed] = []

    def look(engine: Asking, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        crossed.append(Crossed(step, round, site, ask, reply))

    with pytest.MonkeyPatch.context() as patch:
        use_engine(patch, Asking, look=look)
        done = run(settings, out=folder / "run", on_event=events.append)
    return Straight(settings, done.folder, events, crossed)


def breaking(patch: pytest.MonkeyPatch, site: str, step: str, error: Exception) -> None:
    """One step raises at one site, in every round."""
    real = Hosting.host

    def host(self: Hosting, spec: Site, scratch: dict[str, Any]) -> SiteHost:
        def raising(*_: object) -> None:
            raise error

        found = real(self, spec, scratch)
        if spec.name == site:
            broken = dataclasses.replace(found._steps[step], answer=raising)
            found._steps = {**found._steps, step: broken}
        return found

    patch.setattr(Hosting, "host", host)


def stopping_at(number: int) -> Callable[[Any], None]:
    """A watcher that stops the run at its n-th event, as Ctrl-C would."""
    seen: list[Any] = []

    def watch(event: Any) -> None:
        seen.append(event)
        if len(seen) > number:
            raise KeyboardInterrupt

    return watch
