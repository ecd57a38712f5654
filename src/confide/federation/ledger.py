"""The ledger: what crossed the wall. One JSON line per (round, step, direction, site, field).

"up" is what left a site. Bytes are those of the encoded message: a message's fields and its
"(header)" add up to what was sent. `seen` says whether the server looked at single replies
("one by one") or only at their sum ("sum": a promise of the server's code, not of cryptography), or
could not have read them ("masked").

The lines form a chain: each holds, in `before`, the digest of the line before it, so a changed or
missing line is found. Nothing is ever removed: a run that continues from a checkpoint appends a
line that says so, and what crossed after that checkpoint counts as "crossed again". Between real
sites a "(seal)" line follows each message, with the digest of the message and the signature of the
other side (`confide.federation.seals`).
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from confide.errors import RunError, os_errors_as
from confide.federation.messages import FieldSize
from confide.files import Tree

START = "0" * 64
"""The `before` of the first line of a chain."""
SEAL = "(seal)"
"""The field of the line that holds the digest and signature of a message."""
OPENED, MET, RESUMED, CLOSED = "opened", "met", "resumed", "closed"
"""The notes, lines that belong to no message: the run and its identities, a peer's identity, a
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
class LedgerLine:
    """A line of a ledger file. `tree` is its content, empty if a crash tore the line.

    `chained`: whether it holds the digest of the line before it (None if it is older than chains).
    `again`: whether a resumed run sent the same once more.
    """

    number: int
    tree: Tree
    digest: str
    chained: bool | None
    again: bool = False

    @property
    def entry(self) -> Entry | None:
        """The entry in this line; None if it is a note."""
        if "field" not in self.tree:
            return None
        return Entry(**{name: self.tree[name] for name in _KINDS})


class Ledger:
    """Appends lines to a file, and keeps the bytes per direction and site in `totals`.

    `head` is the digest of the last line, `lines` their number. Without a path, nothing is written.
    Raises RunError if the file is damaged or a line was changed.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._waiting: list[str] = []
        self.head = START
        self.lines = 0
        self._always: Collection[str] = ()
        self._held: dict[Hashable, deque[bool]] = defaultdict(deque)
        self.totals: dict[str, dict[str, int]] = {"up": defaultdict(int), "down": defaultdict(int)}
        lines = read_lines(path) if path is not None and path.exists() else []
        for line in lines:
            if line.chained is False:
                raise RunError(
                    "this line of the ledger, or the one before it, was changed",
                    where=f"{path}:{line.number}",
                    fix="restore the file, or start the run again in another folder",
                )
            entry = line.entry
            if entry is not None and not line.again:
                self.totals[entry.direction][entry.site] += entry.bytes
        if lines:
            self.lines, self.head = len(lines), lines[-1].digest

    @staticmethod
    def resumed(path: Path, *, length: int | None = None, round: int | None = None) -> Ledger:
        """The ledger of a run that continues, with a line that says so, or a new one.

        `length` is the file's length in bytes at the checkpoint of `round`: lines after that stay
        but no longer count. Without it all lines count. Raises RunError if lines from before the
        checkpoint are missing, or if the file is damaged.
        """
        there = path.stat().st_size if path.exists() else 0
        if there < (length or 0):
            raise RunError(
                "a part of the ledger is missing",
                expected=f"at least {length} bytes",
                got=f"{there} bytes",
                where=str(path),
                fix="restore the file, or start the run again in another folder",
            )
        if there:
            raw, last = path.read_bytes(), read_lines(path, torn_end=True)[-1]
            facts: dict[str, object] = {} if round is None else {"round": round}
            facts |= {} if length is None else {"from": length}
            facts |= {} if last.tree else {"torn": True}
            line, _ = _linked({"note": RESUMED, **facts}, last.digest)
            with open(path, "ab", buffering=0) as file:
                file.write((b"" if raw.endswith(b"\n") else b"\n") + line.encode("ascii") + b"\n")
        return Ledger(path)

    @staticmethod
    def replayed(
        path: Path,
        *,
        length: int,
        always: Collection[str],
        without: Collection[tuple[str, str]] = (),
    ) -> Ledger:
        """The ledger of a run whose code runs once more up to where it waits for replies.

        It starts from the checkpoint at which the file had `length` bytes, and from the steps that
        are `always` asked before it goes on from there. What the code notes again is in the file
        already, and is not written a second time; `totals` grow with it as they did before. But
        asks that are made anew (`without`, each by its site and the digest in its seal) crossed
        once more, with their replies. Raises RunError if the file is damaged.
        """
        if path.exists() and not path.stat().st_size:
            path.unlink()
        if not path.exists():
            return Ledger(path)
        lines = read_lines(path, torn_end=True)
        if not lines[-1].tree:
            Ledger.resumed(path)  # a crash tore the last line
        ledger = Ledger(path)
        ledger._always = always
        before = path.read_bytes()[:length].count(b"\n")
        found: list[tuple[Hashable, list[LedgerLine]]] = []
        over: list[Hashable] = []  # replies that come after their seal, to asks made anew
        for turn, group in groupby(lines, lambda line: ledger._turn_of(line.tree)):
            message = [line for line in group if line.entry is not None]
            if not message:
                continue
            tree = message[0].tree
            named = tree.get("digest" if tree["direction"] == "down" else "ask")
            message_turn = ledger._turn_of({**tree, "field": ""})
            if tree["field"] == SEAL and (tree["site"], named) in without:
                if tree["direction"] == "up":
                    over.append(message_turn)
                else:  # an ask comes before its seal
                    turns = [one for one, _ in found]
                    if message_turn in turns:
                        del found[len(turns) - 1 - turns[::-1].index(message_turn)]
            elif turn in over:
                over.remove(turn)
            else:
                found.append((turn, message))
        for turn, message in found:
            late = message[-1].number > before
            if late or message[0].tree["step"] in always:
                ledger._held[turn, tuple(line.tree["field"] for line in message)].append(late)
            for line in message:
                if late and not line.again:
                    ledger.totals[line.tree["direction"]][line.tree["site"]] -= line.tree["bytes"]
        return ledger

    def _again(self, turn: Hashable, fields: tuple[str, ...]) -> bool | None:
        """Tell if a message in the file is from after the checkpoint; None: it is not there."""
        held = self._held.get((turn, fields))
        return held.popleft() if held else None

    def _turn_of(self, tree: Tree) -> Hashable:
        """The common part of a message's lines; steps that are always asked have no round.

        A seal is a message of its own.
        """
        if "field" not in tree:
            return None
        turn = 0 if tree["step"] in self._always else tree["round"]
        return turn, *(tree[name] for name in ("step", "direction", "site")), tree["field"] == SEAL

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
        """Note one message, one line per field. Nothing is on disk before `flush`."""
        sizes = list(sizes)
        facts = {"round": round, "step": step, "direction": direction, "site": site, "field": ""}
        again = self._again(self._turn_of(facts), tuple(size.field for size in sizes))
        for size in sizes:
            self.totals[direction][site] += size.bytes if again is not False else 0
            if again is not None:
                continue
            entry = Entry(
                round, step, direction, site, size.field, size.kind, size.bytes, size.count, seen
            )
            self._add({name: getattr(entry, name) for name in Entry.__slots__})

    def seal(self, weight: int, facts: Tree) -> None:
        """Note the seal of a message, which adds `weight` bytes on the wire.

        `facts` holds its `round`, `step`, `direction` and `site`, and what else the line shall say.
        """
        self.totals[facts["direction"]][facts["site"]] += weight
        own = {"field": SEAL, "kind": "seal", "bytes": weight, "count": 1, "seen": "one by one"}
        self._add({**facts, **own})

    def seal_again(self, weight: int, facts: Tree) -> None:
        """Count the seal of a message that the file has (`replayed`)."""
        if self._again(self._turn_of({**facts, "field": SEAL}), (SEAL,)):
            self.totals[facts["direction"]][facts["site"]] += weight

    def note(self, what: str, **facts: object) -> None:
        """Add a line that belongs to no message: `OPENED`, `MET` or `CLOSED`, and its facts."""
        self._add({"note": what, **facts})

    def flush(self) -> int:
        """Write what waits; the length of the file in bytes. Raises RunError: the disk is full."""
        if self._path is None:
            self._waiting.clear()
            return 0
        lines = "".join(line + "\n" for line in self._waiting)
        with os_errors_as(
            RunError,
            "the ledger could not be written",
            where=self._path,
            fix="free some disk space, then continue with --resume",
        ):
            data = lines.encode("ascii")
            with open(self._path, "ab", buffering=0) as file:
                start = file.seek(0, os.SEEK_END)
                try:
                    while data:
                        data = data[file.write(data) :]
                except OSError:  # all or nothing: what is already written is removed
                    file.truncate(start)
                    raise
                length = file.tell()
        self._waiting.clear()
        return length

    def _add(self, tree: dict[str, object]) -> None:
        line, self.head = _linked(tree, self.head)
        self.lines += 1
        self._waiting.append(line)


def _linked(tree: dict[str, object], head: str) -> tuple[str, str]:
    """The next line of a chain whose last digest is `head`, and its own digest."""
    line = _json({**tree, "before": head})
    return line, hashlib.sha256(line.encode("ascii")).hexdigest()


# --- reading ------------------------------------------------------------------------------


def read_lines(path: Path, *, torn_end: bool = False) -> list[LedgerLine]:
    """All lines of a ledger file, each checked against the chain.

    Raises RunError on a damaged line, unless a crash tore it and the run was resumed afterwards.
    With `torn_end` the last line may be torn too.
    """
    raw = path.read_bytes()
    found: list[LedgerLine] = []
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
            chained = False  # once a chain has begun, every line belongs to it
        head = hashlib.sha256(data).hexdigest()
        found.append(LedgerLine(number, tree or {}, head, chained))
        starts.append(start)
    if torn and not torn_end:
        raise _damaged(path, torn)
    for place, line in enumerate(found):  # what a resume started from counts, nothing after it
        length = line.tree.get("from") if line.tree.get("note") == RESUMED else None
        if length is not None:
            for later in range(bisect_left(starts, length), place):
                found[later] = replace(found[later], again=True)
    return found


def _tree(data: bytes) -> Tree | None:
    """The content of a line; None if it is not a line of a ledger."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(tree, dict):
        return None
    if "field" in tree:
        sound = all(type(tree.get(name)) is kind for name, kind in _KINDS.items())
    else:
        resumed = tree.get("note") == RESUMED and type(tree.get("from", 0)) is int
        sound = resumed or tree.get("note") in (OPENED, MET, CLOSED)
    return tree if sound else None


def _damaged(path: Path, number: int) -> RunError:
    return RunError(
        "a line of the ledger is damaged",
        where=f"{path}:{number}",
        fix="restore the file, or start the run again in another folder",
    )


def read_ledger(path: Path) -> Iterator[Entry]:
    """The entries of a ledger file that count. Raises RunError on a damaged line."""
    for line in read_lines(path):
        entry = line.entry
        if entry is not None and not line.again:
            yield entry


def ledger_files(run: Path) -> list[Path]:
    """The ledger of a run, or one per site if each was a federation of its own."""
    return sorted([*run.glob("ledger.jsonl"), *run.glob("alone/*/ledger.jsonl")])


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """All entries of one step, direction and field, added up.

    `sites` and `rounds` are how many had such an entry. `again`: further bytes that crossed in
    rounds that were repeated after a resume.
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


def ledger(run: Path | str) -> list[LedgerRow]:
    """Return what crossed the wall in a run, by step, direction and field.

    A reference run (`alone`) has a ledger per site; they are added up. Raises RunError if the
    folder holds no ledger, or a damaged one.
    """
    paths = ledger_files(Path(run))
    if not paths:
        raise RunError("this folder holds no ledger", where=str(run), fix="name a run's folder")
    counted: dict[tuple[str, str, str, str], list[Entry]] = {}
    again: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for line in (line for path in paths for line in read_lines(path)):
        entry = line.entry
        if entry is None:
            continue
        key = (entry.step, entry.direction, entry.field, entry.seen)
        found = counted.setdefault(key, [])
        if line.again:
            again[key] += entry.bytes
        else:
            found.append(entry)
    return [
        LedgerRow(
            step,
            direction,
            field,
            bytes=sum(one.bytes for one in found),
            count=sum(one.count for one in found),
            sites=len({one.site for one in found}),
            rounds=len({one.round for one in found}),
            seen=seen,
            again=again[step, direction, field, seen],
        )
        for (step, direction, field, seen), found in counted.items()
    ]
