"""Guards between a method and the wire, on both sides of the wall.

At the site, before a reply leaves: finite values, shapes as declared. At the server, before a
reply is used: the same again, since a site may not be what it says it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.errors import GuardError
from confide.federation.messages import fields_of
from confide.federation.steps import Step

MOST = 10**12
"""No honest count of sentences, tokens or entities is larger."""


@dataclass(frozen=True, slots=True)
class Guards:
    """A site's own limits, from the site's own settings.

    `min_batch`: the fewest sentences that one gradient may be of. `private`: parts of a model that
    must stay at the site. `min_sites`: the fewest sites that a run over real sites must say it has.
    """

    min_sentences: int = 1
    min_token_count: int = 1
    min_batch: int = 1
    min_sites: int = 1
    max_rounds: int = 100_000
    private: tuple[str, ...] = ()


def check_reply(step: Step, ask: Any, reply: Any) -> None:
    """Raise GuardError where a reply is not finite, not of its declared shape, or absurd.

    What a step says of its own replies (`Step.check`) comes last. The message names fields only,
    never values.
    """
    if type(reply) is not step.reply:
        raise GuardError("another message", expected=step.reply.__name__, got=type(reply).__name__)
    for name, kind in fields_of(step.reply).items():
        value = getattr(reply, name)
        if kind == "array":
            _check_array(name, value)
        elif kind == "arrays":
            for key, array in value.items():
                _check_array(f"{name}/{key}", array)
        elif kind == "number" and value is not None:
            if not math.isfinite(value):
                raise GuardError(f"{name} is not finite")
            if abs(value) > MOST:
                raise GuardError(f"{name} is absurdly large")
    for asked, replied in step.like:
        _check_like(asked, getattr(ask, asked), replied, getattr(reply, replied))
    if step.check is not None:
        step.check(ask, reply)


def _check_array(name: str, array: np.ndarray) -> None:
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            # float32 is twice as fast to add up; where it overflows, float64 decides
            finite = math.isfinite(array.sum(dtype=np.float32)) or math.isfinite(
                array.sum(dtype=np.float64)
            )
        if not finite:
            raise GuardError(f"{name} is not finite")
    whole = array.dtype.kind == "i" and array.size > 0
    if whole and max(int(array.max()), -int(array.min())) > MOST:
        raise GuardError(f"{name} is absurdly large")


def _check_like(asked: str, want: dict[str, np.ndarray], name: str, got: Any) -> None:
    if want.keys() != got.keys():
        odd = sorted(want.keys() ^ got.keys())[0]
        raise GuardError(f"{name} has other arrays than {asked}: {odd}")
    for key, array in want.items():
        if array.shape != got[key].shape:
            raise GuardError(
                f"{name}/{key} has another shape",
                expected=str(array.shape),
                got=str(got[key].shape),
            )
        if array.dtype != got[key].dtype:
            raise GuardError(
                f"{name}/{key} has another type of number",
                expected=array.dtype.name,
                got=got[key].dtype.name,
            )
