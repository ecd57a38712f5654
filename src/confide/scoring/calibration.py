"""Confidences: counts that add up over sites -> how far they can be trusted, and a calibrator.

A confidence is calibrated if, of all finds with about that confidence, as large a share is right.
Confidences cannot be added up, but counts can: of each type, how many finds have log odds of their
confidence within each of `BINS` bins, and how many of these are right (strict). From the sum over
all sites follow the expected calibration error (Naeini et al., AAAI 2015) and the calibrator, which
divides the log odds by a temperature (Guo et al., ICML 2017) and adds an offset (Platt,
"Probabilistic Outputs for Support Vector Machines", 1999). Both shrink towards what is usual: a few
dozen finds cannot tell them, and left alone models are nearly always too sure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple, Self, TypeVar

T = TypeVar("T", bound=Any)

WIDTH = 0.25
"""Width of a bin, in log odds."""
FARTHEST = 8.0
"""Larger log odds count as this much: confidences below 0.0003 and above 0.9997."""
BINS = round(2 * FARTHEST / WIDTH)
FEW = 300
"""With fewer finds than this, the prior still weighs and the error may be large: it is said."""
COLDEST, HOTTEST, MOST_OFFSET = 0.2, 5.0, 5.0
"""The range of temperatures, and of offsets on either side of 0."""
SHOWN = 10
"""The number of bins of equal width in confidence in a reliability plot, and in the error."""


class Right(NamedTuple):
    """Of finds of one type and bin: how many are right, and how many there are."""

    right: int = 0
    found: int = 0


Sure = Mapping[tuple[str, int], Right]
"""By type and bin; only what occurs."""


class Calibrator(NamedTuple):
    """A map from a model's confidences to calibrated ones: log odds / temperature + offset.

    `finds` says how many development finds it was fitted to; -1: none, or nobody knows.

    >>> round(Calibrator(2.0).of(0.9), 2), Calibrator().of(0.25), Calibrator(3.0).of(1.0)
    (0.75, 0.25, 1.0)
    """

    temperature: float = 1.0
    offset: float = 0.0
    finds: int = -1

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Self:
        """From its numbers; `finds` may be missing. Raises TypeError, ValueError."""
        temperature, offset, *finds = numbers
        return cls(temperature, offset, *map(int, finds))

    def of(self, confidence: float) -> float:
        """The calibrated confidence; 0 and 1 stay what they are."""
        if self[:2] == AS_IS[:2] or not 0 < confidence < 1:
            return confidence
        return self.of_odds(math.log(confidence) - math.log1p(-confidence))

    def of_odds(self, odds: float) -> float:
        """The calibrated confidence of log odds."""
        return _chance(odds / self.temperature + self.offset)

    @property
    def is_sound(self) -> bool:
        """True if all numbers are in their range."""
        scaled = COLDEST <= self.temperature <= HOTTEST and abs(self.offset) <= MOST_OFFSET
        return scaled and self.finds >= -1

    @property
    def doubt(self) -> str:
        """Warn of a calibrator that was fitted to few finds; empty if there is nothing to say."""
        if not 0 <= self.finds < FEW:
            return ""
        return (
            f"Confidences are calibrated on {self.finds} finds in development text, fewer than"
            f" {FEW}: they lean on what is usual for such models, and may be off."
        )


AS_IS = Calibrator()
"""Leaves confidences as the model gives them."""
USUAL = Calibrator(2.0, -0.3)
"""The usual calibrator: the mean of seven models that find entities or relations, with 400 to
14,000 finds each, whose temperatures were 1.6 to 2.5 and offsets -0.6 to 0.2
(`benchmarks/defaults/calibration`)."""
SPREAD = 0.08, 0.3
"""The spread of slopes (1 / temperature) and offsets about that: standard deviations."""
ALIKE = 2.0
"""The number of finds that tell as much as one independent of all others: right and wrong in
ten neighbouring sentences varied 1.6 to 2.6 times as much as independent finds would (NCBI-disease,
BC5CDR). A name that is misread is misread again."""


def odds(confidence: float) -> float:
    """The log odds of a confidence, at most `FARTHEST` from 0."""
    if not 0 < confidence < 1:
        return math.copysign(FARTHEST, confidence - 0.5)
    return max(-FARTHEST, min(FARTHEST, math.log(confidence) - math.log1p(-confidence)))


def bin_of(confidence: float) -> int:
    """The bin of a confidence.

    >>> bin_of(0.0), bin_of(0.5), bin_of(1.0)
    (0, 32, 63)
    """
    return min(BINS - 1, int((odds(confidence) + FARTHEST) / WIDTH))


def count_sure(finds: Iterable[tuple[str, float | None, bool]]) -> Sure:
    """Counts of finds: type, confidence and whether each is right. Without confidence: left out.

    >>> count_sure([("Drug", 0.51, True), ("Drug", 0.52, False), ("Drug", None, True)])
    {('Drug', 32): Right(right=1, found=2)}
    """
    counted = (((type_, bin_of(c)), (int(right), 1)) for type_, c, right in finds if c is not None)
    return {place: Right(*sums) for place, sums in sums_by_key(counted).items()}


def sum_sure(parts: Iterable[Sure]) -> Sure:
    """The counts over all parts."""
    counted = (one for part in parts for one in part.items())
    return {place: Right(*sums) for place, sums in sums_by_key(counted).items()}


def sums_by_key(parts: Iterable[tuple[T, Sequence[int]]]) -> dict[T, list[int]]:
    """The sums of equally long rows of numbers by their key, the keys in order.

    >>> sums_by_key([("b", (1, 0)), ("a", (2, 2)), ("b", (1, 3))])
    {'a': [2, 2], 'b': [2, 3]}
    """
    sums: dict[T, list[int]] = {}
    for key, row in parts:
        before = sums.get(key)
        sums[key] = list(row) if before is None else list(map(add, before, row))
    return dict(sorted(sums.items()))


def fitted(sure: Sure, *, prior: Calibrator | None = None) -> Calibrator:
    """The likeliest calibrator after these counts, if calibrators spread about `prior` as usual.

    By default about `USUAL`. Every find counts as having the log odds of its bin's centre, and as
    one of `ALIKE`. The slope (1 / temperature) and the offset are the maximum of the counts' log
    likelihood and of that of two normal distributions with `SPREAD`, found by Newton's method: the
    sum is strictly concave, so there is one maximum. Without finds that is the prior.

    >>> found = fitted({("Drug", bin_of(0.9)): Right(60, 100), ("Drug", bin_of(0.5)): Right(5, 10)})
    >>> round(found.of(0.9), 2), found.finds, bool(found.doubt)
    (0.65, 110, True)
    >>> fitted({})
    Calibrator(temperature=2.0, offset=-0.3, finds=0)
    """
    start = USUAL if prior is None else prior
    rows: dict[float, tuple[float, float]] = {}
    for (_, place), count in sure.items():
        right, found = rows.get(_centre(place), (0.0, 0.0))
        rows[_centre(place)] = right + count.right / ALIKE, found + count.found / ALIKE
    pull = tuple(1 / spread**2 for spread in SPREAD)
    usual = 1 / start.temperature, start.offset

    def likelihood(slope: float, offset: float) -> float:
        """The log likelihood of counts and prior, up to a constant."""
        of_counts = sum(
            right * _log_chance(slope * odds_ + offset)
            + (found - right) * _log_chance(-slope * odds_ - offset)
            for odds_, (right, found) in rows.items()
        )
        far = pull[0] * (slope - usual[0]) ** 2 + pull[1] * (offset - usual[1]) ** 2
        return of_counts - far / 2

    slope, offset = usual
    best = likelihood(slope, offset)
    for _ in range(100):
        # The gradient g and the negative second derivatives, a symmetric matrix [[a, b], [b, c]].
        g = [pull[0] * (usual[0] - slope), pull[1] * (usual[1] - offset)]
        a, b, c = pull[0], 0.0, pull[1]
        for odds_, (right, found) in rows.items():
            chance = _chance(slope * odds_ + offset)
            error, spread = right - found * chance, found * chance * (1 - chance)
            g = [g[0] + error * odds_, g[1] + error]
            a, b, c = a + spread * odds_ * odds_, b + spread * odds_, c + spread
        size = max(a * c - b * b, pull[0] * pull[1])  # so large it is, but for rounding
        step = (c * g[0] - b * g[1]) / size, (a * g[1] - b * g[0]) / size
        share = 1.0
        while share > 1e-9:
            value = likelihood(slope + share * step[0], offset + share * step[1])
            if value > best:
                break
            share /= 2
        else:
            break  # no step leads higher: this is the maximum, as far as numbers tell
        best, slope, offset = value, slope + share * step[0], offset + share * step[1]
        if max(abs(step[0]), abs(step[1])) < 1e-9:
            break
    slope = min(1 / COLDEST, max(1 / HOTTEST, slope))
    offset = min(MOST_OFFSET, max(-MOST_OFFSET, offset))
    finds = sum(count.found for count in sure.values())
    return Calibrator(round(1 / slope, 4), round(offset, 4), finds)


@dataclass(frozen=True)
class Bin:
    """Finds with about one confidence: the mean of their confidences, and how many are right.

    `lower` and `upper` bound the confidences.
    """

    lower: float
    upper: float
    mean: float
    right: int
    found: int


Parts = Iterable[tuple[Sure, Calibrator]]
"""Counts of finds, and what calibrates their confidences."""


def reliability_bins(parts: Parts, *, type: str | None = None) -> list[Bin]:
    """The bins of a reliability plot over all parts, of all types or of one; empty bins are out."""
    sums: dict[int, list[float]] = {}
    for sure, calibrator in parts:
        for (name, place), (right, found) in sure.items():
            if type not in (None, name) or not found:
                continue
            confidence = calibrator.of_odds(_centre(place))
            total = sums.setdefault(min(SHOWN - 1, int(confidence * SHOWN)), [0.0, 0, 0])
            total[0] += confidence * found
            total[1] += right
            total[2] += found
    return [
        Bin(place / SHOWN, (place + 1) / SHOWN, all_ / found, int(right), int(found))
        for place, (all_, right, found) in sorted(sums.items())
    ]


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """The expected calibration error, from 0 to 1; None without finds.

    The mean difference between confidence and share of right finds over bins, weighed by finds.

    >>> calibration_error([Bin(0.9, 1.0, 0.95, 60, 100)])
    0.35
    """
    total = sum(one.found for one in bins)
    if not total:
        return None
    return round(sum(abs(one.mean * one.found - one.right) for one in bins) / total, 6)


def _centre(place: int) -> float:
    """The log odds at the middle of a bin."""
    return -FARTHEST + (place + 0.5) * WIDTH


def _chance(odds: float) -> float:
    power = math.exp(-abs(odds))
    return (1.0 if odds >= 0 else power) / (1 + power)


def _log_chance(odds: float) -> float:
    """The logarithm of the chance that log odds stand for."""
    return min(odds, 0.0) - math.log1p(math.exp(-abs(odds)))
