"""Steps: what a site can be asked to do, the turn in which it is asked, and the wire table.

A step is a function `answer(site, memory, ask, turn) -> (reply, memory)`. Its annotations declare
the two messages, and so what reaches a site and what leaves it.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from confide.errors import GuardError, MessageError
from confide.federation.messages import Learnt, Pieces, by_name, class_of, forms_of, values_of

Answer = Callable[..., tuple[object, object]]
Check = Callable[[Any, Any], None]
Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One ask to one site. `seed` depends only on (run seed, round, site, step)."""

    round: int
    site: str
    step: str
    seed: int


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
        check: `check(ask, reply)` raises GuardError, naming fields only, if fields do not fit each
            other; it runs on both sides of the wall. What a single field may hold is declared on it
            (`carries`, `learnt`).
        sizes: shapes of the reply's arrays that its fields do not declare.
        memory: the class of the memory that the function gives, if it declares one.
        drawn: the name that seeds the step's random choices, if it is not `name`.
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
    check: Check | None = None
    sizes: Shapes | None = None
    memory: Any = None
    drawn: str = ""
    tables: Tables | None = None
    seen: str = ""
    once: bool = False
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

    def __getstate__(self) -> dict[str, object]:
        """The fields alone, for a worker process: the rest follows from them."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def learnt(self) -> Learnt | None:
        """The declaration of what a site learnt; None if it holds nothing of that kind."""
        for name, form in forms_of(self.reply).items():
            if isinstance(form.value, Learnt):
                return replace(form.value, field=name)
        return None

    @cached_property
    def like(self) -> tuple[tuple[str, str], ...]:
        """The fields (ask, reply) whose arrays have the same names, shapes and types."""
        forms = forms_of(self.reply).items()
        return tuple((form.value.like, name) for name, form in forms if form.value.like)

    @cached_property
    def wraps(self) -> bool:
        """True if the reply is whole numbers under noise: none is too large for its lane."""
        return any(form.rule == "noise" for form in forms_of(self.reply).values())

    def shapes(self, ask: object) -> dict[str, Mapping[str, tuple[int, ...]]]:
        """By field and name ("" for an array): shapes that neither `like` nor `most` bounds."""
        declared = {
            name: f.shapes(ask) for name, f in forms_of(self.reply).items() if f.value.shape
        }
        return {**declared, **(self.sizes or {})}

    def parts(self, ask: object) -> list[str]:
        """The names of the model's arrays whose values or gradients the reply holds."""
        like = {field: getattr(ask, asked) for asked, field in self.like}
        every = {**self.shapes(ask), **like}
        return [
            name
            for field, form in forms_of(self.reply).items()
            if form.kind == "arrays"
            and (form.value.like or isinstance(form.value, Learnt) or form.rule == "noise")
            for name in every[field]
        ]

    @staticmethod
    def of(
        answer: Answer, *, summed: bool = False, check: Check | None = None, noisy: bool = False
    ) -> Step:
        """The step that a function declares by its annotations; `replace` says what is rare.

        Raises MessageError if a message cannot travel or does not declare its arrays.
        """
        hints = typing.get_type_hints(answer)
        reply, memory = typing.get_args(hints["return"])
        step = Step(
            answer.__name__,
            hints["ask"],
            reply,
            answer,
            summed,
            check,
            memory=memory
            if dataclasses.is_dataclass(typing.get_origin(memory) or memory)
            else None,
            noisy=noisy,
        )
        return step if _open(step.ask) or _open(step.reply) else _declared(step)

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
        for name, form in forms_of(message).items():
            if form.kind == "array" and (form.axes is None or not form.dtypes):
                raise MessageError(
                    f"{class_of(message).__name__}.{name} does not declare its array",
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
    weight = learnt.weight_of(reply)
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
        self, step: str, round: int, *, asks: Mapping[str, bytes | Pieces], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply or failure, in any order; the caller closes the generator."""
        ...
