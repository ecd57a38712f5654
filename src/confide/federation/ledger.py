"""The ledger: what crossed the wall. One JSON line per (round, step, direction, site, field).

"up" is what left a site. Bytes are those of the encoded message: the fields of a message and its
"(header)" add up to what was sent. `seen` says whether the server looked at single replies
("one by one"), or only at their sum ("sum": a promise of the server's code, not of cryptography).

The lines are a chain: each holds in `before` the digest of the line before it, so a line that is
changed or taken out is found. Nothing is ever taken out: a run that continues from a checkpoint
appends a line that says so, and what crossed after that checkpoint counts as "crossed again".
Between real sites a line "(seal)" follows each message, with the digest of the message and the
signature of the other side (`confide.federation.seals`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.errors import RunError
from confide.federation.messages import FieldSize

START = "0" * 64
"""What the first line of a chain has in place of the digest of the line before it."""
SEAL = "(seal)"
"""The field of the line that holds digest and signature of a message."""
OPENED, MET, RESUMED, CLOSED = "opened", "met", "resumed", "closed"
"""What a line that is no message's can say: the run and its identities, a site's identity, a
resume, the end of the run."""


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

    def words(self) -> str:
        """The entry as a person reads it."""
        place = f"round {self.round}, {self.step}, {self.direction}, {self.field}"
        return f"{place}: {self.bytes} bytes"


_json = json.JSONEncoder(separators=(",", ":")).encode

_KINDS = {
    name: int if name in ("round", "bytes", "count") else str for name in Entry.__dataclass_fields__
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a ledger file. `tree` is what it says; empty where it was torn by a crash.

    `chained`: it holds the digest of the line before it (None: it was written before there were
    chains). `again`: what it notes crossed once more, after a resume.
    """

    number: int
    tree: Mapping[str, Any]
    digest: str
    chained: bool | None
    again: bool = False

    @property
    def entry(self) -> Entry | None:
        """The field of a message that it notes, if it notes one."""
        if "field" not in self.tree:
            return None
        return Entry(**{name: self.tree[name] for name in _KINDS})


class Ledger:
    """Appends entries to a file, and keeps the totals per direction and site."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._waiting: list[str] = []
        self._length = 0
        self.head = START
        self.lines = 0
        self.totals: dict[str, dict[str, int]] = {"up": defaultdict(int), "down": defaultdict(int)}
        if path is not None and path.exists():
            self._continue(path)

    @staticmethod
    def resumed(path: Path, *, length: int | None = None, round: int | None = None) -> Ledger:
        """The ledger of a run that continues, with a line that says so; a new one if there is none.

        `length` is that of the file in bytes at the checkpoint of `round`: what was noted after it
        stays, and counts no more. Without it all counts. Raises RunError where lines are missing
        that were there at the checkpoint, or where the file is damaged.
        """
        there = path.stat().st_size if path.exists() else 0
        if there < (length or 0):
            raise RunError(
                "a part of the ledger is missing",
                expected=f"at least {length} bytes",
                got=f"{there} bytes",
                where=str(path),
                fix="bring the file back, or start the run again in another folder",
            )
        if there:
            raw, last = path.read_bytes(), read_lines(path, torn_end=True)[-1]
            facts: dict[str, Any] = {} if round is None else {"round": round}
            facts |= {} if length is None else {"from": length}
            facts |= {} if last.tree else {"torn": True}
            line, _ = _linked({"note": RESUMED, **facts}, last.digest)
            with open(path, "ab", buffering=0) as file:
                file.write((b"" if raw.endswith(b"\n") else b"\n") + line.encode("ascii") + b"\n")
        return Ledger(path)

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
            self._add({name: getattr(entry, name) for name in Entry.__slots__})

    def seal(self, weight: int, facts: Mapping[str, Any]) -> None:
        """Note what vouches for a message: `facts` of `round`, `step`, `direction`, `site`, more.

        `weight` is what it adds to the message on the wire, in bytes.
        """
        self.totals[facts["direction"]][facts["site"]] += weight
        own = {"field": SEAL, "kind": "seal", "bytes": weight, "count": 1, "seen": "one by one"}
        self._add({**facts, **own})

    def note(self, what: str, **facts: Any) -> None:
        """A line that is no message's: `OPENED`, `MET` or `CLOSED`, and what belongs to it."""
        self._add({"note": what, **facts})

    def flush(self) -> int:
        """Write what waits; gives the length of the file in bytes, for checkpoints."""
        if self._path is None:
            self._waiting.clear()
            return 0
        lines = "".join(line + "\n" for line in self._waiting)
        try:
            self._write(self._path, lines.encode("ascii"))
        except OSError as error:
            raise RunError(
                f"the ledger could not be written ({error.strerror})",
                where=str(self._path),
                fix="make room on the disk, then continue with --resume",
            ) from error
        self._waiting.clear()
        return self._length

    def _write(self, path: Path, data: bytes) -> None:
        """All of it or nothing: what a full disk took of it is taken back."""
        with open(path, "ab", buffering=0) as file:
            start = file.seek(0, os.SEEK_END)
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                file.truncate(start)
                raise
            self._length = file.tell()

    def _add(self, tree: dict[str, Any]) -> None:
        line, self.head = _linked(tree, self.head)
        self.lines += 1
        self._waiting.append(line)

    def _continue(self, path: Path) -> None:
        lines = read_lines(path)
        for line in lines:
            if line.chained is False:
                raise RunError(
                    "this line of a ledger, or the one before it, is not what was written",
                    where=f"{path}:{line.number}",
                    fix="bring the file back, or start the run again in another folder",
                )
            entry = line.entry
            if entry is not None and not line.again:
                self.totals[entry.direction][entry.site] += entry.bytes
        self._length = path.stat().st_size
        self.lines = len(lines)
        self.head = lines[-1].digest if lines else START


def _linked(tree: dict[str, Any], head: str) -> tuple[str, str]:
    """The line of a chain whose last digest is `head`, and its own digest."""
    line = _json({**tree, "before": head})
    return line, hashlib.sha256(line.encode("ascii")).hexdigest()


# --- reading ------------------------------------------------------------------------------


def read_lines(path: Path, *, torn_end: bool = False) -> list[Line]:
    """All lines of a ledger file, with what their chain says of each.

    Raises RunError on a damaged line, unless a crash tore it and the run was resumed thereafter;
    with `torn_end` the last line may be such a one.
    """
    raw = path.read_bytes()
    found: list[Line] = []
    starts: list[int] = []
    head, place, torn = START, 0, 0
    for number, data in enumerate(raw.split(b"\n"), 1):
        start, place = place, place + len(data) + 1
        if not data.strip():
            continue
        tree = _tree(data)
        if tree is None:
            torn = torn or number
        elif torn and not (tree.get("note") == RESUMED and tree.get("torn") is True):
            raise _damaged(path, torn)
        else:
            torn = 0
        before = None if tree is None else tree.get("before")
        chained = None if before is None else before == head
        if before is None and not torn and any(line.chained is not None for line in found):
            chained = False  # a chain that has begun does not end
        head = hashlib.sha256(data).hexdigest()
        found.append(Line(number, tree or {}, head, chained))
        starts.append(start)
    if torn and not torn_end:
        raise _damaged(path, torn)
    return _counted(found, starts)


def _counted(lines: list[Line], starts: list[int]) -> list[Line]:
    """The lines, with a mark at those that a resume does not count any more."""
    for place, line in enumerate(list(lines)):
        length = line.tree.get("from") if line.tree.get("note") == RESUMED else None
        if length is not None:
            for earlier in range(place - 1, -1, -1):
                if starts[earlier] < length:
                    break
                one = lines[earlier]
                lines[earlier] = Line(one.number, one.tree, one.digest, one.chained, again=True)
    return lines


def _tree(data: bytes) -> dict[str, Any] | None:
    """What a line says; None where it is none of a ledger."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(tree, dict):
        return None
    if "field" in tree:
        sound = all(type(tree.get(name)) is kind for name, kind in _KINDS.items())
        return tree if sound else None
    return tree if _is_note(tree) else None


def _is_note(tree: Mapping[str, Any]) -> bool:
    return tree.get("note") in (OPENED, MET, CLOSED) or (
        tree.get("note") == RESUMED and type(tree.get("from", 0)) is int
    )


def _damaged(path: Path, number: int) -> RunError:
    return RunError("a damaged line in a ledger", where=f"{path}:{number}")


def read_ledger(path: Path) -> Iterator[Entry]:
    """The entries of a ledger file that count. Raises RunError on a damaged line."""
    for line in read_lines(path):
        entry = line.entry
        if entry is not None and not line.again:
            yield entry


def ledger_files(run: Path) -> list[Path]:
    """The ledger of a run, or those of its sites where each was a federation of its own."""
    return sorted([*run.glob("ledger.jsonl"), *run.glob("alone/*/ledger.jsonl")])


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """All entries of one step, direction and field, added up.

    `again`: bytes that crossed besides, in rounds that were done again after a resume.
    """

    step: str
    direction: str
    field: str
    bytes: int
    count: int
    sites: int
    rounds: int
    seen: str
    again: int = 0


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
        for line in read_lines(path):
            entry = line.entry
            if entry is None:
                continue
            key = (entry.step, entry.direction, entry.field, entry.seen)
            group = groups.setdefault(
                key, {"bytes": 0, "count": 0, "again": 0, "sites": set(), "rounds": set()}
            )
            if line.again:
                group["again"] += entry.bytes
                continue
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
            again=group["again"],
        )
        for (step, direction, name, seen), group in groups.items()
    ]
