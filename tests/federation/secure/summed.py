"""Toy steps of every form that sums have, sites that answer them, and exact sums by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from confide.federation.engines import Hosting
from confide.federation.failures import Failure
from confide.federation.federation import Federation
from confide.federation.ledger import Ledger
from confide.federation.memory import AskRecord
from confide.federation.messages import Arrays, Learnt, Value, by_name, carries, encode
from confide.federation.secure import crypto
from confide.federation.secure.server import Summing
from confide.federation.secure.site import Member
from confide.federation.site import Site
from confide.federation.steps import Delivery, Step, Turn
from confide.text.document import Document
from federation.secure.plays import BINDING, Forgetful, member, named

SEED = 5
MOST = 16.0
"""The largest number of `halve`."""
EXCHANGES = ("work", "mask", "agree", "unmask")


@dataclass(frozen=True)
class Ask:
    """Start weights, and by site how to misbehave."""

    weights: Arrays = carries("any arrays")
    moods: dict[str, str] = carries("by site, what is odd about its reply")
    many: int = carries("how many numbers a vector has")


@dataclass(frozen=True)
class Moved:
    """Changes with weights and rows seen, like those of FedAvg."""

    weights: Arrays = carries(
        "what the site learnt, times its weight",
        value=Learnt(like="weights", weight="weight", weighting="examples", rows="seen"),
    )
    weight: float = carries("the weight")
    seen: Arrays = carries(
        "the weight for each row that the site has",
        value=Value(
            shape=lambda ask: {
                n: a.shape[:1] for n, a in ask.weights.items() if n.startswith("table")
            }
        ),
    )
    loss: float = carries("a float")
    examples: int = carries("how much there is")


@dataclass(frozen=True)
class Counted:
    """Counts in wide and in narrow lanes."""

    wide_N: NDArray[np.int64] = carries("counts", value=Value(shape=lambda ask: (ask.many,)))
    narrow_N: NDArray[np.int32] = carries("counts", value=Value(shape=lambda ask: (ask.many,)))


@dataclass(frozen=True)
class Coded:
    """Codes of one byte, several in a lane."""

    said_N: NDArray[np.int8] = carries(
        "codes", value=Learnt(shape=lambda ask: (ask.many,), weight="sites", lane=(1, 127.0))
    )
    sites: int = carries("1")


@dataclass(frozen=True)
class Halved:
    """Numbers of two bytes, in lanes of two, times a weight."""

    said_N: NDArray[np.float16] = carries(
        "numbers",
        value=Learnt(
            shape=lambda ask: (ask.many,),
            weight="weight",
            weighting="examples",
            lane=(2, MOST * 1.001),
        ),
    )
    weight: float = carries("the weight")


@dataclass(frozen=True)
class Sloped:
    """A gradient without a natural size, in lanes of eight bytes."""

    slope_N: NDArray[np.float64] = carries(
        "a gradient", value=Learnt(shape=lambda ask: (ask.many,), combined=False, lane=(8, 2.0**30))
    )


@dataclass(frozen=True)
class Scored:
    """Counts by label, which travel as tables where they are summed."""

    names: list[str] = carries("labels")
    count_N: NDArray[np.int64] = carries("how often")


@dataclass(frozen=True)
class Kept(AskRecord):
    """How often the memory was changed."""

    turns: int = carries("how often")


SENT: dict[tuple[int, str, str], Any] = {}
"""What every site's step gave, by round, step and site: seen by tests alone."""


def _said(site: Site, turn: Turn, reply: Any) -> Any:
    SENT[turn.round, turn.step, site.name] = reply
    return reply


def _mood(site: Site, ask: Ask) -> str:
    mood = ask.moods.get(site.name, "")
    if mood == "raise":
        raise RuntimeError("the site's text is odd")
    return mood


def move(site: Site, memory: Kept | None, ask: Ask, turn: Turn) -> tuple[Moved, Kept]:
    """Changed weights; of the tables, only the rows that the site has."""
    mood = _mood(site, ask)
    draw = np.random.default_rng(turn.seed)
    weight = float(draw.integers(1, 40))
    weights, seen = {}, {}
    for name, start in ask.weights.items():
        change = draw.normal(scale=0.7, size=start.shape).clip(-7.9, 7.9).astype(np.float32)
        weights[name] = (start + change) * np.float32(weight)
        if name.startswith("table"):
            has = (draw.random(len(start)) < 0.6).astype(np.float32)
            seen[name] = has * np.float32(weight)
            weights[name] *= has.reshape(-1, *[1] * (start.ndim - 1))
    first = sorted(weights)[0]
    weights[first] = _spoilt(weights[first], mood)
    loss = {"loss-nan": np.nan, "loss-inf": np.inf, "loss-large": 1e12}.get(mood, draw.random())
    reply = Moved(weights, weight, seen, float(loss), int(draw.integers(1, 10**9)))
    return _said(site, turn, reply), Kept((memory.turns if memory else 0) + 1)


def _spoilt(array: np.ndarray, mood: str) -> np.ndarray:
    spoilt = array.copy()
    odd = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "large": 1e6, "just-out": 8.001 * 1_000}
    if mood in odd:
        spoilt.flat[0] = odd[mood]
    if mood == "both-infs":
        spoilt.flat[0], spoilt.flat[1] = np.inf, -np.inf
    return np.concatenate([spoilt, spoilt]) if mood == "shape" else spoilt


def count(site: Site, memory: Kept | None, ask: Ask, turn: Turn) -> tuple[Counted, Kept | None]:
    """Counts of any size that honest sites have."""
    _mood(site, ask)
    draw = np.random.default_rng(turn.seed)
    wide = draw.integers(-(10**12), 10**12, ask.many)
    narrow = draw.integers(-(10**6), 10**6, ask.many).astype(np.int32)
    return _said(site, turn, Counted(wide, narrow)), memory


def code(site: Site, memory: Kept | None, ask: Ask, turn: Turn) -> tuple[Coded, Kept | None]:
    """Codes of int8; all of the largest size if `number` says so."""
    draw = np.random.default_rng(turn.seed)
    codes = draw.integers(-127, 128, ask.many).astype(np.int8)
    if _mood(site, ask) == "most":
        codes[:] = 127
    return _said(site, turn, Coded(codes, 1)), memory


def halve(site: Site, memory: Kept | None, ask: Ask, turn: Turn) -> tuple[Halved, Kept | None]:
    """Numbers in float16; all of the largest size if the mood says so."""
    draw = np.random.default_rng(turn.seed)
    weight = float(draw.integers(1, 40))
    numbers = draw.normal(scale=3.0, size=ask.many).clip(-MOST, MOST)
    if _mood(site, ask) == "most":
        numbers[:] = MOST
    return _said(site, turn, Halved((numbers * weight).astype(np.float16), weight)), memory


def slope(site: Site, memory: Kept | None, ask: Ask, turn: Turn) -> tuple[Sloped, Kept | None]:
    """A gradient with numbers from tiny to thousands."""
    _mood(site, ask)
    draw = np.random.default_rng(turn.seed)
    return _said(
        site, turn, Sloped(draw.normal(size=ask.many) * 10.0 ** draw.integers(-6, 4))
    ), memory


def score(site: Site, memory: Kept | None, ask: Ask, turn: Turn) -> tuple[Scored, Kept | None]:
    """Counts of the labels that the site has; not all have the same."""
    mood = _mood(site, ask)
    draw = np.random.default_rng(turn.seed)
    names = sorted(draw.choice(["a", "b", "c", "secret"], size=2, replace=False).tolist())
    if mood == "check":
        names = []
    return _said(site, turn, Scored(names, draw.integers(0, 1000, 2))), memory


class ByLabel:
    """Tables of `Scored`: one number for each label, and one for all others."""

    def shapes(self, labels: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        return {"count": (len(labels) + 1,)}

    def of(self, reply: Scored, labels: Sequence[str]) -> Mapping[str, np.ndarray]:
        found = np.zeros(len(labels) + 1, np.int64)
        for name, count in zip(reply.names, reply.count_N, strict=True):
            found[labels.index(name) if name in labels else len(labels)] += count
        return {"count": found}

    def back(self, tables: Mapping[str, np.ndarray], labels: Sequence[str]) -> Scored:
        return Scored([*labels, "(other)"], tables["count"])


MOVE = Step.of(move, summed=True)
COUNT = Step.of(count, summed=True)
CODE = Step.of(code, summed=True)
HALVE = Step.of(halve, summed=True)
SLOPE = Step.of(slope, summed=True)
SCORE = replace(Step.of(score), tables=ByLabel())
STEPS = {step.name: step for step in (MOVE, COUNT, CODE, HALVE, SLOPE, SCORE)}


def ask(moods: Mapping[str, str] | None = None, *, many: int = 7) -> Ask:
    draw = np.random.default_rng(1)
    return Ask(
        {
            "b": draw.normal(size=(2, 3)).astype(np.float32),
            "table": draw.normal(size=(5, 2)).astype(np.float32),
            "scale": draw.normal(size=(1,)).astype(np.float32),
        },
        dict(moods or {}),
        many,
    )


# --- sites -------------------------------------------------------------------------------


class Lost(NamedTuple):
    """A site, and the exchange from which on nothing comes from it; `late`: it did the work."""

    site: str
    exchange: str
    late: bool = False


@dataclass
class Sites:
    """An engine of toy sites, some of which are lost; `change` tampers with what they send."""

    hosts: dict[str, Any]
    members: dict[str, Member]
    lost: list[Lost] = field(default_factory=list)
    change: Callable[[str, str, bytes], bytes] = field(default=lambda site, step, data: data)
    heard: list[tuple[str, str, bytes]] = field(default_factory=list)
    keep: bool = False

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted(self.hosts))

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        place = EXCHANGES.index(step if step in EXCHANGES else "work")
        gone = {one.site: one for one in self.lost if EXCHANGES.index(one.exchange) <= place}
        if step in ("greet", "meet"):
            gone = {}
        for site in sorted(asks):
            one = gone.get(site)
            if one is None or (one.late and one.exchange == EXCHANGES[place]):
                reply = self.change(site, step, self.hosts[site].answer(step, round, asks[site]))
            if one is None:
                if self.keep:
                    self.heard.append((site, step, reply))
                yield Delivery(site, reply, 0.0)
            else:
                yield Delivery(site, encode(Failure("lost", "", "", "")), 0.0, heard=False)


def sites_of(
    count: int,
    folder: Path,
    *,
    every: int = 10**6,
    record: Callable[[Path], Any] = lambda folder: Forgetful(),
    **parts: Any,
) -> Sites:
    hosting = Hosting(STEPS, Kept, SEED, every=every, sums="masked", binding=BINDING)
    hosts, members = {}, {}
    for number, name in enumerate(named(count), start=1):
        spec = Site(name, [Document("d", "x" * number)], folder / name)
        members[name] = member(name, record=record(folder / name / "sums"), **parts)
        hosts[name] = hosting.host(spec, {}, member=members[name])
    return Sites(hosts, members)


def summing_of(engine: Sites, *, run: str = "run", **parts: Any) -> Summing:
    found = Summing(run=run, sites=engine.sites, **parts)
    found.examples = 40.0 * len(engine.sites)
    return found


def federation_of(engine: Sites, summing: Summing, *, at_least: int = 1) -> Federation:
    found = Federation(
        engine,  # type: ignore[arg-type]
        seed=SEED,
        ledger=Ledger(),
        at_least=at_least,
    )
    found.summing = summing
    return found


def without_masks(patch: pytest.MonkeyPatch) -> None:
    """Let sites send whole numbers in the clear: the same exchanges, and no mask on any lane."""
    patch.setattr(crypto, "add_streams", lambda lanes, masks: None)


# --- the sum by hand ---------------------------------------------------------------------


def by_hand(step: Step, asked: Ask, replies: Sequence[Any], *, whole: float) -> dict[str, Any]:
    """The sum of replies in whole numbers of any size, number by number."""
    total: dict[str, Any] = {}
    learnt = step.learnt
    for name in step.reply.__dataclass_fields__:
        values = [getattr(reply, name) for reply in replies]
        if learnt is not None and name == learnt.field:
            total[name] = _learnt(step, asked, replies, whole=whole)
        elif isinstance(values[0], (int, float)):
            scale = 1 if isinstance(values[0], int) else 2**24
            added = sum(round(Fraction(value) * scale) for value in values)
            total[name] = added if scale == 1 else added / scale
        else:
            arrays = [by_name(value) for value in values]
            total[name] = {
                key: np.array([sum(int(n) for n in column) for column in _columns(arrays, key)])
                for key in arrays[0]
            }
    return total


def _columns(arrays: Sequence[Arrays], key: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(one[key].ravel().tolist() for one in arrays), strict=True)


def _learnt(
    step: Step, asked: Ask, replies: Sequence[Any], *, whole: float
) -> dict[str, np.ndarray]:
    learnt = step.learnt
    assert learnt is not None
    width, most = learnt.lanes(asked)
    half = (2.0**15 - 1 - len(replies)) / (most * (1 + 1e-6))
    scale = {1: 1.0, 2: half, 4: 2.0**30 / most, 8: 2.0**24}[width]
    by_share = bool(learnt.weight) and width in (2, 4)
    start = by_name(getattr(asked, learnt.start)) if learnt.start else {}
    weights = [float(getattr(one, learnt.weight)) if learnt.weight else 1.0 for one in replies]
    found = {}
    for key in by_name(getattr(replies[0], learnt.field)):
        numbers = []
        columns = list(_columns([by_name(getattr(one, learnt.field)) for one in replies], key))
        from_ = start[key].ravel().tolist() if key in start else [0.0] * len(columns)
        rows = len(columns) // max(1, len(getattr(replies[0], "seen", {}).get(key, ())) or 1)
        for place, column in enumerate(columns):
            added, having = 0, 0.0
            for reply, value, weight in zip(replies, column, weights, strict=True):
                seen = getattr(reply, "seen", {}).get(key)
                if seen is not None and not seen[place // rows] > 0:
                    continue
                having += weight
                share = weight / whole if by_share else 1.0
                added += round((value / weight - from_[place]) * (scale * share))
            back = added * ((whole if by_share else 1.0) / scale)
            numbers.append(back + from_[place] * having)
        found[key] = np.array(numbers)
    return found


def same(total: Any, hand: Mapping[str, Any]) -> bool:
    """Whether a sum is that by hand, bit for bit."""
    return all(
        all(
            np.array_equal(np.ravel(array), hand[name][key])
            for key, array in by_name(value).items()
        )
        if isinstance(value, (dict, np.ndarray))
        else value == hand[name]
        for name, value in vars(total).items()
    )
