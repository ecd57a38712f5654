"""Hostile replies of one site, at every step of every method: nobody but that site may be blamed.

Every method is run once on a tiny corpus, and what its sites replied is kept. Then the server's
side of the method is run again and again with these replies, one of which, of one site, has become
something else; it goes on until the method asks for something more, so that all that it makes of
the replies is made. A failure is an exception other than too few sites, a fault of a site that did
nothing, words that a terminal could obey, or more than `SLOW` seconds of the processor.

The steps are those of `METHODS`: a method that is not recorded whole is a failure. Every method is
recorded as its replies come one by one, unless it is trained under noise, and as they are summed
under masks, whose exchanges are attacked too. Of what is under masks nobody can tell who spoilt it:
there an end of the run with one of our errors is no failure.

    python benchmarks/security/fuzz/run.py replies --count 100000 --seed 1
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from tally import Tally

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))  # its tiny corpora

from confide.errors import FederationError, MessageError, QuorumError
from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.failures import CODES, Failure
from confide.federation.federation import Delivery, Federation
from confide.federation.ledger import Ledger
from confide.federation.messages import DTYPES, decode, encode, forms_of
from confide.federation.secure.server import Summing
from confide.federation.secure.steps import EXCHANGES, as_asked
from confide.federation.steps import Step
from confide.methods import METHODS, answered_in, method_of
from confide.runs.run import summing_of
from confide.runs.sites import gather
from confide.settings import SIMULATED
from confide.tasks import TASKS

SLOW = 5.0
SITES = 3
Replies = dict[str, bytes]


class _Enough(Exception):
    """The method asks for more: all was made of the replies before that could be made."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """One call of a method with what its sites replied, delivery by delivery."""

    name: str
    call: Callable[[Federation], Any]
    steps: Mapping[str, Step]
    heard: tuple[tuple[str, Replies], ...]
    seed: int
    summing: Summing | None


@contextmanager
def _repeatable(name: str) -> Iterator[None]:
    """The numbers that name a phase's sums are the same again, so that its replies fit them."""
    drawn = SimpleNamespace(randbits=random.Random(name).getrandbits)
    with mock.patch("confide.federation.secure.server.secrets", drawn):
        yield


class _Recording:
    """An engine that keeps what sites reply."""

    def __init__(self, engine: SequentialEngine) -> None:
        self.engine = engine
        self.heard: list[tuple[str, Replies]] = []

    @property
    def sites(self) -> tuple[str, ...]:
        return self.engine.sites

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        replies: Replies = {}
        self.heard.append((step, replies))
        for one in self.engine.deliver(step, round, asks=asks, timeout=timeout):
            replies[one.site] = one.reply
            yield one


class _Replaying:
    """An engine without sites: replies that were kept, and in one delivery one that was not."""

    def __init__(self, phase: Phase, target: int, site: str, forged: bytes) -> None:
        self._phase, self._target, self._site, self._forged = phase, target, site, forged
        self._number = -1
        self.sites = tuple(sorted({name for _, replies in phase.heard for name in replies}))

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        self._number += 1
        if self._number > self._target:
            raise _Enough
        name, replies = self._phase.heard[self._number]
        assert name == step, f"{step} is asked where {name} was"
        for site in sorted(asks):
            hostile = self._number == self._target and site == self._site
            yield Delivery(site, self._forged if hostile else replies[site], 0.1)


# --- what sites reply ---------------------------------------------------------------------------


@functools.cache
def phases(methods: tuple[str, ...]) -> tuple[Phase, ...]:
    """Every call of these methods, with every step that they have."""
    torch.set_num_threads(1)  # small models are fastest so
    from contract.corpus import reader
    from contract.entries import ENTRIES, OPTIONAL

    found: list[Phase] = []
    folder = tempfile.TemporaryDirectory(prefix="confide-fuzz-")
    os.environ["CONFIDE_CACHE"] = f"{folder.name}/cache"
    for method in methods:
        steps = {step.name for step in METHODS[method].steps}
        forms: set[tuple[str, ...]] = {("federation.sums=masked",)}
        if not METHODS[method].private:
            forms |= {(), *ENTRIES[method].asked.values()}
            if "describe_encoder" in steps:
                forms.add((f'model.context="{reader("encoder")}"',))
        made: list[Phase] = []
        for number, form in enumerate(sorted(forms)):
            made += _recorded(method, form, Path(folder.name) / method / str(number))
        missing = steps - {name for phase in made for name, _ in phase.heard}
        missing -= OPTIONAL - {"describe_encoder"}  # asked for some settings alone
        if missing and not METHODS[method].private:  # under noise nothing of words is asked
            raise LookupError(f"{method}: no reply of {', '.join(sorted(missing))} was recorded")
        found += made
    folder.cleanup()
    for phase in found:  # what is said again word for word must be taken again
        for target, (step, replies) in enumerate(phase.heard):
            site = min(replies)
            if faults := _told(phase, target, site, replies[site], 0):
                raise LookupError(f"{phase.name}, {step}: honest replies are refused: {faults}")
    return tuple(found)


def _recorded(method: str, form: tuple[str, ...], folder: Path) -> list[Phase]:
    from contract.corpus import tiny

    folder.mkdir(parents=True)
    settings = tiny(folder, f"method={method}", f"base={method}", *form, sites=SITES)
    gathered = gather(settings, folder / "sites", key_file=Path(settings.key or ""))
    made = method_of(settings)(settings, gathered.public)
    sums = settings.federation.sums or "plain"
    hosting = Hosting(
        answered_in(settings),
        made.pair.Memory,
        settings.seed,
        sums=sums,
        binding=bytes(32),
        groups=settings.federation.groups,
        simulated=settings.seed if settings.key == SIMULATED else None,
    )
    steps = {step.name: as_asked(step, sums) for step in made.pair.steps} | EXCHANGES
    engine = _Recording(SequentialEngine(gathered.specs, hosting))
    federation = Federation(engine, seed=settings.seed, ledger=Ledger())  # type: ignore[arg-type]
    federation.summing = summing_of(settings, run="fuzzed", sites=engine.sites)
    found: list[Phase] = []

    def keep(name: str, call: Callable[[Federation], Any]) -> Any:
        engine.heard, before = [], copy.deepcopy(federation.summing)
        label = " ".join([method, *form, name])
        with _repeatable(label):
            result = call(federation)
        found.append(Phase(label, call, steps, tuple(engine.heard), settings.seed, before))
        return result

    def scored(part: str, state: Any, round: int) -> Callable[[Federation], Any]:
        def call(federation: Federation) -> str:
            counts = made.score(state, federation, part=part, round=round)
            scoring = TASKS[settings.task]
            sites = {site: scoring.scores(one) for site, one in counts.items()}
            overall = scoring.scores(scoring.sum(counts.values()))
            values = scoring.values(overall) if overall[scoring.unit] else {}
            return json.dumps([sites, overall, values], allow_nan=False)

        return call

    state = keep("start", made.start)
    for n in (1, 2):
        state = keep(f"round {n}", _rounds(made, state, n))[0]
        keep(f"dev {n}", scored("dev", state, n))
    keep("test", scored("test", state, 2))
    return found


def _rounds(method: Any, state: Any, n: int) -> Callable[[Federation], Any]:
    return lambda federation: method.round(state, federation, n)


# --- the attack ---------------------------------------------------------------------------------


def targets(methods: tuple[str, ...]) -> list[tuple[Phase, int]]:
    """Every delivery of every phase."""
    return [(phase, number) for phase in phases(methods) for number in range(len(phase.heard))]


EVERY = tuple(METHODS)


def attack(count: int, seed: int, *, methods: tuple[str, ...] = EVERY) -> Tally:
    """So many replies, over all deliveries in turn; the same for the same seed."""
    draw = random.Random(seed)
    every, failures = targets(methods), []
    refused = accepted = 0
    slowest = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of numbers too large for their type
        for number in range(count):
            phase, target = every[number % len(every)]
            step, replies = phase.heard[target]
            site = draw.choice(sorted(replies))
            way, forged = _forged(phase.steps[step], replies, site, draw)
            place = f"input {number}, {phase.name}, {step}, {way}"
            alone = len(replies) == 1 and target > 0 and phase.heard[target - 1][0] == step
            start = time.process_time()
            try:
                at_least = 2 if draw.random() < 0.1 or alone else 0
                blamed = _told(phase, target, site, forged, at_least)
                if blamed is None:
                    accepted += 1
                else:
                    refused += 1
                    failures += [f"{place}: {why}" for why in _wrong(blamed, site)]
            except Exception as error:
                failures.append(f"{place}: {type(error).__name__}: {str(error)[:200]!r}")
            seconds = time.process_time() - start
            slowest = max(slowest, seconds)
            if seconds > SLOW:
                failures.append(f"{place}: {seconds:.1f} s")
    return Tally(count, refused, accepted, slowest, tuple(failures[:50]))


def _told(phase: Phase, target: int, site: str, forged: bytes, at_least: int) -> Any:
    """The faults that a forged reply led to; None where it was taken."""
    engine: Any = _Replaying(phase, target, site, forged)
    federation = Federation(engine, seed=phase.seed, ledger=Ledger(), at_least=at_least)
    federation.summing = copy.deepcopy(phase.summing)
    try:
        with _repeatable(phase.name):
            phase.call(federation)
    except _Enough:
        pass
    except QuorumError as error:
        return error.faults or federation.faults
    except Exception as error:
        if phase.summing is not None and isinstance(error, FederationError):
            return error
        if at_least:
            raise
        return _told(phase, target, site, forged, 2)  # sites that differ, and all are needed
    return federation.faults or None


def _wrong(faults: Any, site: str) -> Iterator[str]:
    if isinstance(faults, FederationError):  # the end of a run under masks, which blames nobody
        if not str(faults).isprintable():
            yield f"words that cannot be shown: {str(faults)!r}"
        return
    for fault in faults:
        if fault.site != site:
            yield f"{fault.site} is blamed: {fault}"
        if not str(fault).isprintable() or len(str(fault)) > 700:
            yield f"words that cannot be shown: {str(fault)!r}"


# --- what a hostile site replies ------------------------------------------------------------------

_ODD = (
    "", " ", "O", "\x00", "\x1b[2J\x1b]0;x\x07", "\ud800", "\u202e\u200b", "a\nb", "é" * 99,
    "x" * 5000, "B-Drug", "-", "no-relation", "../../etc/passwd", "{}", "%s", "<script>",
    "0" * 32, "f" * 64,
)  # fmt: skip
_NUMBERS = (
    0, -1, 1, 2, 7, 10**12, 10**12 + 1, 2**63 - 1, -(2**63) + 1, 1e30, -1e30, 1e-300, 0.5,
    float("nan"), float("inf"), -float("inf"), True, None, "7", [1], {},
)  # fmt: skip


def _forged(step: Step, replies: Replies, site: str, draw: random.Random) -> tuple[str, bytes]:
    """A name of what was done, and the bytes."""
    way = draw.random()
    if way < 0.05:
        return "failure", encode(_failure(draw))
    if way < 0.08:
        return "another site's", replies[draw.choice(sorted(replies))]
    if way < 0.14:
        return "bytes", _spoilt(replies[site], draw)
    try:
        message: Any = decode(step.reply, replies[site])
        names = [*forms_of(step.reply)]
        chosen = draw.sample(names, draw.choice([1, 1, 1, min(2, len(names))]))
        how = []
        for name in chosen:
            kind = forms_of(step.reply)[name].kind
            word, value = _changed(kind, getattr(message, name), draw)
            how.append(f"{name} {word}")
            message = dataclasses.replace(message, **{name: value})
        return ", ".join(how), encode(message)
    except (MessageError, ValueError, OverflowError, TypeError, IndexError):
        return "bytes", _spoilt(replies[site], draw)


def _failure(draw: random.Random) -> Failure:
    code = draw.choice([*CODES, *_ODD, "refused", "differs"])
    return Failure(code, draw.choice(_ODD), draw.choice(_ODD), draw.choice(_ODD))


def _spoilt(data: bytes, draw: random.Random) -> bytes:
    spoilt = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        spoilt[draw.randrange(min(len(spoilt), 600))] = draw.randrange(256)
    return bytes(draw.choice([spoilt, spoilt[: draw.randint(0, len(spoilt))], spoilt + spoilt]))


def _changed(kind: str, value: Any, draw: random.Random) -> tuple[str, Any]:
    if kind == "array":
        return _array(value, draw)
    if kind == "arrays":
        return _arrays(value, draw)
    if kind == "number":
        number = draw.choice(_NUMBERS)
        return f"is {number!r}", number
    if kind == "text":
        text = draw.choice(_ODD)
        return f"is {text[:20]!r}", text
    if kind == "table":
        key = draw.choice([*value, *_ODD])
        return f"[{key[:9]!r}]", {**value, key: draw.choice(_NUMBERS)}
    return _list(list(value), draw)


def _list(value: list[Any], draw: random.Random) -> tuple[str, Any]:
    odd = draw.choice(_ODD)
    of_pairs = bool(value) and isinstance(value[0], tuple)
    entry: Any = (odd, draw.choice(_ODD)) if of_pairs else odd
    found: dict[str, Any] = {
        "empty": [],
        "twice": value + value,
        "one more": [*value, entry],
        "first": [entry, *value[1:]],
        "many": value + [f"t{n}" for n in range(draw.choice([50, 3000]))],
        "numbers": [*value, 7],
        "nested": [value],
        "triple": [("a", "b", "c")],
        "reversed": value[::-1],
    }
    name = draw.choice(list(found))
    return f"{name} {odd[:9]!r}", found[name]


def _arrays(value: dict[str, np.ndarray], draw: random.Random) -> tuple[str, Any]:
    name = draw.choice([*value]) if value else "odd"
    one = value.get(name, np.ones((2, 2), np.float32))
    what = draw.randrange(6)
    if what == 0:
        return f"without {name}", {key: array for key, array in value.items() if key != name}
    if what == 1:
        odd = draw.choice([*_ODD, name + "?", "x?", "?", name + "??"])
        return f"with {odd[:9]!r}", {**value, odd: _array(one, draw)[1]}
    if what == 2:
        bits = np.frombuffer(
            draw.randbytes(draw.choice([0, 1, 3, (len(value) + 7) // 8])), np.uint8
        )
        return f"{name} with rows", {**value, name + "?": bits, name: one[: len(bits)]}
    if what == 3:
        return "none", {}
    word, array = _array(one, draw)
    return f"{name} {word}", {**value, name: array}


def _array(value: np.ndarray, draw: random.Random) -> tuple[str, np.ndarray]:
    number = draw.choice([0, -1, 1, 2, 1e30, -1e30, 3e38, 2**62, float("nan"), float("inf")])
    flat = value.ravel()

    def filled() -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.full(value.shape, number).astype(value.dtype)

    def poked() -> np.ndarray:
        found = value.copy()
        if found.size:
            with np.errstate(all="ignore"):
                found.flat[draw.randrange(found.size)] = np.array(number).astype(found.dtype)
        return found

    found: dict[str, Callable[[], np.ndarray]] = {
        "0-d": lambda: np.zeros((), value.dtype),
        "flat": lambda: flat.copy(),
        "deeper": lambda: value[None].copy(),
        "empty": lambda: value[:0].copy(),
        "no columns": lambda: value[..., :0].copy(),
        "shorter": lambda: value[:-1].copy(),
        "longer": lambda: np.concatenate([value, value]),
        "narrower": lambda: value[..., :-1].copy(),
        "other type": lambda: value.astype(draw.choice(sorted(DTYPES))),
        "filled": filled,
        "poked": poked,
        "reversed": lambda: value[::-1].copy(),
        "twice the first": lambda: np.concatenate([value[:1], value[:-1]]),
        "transposed": lambda: value.T.copy(),
        "random": lambda: np.frombuffer(draw.randbytes(value.nbytes), value.dtype).reshape(
            value.shape
        ),
    }
    name = draw.choice(list(found))
    with np.errstate(all="ignore"):
        return f"{name} {number}", found[name]()
