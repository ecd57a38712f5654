"""Accounting and planning of Skellam noise on sums of sampled, clipped whole numbers.

In a round every unit (a document, say) is drawn with the probability `rate`, each by itself. The
vector of a drawn unit has been clipped to whole numbers of L2 norm at most `clip`. To the sum of
these vectors, Skellam noise of a known `variance` is added at every place. Two sets of units that
differ in one are *neighbours*; nothing else is assumed of them.

- Noise alone: Agarwal, Kairouz & Liu, "The Skellam Mechanism for Differentially Private Federated
  Learning", NeurIPS 2021, Theorem 3.5 and its extension to vectors. The order is a whole number.
- Sampling: Mironov, Talwar & Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism",
  2019 (arXiv 1908.10530), Theorem 5 and Section 3.3, for noise that is symmetric: `subsampled`.
  Never more than without sampling.
- Rounds: Rényi divergences of one order add up (Mironov 2017, Proposition 1), whatever an earlier
  round told.
- (ε, δ): Canonne, Kairouz & Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS
  2020, Proposition 12.

Everything is in float64. All terms are positive, so rounding moves ε by less than a part in 10^9.

A: orders.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from confide.errors import SettingsError
from confide.privacy.noise import WIDEST

ORDERS = tuple(range(2, 257))
"""The orders at which divergences are kept."""
Curve = NDArray[np.float64]
"""curve_A: a Rényi divergence at each of the orders, at most."""
DISTANCE = 2.0**-100
"""An upper bound on the distance of one draw of `confide.privacy.noise` from a Skellam variable, in
total variation."""


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
        """The privacy curve of one round."""
        return _curve(self)


@lru_cache(maxsize=256)
def _curve(mechanism: Mechanism) -> Curve:
    curve = subsampled(
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


def subsampled(curve_A: Curve, rate: float) -> Curve:
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


def epsilon_terms(delta: float) -> Curve:
    """The term that turns a curve, at each order, into ε at this δ."""
    orders_A = np.array(ORDERS, np.float64)
    return np.log1p(-1 / orders_A) - np.log(delta * orders_A) / (orders_A - 1)


def epsilon_of(curve_A: Curve, delta: float, *, draws: float = 0.0, order: int = 0) -> float:
    """ε at this δ, at one order or at the best; inf if there is none.

    `draws` is how many numbers of noise were drawn in all: each is a little off, and what that
    costs is taken off δ first.
    """
    if not curve_A.any():
        return 0.0
    found = _least(curve_A, delta, order)
    if not draws:
        return found
    off = 2 * draws * DISTANCE
    left = delta - off * (1 + math.exp(min(found + 1, 700.0)))
    again = _least(curve_A, left, order) if left > 0 else math.inf
    return again if again <= found + 1 else math.inf


def _least(curve_A: Curve, delta: float, order: int) -> float:
    found_A = curve_A + epsilon_terms(delta)
    return max(0.0, float(found_A[ORDERS.index(order)] if order else found_A.min()))


# --- Planning
#
# Noise, rate, number of rounds or ε are worked out from the other three.
#
# The clipped vectors are whole numbers on a grid: norm 1 is `grid` steps. The finer, the less is
# lost to rounding; the table that noise is drawn from bounds it.


FINEST, COARSEST = 2**16, 2**6
"""Steps of the grid up to the clip, at most and at least."""
NUMBERS = 2.0**30
"""No model that is trained under noise has more numbers."""
MOST_ROUNDS = 1_000_000
_LEAST_NOISE, _MOST_NOISE = 0.05, 4096.0


@dataclass(frozen=True)
class NoisePlan:
    """The noise of a run, and what it spends.

    Attributes:
        noise: σ, the standard deviation of the noise that the account counts, in clips.
        rate: the probability that a unit is drawn in a round.
        rounds: how many.
        delta: the δ at which ε is stated.
        steps: noisy sums of each unit in a round.
    """

    noise: float
    rate: float
    rounds: int
    delta: float
    steps: int = 1

    @property
    def mechanism(self) -> Mechanism:
        """One round's sum."""
        clip = grid(self.noise)
        return Mechanism(clip, math.ceil((self.noise * clip) ** 2), self.rate)

    @property
    def epsilon(self) -> float:
        """ε after all rounds."""
        return self.epsilon_after(self.rounds)

    def epsilon_after(self, rounds: int) -> float:
        """ε after N `rounds`."""
        return self.spent_by(self.mechanism, rounds)

    def spent_by(self, mechanism: Mechanism, rounds: int | None = None) -> float:
        """ε of N `rounds` of another sum; by default of all rounds."""
        count = self.steps * (self.rounds if rounds is None else rounds)
        return epsilon_of(count * mechanism.curve, self.delta, draws=NUMBERS * count)


def grid(noise: float) -> int:
    """Steps of the grid up to the clip, for noise of `noise` clips. Raises SettingsError."""
    clip = FINEST
    while clip * noise > WIDEST and clip > COARSEST:
        clip //= 2
    if clip * noise > WIDEST:
        raise SettingsError(
            f"a noise of {noise:g} clips is more than can be drawn",
            expected=f"at most {WIDEST // COARSEST}",
            fix="allow a larger epsilon, fewer rounds or a lower rate",
        )
    return clip


def plan_noise(
    *,
    epsilon: float | None,
    noise: float | None,
    rate: float | None,
    rounds: int | None,
    delta: float,
    steps: int = 1,
) -> NoisePlan:
    """The plan of which at most one of four is not given.

    That one is the least noise, the highest rate or the most rounds with which ε is not exceeded,
    or ε itself. With all four, ε is a bound that the others must keep. Raises SettingsError.
    """
    given = {"epsilon": epsilon, "noise": noise, "rate": rate, "rounds": rounds}
    open_ = [name for name, value in given.items() if value is None]
    if len(open_) > 1:
        raise SettingsError(
            f"{' and '.join(open_)} are open, and only one can be worked out",
            fix=f"set all but one of {', '.join(given)}",
        )
    start = NoisePlan(noise or _MOST_NOISE, rate or 1.0, rounds or 1, delta, steps)
    if epsilon is None:
        return start
    bound = epsilon

    def fits(plan: NoisePlan) -> bool:
        return plan.epsilon <= bound

    if noise is None:
        highest = float(WIDEST // COARSEST)
        if not fits(replace(start, noise=highest)):
            raise _out_of_reach("no noise that can be drawn is enough", epsilon)
        found = _bisected(
            lambda noise: fits(replace(start, noise=noise)), fails=_LEAST_NOISE, works=highest
        )
        step = 10.0 ** (math.floor(math.log10(found)) - 3)  # to four digits, rounded up
        rounded = math.ceil(found / step) * step
        rounded = rounded if fits(replace(start, noise=rounded)) else rounded + step
        return replace(start, noise=float(f"{rounded:.4g}"))
    if rate is None:
        if fits(start):
            return start
        if not fits(replace(start, rate=1e-9)):
            raise _out_of_reach("not even the lowest rate keeps it", epsilon)
        found = _bisected(lambda rate: fits(replace(start, rate=rate)), fails=1.0, works=1e-9)
        step = 10.0 ** (math.floor(math.log10(found)) - 3)  # to four digits, rounded down
        return replace(start, rate=float(f"{math.floor(found / step) * step:.4g}"))
    if not fits(start):
        spent = "one round spends" if rounds is None else "noise, rate and rounds spend"
        raise _out_of_reach(f"{spent} {start.epsilon:.4g}", epsilon)
    if rounds is None:
        most = bisect_right(
            range(1, MOST_ROUNDS + 1), bound, key=lambda count: start.epsilon_after(count)
        )
        return replace(start, rounds=most)
    return start


def _out_of_reach(why: str, epsilon: float) -> SettingsError:
    return SettingsError(
        f"epsilon = {epsilon:g} is out of reach: {why}",
        fix="allow a larger epsilon, more noise, fewer rounds or a lower rate",
    )


def _bisected(fits: Callable[[float], bool], *, fails: float, works: float) -> float:
    """A value that works, next to where it begins to fail, on a scale of logarithms."""
    if fits(fails):
        return fails
    for _ in range(40):
        middle = math.sqrt(fails * works)
        if fits(middle):
            works = middle
        else:
            fails = middle
        if abs(math.log(works / fails)) < 1e-6:
            break
    return works
