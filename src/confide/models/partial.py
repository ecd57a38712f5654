"""The likelihood of partial annotation: a token may have any of the tags that are allowed there.

A site that annotates some of the types says nothing of the others: at a token outside its own
entities, `O` and every tag of the types that it lacks are possible. A partial annotation stands
for all paths through allowed tags, and its likelihood is their sum (Greenberg, Bansal, Verga &
McCallum, "Marginal Likelihood Training of BiLSTM-CRF for Biomedical Named Entity Recognition from
Disjoint Label Sets", EMNLP 2018; Tsuboi et al. 2008):

    log P(inner | outer) = log Z_inner - log Z_outer

where Z_A sums exp(score) over the paths whose every tag is in A, by the recursions of `crf`. If
`outer` allows every tag and `inner` one path, this is the likelihood of `crf`. By the chain rule
log P(inner) = log P(inner | middle) + log P(middle) for inner ⊂ middle, so the loss of a sentence
splits into that of its own annotation and that of what another model found besides.

A model that classifies each word by itself has the same with Z_A = Σ_{y in A} exp(logit(y)) for
each word.

Shapes: B sentences, L tokens, Y tags.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from confide.models.crf import CRFLoss, Scores, Surplus, posterior


def allowed_tags(tags_BL: Tensor, open_Y: Tensor) -> Tensor:
    """allowed_BLY: at a token with a tag this tag alone, at one outside (0) those of `open_Y`."""
    own_BLY = functional.one_hot(tags_BL, len(open_Y)).bool()
    return own_BLY | ((tags_BL == 0)[:, :, None] & open_Y)


def partial_loss(
    emissions_BLY: Tensor,
    scores: Scores,
    *,
    inner_BLY: Tensor,
    outer_BLY: Tensor,
    lengths_B: Tensor,
) -> Tensor:
    """loss_B = -log P(inner | outer), differentiable once, in the emissions' type.

    Both say which tags are allowed at each token, at least one; what `inner` allows, `outer` allows
    too, and some path through `inner` follows the rules of the scheme. Every sentence has at least
    one token; what stands in the padding is never looked at.
    """
    apply = cast(Callable[..., Tensor], _PartialLoss.apply)
    return apply(emissions_BLY, *scores, torch.stack([inner_BLY, outer_BLY]), lengths_B)


class _PartialLoss(CRFLoss):
    """The gradient is what the model expects of `outer` minus what it expects of `inner`."""

    @staticmethod
    def forward(ctx: Surplus, emissions_BLY: Tensor, *others: Tensor) -> Tensor:
        moves_YY, starts_Y, ends_Y, allowed_2BLY, lengths_B = others
        scores = Scores(moves_YY, starts_Y, ends_Y)
        inner, outer = (
            posterior(
                emissions_BLY.detach().masked_fill(~allowed_BLY, -math.inf),
                scores,
                lengths_B=lengths_B,
            )
            for allowed_BLY in allowed_2BLY
        )
        ctx.kind = emissions_BLY.dtype
        ctx.save_for_backward(
            outer.marginals_BLY - inner.marginals_BLY,
            (outer.move_counts_BYY - inner.move_counts_BYY).flatten(1),
            lengths_B - 1,
        )
        return (outer.log_partition_B - inner.log_partition_B).to(emissions_BLY.dtype)


def partial_word_losses(
    logits_BLY: Tensor, *, inner_BLY: Tensor, outer_BLY: Tensor, lengths_B: Tensor
) -> Tensor:
    """loss_BL = -log P(inner | outer) of each word by itself, 0 in the padding."""
    inner_BL, outer_BL = (
        logits_BLY.masked_fill(~allowed_BLY, -math.inf).logsumexp(2)
        for allowed_BLY in (inner_BLY, outer_BLY)
    )
    inside_BL = torch.arange(logits_BLY.shape[1]) < lengths_B[:, None]
    return (outer_BL - inner_BL).masked_fill(~inside_BL, 0.0)
