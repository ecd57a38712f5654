"""Messages within messages, some of which leave a type open: toys for the tests of the codec.

They live in a module, where annotations can be looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn

F = TypeVar("F")
S = TypeVar("S")


@dataclass(frozen=True)
class Shape:
    """A form of a model, say."""

    width: int = carries("a number")
    names: list[str] = carries("some names", most=64)
    marks_W4: NDArray[np.uint8] = carries("W marks of four bytes", most=5)
    counts_W: NDArray[np.int64] = carries("how often each occurs", most=5)


@dataclass(frozen=True)
class Flat:
    """Another form, without an array."""

    depth: float = carries("a number")


@dataclass(frozen=True)
class Has(Generic[F]):
    """Something that has a form."""

    form: F = carries("a form, whichever")
    weights_W: NDArray[np.float32] = carries("W numbers, not those of the form")


@dataclass(frozen=True)
class Deep:
    """A message in a message in a message."""

    has: Has[Shape] = carries("something that has a form")
    weights: Arrays = carries("arrays by name")
    name: str = carries("a text")


@dataclass(frozen=True)
class Said:
    """Numbers only, but in a message within."""

    flat: Flat = carries("a number within")


def keep(site: Site, memory: Has[F] | None, ask: Has[F], turn: Turn) -> tuple[S, Has[F]]:
    """A step that leaves open of what, and with what it answers."""
    return Flat(float(turn.seed % 10**9)), ask  # type: ignore[return-value]


def nest(site: Site, memory: None, ask: Flat, turn: Turn) -> tuple[Said, None]:
    """A step whose reply nests."""
    return Said(ask), memory


KEEP = Step.of(keep)
NEST = Step.of(nest)


def shape(words: int = 2) -> Shape:
    marks_W4 = np.arange(4 * words, dtype=np.uint8).reshape(words, 4)
    return Shape(3, ["one"], marks_W4, np.arange(words))


def deep(words: int = 2, weights: int = 3) -> Deep:
    has: Has[Shape] = Has(shape(words), np.ones(weights, np.float32))
    return Deep(has, {"a": np.zeros(2, np.float32)}, "text")
