"""Low-rank updates of linear layers with frozen weights.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022:

    y = x (W + U A)ᵀ + b        A: D → R, drawn;  U: R → H, zero before training

The paper's factor α / R is 1 here: the learning rate does the same.

Shapes: D features in, H features out, R the rank.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.models.products import WideLinear


class LowRankLinear(WideLinear):
    """A linear layer with an update of this rank; `weight` and `bias` are the original ones."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__(layer.in_features, layer.out_features, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.down_RD = nn.Parameter(torch.empty(rank, layer.in_features))
        self.up_HR = nn.Parameter(torch.zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.down_RD, a=math.sqrt(5))

    def forward(self, input: Tensor) -> Tensor:
        """X (W + U A)ᵀ + b along the last axis."""
        return super().forward(input) + functional.linear(
            functional.linear(input, self.down_RD), self.up_HR
        )


def add_low_rank(model: nn.Module, rank: int, *, names: tuple[str, ...]) -> None:
    """Give the linear layers of these names below `model` an update; torch's generator draws it."""
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if name in names and isinstance(layer, nn.Linear):
                setattr(module, name, LowRankLinear(layer, rank))
