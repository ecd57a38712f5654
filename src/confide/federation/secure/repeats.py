"""Which sets of sites a site has helped to sum, so that no difference of two sums tells of one.

Two sums of the same replies over sets that differ by one site give that site's reply away. So a
site writes down each set before it gives the shares that open its sum, and refuses

- the same turn of a run, or the same ask of a step in any run, for another set;
- in one run, a set with a site that an earlier set of the run lacked, unless this very sum was
  opened before: a run that goes on from an earlier checkpoint gets the same sum again;
- in one turn of a step that weighs what the site holds (`Step.once`), another ask.

These rules stop exact repeats only: sums of other rounds or runs over other sets may still differ
by little more than one site.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import NamedTuple, Protocol

from confide.federation.digests import digest, number
from confide.federation.failures import Refusal

SUMS = "sums"
"""The folder in a site's memory."""
TURN = "turn-"
"""How the files begin that hold the set of one turn."""


class Turns(NamedTuple):
    """One sum: the run, the round, the step, the digest of the ask; and the attempt."""

    run: str
    round: int
    step: str
    ask: bytes
    attempt: int = 0
    group: bool = False


class Record(Protocol):
    """Where a site writes down which sets it has helped to sum."""

    def claim(self, turn: Turns, names: list[str]) -> None:
        """Write down a set before the answer that opens its sum. Raises Refusal."""
        ...

    def fix(self, turn: Turns) -> None:
        """Write down the one ask that the site answers in a turn. Raises Refusal for another."""
        ...

    def fixed(self, turn: Turns) -> str:
        """The ask that was fixed for a turn, once a set was claimed there; empty before."""
        ...


class Sets:
    """The sets that a site has helped to sum, in a folder that it owns; many processes may write.

    A file, once there, is never changed: it is written under another name and linked, so that of
    two processes only one can claim a turn.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, turn: Turns, names: list[str]) -> None:
        """Write down a set before its sum is opened. Raises Refusal if another was claimed.

        Sums of all sites and of a fixed group (`turn.group`) are different sums.
        """
        said = "\n".join(names) + "\n"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        run, step = turn.run.encode(), turn.step.encode()
        marks = [
            _turn(turn),
            "ask-" + digest(b"ask", step, turn.ask).hex(),
        ]
        again = "sum-" + digest(b"sum", run, number(turn.round), step, turn.ask).hex()
        for mark in marks:  # a claim that is refused leaves nothing behind
            path = self._folder / mark
            if path.exists() and path.read_text() != said:
                raise Refusal("other-set")
        opened = self._folder / again
        if opened.exists():  # by now, although no mark was there: another process may be as far
            if opened.read_text() != said:
                raise Refusal("other-set")
            return
        self._shrink(turn, said)
        if not self._put([*marks, again], said):
            raise Refusal("other-set")

    def fix(self, turn: Turns) -> None:
        """Write down the one ask that the site answers in a turn. Raises Refusal for another.

        For steps that weigh what a site holds by numbers of the server's: two asks would be two
        sums of the same vectors, each with weights of its own.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._put([_once(turn)], turn.ask.hex() + "\n"):
            raise Refusal("second-ask")

    def fixed(self, turn: Turns) -> str:
        """The digest of the ask that was fixed for a turn, once its sum was opened; else empty."""
        path = self._folder / _once(turn)
        there = (self._folder / _turn(turn)).exists() and path.exists()
        return path.read_text().strip() if there else ""

    def sizes(self) -> list[int]:
        """How many sites were in each sum that the site has helped to open."""
        return [len(path.read_text().split()) for path in sorted(self._folder.glob(f"{TURN}*"))]

    def _shrink(self, turn: Turns, said: str) -> None:
        """Note a run's smallest set. Raises Refusal for a site that an earlier set lacked."""
        mark = digest(b"run", turn.run.encode(), number(turn.group)).hex()
        before, place = "", 0
        while True:
            path = self._folder / f"run-{mark}-{place:04d}"
            if path.exists():
                before = path.read_text()
                if not set(said.split("\n")) <= set(before.split("\n")):
                    raise Refusal("other-set")
                place += 1
            elif before == said or self._put([path.name], said):
                return

    def _put(self, names: list[str], said: str) -> bool:
        """Make the files of these names in turn; whether they all hold this, not another set."""
        new: Path | None = None
        try:
            for name in names:
                path = self._folder / name
                if not path.exists():
                    new = new or self._written(said)
                    with contextlib.suppress(FileExistsError):
                        os.link(new, path)
                if path.read_text() != said:
                    return False
            return True
        finally:
            if new is not None:
                new.unlink()

    def _written(self, said: str) -> Path:
        """A new file under a name of its own that holds this, on the disk."""
        new = self._folder / f".{secrets.token_hex(8)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(said)
            file.flush()
            os.fsync(file.fileno())
        return new


def _turn(turn: Turns) -> str:
    """The file that holds the set of a turn."""
    named = digest(b"turn", turn.run.encode(), number(turn.round), turn.step.encode())
    return TURN + named.hex()


def _once(turn: Turns) -> str:
    """The file that holds the one ask of a turn."""
    named = digest(b"once", turn.run.encode(), number(turn.round), turn.step.encode())
    return "once-" + named.hex()
