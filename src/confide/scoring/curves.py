"""Learning curves: how F1 grows with the amount of text, and what more text would add.

The curve is the inverse power law f(x) = a - b (x / full)^-c with 0 <= b and a <= 1, which the
scores of many models follow (Hestness et al. 2017, arXiv 1712.00409; Viering & Loog 2023). `a` is
the F1 that unlimited text would give; `b` is how far the text at hand falls short of it.

Legend: S seeds, K sizes, N sentences scored, B replicates, C exponents on the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError

Floats = NDArray[np.float64]

EXPONENTS_C: Floats = np.geomspace(0.02, 3.0, 80)
LEAST_SIZES = 4
CHUNK = 100  # replicates drawn at once


@dataclass(frozen=True, slots=True)
class Curve:
    """F1 as a function of size: `ceiling - shortfall * (size / full) ** -exponent`."""

    ceiling: float
    shortfall: float
    exponent: float
    full: float

    def at(self, size: float) -> float:
        """The F1 that the curve expects of this much text."""
        return self.ceiling - self.shortfall * float((size / self.full) ** -self.exponent)

    def gain(self, factor: float) -> float:
        """How much F1 rises with `factor` times as much text as there is."""
        return self.at(self.full * factor) - self.at(self.full)


def fit_curve(sizes_K: Sequence[float], f1_K: Sequence[float]) -> Curve:
    """Fit the curve by least squares; the exponent is searched on a grid.

    Falling scores are fitted by a flat curve. Raises DataError for fewer than 4 sizes.
    """
    sizes = _checked(sizes_K)
    a, b, c = _fit(sizes, np.asarray(f1_K, dtype=np.float64)[None])[0].tolist()
    return Curve(a, b, c, float(sizes[-1]))


def resampled_curves(
    counts_SKN3: NDArray[np.int64], sizes_K: Sequence[float], *, samples: int = 1000, seed: int = 0
) -> list[Curve]:
    """Fit curves to resampled scores: what else the curve could have been.

    `counts_SKN3` holds (true, predicted, gold) of each held-out sentence, for each seed and size. A
    replicate draws held-out sentences with replacement, the same ones for all sizes, then moves the
    mean of each size as far as a mean over S seeds may be off. The scatter among seeds is pooled
    over the sizes and itself uncertain, so the moves follow Student's t with K (S - 1) degrees of
    freedom. (Drawing a few seeds with replacement instead would give far too narrow intervals.)

    Raises DataError for fewer than 2 seeds.
    """
    sizes = _checked(sizes_K)
    seeds = len(counts_SKN3)
    if seeds < 2:
        raise DataError("one seed cannot show how certain a curve is", expected="at least 2 seeds")
    if not counts_SKN3.shape[2]:
        raise DataError("there is no held-out sentence to draw from", expected="at least one")
    f1_SK = _f1(counts_SKN3.sum(axis=2))
    freedom = len(sizes) * (seeds - 1)
    scatter = float(np.sqrt(((f1_SK - f1_SK.mean(axis=0)) ** 2).sum() / freedom / seeds))
    generator = np.random.default_rng(seed)
    found = []
    for start in range(0, samples, CHUNK):
        draws = min(CHUNK, samples - start)
        mean_BK = _drawn_f1(counts_SKN3, draws, generator).mean(axis=1)
        doubt_B1 = np.sqrt(freedom / generator.chisquare(freedom, size=(draws, 1)))
        off_BK = generator.normal(size=mean_BK.shape) * doubt_B1 * scatter
        found.append(_fit(sizes, np.clip(mean_BK + off_BK, 0, 1)))
    full = float(sizes[-1])
    return [Curve(a, b, c, full) for a, b, c in np.concatenate(found).tolist()]


def _checked(sizes: Sequence[float]) -> Floats:
    sizes_K = np.asarray(sizes, dtype=np.float64)
    if len(sizes_K) < LEAST_SIZES or (sizes_K <= 0).any() or (np.diff(sizes_K) <= 0).any():
        raise DataError(
            "no curve can be fitted to these sizes",
            expected=f"at least {LEAST_SIZES} growing amounts of text",
            got=str([float(size) for size in sizes_K]),
        )
    return sizes_K


def _drawn_f1(counts_SKN3: NDArray[np.int64], draws: int, generator: np.random.Generator) -> Floats:
    """Micro-F1 over resampled sentences: (draws, S, K)."""
    seeds, sizes, sentences, _ = counts_SKN3.shape
    even_N = np.full(sentences, 1 / sentences)
    times_BN = generator.multinomial(sentences, even_N, size=draws).astype(np.float64)
    flat = counts_SKN3.transpose(2, 0, 1, 3).reshape(sentences, -1).astype(np.float64)
    return _f1((times_BN @ flat).reshape(draws, seeds, sizes, 3))


def _f1(sums: Floats | NDArray[np.int64]) -> Floats:
    """Micro-F1 from (true, predicted, gold) in the last axis."""
    f1: Floats = 2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1)
    return f1


def _fit(sizes_K: Floats, f1_BK: Floats) -> Floats:
    """(ceiling, shortfall, exponent) of each row; for each exponent, fit a line in x^-c."""
    x_CK = (sizes_K / sizes_K[-1]) ** -EXPONENTS_C[:, None]
    mean_C, mean_B = x_CK.mean(axis=1), f1_BK.mean(axis=1)
    centred_CK = x_CK - mean_C[:, None]
    slope_BC = -(f1_BK @ centred_CK.T) / (centred_CK**2).sum(axis=1)
    b_BC = np.maximum(slope_BC, 0)
    a_BC = mean_B[:, None] + b_BC * mean_C
    capped_BC = a_BC > 1
    at_one_BC = ((1 - f1_BK) @ x_CK.T) / (x_CK**2).sum(axis=1)
    a_BC, b_BC = np.where(capped_BC, 1.0, a_BC), np.where(capped_BC, at_one_BC, b_BC)
    off_BCK = f1_BK[:, None] - (a_BC[:, :, None] - b_BC[:, :, None] * x_CK)
    best_B = (off_BCK**2).sum(axis=2).argmin(axis=1)
    rows_B = np.arange(len(f1_BK))
    return np.stack([a_BC[rows_B, best_B], b_BC[rows_B, best_B], EXPONENTS_C[best_B]], axis=1)
