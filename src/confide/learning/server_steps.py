"""Server steps: the server takes a step of its own towards the mean of the sites' weights.

Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", arXiv 1909.06335 (momentum: FedAvgM); Reddi, Charles, Zaheer, Garrett, Rush,
Konečný, Kumar & McMahan, "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (FedAdam,
FedYogi). With Δ the mean less the weights before, and per number:

    momentum:  m ← β m + Δ                w ← w + η m
    adam:      m ← β m + (1 - β) Δ        v ← β₂ v + (1 - β₂) Δ²
    yogi:      the same m                 v ← v - (1 - β₂) Δ² sign(v - Δ²)
    both:      w ← w + η m / (√v + τ)     v begins at τ²
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from confide.learning.weights import Arrays

Server = Literal["mean", "momentum", "adam", "yogi"]


@dataclass(frozen=True)
class ServerStep:
    """How the server steps: `rate` is η, `momentum` β, `squares` β₂ and `floor` τ."""

    name: Server = "mean"
    rate: float = 1.0
    momentum: float = 0.9
    squares: float = 0.99
    floor: float = 1e-3

    @property
    def adaptive(self) -> bool:
        """Whether every number has a rate of its own."""
        return self.name in ("adam", "yogi")


def stepped(
    before: Mapping[str, NDArray[np.float32]],
    mean: Arrays,
    *,
    how: ServerStep,
    moments: Arrays,
    squares: Arrays,
) -> tuple[Arrays, Arrays, Arrays]:
    """The weights after the step, and the two running means; the arguments are unchanged.

    An array that `moments` or `squares` lacks starts as the formulas say. With the name "mean" the
    weights are the mean itself, bit for bit.
    """
    if how.name == "mean":
        return mean, {}, {}
    weights, kept, squared = Arrays(), Arrays(), Arrays()
    for name, start in before.items():
        change = mean[name] - start
        old = moments.get(name, np.zeros_like(start))
        if how.name == "momentum":
            kept[name] = how.momentum * old + change
            moved = how.rate * kept[name]
        else:
            kept[name] = how.momentum * old + (1 - how.momentum) * change
            v = squares.get(name, np.full_like(start, how.floor**2))
            large = np.square(change)
            if how.name == "adam":
                v = how.squares * v + (1 - how.squares) * large
            else:
                v = v - (1 - how.squares) * large * np.sign(v - large)
            squared[name] = v.astype(np.float32)
            moved = how.rate * kept[name] / (np.sqrt(v) + how.floor)
        kept[name] = kept[name].astype(np.float32)
        weights[name] = (start + moved).astype(np.float32)
    return weights, kept, squared
