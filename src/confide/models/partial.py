"""The likelihood of partial annotation: a token may have any of the tags that are allowed there.

A site that annotates some of the types says nothing of the others: at a token outside its own
entities, `O` and every tag of the types that it lacks are possible. A partial annotation stands
for all paths through allowed tags, and its likelihood is their sum (Greenberg, Bansal, Verga &
McCallum, "Marginal Likelihood Training of BiLSTM-CRF for Biomedical Named Entity Recognition from
Disjoint Label Sets", EMNLP 2018; Tsuboi et al. 2008):

    log P(inner | outer) = log Z_inner - log Z_outer

where Z_A sums exp(score) over the paths whose every tag is in A, by the recursions of `crf`. A tag
may also be allowed with a weight below 1, which multiplies exp(score) of each path once per token
that has it. That is a prior: a type that a site lacks is possible, but rarer than the model says.
If `outer` allows every tag and `inner` one path, this is the likelihood of `crf`. By the chain rule
log P(inner) = log P(inner | middle) + log P(middle) for inner ⊂ middle, so the loss of a sentence
splits into that of its own annotation and that of what another model found besides.

A model that classifies each word by itself has the same with Z_A = Σ_{y in A} exp(logit(y)) for
each word.

What is allowed is given by the logarithm of its weight: 0 for an allowed tag, -inf for another.

Shapes: B sentences, L tokens, Y tags; P = 2B rows, first of inner, then of outer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from confide.models.autograd import where_doubles_are
from confide.models.crf import CRFLoss, Scores, Surplus, posterior


def weights_outside(open_Y: NDArray[np.bool_], weight: float) -> Tensor:
    """outside_Y, logarithms: at a token outside `O` has weight 1, other open tags have `weight`."""
    weights_Y = torch.from_numpy(open_Y * np.float32(weight))
    weights_Y[0] = 1.0
    return weights_Y.log()


def allowed_tags(tags_BL: Tensor, outside_Y: Tensor) -> Tensor:
    """allowed_BLY: a token with a tag has this tag alone, one outside what `outside_Y` allows.

    A tag that is open outside, as that of an entity which another model found, keeps its weight: so
    what is allowed here is allowed, with no less weight, where the token is outside.
    """
    own_BLY = functional.one_hot(tags_BL, len(outside_Y)).to(outside_Y.dtype).log()
    own_BLY += outside_Y.masked_fill(outside_Y.isneginf(), 0.0)
    return torch.where((tags_BL == 0)[:, :, None], outside_Y, own_BLY)


def partial_loss(
    emissions_BLY: Tensor,
    scores: Scores,
    *,
    inner_BLY: Tensor,
    outer_BLY: Tensor,
    lengths_B: Tensor,
) -> Tensor:
    """loss_B = -log P(inner | outer), differentiable once, in the emissions' type.

    It is computed where `crf.negative_log_likelihood` is. Both say which tags are allowed at each
    token, at least one; `outer` gives each tag at least the weight that `inner` gives it, and some
    path through `inner` follows the rules of the scheme. Every sentence has at least one token;
    what stands in the padding is never looked at.
    """
    apply = cast(Callable[..., Tensor], _PartialLoss.apply)
    both_2BLY = torch.stack([inner_BLY, outer_BLY])
    return apply(*where_doubles_are(emissions_BLY, *scores, both_2BLY, lengths_B))


class _PartialLoss(CRFLoss):
    """The gradient is what the model expects of `outer` minus what it expects of `inner`."""

    @staticmethod
    def forward(ctx: Surplus, emissions_BLY: Tensor, *others: Tensor) -> Tensor:
        moves_YY, starts_Y, ends_Y, allowed_2BLY, lengths_B = others
        scores = Scores(moves_YY, starts_Y, ends_Y)
        # both as rows of one batch: a step of the recursions costs little more for twice the rows
        rows_PLY = (emissions_BLY.detach() + allowed_2BLY).flatten(0, 1)
        both = posterior(rows_PLY, scores, lengths_B=lengths_B.repeat(2))
        ctx.kind, ctx.of_crf = emissions_BLY.dtype, True
        ctx.save_for_backward(
            _surplus(both.marginals_BLY),
            _surplus(both.move_counts_BYY).flatten(1),
            lengths_B - 1,
        )
        return _surplus(both.log_partition_B).to(emissions_BLY.dtype)


def _surplus(both_P: Tensor) -> Tensor:
    """What the outer half of the rows has more than the inner half."""
    inner_B, outer_B = both_P.chunk(2)
    return outer_B - inner_B


def partial_word_losses(
    logits_BLY: Tensor, *, inner_BLY: Tensor, outer_BLY: Tensor, lengths_B: Tensor
) -> Tensor:
    """loss_BL = -log P(inner | outer) of each word by itself, 0 in the padding."""
    inner_BL, outer_BL = (
        (logits_BLY + allowed_BLY).logsumexp(2) for allowed_BLY in (inner_BLY, outer_BLY)
    )
    inside_BL = torch.arange(logits_BLY.shape[1], device=lengths_B.device) < lengths_B[:, None]
    return (outer_BL - inner_BL).masked_fill(~inside_BL, 0.0)
