"""Which noise, rate, number of rounds or ε the other three leave.

The clipped vectors are whole numbers on a grid: norm 1 is `grid` steps. The finer, the less is lost
to rounding; the table that noise is drawn from bounds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from confide.errors import SettingsError
from confide.privacy.account import Mechanism, epsilon_of
from confide.privacy.noise import WIDEST

FINEST, COARSEST = 2**16, 2**6
"""Steps of the grid up to the clip, at most and at least."""
NUMBERS = 2.0**30
"""No model that is trained under noise has more numbers."""
MOST_ROUNDS = 1_000_000
_LEAST_NOISE, _MOST_NOISE = 0.05, 4096.0


@dataclass(frozen=True)
class Budget:
    """What is spent in a run.

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
        """ε after so many rounds."""
        return self.spent_by(self.mechanism, rounds)

    def spent_by(self, mechanism: Mechanism, rounds: int | None = None) -> float:
        """ε of so many rounds of another sum; by default of all rounds."""
        count = self.steps * (self.rounds if rounds is None else rounds)
        return epsilon_of(count * mechanism.curve, self.delta, draws=NUMBERS * count)


def grid(noise: float) -> int:
    """Steps of the grid up to the clip, for noise of so many clips. Raises SettingsError."""
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


def solved(
    *,
    epsilon: float | None,
    noise: float | None,
    rate: float | None,
    rounds: int | None,
    delta: float,
    steps: int = 1,
) -> Budget:
    """The budget of which at most one of four is not given.

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
    start = Budget(noise or _MOST_NOISE, rate or 1.0, rounds or 1, delta, steps)
    if epsilon is None:
        return start
    if noise is None:
        return _with_noise(start, epsilon)
    if rate is None:
        return _with_rate(start, epsilon)
    if rounds is None:
        return _with_rounds(start, epsilon)
    if start.epsilon > epsilon:
        raise _out_of_reach(f"noise, rate and rounds spend {start.epsilon:.4g}", epsilon)
    return start


def _out_of_reach(why: str, epsilon: float) -> SettingsError:
    return SettingsError(
        f"epsilon = {epsilon:g} is out of reach: {why}",
        fix="allow a larger epsilon, more noise, fewer rounds or a lower rate",
    )


def _with_noise(start: Budget, epsilon: float) -> Budget:
    """The least noise, to four digits, rounded up."""

    def fits(noise: float) -> bool:
        return replace(start, noise=noise).epsilon <= epsilon

    highest = float(WIDEST // COARSEST)
    if not fits(highest):
        raise _out_of_reach("no noise that can be drawn is enough", epsilon)
    found = _bisected(fits, fails=_LEAST_NOISE, works=highest)
    step = 10.0 ** (math.floor(math.log10(found)) - 3)
    rounded = math.ceil(found / step) * step
    return replace(start, noise=float(f"{rounded if fits(rounded) else rounded + step:.4g}"))


def _with_rate(start: Budget, epsilon: float) -> Budget:
    """The highest rate, to four digits, rounded down."""

    def fits(rate: float) -> bool:
        return replace(start, rate=rate).epsilon <= epsilon

    if fits(1.0):
        return start
    if not fits(1e-9):
        raise _out_of_reach("not even the lowest rate keeps it", epsilon)
    found = _bisected(fits, fails=1.0, works=1e-9)
    step = 10.0 ** (math.floor(math.log10(found)) - 3)
    return replace(start, rate=float(f"{math.floor(found / step) * step:.4g}"))


def _with_rounds(start: Budget, epsilon: float) -> Budget:
    """The most rounds."""
    if start.epsilon > epsilon:
        raise _out_of_reach(f"one round spends {start.epsilon:.4g}", epsilon)
    low, high = 1, MOST_ROUNDS
    while low < high:
        middle = (low + high + 1) // 2
        if start.epsilon_after(middle) <= epsilon:
            low = middle
        else:
            high = middle - 1
    return replace(start, rounds=low)


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
