"""How certain an area under the curve of ranked candidates is: the bootstrap over bags.

A bag's candidates are drawn together: they come from the same sentences.

Legend: G bags, C candidates, B bins of scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from confide.errors import DataError
from confide.scoring.bags import BINS
from confide.scoring.bootstrap import Interval
from confide.scoring.ranking import Ranking, auc

MOST_DRAWN = 20_000_000
"""Candidates drawn over all resamples, at most; large corpora get fewer resamples, 100 at least."""


def auc_interval(
    ranked: Sequence[Sequence[int]], *, level: float = 0.95, samples: int = 1000, seed: int = 0
) -> Interval:
    """The area, and the percentile interval over resampled bags (Efron 1979), as fractions.

    `ranked` is what `bags.ranked_bags` gives of all bags. Raises DataError: there is no bag, or a
    place is none.
    """
    bag_C, place_C, facts_G = _table(ranked)
    bin_C, true_C = place_C >> 1, place_C & 1

    def area(many_G: np.ndarray) -> float:
        weight_C = many_G[bag_C]
        candidates_B = np.bincount(bin_C, weight_C, minlength=BINS)
        true_B = np.bincount(bin_C, weight_C * true_C, minlength=BINS)
        return auc(Ranking.of(candidates_B[::-1], true_B[::-1], int(many_G @ facts_G)))

    size = len(facts_G)
    generator = np.random.default_rng(seed)
    samples = max(100, min(samples, MOST_DRAWN // max(1, len(bin_C))))
    drawn = [area(generator.multinomial(size, np.full(size, 1 / size))) for _ in range(samples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(area(np.ones(size, np.int64)), float(low), float(high), level)


def _table(ranked: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bag and the place of each candidate, and the facts of each bag."""
    if not ranked or not all(ranked):
        raise DataError("there is no bag to draw from", expected="at least one, with its facts")
    many_G = np.array([len(row) - 1 for row in ranked], np.int64)
    place_C = np.fromiter((place for row in ranked for place in row[1:]), np.int64, many_G.sum())
    facts_G = np.array([row[0] for row in ranked], np.int64)
    bag_C = np.repeat(np.arange(len(ranked)), many_G)
    true_G = np.bincount(bag_C, place_C & 1, minlength=len(ranked))
    if ((place_C < 0) | (place_C >= 2 * BINS)).any() or (true_G > facts_G).any():
        raise DataError("a bag's candidates are none", expected=f"places from 0 to {2 * BINS - 1}")
    return bag_C, place_C, facts_G
