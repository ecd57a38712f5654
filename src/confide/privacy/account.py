"""What noise buys: the account of Skellam noise on sums of sampled, clipped whole numbers.

In a round every unit (a document, say) is drawn with the probability `rate`, each by itself. The
vector of a drawn unit has been clipped to whole numbers of L2 norm at most `clip`. To the sum of
these vectors, Skellam noise of a known `variance` is added at every place. Two sets of units that
differ in one are *neighbours*; nothing else is assumed of them.

- Noise alone: Agarwal, Kairouz & Liu, "The Skellam Mechanism for Differentially Private Federated
  Learning", NeurIPS 2021, Theorem 3.5 and its extension to vectors. The order is a whole number.
- Sampling: Mironov, Talwar & Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism",
  2019 (arXiv 1908.10530), Theorem 5 and Section 3.3, for noise that is symmetric: `sampled`. Never
  more than without sampling.
- Rounds: Rényi divergences of one order add up (Mironov 2017, Proposition 1), whatever an earlier
  round told.
- (ε, δ): Canonne, Kairouz & Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS
  2020, Proposition 12.

Everything is in float64. All terms are positive, so rounding moves ε by less than a part in 10^9.

A: orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from confide.errors import SettingsError

ORDERS = tuple(range(2, 257))
"""The orders at which divergences are kept."""
Curve = NDArray[np.float64]
"""curve_A: a Rényi divergence at each of the orders, at most."""
DISTANCE = 2.0**-100
"""How far one draw of `confide.privacy.noise` is from a Skellam variable at most, in total
variation."""


@dataclass(frozen=True)
class Mechanism:
    """The noisy sum of one round.

    Attributes:
        clip: the largest L2 norm of a unit's vector of whole numbers.
        variance: of the noise at every place of the sum, at least.
        rate: the probability that a unit is drawn.
    """

    clip: int
    variance: int
    rate: float

    def __post_init__(self) -> None:
        if self.clip < 1 or self.variance < 1 or not 0 < self.rate <= 1:
            raise SettingsError(
                "these numbers make no private sum",
                expected="a clip and a variance of at least 1, and a rate above 0 and up to 1",
                got=f"clip {self.clip}, variance {self.variance}, rate {self.rate}",
            )

    @property
    def curve(self) -> Curve:
        """What one round spends."""
        return _curve(self)


@lru_cache(maxsize=256)
def _curve(mechanism: Mechanism) -> Curve:
    curve = sampled(
        skellam(mechanism.clip, mechanism.clip**2, variance=mechanism.variance), mechanism.rate
    )
    curve.setflags(write=False)
    return curve


def skellam(l2: float, l1: float, *, variance: float) -> Curve:
    """The curve of Skellam noise on whole numbers that a unit changes by at most these norms.

    The L1 norm of whole numbers is at most the square of their L2 norm.
    """
    orders_A = np.array(ORDERS, np.float64)
    beyond_A = ((2 * orders_A - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    curve_A: Curve = orders_A * l2**2 / (2 * variance)
    return curve_A + np.minimum(beyond_A, 3 * l1 / (2 * variance))


def sampled(curve_A: Curve, rate: float) -> Curve:
    """The curve of added symmetric noise whose units are drawn with this probability each.

    Let P be the law of the sum without a unit, Q that with it, and M the mixture of the two at this
    rate q. The binomial theorem gives D(M ‖ P) at a whole order a exactly: (a − 1) times it is the
    logarithm of the sum over k of C(a, k) (1 − q)^(a−k) q^k exp((k − 1) D_k(Q ‖ P)).

    D(P ‖ M) is not more than that for every pair of which some map that is its own inverse and
    moves no mass makes one law the other. Noise that is symmetric at every place has one:
    x → 2s + v − x, for the sum s and the unit's vector v (the proof is in
    docs/methods/dp-fedsgd.md). Without such a map it can be more, and the terms of k ≥ 3 count
    three times: Zhu & Wang, "Poisson Subsampled Rényi Differential Privacy", ICML 2019, Theorem 5.
    """
    if rate >= 1:
        return curve_A.copy()
    drawn, left = math.log(rate), math.log1p(-rate)
    facts = np.cumsum(np.log(np.arange(1, ORDERS[-1] + 1, dtype=np.float64)))
    facts = np.concatenate([[0.0], facts])
    found_A = np.empty(len(ORDERS))
    for place, order in enumerate(ORDERS):
        counts = np.arange(2, order + 1)
        terms = (
            facts[order]
            - facts[counts]
            - facts[order - counts]
            + (order - counts) * left
            + counts * drawn
            + (counts - 1) * curve_A[: order - 1]
        )
        none_or_one = (order - 1) * left + math.log(order * rate - rate + 1)
        found_A[place] = _log_sum(np.append(terms, none_or_one)) / (order - 1)
    return np.minimum(np.maximum(found_A, 0.0), curve_A)


def _log_sum(terms: NDArray[np.float64]) -> float:
    most = float(terms.max())
    return most + math.log(float(np.exp(terms - most).sum()))


def converted(delta: float) -> Curve:
    """What to add to a curve, at each order, to get ε at this δ."""
    orders_A = np.array(ORDERS, np.float64)
    return np.log1p(-1 / orders_A) - np.log(delta * orders_A) / (orders_A - 1)


def epsilon_of(curve_A: Curve, delta: float, *, draws: float = 0.0) -> float:
    """ε at this δ; inf if there is none.

    `draws` is how many numbers of noise were drawn in all: each is a little off, and what that
    costs is taken off δ first.
    """
    if not curve_A.any():
        return 0.0
    found = _least(curve_A, delta)
    if not draws:
        return found
    off = 2 * draws * DISTANCE
    left = delta - off * (1 + math.exp(min(found + 1, 700.0)))
    again = _least(curve_A, left) if left > 0 else math.inf
    return again if again <= found + 1 else math.inf


def _least(curve_A: Curve, delta: float) -> float:
    return max(0.0, float((curve_A + converted(delta)).min()))
