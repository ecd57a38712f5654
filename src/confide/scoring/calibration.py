"""Confidences: counts that add up over sites -> how far they can be trusted, and a calibrator.

A confidence is calibrated if, of all finds with about that confidence, as large a share is right.
Confidences cannot be added up, but counts can: of each type, how many finds have log odds of their
confidence within each of `BINS` bins, and how many of these are right (strict). From the sum over
all sites follow the expected calibration error (Naeini et al., AAAI 2015) and the calibrator that
makes the finds likeliest: it divides the log odds by a temperature (Guo et al., ICML 2017) and adds
an offset (Platt, "Probabilistic Outputs for Support Vector Machines", 1999).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WIDTH = 0.25
"""Width of a bin, in log odds."""
FARTHEST = 8.0
"""Larger log odds count as this much: confidences below 0.0003 and above 0.9997."""
BINS = round(2 * FARTHEST / WIDTH)
LEAST = 100
"""A calibrator is fitted to at least so many finds."""
COLDEST, HOTTEST, MOST_OFFSET = 0.2, 5.0, 5.0
"""The range of temperatures, and of offsets on either side of 0."""
SHOWN = 10
"""A reliability plot has so many bins of equal width in confidence; so has the error."""


class Right(NamedTuple):
    """Of finds of one type and bin: how many are right, and how many there are."""

    right: int = 0
    found: int = 0


Sure = Mapping[tuple[str, int], Right]
"""By type and bin; only what occurs."""


class Calibrator(NamedTuple):
    """What turns a model's confidences into calibrated ones: log odds / temperature + offset.

    >>> round(Calibrator(2.0).of(0.9), 2), Calibrator().of(0.25), Calibrator(3.0).of(1.0)
    (0.75, 0.25, 1.0)
    """

    temperature: float = 1.0
    offset: float = 0.0

    def of(self, confidence: float) -> float:
        """The calibrated confidence; 0 and 1 stay what they are."""
        if self == AS_IS or not 0 < confidence < 1:
            return confidence
        return self.of_odds(math.log(confidence) - math.log1p(-confidence))

    def of_odds(self, odds: float) -> float:
        """The calibrated confidence of log odds."""
        return _chance(odds / self.temperature + self.offset)

    @property
    def is_sound(self) -> bool:
        """Whether both numbers are in their range."""
        return COLDEST <= self.temperature <= HOTTEST and abs(self.offset) <= MOST_OFFSET


AS_IS = Calibrator()
"""Leaves confidences as the model gives them."""


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
    counts: dict[tuple[str, int], list[int]] = {}
    for type_, confidence, right in finds:
        if confidence is not None:
            count = counts.setdefault((type_, bin_of(confidence)), [0, 0])
            count[0] += right
            count[1] += 1
    return {place: Right(*counts[place]) for place in sorted(counts)}


def sum_sure(parts: Iterable[Sure]) -> Sure:
    """The counts over all parts."""
    sums: dict[tuple[str, int], list[int]] = {}
    for part in parts:
        for place, (right, found) in part.items():
            count = sums.setdefault(place, [0, 0])
            count[0] += right
            count[1] += found
    return {place: Right(*sums[place]) for place in sorted(sums)}


def fitted(sure: Sure, *, otherwise: Calibrator = AS_IS) -> Calibrator:
    """The calibrator that makes the counts likeliest; `otherwise` with fewer than `LEAST` finds.

    Every find counts as having the log odds of its bin's centre. Newton's method, with a penalty of
    half the squared distance from `AS_IS`, which decides only where all finds are right or wrong.

    >>> found = fitted({("Drug", bin_of(0.9)): Right(60, 100), ("Drug", bin_of(0.5)): Right(5, 10)})
    >>> round(found.of(0.9), 2)
    0.61
    """
    if sum(count.found for count in sure.values()) < LEAST:
        return otherwise
    rows = [(_centre(place), count.right, count.found) for (_, place), count in sure.items()]
    slope, offset = 1.0, 0.0
    for _ in range(100):
        pull = [1.0 - slope, -offset]
        curve = [1.0, 0.0, 1.0]
        for odds_, right, found in rows:
            chance = _chance(slope * odds_ + offset)
            error, spread = right - found * chance, found * chance * (1 - chance)
            pull = [pull[0] + error * odds_, pull[1] + error]
            curve = [
                curve[0] + spread * odds_ * odds_, curve[1] + spread * odds_, curve[2] + spread,
            ]  # fmt: skip
        size = curve[0] * curve[2] - curve[1] * curve[1]
        steps = (
            (curve[2] * pull[0] - curve[1] * pull[1]) / size,
            (curve[0] * pull[1] - curve[1] * pull[0]) / size,
        )
        small = min(1.0, 1 / max(map(abs, steps)))  # at most 1, so that no step leaps past the top
        slope, offset = slope + small * steps[0], offset + small * steps[1]
        if max(map(abs, steps)) < 1e-9:
            break
    slope = min(1 / COLDEST, max(1 / HOTTEST, slope))
    offset = min(MOST_OFFSET, max(-MOST_OFFSET, offset))
    return Calibrator(round(1 / slope, 4), round(offset, 4))


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


def reliability(parts: Parts, *, type: str | None = None) -> list[Bin]:
    """The bins of a reliability plot over all parts, of all types or of one; empty bins are out."""
    sums: dict[int, list[float]] = {}
    for sure, calibrator in parts:
        for (name, place), (right, found) in sure.items():
            if type not in (None, name):
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
    return 1 / (1 + math.exp(-odds)) if odds >= 0 else 1 - 1 / (1 + math.exp(odds))
