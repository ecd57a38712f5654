"""A site's run keys and privacy account over all runs, on its own disk.

A charge is written before anything leaves.

The account is a file of lines that only grows. Its first line fixes the order at which it is kept;
each other line is one charge, with the digest of the line before. The digest of the last line is
the account's `head`: a copy that was put back from a backup has an older one.

Charges may depend on what earlier rounds told, so the rounds' divergences may not be compared at
whatever order suits in the end. The site keeps a Rényi filter (Feldman & Zrnic, "Individual Privacy
Accounting via a Rényi Filter", NeurIPS 2021, Theorem 4.3): at one order, fixed before the first
charge, the divergences of all charges may not add up to more than a limit, and then everything
together is (ε, δ)-private. The order is the one at which most rounds like the first one fit.

A run's key decides who is drawn and which noise hides them; it never leaves the site, and is
deleted when the site leaves the run. It is kept with a digest of the text that it was made for:
a run that went on with other text would give two answers whose difference tells of the change.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np

from confide.errors import GuardError
from confide.files import decode_json, write_once
from confide.privacy.account import ORDERS, Mechanism, epsilon_of, epsilon_terms

PRIVACY, ACCOUNT = "privacy", "account.jsonl"
"""The folder, in a site's memory folder or its part of a run, and the account in it."""
SCHEMA = 1
_KEY = 32
_MOST_BYTES = 2**30
_NONE = "0" * 64


class SpentError(GuardError):
    """The site's account does not allow another charge."""


@dataclass(frozen=True)
class Limit:
    """A site's limit for all runs: ε at this δ, its guards `max_epsilon` and `delta`."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Charge:
    """One noisy sum that a site takes part in.

    `ask` and `mark` are 64 hexadecimal digits: different for different asks, and for different
    noise. The same noise is charged once, and one ask is answered with one noise only: two answers
    over the same draw of units would tell more than two rounds. `draws` is how many numbers were
    noised.
    """

    run: str
    round: int
    ask: str
    mark: str
    mechanism: Mechanism
    draws: int


@dataclass
class _State:
    """An account as it was read: what was spent at every order, and at its own."""

    order: int = 0
    head: str = _NONE
    end: int = 0
    marks: dict[str, str] = field(default_factory=dict)
    curve: Any = field(default_factory=lambda: np.zeros(len(ORDERS)))
    draws: int = 0

    def epsilon(self, delta: float) -> float:
        """ε of all charges at the account's order, which the first charge fixed."""
        return epsilon_of(self.curve, delta, draws=self.draws, order=self.order)


@dataclass(frozen=True)
class AccountStatus:
    """The state of an account: ε that was spent, the charges, and the digest of its last line."""

    epsilon: float
    charges: int
    head: str


class PrivacyBudget:
    """A site's run keys and account, in a folder that only its owner can read.

    Several processes may share it.

    Args:
        folder: made when something is kept.
        limit: what the site allows over all runs.
        simulated: of a site of an experiment, what its run keys are made from instead of being
            drawn, so that a run can be repeated. They protect nothing.
    """

    def __init__(self, folder: Path, limit: Limit, *, simulated: bytes = b"") -> None:
        self._folder = folder
        self._path = folder / ACCOUNT
        self._simulated = simulated
        self.limit = limit
        self._known: tuple[object, _State] | None = None

    def key(self, run: bytes, *, text: bytes) -> bytes:
        """The key of a run on this text, made at the first ask: 32 bytes.

        Raises GuardError if the run began with other text.
        """
        path = self._key_file(run)
        said = hashlib.sha256(text).digest()
        drawn = secrets.token_bytes(_KEY)
        if self._simulated:
            drawn = hmac.digest(self._simulated, run, "sha256")
        write_once(drawn + said, path)
        kept = path.read_bytes()
        if len(kept) != 2 * _KEY:
            raise GuardError("a run key is damaged", where=str(path), fix="begin another run")
        if kept[_KEY:] != said:
            raise GuardError(
                "this run began with other text, and goes on with no other",
                fix="put the text back as it was, or begin another run",
            )
        return kept[:_KEY]

    def forget(self, run: bytes) -> None:
        """Delete a run's key: nobody can draw its noise again."""
        self._key_file(run).unlink(missing_ok=True)

    def _key_file(self, run: bytes) -> Path:
        return self._folder / f"{hashlib.sha256(run).hexdigest()}.key"

    def spend(self, charge: Charge) -> bool:
        """Write a charge down; False if this very noise was charged before.

        It is on disk when this returns, and nothing may leave the site before. Raises SpentError if
        the limit does not allow it, GuardError if the file is not a sound account.
        """
        with self._locked() as file:
            now = self._now(file)
            if now.marks.get(charge.ask) == charge.mark:
                return False
            if charge.ask in now.marks:
                raise SpentError(
                    "this very ask was answered with other noise before",
                    fix="ask in a round of its own: the site's numbers or its text have changed",
                )
            self._known = None  # until this is written, what was read is not how the file stands
            curve_A, lines = charge.mechanism.curve, b""
            if not now.order:  # the one at which most rounds of this curve fit
                left_A = self.limit.epsilon - epsilon_terms(self.limit.delta)
                now.order = ORDERS[int(np.argmax(left_A / np.maximum(curve_A, 1e-300)))]
                lines = _line({"schema": SCHEMA, "order": now.order, "before": now.head})
                now.head = _digest(lines)
            now.curve = now.curve + curve_A
            now.draws += charge.draws
            if not now.epsilon(self.limit.delta) <= self.limit.epsilon:
                raise SpentError(
                    f"another round would spend more than the site's max_epsilon ="
                    f" {self.limit.epsilon:g} at delta = {self.limit.delta:g}",
                    fix="raise the guard max_epsilon at this site, or end the run here",
                )
            one = charge.mechanism
            told = {
                "run": charge.run, "round": charge.round, "ask": charge.ask, "mark": charge.mark,
                "clip": one.clip, "variance": one.variance, "rate": one.rate, "draws": charge.draws,
                "before": now.head,
            }  # fmt: skip
            file.seek(now.end)
            file.truncate()
            written = _line(told)
            file.write(lines + written)
            file.flush()
            os.fsync(file.fileno())
            if not now.end:  # a new file has to outlive a loss of power
                folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
            now.marks[charge.ask], now.head = charge.mark, _digest(written)
            now.end += len(lines + written)
            self._known = _as_it_lies(file), now
        return True

    def _now(self, file: BufferedRandom) -> _State:
        """The account as it is; read again only if the file is not as this object left it."""
        if self._known is None or self._known[0] != _as_it_lies(file):
            self._known = _as_it_lies(file), _read(file, self._path)
        return self._known[1]

    def status(self) -> AccountStatus:
        """Return the account's present state. Raises GuardError if the file is no sound account."""
        if not self._path.exists():
            return AccountStatus(0.0, 0, _NONE)
        with self._locked() as file:
            now = _read(file, self._path)
        spent = now.epsilon(self.limit.delta) if now.marks else 0.0
        return AccountStatus(spent, len(now.marks), now.head)

    @contextmanager
    def _locked(self) -> Iterator[BufferedRandom]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self._path, flags, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


def _as_it_lies(file: BufferedRandom) -> object:
    """A stamp that changes with every write to the file."""
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(file: BufferedRandom, path: Path) -> _State:
    """The account in an open file. A last line without its end was never answered upon.

    Raises GuardError.
    """
    now = _State()
    raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise _unsound(path, 0)
    for number, line in enumerate(raw.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            _take(now, decode_json(line.decode()), first=number == 1)
        except (ValueError, KeyError, TypeError, GuardError) as error:
            raise _unsound(path, number) from error
        now.head = _digest(line)
        now.end += len(line)
    return now


def _take(now: _State, told: dict[str, Any], *, first: bool) -> None:
    if told["before"] != now.head:
        raise ValueError("the chain is broken")
    if first:
        if told["schema"] != SCHEMA or told["order"] not in ORDERS:
            raise ValueError("the first line is of another schema")
        now.order = told["order"]
        return
    one = Mechanism(int(told["clip"]), int(told["variance"]), float(told["rate"]))
    now.marks[str(told["ask"])] = str(told["mark"])
    now.curve = now.curve + one.curve
    now.draws += int(told["draws"])


def _unsound(path: Path, number: int) -> GuardError:
    return GuardError(
        "the site's privacy account is not sound, so nothing more is spent from it",
        expected="lines that each hold the digest of the line before",
        where=f"{path}:{number}",
        fix="find out who changed the file; without it, nobody knows what was spent",
    )


def _line(told: dict[str, object]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
