"""From measured scores to a plain verdict with its uncertainty."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from confide.jobs.capacity.measuring import Measured
from confide.scoring.curves import Curve, fit_curve, resampled_curves
from confide.seeds import derive_seed
from confide.userfiles import Tree

SCHEMA = 1
FACTOR = 2.0
MATTERS = 0.01
LEVEL = 0.9
SAMPLES = 1000
BAND = 25

Verdict = Literal["worth federating", "flat", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Point:
    """Scores after training on some parts: strict F1, its deviation over seeds, and each seed's."""

    parts: int
    sentences: float
    f1: float
    deviation: float
    seeds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """The outcome of a capacity test. Numbers only, no text; F1 is strict, as a fraction.

    `gain` is what `factor` times the text is expected to add, between `low` and `high` with
    confidence `level`. `chance` is the share of resampled curves that gain at least `matters`: at
    `level` or more the verdict is "worth federating", at 1 - `level` or less it is "flat". `band`
    has (sentences, low, high) of the curve, up to `factor` times the text.
    """

    name: str
    verdict: Verdict
    gain: float
    low: float
    high: float
    chance: float
    points: tuple[Point, ...]
    curve: Curve
    band: tuple[tuple[float, float, float], ...]
    held_out: int
    seconds: float
    factor: float = FACTOR
    level: float = LEVEL
    matters: float = MATTERS

    @property
    def text(self) -> str:
        """The report in words."""
        full = self.points[-1]
        head = (
            f"{self.name}: trained on growing parts of {full.sentences:,.0f} sentences, "
            f"{len(full.seeds)} times each; scored on {self.held_out:,} held-out sentences (strict)"
        )
        rows = [
            f"  {point.parts} of {full.parts} parts {point.sentences:9,.0f} sentences   "
            f"F1 {100 * point.f1:5.1f} ± {100 * point.deviation:.1f}"
            for point in self.points
        ]
        tail = [
            f"{self.factor:g} times the text is expected to add {100 * self.gain:.1f} points of F1 "
            f"({self.level:.0%} interval {100 * self.low:.1f} to {100 * self.high:.1f}).",
            f"The chance that it adds {100 * self.matters:g} or more: {self.chance:.0%}.",
            f"Verdict: {self.verdict}. {_ADVICE[self.verdict]}",
        ]
        return "\n".join([head, *rows, *tail]) + "\n"

    def to_json(self) -> Tree:
        """The report as plain values."""
        return {"schema": SCHEMA, **asdict(self)}


_ADVICE: dict[Verdict, str] = {
    "worth federating": "More text of this kind helps this model. Other sites' text helps as far "
    "as it is of this kind.",
    "flat": "More text of this kind hardly helps this model with these settings. Look at the "
    "annotation, the model or word vectors first.",
    "cannot tell": "The scores vary too much for an answer: use more seeds or more held-out text.",
}


def conclude(measured: Measured, *, name: str, seed: int = 1) -> CapacityReport:
    """Fit the curve and say what more text would add, and how certain that is."""
    f1_SK, sizes = measured.f1_SK, measured.sizes_K
    curve = fit_curve(sizes, f1_SK.mean(axis=0).tolist())
    curves = resampled_curves(
        measured.counts_SKN3, sizes, samples=SAMPLES, seed=derive_seed(seed, "capacity curves")
    )
    gains = np.array([other.gain(FACTOR) for other in curves])
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(gains, tails)
    chance = float((gains >= MATTERS).mean())
    deviations = f1_SK.std(axis=0, ddof=1)
    points = tuple(
        Point(
            k + 1,
            size,
            float(f1_SK[:, k].mean()),
            float(deviations[k]),
            tuple(f1_SK[:, k].tolist()),
        )
        for k, size in enumerate(sizes)
    )
    return CapacityReport(
        name=name,
        verdict=judge(chance),
        gain=curve.gain(FACTOR),
        low=float(low),
        high=float(high),
        chance=chance,
        points=points,
        curve=curve,
        band=_band(curves, sizes, tails),
        held_out=measured.counts_SKN3.shape[2],
        seconds=measured.seconds,
    )


def judge(chance: float) -> Verdict:
    """The verdict for a chance that more text matters.

    >>> judge(0.97), judge(0.03), judge(0.5)
    ('worth federating', 'flat', 'cannot tell')
    """
    if chance >= LEVEL:
        return "worth federating"
    return "flat" if chance <= 1 - LEVEL else "cannot tell"


def _band(
    curves: list[Curve], sizes: tuple[float, ...], tails: list[float]
) -> tuple[tuple[float, float, float], ...]:
    grid = np.linspace(sizes[0], FACTOR * sizes[-1], BAND)
    heights = np.array([[curve.at(size) for size in grid] for curve in curves])
    low, high = np.quantile(heights, tails, axis=0)
    return tuple(zip(grid.tolist(), low.tolist(), high.tolist(), strict=True))
