"""A toy method's steps, and federations of toy sites: what the tests of the wall need.

Steps live in a module that a spawned process can import.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError
from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.federation import Delivery, Federation
from confide.federation.ledger import Ledger
from confide.federation.messages import Arrays, Learnt, Value, carries, forms_of
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.text.document import Document

SECRET = "Jürgen Zweifel was given morphine"


def undeclared(kind: type) -> list[str]:
    """The array fields of a message that do not declare their number type or their axes."""
    forms = forms_of(kind).items()
    arrays = {name: form for name, form in forms if form.kind == "array"}
    return [name for name, form in arrays.items() if form.axes is None or not form.dtypes]


@dataclass(frozen=True)
class Ask:
    """Weights, and what the toy site should do with them."""

    weights: Arrays = carries("any arrays")
    mood: str = carries("what to do: see `_act`")
    number: int = carries("any number")


@dataclass(frozen=True)
class Reply:
    """Numbers and arrays only, so that it can be summed."""

    weights: Arrays = carries("the weights, times the site's number", value=Value(like="weights"))
    vector_3: NDArray[np.float64] = carries("draws from the turn's seed")
    count: int = carries("how much there is")
    loss: float = carries("a float")


@dataclass(frozen=True)
class Moved:
    """What a site learnt."""

    weights: Arrays = carries("the weights and the site's number", value=Learnt(like="weights"))


@dataclass(frozen=True)
class Said:
    """A reply that cannot be summed."""

    words: list[str] = carries("some words")
    turns: int = carries("how often the memory was changed")


@dataclass(frozen=True)
class Memory:
    """How often a site was asked, and by which seeds."""

    turns: int = carries("how often the memory was changed")
    seeds: list[int] = carries("the seeds of those turns")


def _number(site: Site) -> int:
    return int(site.name.rpartition("-")[2])


def multiply(site: Site, memory: Memory | None, ask: Ask, turn: Turn) -> tuple[Reply, Memory]:
    """Every array times the site's number; the memory grows by one turn."""
    memory = memory or Memory(0, [])
    moods = dict(part.split("=") for part in ask.mood.split() if "=" in part)
    mood = moods.get(site.name, "")
    _act(mood, site)
    draws = np.random.default_rng(turn.seed).normal(size=3)
    weights = {name: array * np.float32(_number(site)) for name, array in ask.weights.items()}
    reply = Reply(_poisoned(weights, mood), draws, _count(mood), 0.5 * _number(site))
    return reply, Memory(memory.turns + 1, [*memory.seeds, turn.seed])


def move(site: Site, memory: Memory | None, ask: Ask, turn: Turn) -> tuple[Moved, Memory]:
    """Every array plus the site's number; the memory grows by one turn."""
    memory = memory or Memory(0, [])
    weights = {name: array + np.float32(_number(site)) for name, array in ask.weights.items()}
    return Moved(weights), Memory(memory.turns + 1, [*memory.seeds, turn.seed])


def tell(site: Site, memory: Memory | None, ask: Ask, turn: Turn) -> tuple[Said, Memory | None]:
    """What the site remembers; leaves the memory alone."""
    _act(ask.mood, site)
    words = [site.name, turn.step]
    if ask.mood == "threads":
        import torch

        words.append(str(torch.get_num_threads()))
    return Said(words, memory.turns if memory else 0), memory


def _act(mood: str, site: Site) -> None:
    """Fail in the way that is asked for."""
    if mood == "raise":
        raise DataError(SECRET, got=SECRET, where=SECRET)
    if mood == "raise-own":
        raise type(SECRET.replace(" ", ""), (Exception,), {})(SECRET)
    if mood == "die":
        os._exit(9)
    if mood == "die-once":
        mark = Path(os.environ["TOY_MARKS"]) / site.name
        if not mark.exists():
            mark.touch()
            os._exit(9)
    if mood == "sleep":
        time.sleep(3600)


def _poisoned(weights: Arrays, mood: str) -> Arrays:
    name = sorted(weights)[0]
    first = weights[name]
    return {
        "nan": lambda: {**weights, name: np.full_like(first, np.nan)},
        "one-inf": lambda: {**weights, name: np.append(first.ravel()[1:], np.float32(np.inf))},
        "two-infs": lambda: {**weights, name: _two_infs(first)},
        "shape": lambda: {**weights, name: np.concatenate([first, first])},
        "dtype": lambda: {**weights, name: first.astype(np.float64)},
        "more": lambda: {**weights, "more": first},
        "fewer": lambda: {key: array for key, array in weights.items() if key != name},
    }.get(mood, lambda: weights)()


def _two_infs(array: np.ndarray) -> np.ndarray:
    poisoned = array.copy()
    poisoned.flat[0], poisoned.flat[1] = np.inf, -np.inf
    return poisoned


def _count(mood: str) -> int:
    return {"absurd": 10**13, "negative-absurd": -(10**13)}.get(mood, 1)


MULTIPLY = Step.of(multiply, summed=True)
MOVE = Step.of(move, summed=True)
TELL = Step.of(tell)
STEPS: dict[str, Step] = {step.name: step for step in (MULTIPLY, MOVE, TELL)}
SEED = 7


def ask(mood: str = "", number: int = 1) -> Ask:
    return Ask(
        {
            "b": np.arange(6, dtype=np.float32).reshape(2, 3),
            "a": np.linspace(-1, 1, 5, dtype=np.float32),
        },
        mood,
        number,
    )


def specs(folder: Path, count: int) -> list[Site]:
    return [
        Site(name, [Document("d", "x" * number)], folder / name)
        for number in range(1, count + 1)
        for name in [f"site-{number}"]
    ]


def hosting() -> Hosting:
    return Hosting(STEPS, Memory, SEED)


def federation(
    engine: object, ledger: Ledger | None = None, *, at_least: int = 0, timeout: float | None = None
) -> Federation:
    return Federation(
        engine,  # type: ignore[arg-type]
        seed=SEED,
        ledger=ledger or Ledger(),
        at_least=at_least,
        timeout=timeout,
    )


def sequential(folder: Path, count: int = 3) -> SequentialEngine:
    return SequentialEngine(specs(folder, count), hosting())


@dataclass
class Tampering:
    """An engine whose sites are somebody else's: replies are changed after the site's own guard.

    `order` is the order in which replies arrive.
    """

    engine: SequentialEngine
    change: Callable[[str, bytes], bytes] = field(default=lambda site, data: data)
    order: Callable[[Sequence[str]], Sequence[str]] = field(default=lambda sites: sites)

    @property
    def sites(self) -> tuple[str, ...]:
        return self.engine.sites

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        found = {
            delivery.site: delivery
            for delivery in self.engine.deliver(step, round, asks=asks, timeout=timeout)
        }
        for site in self.order(sorted(found)):
            delivery = found[site]
            yield Delivery(site, self.change(site, delivery.reply), delivery.seconds)
