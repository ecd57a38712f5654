"""The ledger: what crossed the wall. One JSON line per (round, step, direction, site, field).

"up" is what left a site. Bytes are those of the encoded message: the fields of a message and its
"(header)" add up to what was sent. `seen` says whether the server looked at single replies
("one by one"), or only at their sum ("sum": a promise of the server's code, not of cryptography).
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.errors import RunError
from confide.federation.messages import FieldSize


@dataclass(frozen=True, slots=True)
class Entry:
    """One field of one message that crossed the wall."""

    round: int
    step: str
    direction: str
    site: str
    field: str
    kind: str
    bytes: int
    count: int
    seen: str


_json = json.JSONEncoder(separators=(",", ":")).encode

_KINDS = {
    name: int if name in ("round", "bytes", "count") else str for name in Entry.__dataclass_fields__
}


class Ledger:
    """Appends entries to a file, and keeps the totals per direction and site."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._waiting: list[str] = []
        self.totals: dict[str, dict[str, int]] = {"up": defaultdict(int), "down": defaultdict(int)}
        if path is not None and path.exists():
            for entry in read_ledger(path):
                self.totals[entry.direction][entry.site] += entry.bytes

    def record(
        self,
        sizes: Iterable[FieldSize],
        *,
        round: int,
        step: str,
        direction: str,
        site: str,
        seen: str,
    ) -> None:
        """Note one message. Nothing is on disk before `flush`."""
        for size in sizes:
            self.totals[direction][site] += size.bytes
            entry = Entry(
                round, step, direction, site, size.field, size.kind, size.bytes, size.count, seen
            )
            line = {name: getattr(entry, name) for name in Entry.__slots__}
            self._waiting.append(_json(line))

    def flush(self) -> int:
        """Write what waits; gives the length of the file in bytes, for checkpoints."""
        if self._path is None:
            self._waiting.clear()
            return 0
        lines = "".join(line + "\n" for line in self._waiting)
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(lines)
        except OSError as error:
            raise RunError(
                f"the ledger could not be written ({error.strerror})",
                where=str(self._path),
                fix="make room on the disk, then continue with --resume",
            ) from error
        self._waiting.clear()
        return self._path.stat().st_size

    @staticmethod
    def cut(path: Path, length: int) -> None:
        """Forget what was written after a checkpoint, so that a resumed run counts it once.

        Raises RunError where lines are missing that were there at the checkpoint.
        """
        there = path.stat().st_size if path.exists() else 0
        if there < length:
            raise RunError(
                "a part of the ledger is missing",
                expected=f"at least {length} bytes",
                got=f"{there} bytes",
                where=str(path),
                fix="bring the file back, or start the run again in another folder",
            )
        if there > length:
            os.truncate(path, length)


def read_ledger(path: Path) -> Iterator[Entry]:
    """The entries of a ledger file. Raises RunError on a damaged line."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                entry = Entry(**json.loads(line))
                if not all(type(getattr(entry, name)) is kind for name, kind in _KINDS.items()):
                    raise ValueError("a field of another type")
            except (ValueError, TypeError) as error:
                raise RunError("a damaged line in a ledger", where=f"{path}:{number}") from error
            yield entry


def ledger_files(run: Path) -> list[Path]:
    """The ledger of a run, or those of its sites where each was a federation of its own."""
    return sorted([*run.glob("ledger.jsonl"), *run.glob("alone/*/ledger.jsonl")])


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """All entries of one step, direction and field, added up."""

    step: str
    direction: str
    field: str
    bytes: int
    count: int
    sites: int
    rounds: int
    seen: str


def ledger(run: Path) -> list[LedgerRow]:
    """What crossed the wall in a run, by step, direction and field.

    A reference run (`alone`) has a ledger per site; they are joined. Raises RunError where the
    folder holds no ledger.
    """
    paths = ledger_files(run)
    if not paths:
        raise RunError(
            "this folder holds no ledger", where=str(run), fix="name the folder of a run"
        )
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for path in paths:
        for entry in read_ledger(path):
            key = (entry.step, entry.direction, entry.field, entry.seen)
            group = groups.setdefault(
                key, {"bytes": 0, "count": 0, "sites": set(), "rounds": set()}
            )
            group["bytes"] += entry.bytes
            group["count"] += entry.count
            group["sites"].add(entry.site)
            group["rounds"].add(entry.round)
    return [
        LedgerRow(
            step=step,
            direction=direction,
            field=name,
            bytes=group["bytes"],
            count=group["count"],
            sites=len(group["sites"]),
            rounds=len(group["rounds"]),
            seen=seen,
        )
        for (step, direction, name, seen), group in groups.items()
    ]


@dataclass(frozen=True, slots=True)
class LedgerDifference:
    """What two ledgers of one site do not say alike.

    `again`: messages that only the site's holds because they crossed the wall once more, after a
    crash; `only_here` and `only_there`: messages that one of the two does not know at all.
    """

    site: str
    messages: int
    again: int
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]

    @property
    def agree(self) -> bool:
        """Whether the server's ledger holds what left the site, and nothing else."""
        return not self.only_here and not self.only_there


def compare_ledgers(run: Path, other: Path) -> LedgerDifference:
    """Compare the ledger of a run with the one that a site kept of it (`MEMORY/runs/RUN`).

    Raises RunError where one of the two is missing or damaged, or the second is not one site's.
    """
    theirs = other / "ledger.jsonl" if other.is_dir() else other
    if not theirs.is_file():
        raise RunError("there is no ledger of a site here", where=str(theirs))
    there = list(read_ledger(theirs))
    names = {entry.site for entry in there}
    if len(names) != 1:
        raise RunError(
            "this is not the ledger of one site",
            where=str(theirs),
            expected="the one that a site kept: MEMORY/runs/RUN/ledger.jsonl",
            got=f"{len(names)} sites",
        )
    site = names.pop()
    paths = ledger_files(run)
    if not paths:
        raise RunError("this folder holds no ledger", where=str(run), fix="name a run's folder")
    here = [entry for path in paths for entry in read_ledger(path) if entry.site == site]
    ours, sites = Counter(here), Counter(there)
    return LedgerDifference(
        site,
        messages=sum(sites.values()),
        again=sum(max(sites[one] - ours[one], 0) for one in sites if one in ours),
        only_here=tuple(sorted({_name(one) for one in ours if ours[one] > sites[one]})),
        only_there=tuple(sorted({_name(one) for one in sites if one not in ours})),
    )


def _name(entry: Entry) -> str:
    return (
        f"round {entry.round}, {entry.step}, {entry.direction}, {entry.field}: {entry.bytes} bytes"
    )
