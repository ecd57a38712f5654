"""The log marginals of a linear chain's tokens, log P(y_t = y), differentiable.

The forward and the backward recursion in logarithms (Lafferty, McCallum & Pereira 2001; Rabiner
1989, section III.B):

    prefix_1(j) = start(j) + emission_1(j)
    prefix_t(j) = log Σ_i exp(prefix_t-1(i) + move(i, j)) + emission_t(j)
    behind_L(i) = end(i)
    behind_t(i) = log Σ_j exp(move(i, j) + emission_t+1(j) + behind_t+1(j))
    log P(y_t = y) = prefix_t(y) + behind_t(y) - log Z

`crf.posterior` gives the same numbers faster, but without gradient; a student that learns others'
predictions of each token (`distillation`) needs it, and autograd computes it here.

Shapes: B sentences, L tokens, Y tags (in YY the first is the tag before).
"""

from __future__ import annotations

import torch
from torch import Tensor

from confide.models.autograd import where_doubles_are
from confide.models.crf import Scores

LEAST = -60.0
"""The least logarithm, so a tag that a rule forbids has no gradient, and no weight in a sum."""


def log_marginals(emissions_BLY: Tensor, scores: Scores, *, lengths_B: Tensor) -> Tensor:
    """The logarithm of each token's P(y_t = y), in float64, at least `LEAST`.

    The exponentials of a token's numbers sum to 1. Every sentence has at least one token; padding
    is never read, and its results are meaningless. Apple's GPUs have no float64, so there the
    processor computes them, and has the results.
    """
    emissions_BLY, *parts, lengths_B = where_doubles_are(emissions_BLY, *scores, lengths_B)
    length = emissions_BLY.shape[1]
    inside_BL1 = (torch.arange(length, device=lengths_B.device) < lengths_B[:, None])[:, :, None]
    emissions = emissions_BLY.double().masked_fill(~inside_BL1, 0.0).unbind(1)
    moves_YY, starts_Y, ends_Y = (part.double() for part in parts)
    prefix = [starts_Y + emissions[0]]
    for t in range(1, length):
        prefix.append((prefix[-1][:, :, None] + moves_YY).logsumexp(1) + emissions[t])
    behind = [ends_Y.expand_as(prefix[0])]
    for t in range(length - 2, -1, -1):
        suffix_BY = emissions[t + 1] + behind[-1]
        pushed_BY = (moves_YY + suffix_BY[:, None, :]).logsumexp(2)
        behind.append(torch.where((t < lengths_B - 1)[:, None], pushed_BY, ends_Y))
    both_BLY = torch.stack(prefix, 1) + torch.stack(behind[::-1], 1)
    return both_BLY.log_softmax(2).clamp_min(LEAST)
