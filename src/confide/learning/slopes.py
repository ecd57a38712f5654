"""Gradients of each row's loss by the weight of a model's last linear layer, in one pass.

The loss depends on the weight only through the layer's output, so with the gradient g_t of a row's
loss by the output at token t, and the layer's input x_t there,

    d loss / d weight = Σ_t g_t x_tᵀ

and no backward pass through the model is needed, nor one for each row.

Shapes: S rows, B those of a batch, L tokens, D numbers in, Y numbers out, G = Y · D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Parts = tuple[Tensor, Tensor]


class RowSlopes(Protocol):
    """The gradients of S rows by the same weight, as far as comparing them needs."""

    def __len__(self) -> int: ...

    def norms_S(self) -> NDArray[np.float64]:  # noqa: N802
        """The norm of each row's gradient."""
        ...

    def along_S(self, direction_G: NDArray[np.float32]) -> NDArray[np.float64]:  # noqa: N802
        """The inner product of each row's gradient and this one."""
        ...


@dataclass(frozen=True, eq=False)
class WholeSlopes:
    """Gradients that are stored in full."""

    slopes_SG: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.slopes_SG)

    def norms_S(self) -> NDArray[np.float64]:  # noqa: N802
        """The norm of each row's gradient."""
        found_S: NDArray[np.float64] = np.linalg.norm(self.slopes_SG.astype(np.float64), axis=1)
        return found_S

    def along_S(self, direction_G: NDArray[np.float32]) -> NDArray[np.float64]:  # noqa: N802
        """The inner product of each row's gradient and this one."""
        found_S: NDArray[np.float64] = self.slopes_SG.astype(np.float64) @ direction_G.astype(
            np.float64
        )
        return found_S


@dataclass(frozen=True, eq=False)
class OuterSlopes:
    """Gradients of rows that the layer reads once: outer products that are never written out.

    A row's gradient is errors_Y inputs_Dᵀ, stored as Y + D numbers instead of Y · D.
    """

    errors_SY: NDArray[np.float32]
    inputs_SD: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.errors_SY)

    def norms_S(self) -> NDArray[np.float64]:  # noqa: N802
        """The norm of each row's gradient, |error| · |input|."""
        by_S = (np.linalg.norm(one.astype(np.float64), axis=1) for one in self._factors)
        found_S: NDArray[np.float64] = np.multiply(*by_S)
        return found_S

    def along_S(self, direction_G: NDArray[np.float32]) -> NDArray[np.float64]:  # noqa: N802
        """The inner product of each row's gradient and this one: errorᵀ · direction · input."""
        errors_SY, inputs_SD = (one.astype(np.float64) for one in self._factors)
        shape = errors_SY.shape[1], inputs_SD.shape[1]
        turned_SD = errors_SY @ direction_G.astype(np.float64).reshape(shape)
        found_S: NDArray[np.float64] = np.einsum("sd,sd->s", turned_SD, inputs_SD)
        return found_S

    @property
    def _factors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self.errors_SY, self.inputs_SD


def last_layer_slopes(
    linear: nn.Linear, outputs: Callable[[], Tensor], *, losses: Callable[[Tensor], Parts]
) -> Parts:
    """slopes_BG of each of two losses.

    `outputs` runs the model to scores_BLY, the output of its last layer `linear`; `losses` turns
    them into two losses_B. The model keeps its weights and their gradients.
    """
    scores_BLY, values_BLD = _caught(linear, outputs)
    first, second = (_by_weight(loss_B, scores_BLY, values_BLD) for loss_B in losses(scores_BLY))
    return first, second


def _caught(linear: nn.Linear, outputs: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The layer's output, from which gradients start, and its input."""
    inputs: list[Tensor] = []

    def catch(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        inputs.append(given[0])

    hook = linear.register_forward_pre_hook(catch)
    try:
        with torch.no_grad():
            scores = outputs()
    finally:
        hook.remove()
    scores.requires_grad_(True)
    return scores, inputs[-1]


def _by_weight(loss_B: Tensor, scores_BLY: Tensor, values_BLD: Tensor) -> Tensor:
    (slopes_BLY,) = torch.autograd.grad(loss_B.sum(), scores_BLY, retain_graph=True)
    return torch.bmm(slopes_BLY.transpose(1, 2), values_BLD).flatten(1)
