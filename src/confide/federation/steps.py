"""Steps: what a site can be asked to do, the turn in which it is asked, and the wire table.

A step is a function `answer(site, memory, ask, turn) -> (reply, memory)`. Its annotations declare
the two messages, and so what reaches a site and what leaves it.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from confide.errors import GuardError, MessageError
from confide.federation.messages import by_name, class_of, forms_of, undeclared, values_of

Answer = Callable[..., tuple[object, object]]
Check = Callable[[Any, Any], None]
Bound = Callable[[Any, Any, float], object]
Start = Callable[[Any, Any, str], np.ndarray | None]
Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
ShapesOf = Callable[[Any], Shapes]
LanesOf = Callable[[Any], tuple[int, float]]
WholeOf = Callable[[Any, int, float], float]
Has = Callable[[Any, str, int], np.ndarray | None]


def plain_lanes(ask: object) -> tuple[int, float]:
    """Lanes for changes of weights: 4 bytes, and no change is larger than 8."""
    return 4, 8.0


def one_each(ask: object, sites: int, examples: float) -> float:
    """The sum of the weights if each site's is 1."""
    return float(sites)


def each_row(value_V: np.ndarray, axes: int) -> np.ndarray:
    """A value for each row of an array of N `axes`, in a shape that broadcasts."""
    return value_V.reshape(-1, *[1] * (axes - 1))


@dataclass(frozen=True, slots=True)
class Turn:
    """One ask to one site. `seed` depends only on (run seed, round, site, step)."""

    round: int
    site: str
    step: str
    seed: int


@dataclass(frozen=True, slots=True)
class Learnt:
    """Where a reply holds what its site learnt, so that the server can compare sites.

    Attributes:
        field: the reply's field that holds it, multiplied by `weight`.
        weight: the reply's field with the site's weight; "" means a weight of 1.
        start: the ask's field that the site started from; "" means that the reply holds the change
            itself.
        has: `has(reply, name, axes)` is 0 for the numbers of an array of N `axes` that the site
            says nothing about and the site's weight for the others, in a shape that broadcasts;
            None means that it says something about all. For a sum of replies it gives their total
            weight.
        combined: False if the method needs the plain sum.
        slack: how many times `most_norm` the norms of honest replies may differ by.
        lanes: `lanes(ask)` gives the bytes that a number is worth when replies are summed as whole
            numbers, and the largest change that has room there
            (`confide.federation.secure.lanes`). Lanes of 4 and of 2 bytes hold changes times a
            site's share, as fine as the sum of all sites has room for, of 8 bytes the plain numbers
            of a reply without a weight; 1 byte stands for codes, whole numbers that are added as
            they are.
        whole: `whole(ask, sites, examples)` is an upper bound on the sum of the weights of N
            `sites`, with `examples` training examples together.
        shared: without a `weight`: replies are multiplied by shares that sum to at most 1.
    """

    field: str
    weight: str = ""
    start: str = ""
    has: Has | None = None
    combined: bool = True
    slack: float = 1.0
    lanes: LanesOf = plain_lanes
    whole: WholeOf = one_each
    shared: bool = False


class Tables(Protocol):
    """The conversion of a reply that counts by label into tables of a fixed form."""

    def shapes(self, labels: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """The shape of every table."""
        ...

    def of(self, reply: Any, labels: Sequence[str]) -> Mapping[str, np.ndarray]:
        """A reply as tables of whole numbers (int64)."""
        ...

    def back(self, tables: Mapping[str, np.ndarray], labels: Sequence[str]) -> Any:
        """The reply with the counts of summed tables."""
        ...


@dataclass(frozen=True)
class Step:
    """One thing a site can be asked to do.

    Attributes:
        name: the function's name.
        ask: the class of the ask, with its type arguments; the type variable itself if open.
        reply: the same of the reply.
        answer: the function.
        summed: replies hold only numbers and arrays, and the server adds them up without looking
            at any single one (`Federation.sum`).
        like: pairs of fields (ask, reply) whose arrays must have the same names, shapes and types.
        check: `check(ask, reply)` raises GuardError, naming fields only, if a reply is wrong; it
            runs on both sides of the wall.
        bound: `bound(ask, reply, most)` is the reply with its change limited to the site's own
            `max_norm` (`guards.bounded`); every summed step that uploads arrays has one.
        start: `start(ask, reply, name)` is what an array of the reply's field in `like` would be if
            nothing had been learnt, from the ask and the reply's other fields, or None. Only the
            changed rows of such an array travel (`confide.federation.quantising`).
        shapes: `shapes(ask)` gives, by field of the reply and name ("" for a single array), the
            shapes of its arrays, where neither `like` nor the field itself (`carries(most=...)`)
            does. Every array of a summed reply has its shape from `like` or from here.
        learnt: where a reply holds what a site learnt; the server compares such replies and
            combines them (`confide.federation.combining`).
        drawn: the name that seeds the step's random choices, if it is not `name`.
        wraps: arrays of whole numbers are summed modulo the size of their lanes: none is too large.
        noisy: the reply is under noise of the site's own, even if its text cannot be used. How long
            that takes may depend on the text, so it leaves in its own time. No other step of such a
            run is answered with the training text (`SiteHost`).
        once: in one turn a site answers one ask of it under masks, and no other.
        seen: how the server sees a reply, if neither one by one nor as `summed` says.
        tables: how the reply is summed where no single reply may be seen, if it is not summed
            otherwise.
        after: the step of the same round, answered `once`, whose sum a site has to have helped to
            open, since what it kept of that is what it sends now.
        to_each: each site is asked something of its own, so that its ask is nothing that sites
            have in common.

    Messages may leave types open (`Take[F]`); `given` fills them in.
    """

    name: str
    ask: Any
    reply: Any
    answer: Answer
    summed: bool = False
    like: tuple[tuple[str, str], ...] = ()
    check: Check | None = None
    bound: Bound | None = None
    start: Start | None = None
    shapes: ShapesOf | None = None
    learnt: Learnt | None = None
    drawn: str = ""
    tables: Tables | None = None
    seen: str = ""
    once: bool = False
    wraps: bool = False
    noisy: bool = False
    to_each: bool = False
    after: str = ""

    @property
    def gives(self) -> bool:
        """True if what a site remembers of its ask was given to all sites alike, for later sums.

        The ask of a sum names that sum itself, and a reply that holds what a site learnt, unless it
        is summed, is seen as it is.
        """
        return not (self.summed or self.tables or self.learnt or self.to_each)

    @property
    def seen_as(self) -> str:
        """The name of the server's view of a reply in ledgers and wire tables."""
        return self.seen or ("sum" if self.summed else "one by one")

    @staticmethod
    def of(
        answer: Answer,
        *,
        summed: bool = False,
        like: tuple[tuple[str, str], ...] = (),
        check: Check | None = None,
        bound: Bound | None = None,
        start: Start | None = None,
        shapes: ShapesOf | None = None,
        learnt: Learnt | None = None,
    ) -> Step:
        """The step that a function declares by its annotations.

        Raises MessageError if a message cannot travel or does not declare its arrays.
        """
        hints = typing.get_type_hints(answer)
        reply = typing.get_args(hints["return"])[0]
        name = answer.__name__
        step = Step(
            name, hints["ask"], reply, answer, summed, like, check, bound, start, shapes, learnt
        )
        return step if _open(step.ask) or _open(reply) else _declared(step)

    def given(self, types: Mapping[TypeVar, type], *, drawn: str = "") -> Step:
        """The step with these types in place of those that its messages leave open.

        Raises MessageError as `of` does.
        """
        ask, reply = _filled(self.ask, types), _filled(self.reply, types)
        return _declared(replace(self, ask=ask, reply=reply, drawn=drawn or self.drawn))


def _open(message: object) -> tuple[TypeVar, ...]:
    """The types that a message leaves open."""
    if isinstance(message, TypeVar):
        return (message,)
    found: tuple[TypeVar, ...] = getattr(message, "__parameters__", ())
    return found


def _filled(message: Any, types: Mapping[TypeVar, type]) -> type:
    """The message with its open types filled in."""
    filled: type = message
    if isinstance(message, TypeVar):
        filled = types[message]
    elif left := _open(message):
        filled = message[tuple(types[one] for one in left)]
    return filled


def _declared(step: Step) -> Step:
    """The step itself. Raises MessageError if its messages do not declare their arrays."""
    for message in (step.ask, step.reply):
        if undeclared(message):
            raise MessageError(
                f"{class_of(message).__name__}.{undeclared(message)[0]} does not declare its array",
                expected="a number type in its annotation, and its axes at the end of its name",
            )
    kinds = forms_of(step.reply)
    numbers = all(form.holds_arrays or form.kind == "number" for form in kinds.values())
    if step.summed and (not numbers or any("." in name for name in kinds)):
        raise MessageError(f"step {step.name}: only numbers and arrays can be summed")
    return step


# --- The wire table
#
# Every step of a method, and every field that its messages carry.
#
# A checked-in copy of it is the wire lock (tests/wire), so that review sees every change to what
# leaves a site.


@dataclass(frozen=True, slots=True)
class WireRow:
    """One field of one message. Direction "down" goes to a site, "up" leaves it."""

    step: str
    direction: str
    field: str
    kind: str
    what: str
    seen: str


def wire_table(steps: Iterable[Step]) -> list[WireRow]:
    """The rows of these steps, in their order: first the ask, then the reply."""
    rows = []
    for step in steps:
        for direction, message in (("down", step.ask), ("up", step.reply)):
            seen = "by the site" if direction == "down" else step.seen_as
            for name, form in forms_of(message).items():
                rows.append(WireRow(step.name, direction, name, form.kind, form.what, seen))
    return rows


# --- Implausible sizes
#
# No honest reply, and no state of a checkpoint, has such numbers.
#
# Finite is not enough to train from. What a site learns from weights of 1e30 is no longer finite,
# and its own guard would hold it back, round after round.


LARGEST = 100.0
"""No weight, and no gradient of one, is larger.

The largest weight of MiniLM is 7.9; word vectors and clipped gradients are of the same order. From
weights that are all of this size every model still learns with finite numbers, so one site's lie
never makes an honest site's guard hold back its reply. From weights of 1,000 a BART does not.
"""


def check_learnt(step: Step, reply: object) -> None:
    """Raise GuardError if a number that a site learnt, less its weight, is absurdly large.

    Numbers in float16 and integers are never too large.
    """
    learnt = step.learnt
    if learnt is None:
        return
    weight = float(getattr(reply, learnt.weight)) if learnt.weight else 1.0
    for name, array in by_name(getattr(reply, learnt.field)).items():
        if _size(array) > LARGEST * weight:
            place = f"{learnt.field}/{name}" if name else learnt.field
            raise GuardError(f"{place} is absurdly large")


def odd_part(state: object) -> str | None:
    """Describe what makes a state unfit to train from; None if it is sound."""
    for name, form, value in values_of(state):
        if form.kind == "number" and value is not None and not math.isfinite(value):
            return f"{name} is not finite"
        for place, array in form.arrays(name, value).items() if form.holds_arrays else ():
            size = _size(array)
            if not math.isfinite(size):
                return f"{place} is not finite"
            if size > LARGEST:
                return f"{place} holds numbers larger than {LARGEST:.0f}"
    return None


def _size(array: np.ndarray) -> float:
    """The largest absolute value; NaN if one is not a number, 0 for integers and finite float16."""
    if array.dtype.kind != "f" or not array.size:
        return 0.0
    if array.dtype == np.float16:
        return 0.0 if np.isfinite(array).all() else math.nan
    low, high = float(array.min()), float(array.max())
    return math.nan if math.isnan(low) else max(high, -low)


# --- Engines
#
# An engine carries messages between the server and the sites, without knowing what they mean.


@dataclass(frozen=True, slots=True)
class Delivery:
    """One site's encoded reply, and the seconds that the site worked on it.

    `seal` vouches for the reply, if the engine carries seals. `heard` is False if no reply came and
    the engine made this failure in the site's place.
    """

    site: str
    reply: bytes
    seconds: float
    seal: bytes = b""
    heard: bool = True


class Engine(Protocol):
    """Carries encoded asks to sites and encoded replies back, without knowing what they mean."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        ...

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply or failure, in any order; the caller closes the generator."""
        ...
