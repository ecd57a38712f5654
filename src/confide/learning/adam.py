"""Adam over named arrays, with its moments as plain values that can be stored and sent.

`torch.optim.Adam` ties moments to the life of a process; here a step takes parameters, gradient and
moments and gives new ones, so that a server can keep them in its state and a site in its memory.
Kingma & Ba 2015, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.adam import adam as step

from confide.learning.weights import Arrays


@dataclass(frozen=True)
class Moments:
    """The number of steps taken, and the running means of the gradient and of its square."""

    steps: int
    means: Arrays
    squares: Arrays


def adam(
    parameters: Mapping[str, NDArray[np.float32]],
    gradients: Mapping[str, NDArray[np.float32]],
    *,
    moments: Moments,
    learning_rate: float,
    weight_decay: float = 0.0,
) -> tuple[Arrays, Moments]:
    """One step: gives new parameters and moments, and leaves its arguments unchanged.

    All arrays are float32; moments of a parameter that `moments` lacks start at zero.
    The numbers are those of `torch.optim.Adam` (betas 0.9 and 0.999, epsilon 1e-8).
    """
    names = list(parameters)
    values = [torch.from_numpy(parameters[name].copy()) for name in names]
    slopes = [torch.from_numpy(gradients[name]) for name in names]
    means, squares = (
        [_copied(kept.get(name), value) for name, value in zip(names, values, strict=True)]
        for kept in (moments.means, moments.squares)
    )
    if names:
        step(
            values,
            slopes,
            means,
            squares,
            max_exp_avg_sqs=[],
            state_steps=[torch.tensor(float(moments.steps)) for _ in names],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=weight_decay,
            eps=1e-8,
            maximize=False,
        )
    moved, mean, square = (
        {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
        for tensors in (values, means, squares)
    )
    return moved, Moments(moments.steps + 1, mean, square)


def _copied(value: NDArray[np.float32] | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if value is None else torch.from_numpy(value.copy())
