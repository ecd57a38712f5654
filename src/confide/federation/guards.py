"""Guards between a method and the wire, on both sides of the wall.

At the site, before a reply leaves: no larger a change than the site lets out, finite values, shapes
as declared. At the server, before a reply is used: values and shapes again, since a site may not be
what it says it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.errors import GuardError
from confide.federation.failures import Failure, Refusal
from confide.federation.forms import (
    Limits,
    class_of,
    limits_of,
    limits_with,
    values_of,
    widest,
)
from confide.federation.messages import Arrays, fields_of
from confide.federation.steps import Step

MOST = 10**12
"""No honest count of sentences, tokens or entities is larger."""
MOST_NAMES, LONGEST_NAME = 2_000, 200
"""Of types or relations of one site, and letters of one: no honest site has more."""
_MARK = re.compile(r"[0-9a-z]{0,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Guards:
    """A site's own limits, from the site's own settings.

    `min_batch`: the fewest sentences that one gradient may be of. `private`: parts of a model that
    must stay at the site. `min_sites`: the fewest sites that a run over real sites must say it has.
    `max_norm`: the largest change that one upload may be (`bounded`); None is any.
    """

    min_sentences: int = 1
    min_token_count: int = 1
    min_batch: int = 1
    min_sites: int = 1
    max_rounds: int = 100_000
    private: tuple[str, ...] = ()
    max_norm: float | None = None

    def keeps(self, name: str) -> bool:
        """Whether an array of this name is of a part of the model that must stay at the site."""
        return f"{name}.".startswith(tuple(f"{part}." for part in self.private))


def bound_of(step: Step, most: float | None) -> Callable[[Any, Any], Any]:
    """What a reply becomes before it leaves, given its ask: itself, where there is no bound.

    Raises Refusal where a site has the guard `max_norm` and the step does not say how it is kept.
    """
    bound = step.bound
    if most is not None and bound is not None:
        return lambda ask, reply: bound(ask, reply, most)
    if most is not None and step.summed and _has_arrays(step):
        raise Refusal("no-bound")
    return lambda ask, reply: reply


def _has_arrays(step: Step) -> bool:
    return not {"array", "arrays"}.isdisjoint(fields_of(step.reply).values())


def bounded(change: Arrays, most: float, *, times: float = 1.0) -> Arrays:
    """The change, or where it is larger than `most` a change in the same direction that is not.

    Large is the L2 norm over the numbers of all arrays together, taken in float64. What is given
    may be `times` the change that is meant. The flat clipping of an update: McMahan, Ramage, Talwar
    & Zhang, ICLR 2018 (arXiv 1710.06963), Algorithm 1. What is not finite stays so, and is refused
    by `check_reply`.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        squares = [np.square(array, dtype=np.float64).sum() for array in change.values()]
        norm = math.sqrt(sum(map(float, squares))) / times
        if not norm > most:
            return change
        return {name: _times(array, most / norm) for name, array in change.items()}


def near(weights: Arrays, before: Arrays, most: float, *, times: float = 1.0) -> Arrays:
    """The weights, or where they are more than `most` away from `before`, some on the way there.

    How far is as in `bounded`; both may be `times` what is meant.
    """
    change = {name: array - before[name] for name, array in weights.items()}
    kept = bounded(change, most, times=times)
    return weights if kept is change else {name: before[name] + kept[name] for name in kept}


def _times(array: np.ndarray, factor: float) -> np.ndarray:
    """In the array's own type of number, computed with no fewer digits than float32 has."""
    kind = np.promote_types(array.dtype, np.float32)
    scaled: np.ndarray = np.multiply(array, factor, dtype=kind).astype(array.dtype)
    return scaled


def reply_limits(step: Step, ask: Any) -> Limits:
    """The most that a reply to this ask can weigh, a failure included.

    Arrays that must be like those of the ask are as large as these; of others the step says how
    many numbers they hold (`Step.numbers`), or their field how long they can be.
    """
    like = {replied: getattr(ask, asked) for asked, replied in step.like}
    numbers = step.numbers(ask) if step.numbers is not None else None
    return widest([limits_with(step.reply, like, numbers=numbers), limits_of(Failure)])


def check_reply(step: Step, ask: Any, reply: Any) -> None:
    """Raise GuardError where a reply is not finite, not of its declared shape, or absurd.

    What a step says of its own replies (`Step.check`) comes last. The message names fields only,
    never values.
    """
    expected = class_of(step.reply)
    if type(reply) is not expected:
        raise GuardError("another message", expected=expected.__name__, got=type(reply).__name__)
    for name, form, value in values_of(reply):
        if form.kind == "array":
            _check_array(name, value)
        elif form.kind == "arrays":
            for key, array in value.items():
                _check_array(f"{name}/{key}", array)
        elif form.kind == "number" and value is not None:
            if not math.isfinite(value):
                raise GuardError(f"{name} is not finite")
            if abs(value) > MOST:
                raise GuardError(f"{name} is absurdly large")
    for asked, replied in step.like:
        _check_like(asked, getattr(ask, asked), replied, getattr(reply, replied))
    if step.check is not None:
        step.check(ask, reply)


def check_names(field: str, names: Iterable[str]) -> None:
    """Raise GuardError where these are not distinct names that can be shown and written anywhere.

    A name is of 1 to 200 printable characters, with a letter or a digit among them.
    """
    every = list(names)
    if len(every) > MOST_NAMES:
        got = str(len(every))
        raise GuardError(f"{field} are too many", expected=f"at most {MOST_NAMES}", got=got)
    if len(set(every)) != len(every):
        raise GuardError(f"{field} are not distinct")
    if not all(map(_is_name, every)):
        raise GuardError(f"{field} holds what is no name", expected="printable characters")


def _is_name(name: str) -> bool:
    fits = 0 < len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip()
    return fits and any(c.isalnum() for c in name)


def check_mark(field: str, mark: str) -> None:
    """Raise GuardError where this is no digest or check value: hexadecimal digits, or nothing."""
    if not _MARK.fullmatch(mark):
        raise GuardError(f"{field} is no digest")


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
