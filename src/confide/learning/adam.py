"""Adam over named arrays, its moments as plain values that can be kept and sent.

`torch.optim.Adam` ties moments to the life of a process; here a step takes parameters, gradient and
moments and gives new ones, so that a server can keep them in its state and a site in its memory.
Kingma & Ba 2015, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Moments:
    """How many steps were done, and the running means of the gradient and of its square."""

    steps: int
    means: Arrays
    squares: Arrays


def adam(
    parameters: Mapping[str, NDArray[Any]],
    gradients: Mapping[str, NDArray[Any]],
    *,
    moments: Moments,
    learning_rate: float,
    weight_decay: float = 0.0,
) -> tuple[Arrays, Moments]:
    """One step: new parameters and new moments; what was given stays as it is.

    All arrays are float32; a parameter that `moments` does not name begins with zeros.
    The numbers are those of `torch.optim.Adam` (betas 0.9 and 0.999, epsilon 1e-8).
    """
    if not parameters:
        return {}, Moments(moments.steps + 1, {}, {})
    tensors = {name: torch.from_numpy(value.copy()) for name, value in parameters.items()}
    optimiser = torch.optim.Adam(
        tensors.values(), lr=learning_rate, weight_decay=weight_decay, fused=True
    )
    for name, tensor in tensors.items():
        tensor.grad = torch.from_numpy(gradients[name])
        optimiser.state[tensor] = {
            "step": torch.tensor(float(moments.steps)),
            "exp_avg": _copied(moments.means.get(name), tensor),
            "exp_avg_sq": _copied(moments.squares.get(name), tensor),
        }
    optimiser.step()
    state = {name: optimiser.state[tensor] for name, tensor in tensors.items()}
    return (
        {name: tensor.numpy() for name, tensor in tensors.items()},
        Moments(
            moments.steps + 1,
            {name: kept["exp_avg"].numpy() for name, kept in state.items()},
            {name: kept["exp_avg_sq"].numpy() for name, kept in state.items()},
        ),
    )


def _copied(value: NDArray[Any] | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if value is None else torch.from_numpy(value.copy())
