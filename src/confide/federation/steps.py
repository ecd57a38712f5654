"""Steps: what a site can be asked to do, and the turn in which it is asked.

A step is a function `answer(site, memory, ask, turn) -> (reply, memory)`. Its annotations declare
the two messages, and so what comes in and what leaves.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from confide.errors import MessageError
from confide.federation.forms import class_of, forms_of, undeclared

Answer = Callable[..., tuple[Any, Any]]
Check = Callable[[Any, Any], None]
Bound = Callable[[Any, Any, float], Any]
Start = Callable[[Any, Any, str], Any]
Numbers = Callable[[Any], Mapping[str, int]]
Has = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One ask to one site. `seed` depends on (run seed, round, site, step) and on nothing else."""

    round: int
    site: str
    step: str
    seed: int


@dataclass(frozen=True, slots=True)
class Learnt:
    """Where a reply says what its site learnt, so that the server can weigh one site by the others.

    `field` of the reply holds it, times the reply's number `weight` ("": times 1). The site set out
    from the ask's field `start` ("": from nothing, so that the reply holds the change itself).
    `has(reply, name)` is 0 for the numbers of an array of which the site says nothing, and its
    weight for the others, in a shape that broadcasts; None is all of them. Of a sum of replies it
    says how heavy they are together. `combined` is False where a method needs the sum itself.
    `slack`: how many times more than `most_norm` honest replies may differ in norm.
    """

    field: str
    weight: str = ""
    start: str = ""
    has: Has | None = None
    combined: bool = True
    slack: float = 1.0


@dataclass(frozen=True)
class Step:
    """One thing a site can be asked to do.

    `summed` steps answer with numbers and arrays only, and the server adds the replies up without
    looking at one (`Federation.sum`). `like` names pairs of fields (ask, reply) whose arrays must
    have equal names, shapes and types. `check(ask, reply)` raises GuardError, naming fields only,
    where a reply is not what it should be; it stands on both sides of the wall. `bound(ask, reply,
    most)` is the reply with no larger a change than the site's own `max_norm` (`guards.bounded`);
    every summed step that uploads arrays has one. `start(ask, reply, name)` is what an array of the
    reply's field in `like` would be, had nothing been learnt, computed from the ask and the reply's
    other fields, or None; of such arrays only what changed travels (`confide.federation.changes`).
    `numbers(ask)` says of fields of the reply how many numbers their arrays hold at most, where
    neither `like` nor the field (`carries(most=...)`) does.
    `learnt` says where a reply holds what a site learnt: such replies are compared with each other
    and combined (`confide.federation.combining`). `drawn` is what random choices of the step are
    named by, where that is not its name.

    Messages may leave types open (`Take[F]`): then `given` says which they are.
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
    numbers: Numbers | None = None
    learnt: Learnt | None = None
    drawn: str = ""

    @staticmethod
    def of(
        answer: Answer,
        *,
        summed: bool = False,
        like: tuple[tuple[str, str], ...] = (),
        check: Check | None = None,
        bound: Bound | None = None,
        start: Start | None = None,
        numbers: Numbers | None = None,
        learnt: Learnt | None = None,
    ) -> Step:
        """The step that a function declares by its annotations.

        Raises MessageError where a message cannot travel, or does not declare its arrays.
        """
        hints = typing.get_type_hints(answer)
        reply = typing.get_args(hints["return"])[0]
        name = answer.__name__
        step = Step(
            name, hints["ask"], reply, answer, summed, like, check, bound, start, numbers, learnt
        )
        return step if _open(step.ask) or _open(reply) else _declared(step)

    def given(self, types: Mapping[Any, type], *, drawn: str = "") -> Step:
        """The step with these types in place of those that its messages leave open.

        Raises MessageError as `of` does.
        """
        ask, reply = _filled(self.ask, types), _filled(self.reply, types)
        return _declared(replace(self, ask=ask, reply=reply, drawn=drawn or self.drawn))


def _open(message: Any) -> tuple[Any, ...]:
    """The types that a message leaves open."""
    if isinstance(message, typing.TypeVar):
        return (message,)
    found: tuple[Any, ...] = getattr(message, "__parameters__", ())
    return found


def _filled(message: Any, types: Mapping[Any, type]) -> Any:
    if isinstance(message, typing.TypeVar):
        return types[message]
    left = _open(message)
    return message[tuple(types[one] for one in left)] if left else message


def _declared(step: Step) -> Step:
    """The step, whose messages say what they are. Raises MessageError where they do not."""
    for message in (step.ask, step.reply):
        if undeclared(message):
            raise MessageError(
                f"{class_of(message).__name__}.{undeclared(message)[0]} does not say what array it"
                " is",
                expected="a type of number in its annotation, and its axes in its name",
            )
    kinds = forms_of(step.reply)
    numbers = {form.kind for form in kinds.values()} <= {"array", "arrays", "number"}
    if step.summed and (not numbers or any("." in name for name in kinds)):
        raise MessageError(f"step {step.name}: only numbers and arrays can be summed")
    return step
