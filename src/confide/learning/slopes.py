"""Gradients of each row's loss by the weight of a model's last linear layer, in one pass.

The layer's output is all that the loss knows of its weight, so for the gradient g_t of a row's loss
by the output at token t, and the layer's input x_t there,

    d loss / d weight = Σ_t g_t x_tᵀ

and no pass back through the model is needed, nor one for each row.

Shapes: B rows, L tokens, D numbers in, Y numbers out, G = Y · D.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Parts = tuple[Tensor, Tensor]


def last_layer_slopes(
    linear: nn.Linear, outputs: Callable[[], Tensor], *, losses: Callable[[Tensor], Parts]
) -> Parts:
    """slopes_BG of each of two losses.

    `outputs` asks the model for scores_BLY, which `linear` gives last; `losses` makes two losses_B
    of them. The model keeps its weights and their gradients.
    """
    inputs: list[Tensor] = []

    def catch(_: nn.Module, given: tuple[Any, ...]) -> None:
        inputs.append(given[0])

    hook = linear.register_forward_pre_hook(catch)
    try:
        with torch.no_grad():
            scores_BLY = outputs()
    finally:
        hook.remove()
    scores_BLY.requires_grad_(True)
    first, second = (_by_weight(loss_B, scores_BLY, inputs[-1]) for loss_B in losses(scores_BLY))
    return first, second


def _by_weight(loss_B: Tensor, scores_BLY: Tensor, values_BLD: Tensor) -> Tensor:
    (slopes_BLY,) = torch.autograd.grad(loss_B.sum(), scores_BLY, retain_graph=True)
    return torch.bmm(slopes_BLY.transpose(1, 2), values_BLD).flatten(1)
