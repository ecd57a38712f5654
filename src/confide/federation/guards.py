"""Guards between a method and the wire, on both sides of the wall.

At the site, before a reply leaves: changes no larger than the site allows, finite values, shapes as
declared. At the server, before a reply is used: values and shapes again, since a site may not be
what it says it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from confide.errors import GuardError
from confide.federation import messages
from confide.federation.combining import norm_of, row_blocks
from confide.federation.failures import Failure, Refusal
from confide.federation.messages import Arrays
from confide.federation.steps import Step

MOST = 10**12
"""No honest count of sentences, tokens or entities is larger."""
MOST_NAMES, LONGEST_NAME = 2_000, 200
"""No honest site has more types or relations, or longer names for them (in letters)."""
_MARK = re.compile(r"[0-9a-f]{0,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Guards:
    """A site's own limits, from the site's own settings.

    Attributes:
        min_sentences: the fewest training sentences, and examples that a model makes of them, with
            which the site takes part.
        min_token_count: words that occur less often stay at the site.
        min_batch: the fewest examples (sentences, pairs of entities, bags) that one
            gradient may cover, but for gradients under noise.
        min_sites: the fewest sites that a run over real sites must name.
        max_rounds: the last round that the site answers.
        private: parts of a model that must stay at the site.
        max_norm: the largest L2 norm of the change in one upload (`bounded`); None means any.
        masked: whether replies that are summed leave the site only under masks, and others show
            the server nothing that counts its text.
        max_epsilon: the most that the site spends on sums under noise, over all runs, as ε.
        delta: the δ at which that ε holds.
        unit: the unit of text for which it holds, so that no sum hides another; "any" of them.
        patients: a document's name up to the first of these characters is its patient, if that is
            the unit.
        reply_every: a sum under noise leaves at whole multiples of this many seconds after its
            ask, so its time tells next to nothing of how many units were drawn; 0: at once.
    """

    min_sentences: int = 1
    min_token_count: int = 1
    min_batch: int = 1
    min_sites: int = 1
    max_rounds: int = 100_000
    private: tuple[str, ...] = ()
    max_norm: float | None = None
    masked: bool = False
    max_epsilon: float = 10.0
    delta: float = 1e-5
    unit: str = "any"
    patients: str = ""
    reply_every: float = 0.0

    def keeps(self, name: str) -> bool:
        """Return whether the array of this name is of a part of the model that must stay here."""
        return f"{name}.".startswith(tuple(f"{part}." for part in self.private))


BOUNDED: Mapping[str, tuple[str, Callable[[Any, Guards], bool]]] = {
    "min_batch": ("small-batch", lambda size, guards: size >= guards.min_batch),
    "unit": ("other-unit", lambda unit, guards: guards.unit in ("any", unit)),
    "patients": (
        "other-unit",
        lambda said, guards: guards.unit != "patient" or said == guards.patients,
    ),
    "min_token_count": (
        "guard",
        lambda counts, guards: bool(((counts == 0) | (counts >= guards.min_token_count)).all()),
    ),
}
"""The guard of each field that names one (`carries(rule=...)`), and the code of its failure."""


def check_bounded(fields: Iterable[tuple[str, messages.Form, Any]], guards: Guards) -> None:
    """Raise Refusal if a field of an ask or a reply is outside the guard that it names.

    `fields` are those of `values_of`; a value may be `Within`.
    """
    for name, form, value in fields:
        if form.rule in BOUNDED:
            code, fits = BOUNDED[form.rule]
            if not fits(value.most if isinstance(value, Within) else value, guards):
                raise Refusal(code, name)


def check_open(reply: object, guards: Guards) -> None:
    """Raise Refusal if a reply that the server sees by itself counts text under the guard `masked`.

    Fields that are not declared open then hold nothing, tables only zeros, and numbers at most 1:
    whether there is any text.
    """
    for name, form, value in messages.values_of(reply) if guards.masked else ():
        if form.rule == "open":
            continue
        if form.holds_arrays:
            told = any(array.size for array in form.arrays(name, value).values())
        else:
            found = value.values() if form.kind == "table" else [value]
            told = any(
                one is not None and one > 1 if form.kind == "number" else one for one in found
            )
        if told:
            raise Refusal("only-masked", name)


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number of an ask that a site cannot work out exactly."""

    least: float
    most: float


def check_expected(ask: object, expected: Mapping[str, object]) -> None:
    """Raise Refusal unless an ask holds what the settings make of it.

    `expected` gives values, `Within` and tables of which other keys are free, by the names of
    `forms_of`. A field without one must be declared to vary; arrays always do.
    """
    for name, form, value in messages.values_of(ask):
        free = form.holds_arrays or form.rule == "varies"
        if not (_is_expected(value, expected[name]) if name in expected else free):
            raise Refusal("not-agreed", name)


def _is_expected(value: Any, wanted: Any) -> bool:
    """True if a value is the wanted one; floats may differ in their last digits, by machine."""
    if isinstance(wanted, Within):
        found = isinstance(value, int | float) and wanted.least <= value <= wanted.most
    elif isinstance(wanted, Mapping):
        found = all(key in value and _is_expected(value[key], one) for key, one in wanted.items())
    elif isinstance(wanted, float) and isinstance(value, float):
        found = math.isclose(value, wanted, rel_tol=1e-9)
    elif isinstance(wanted, list | tuple):
        found = list(map(_listed, value)) == list(map(_listed, wanted))
    else:
        found = value == wanted
    return found


def _listed(value: Any) -> Any:
    return list(map(_listed, value)) if isinstance(value, list | tuple) else value


FREE = ("counts", "min_token_count", "clipped", "noise")
"""Rules of fields that no bound on a norm concerns (`carries`)."""


def unbounded(step: Step) -> list[str]:
    """The arrays of a summed reply whose size nothing bounds."""
    own = step.learnt
    bounds = (own.field, own.rows, own.columns) if own else ()
    return [
        name
        for name, form in messages.forms_of(step.reply).items()
        if step.summed and form.holds_arrays and name not in bounds and form.rule not in FREE
    ]


def clipped(step: Step, ask: object, reply: Any, *, most: float | None) -> Any:
    """The reply with what it learnt limited to the site's own `max_norm`, before it leaves.

    The norm is measured without the site's weight, and without rows that are not sent. Raises
    Refusal if other arrays are summed whose size nothing bounds.
    """
    if most is None:
        return reply
    if unbounded(step):
        raise Refusal("no-bound")
    learnt = step.learnt
    if learnt is None:
        return reply
    value = getattr(reply, learnt.field)
    arrays = messages.by_name(value)
    times = learnt.weight_of(reply) * learnt.scale(ask)
    if learnt.start:
        before = {name: learnt.begun(ask, reply, name) for name in arrays}
        kept = near(arrays, before, most, times=times)
    else:
        kept = bounded(arrays, most, times=times)
    if kept is arrays:
        return reply
    return replace(reply, **{learnt.field: kept if isinstance(value, dict) else kept[""]})


def bounded(change: Arrays, most: float, *, times: float = 1.0) -> Arrays:
    """The change, scaled down to the L2 norm `most` if it is larger.

    The norm is over the numbers of all arrays together, in float64; `change` is the real change
    multiplied by `times`. This is the flat clipping of McMahan, Ramage, Talwar & Zhang, ICLR 2018
    (arXiv 1710.06963), Algorithm 1. Values that are not finite stay so, and `check_reply` refuses
    them.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        norm = norm_of(change.values()) / times
        if not norm > most:
            return change
        return {name: _times(array, most / norm) for name, array in change.items()}


def near(weights: Arrays, before: Arrays, most: float, *, times: float = 1.0) -> Arrays:
    """The weights, moved towards `before` if they are more than `most` away from it.

    The distance is the norm of `bounded`; both sets of weights are multiplied by `times`.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        norm = norm_of(_apart(weights, before)) / times
        if not norm > most:
            return weights
        return {
            name: before[name] + _times(array - before[name], most / norm)
            for name, array in weights.items()
        }


def _apart(weights: Arrays, before: Arrays) -> Iterator[np.ndarray]:
    """Iterate over the differences of the weights from those before, in blocks."""
    for name, array in weights.items():
        rows, begun = np.atleast_1d(array), np.atleast_1d(before[name])
        for part in row_blocks(rows):
            yield rows[part] - begun[part]


def _times(array: np.ndarray, factor: float) -> np.ndarray:
    """The product in the array's own number type, computed in at least float32."""
    kind = np.promote_types(array.dtype, np.float32)
    scaled: np.ndarray = np.multiply(array, factor, dtype=kind).astype(array.dtype)
    return scaled


def reply_limits(step: Step, ask: object) -> messages.Limits:
    """The largest that a reply to this ask, or a failure, can be.

    Arrays that must match the ask's have its sizes; for others the step says the number of
    numbers (`Step.shapes`), or their field the greatest length.
    """
    like = {replied: getattr(ask, asked) for asked, replied in step.like}
    numbers = {name: sum(map(math.prod, one.values())) for name, one in step.shapes(ask).items()}
    reply = messages.limits_of(step.reply, like=like, numbers=numbers)
    failure = messages.limits_of(Failure)
    return messages.Limits(
        bytes=max(reply.bytes, failure.bytes),
        header=max(reply.header, failure.header),
        arrays=max(reply.arrays, failure.arrays),
    )


def check_reply(step: Step, ask: object, reply: object) -> None:
    """Raise GuardError if a reply is not finite, does not match its ask, or holds absurd numbers.

    The step's own check (`Step.check`) comes last. The error names fields only, never values.
    """
    expected = messages.class_of(step.reply)
    if type(reply) is not expected:
        raise GuardError("the wrong message", expected=expected.__name__, got=type(reply).__name__)
    shapes = step.shapes(ask)
    for name, form, value in messages.values_of(reply):
        if form.holds_arrays:
            if name in shapes:
                asked = f"what {messages.class_of(step.ask).__name__} asks for"
                dtypes = dict.fromkeys(shapes[name], form.dtypes)
                _check_alike(name, messages.by_name(value), shapes[name], dtypes=dtypes, like=asked)
            for place, array in form.arrays(name, value).items():
                _check_array(place, array)
                _check_within(place, form, ask, array)
        elif form.kind == "number" and value is not None:
            if not math.isfinite(value):
                raise GuardError(f"{name} is not finite")
            if abs(value) > MOST:
                raise GuardError(f"{name} is absurdly large")
            _check_within(name, form, ask, np.asarray(value))
        elif form.value.text == "digest":
            check_mark(name, value)
        elif form.value.text == "names":
            check_names(name, value)
    for asked, replied in step.like:
        arrays = getattr(ask, asked)
        _check_alike(
            replied,
            getattr(reply, replied),
            {name: array.shape for name, array in arrays.items()},
            dtypes={name: {array.dtype.name} for name, array in arrays.items()},
            like=asked,
        )
    if step.learnt is not None:
        _check_learnt(step.learnt, ask, reply)
    if step.check is not None:
        step.check(ask, reply)


def _check_alike(
    name: str,
    got: Arrays,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    dtypes: Mapping[str, Set[str]],
    like: str,
) -> None:
    """Raise GuardError unless a field has these arrays, each of one of its number types, if any."""
    if shapes.keys() != got.keys():
        odd = sorted(shapes.keys() ^ got.keys())[0]
        raise GuardError(f"{name} and {like} do not hold the same arrays: {odd}")
    for key, shape in shapes.items():
        place = f"{name}/{key}" if key else name
        if dtypes[key] and got[key].dtype.name not in dtypes[key]:
            raise GuardError(
                f"{place} has the wrong number type",
                expected=" or ".join(sorted(dtypes[key])),
                got=got[key].dtype.name,
            )
        if got[key].shape != shape:
            raise GuardError(
                f"{place} has the wrong shape", expected=str(shape), got=str(got[key].shape)
            )


def _check_within(name: str, form: messages.Form, ask: object, numbers: np.ndarray) -> None:
    """Raise GuardError if a number is smaller or larger than its field declares."""
    value = form.value
    largest = value.largest(ask) if callable(value.largest) else value.largest
    if not numbers.size:
        return
    if value.least is not None and numbers.min() < value.least:
        raise GuardError(f"{name} must be at least {value.least:g}")
    if largest is not None and numbers.max() > largest:
        raise GuardError(f"{name} must be at most {largest:g}")


def _check_learnt(learnt: messages.Learnt, ask: Any, reply: Any) -> None:
    """Raise GuardError if a weight, the rows that have it, or codes are not what they say."""
    weight, weighted = learnt.weight_of(reply), learnt.weighted(ask)
    fits = {"equal": weight == 1, "examples": weight >= 1, "share": 0 < weight <= 1}
    if not fits.get(weighted, weight > 0):
        words = {"equal": "1", "examples": "at least 1", "share": "above 0 and at most 1"}
        raise GuardError(f"{learnt.weight} must be {words.get(weighted, 'above 0')}")
    arrays = messages.by_name(getattr(reply, learnt.field))
    side = learnt.rows or learnt.columns
    for name, covered in getattr(reply, side).items() if side else ():
        axis = "row" if learnt.rows else "column"
        if not ((covered == 0) | (covered == np.float32(weight))).all():
            raise GuardError(f"{side} must be 0 or the weight for each {axis}")
        silent = arrays[name][covered == 0] if learnt.rows else arrays[name][..., covered == 0]
        if silent.any():
            raise GuardError(f"{learnt.field} must be 0 in {axis}s that {side} leaves out")
    if learnt.fixed is not None:
        kind, most = (getattr(ask, name) for name in learnt.fixed)
        largest = messages.LEVELS if kind == "int8" else most * 1.001
        for array in arrays.values():
            if array.dtype.name != kind:
                raise GuardError(
                    f"{learnt.field} has the wrong number type", expected=kind, got=array.dtype.name
                )
            if array.size and float(np.abs(array.astype(np.float32)).max()) > largest:
                raise GuardError(f"{learnt.field} exceeds the largest prediction")


def check_names(field: str, names: Iterable[str]) -> None:
    """Raise GuardError unless these are distinct names that can be shown and written anywhere.

    A name has 1 to 200 printable characters, among them a letter or a digit.
    """
    every = list(names)
    if len(every) > MOST_NAMES:
        got = str(len(every))
        raise GuardError(f"{field} has too many names", expected=f"at most {MOST_NAMES}", got=got)
    if len(set(every)) != len(every):
        raise GuardError(f"{field} names something twice")
    fits = (0 < len(one) <= LONGEST_NAME and one == one.strip() for one in every)
    shown = (one.isprintable() and any(map(str.isalnum, one)) for one in every)
    if not (all(fits) and all(shown)):
        raise GuardError(
            f"{field} holds something that is not a name",
            expected=f"1 to {LONGEST_NAME} printable characters, with a letter or digit",
        )


def check_mark(field: str, mark: str) -> None:
    """Raise GuardError unless this is a digest or check value: hexadecimal digits, or nothing."""
    if not _MARK.fullmatch(mark):
        raise GuardError(f"{field} is not a digest", expected="at most 64 hexadecimal digits")


def _check_array(name: str, array: np.ndarray) -> None:
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            # summing in float32 is twice as fast; if it overflows, float64 decides
            finite = math.isfinite(array.sum(dtype=np.float32)) or math.isfinite(
                array.sum(dtype=np.float64)
            )
        if not finite:
            raise GuardError(f"{name} is not finite")
    whole = array.dtype.kind == "i" and array.size > 0
    if whole and max(int(array.max()), -int(array.min())) > MOST:
        raise GuardError(f"{name} is absurdly large")
