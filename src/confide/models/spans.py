"""A classifier of spans: every run of words up to a width, with any number of types each.

    h_ij = gelu(A x_i + B x_j + w_(j-i)),   logits_ij = C h_ij

where x are the encoder's states at the first pieces of the first and the last word, and w is
learnt for each width (Zhong & Chen, NAACL 2021, 3.2, with one hidden layer and a sigmoid per type
in place of their softmax, so that a span may have several types).

Shapes: B rows, P pieces, L words, D the encoder's states, H hidden, W widths, N = L · W spans in
the order of first word, then width; Y types.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.models.tokens import TokenInput

_RARE = 0.01
"""The probability that a new model gives each type of each span: most spans are no entity."""


@dataclass(frozen=True)
class SpanSizes:
    """`dim` is the width of the encoder's states, `width` the most words of a span."""

    dim: int
    types: int
    width: int
    hidden: int = 256
    dropout: float = 0.1


class SpanClassifier(nn.Module):
    """`encoder` takes `input_ids` and `attention_mask`, and gives `last_hidden_state`."""

    def __init__(self, encoder: nn.Module, sizes: SpanSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder = encoder
        self.dropout = nn.Dropout(sizes.dropout)
        self.first = nn.Linear(sizes.dim, sizes.hidden)
        self.last = nn.Linear(sizes.dim, sizes.hidden, bias=False)
        self.wide = nn.Embedding(sizes.width, sizes.hidden)
        with warnings.catch_warnings():  # a site may have no type at all
            warnings.filterwarnings("ignore", message="Initializing zero-element tensors")
            self.span = nn.Linear(sizes.hidden, sizes.types)
        nn.init.constant_(self.span.bias, math.log(_RARE / (1 - _RARE)))

    def forward(self, batch: TokenInput) -> Tensor:
        """logits_BNY; those of spans that reach into the padding are meaningless."""
        found = self.encoder(input_ids=batch.ids_BP, attention_mask=batch.mask_BP)
        states_BPD: Tensor = found.last_hidden_state
        rows_B1 = torch.arange(len(states_BPD), device=states_BPD.device)[:, None]
        words_BLD = self.dropout(states_BPD[rows_B1, batch.firsts_BL])
        count = words_BLD.shape[1]
        width = self.sizes.width
        ends_LW = _ends(count, width, like=words_BLD)
        last_BLH = self.last(words_BLD)
        last_BLWH = last_BLH[:, ends_LW.clamp(max=count - 1)]
        # a row of their own, as every input has: gradients are also taken row by row
        wide_1WH = self.wide(torch.arange(width, device=words_BLD.device)[None])
        hidden_BLWH = functional.gelu(
            self.first(words_BLD)[:, :, None] + last_BLWH + wide_1WH[:, None]
        )
        logits_BNY: Tensor = self.span(self.dropout(hidden_BLWH).flatten(1, 2))
        return logits_BNY


def _ends(words: int, width: int, *, like: Tensor) -> Tensor:
    """ends_LW: the last word of each span, by its first word and its width."""
    first_L1 = torch.arange(words, device=like.device)[:, None]
    return first_L1 + torch.arange(width, device=like.device)


def inside(lengths_B: Tensor, *, words: int, width: int) -> Tensor:
    """inside_BN: whether a span ends before its row does."""
    return _ends(words, width, like=lengths_B).flatten() < lengths_B[:, None]


def cell_losses(logits_BNY: Tensor, gold_BNY: Tensor, weights_BNY: Tensor) -> Tensor:
    """loss_B: the negative log-likelihood of each row's cells, weighted and summed."""
    losses_BNY = functional.binary_cross_entropy_with_logits(
        logits_BNY, gold_BNY, weight=weights_BNY, reduction="none"
    )
    return losses_BNY.flatten(1).sum(1)
