"""A CRF's loss, token by token: log P(y) = Σ_t log P(y_t | y_1 … y_t-1), exactly.

A linear chain depends on only the last of the tags before; what follows comes as a message
(Lafferty, McCallum & Pereira 2001; Rabiner 1989, section III.B):

    suffix_t(j) = emission_t(j) + behind_t(j)
    behind_t(i) = log Σ_j exp(move(i, j) + suffix_t+1(j)),   behind_L = end
    log P(y_1)         = start(y_1) + suffix_1(y_1) - log Σ_j exp(start(j) + suffix_1(j))
    log P(y_t | y_t-1) = move(y_t-1, y_t) + suffix_t(y_t) - behind_t-1(y_t-1)

So a sentence's loss splits into the losses of some tokens and those of the others, as Wang et al.
2023, Eq. 6 to 9, split it for a model that writes symbol by symbol. The parts depend on the
direction in which tokens are read; their sum does not: it is `crf.negative_log_likelihood`.

The gradient is analytic. Let weight_t be the factor of token t's loss, and slope_t the gradient by
suffix_t, which is also that by emission_t. From the first token to the last,

    slope_1(j)   = weight_1 (P(y_1 = j) - [j = y_1])
    upon_t(i)    = slope_t(i) + weight_t+1 [i = y_t]          the gradient by behind_t
    slope_t+1(j) = Σ_i upon_t(i) P(j | i) - weight_t+1 [j = y_t+1]

Both recursions run in float64 and in the probability domain, scaled as in `crf`, where Σ_i is a
matrix product. If something on the path of a sentence's own tags vanishes, they run in logarithms
instead (slow), so no score is too large or too small.

Shapes: B sentences, L tokens, Y tags (in YY the first is the tag before).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from confide.models.autograd import Context, where_doubles_are
from confide.models.crf import Scores, posterior

_VANISHED = 1e-280


def token_losses(
    emissions_BLY: Tensor, scores: Scores, *, tags_BL: Tensor, lengths_B: Tensor
) -> Tensor:
    """loss_BL = -log P(tag | tags before), 0 in the padding; differentiable once.

    In the emissions' type, computed where `crf.negative_log_likelihood` is. Every sentence has at
    least one token; padding is never read.
    """
    apply = cast(Callable[..., Tensor], _TokenLosses.apply)
    return apply(*where_doubles_are(emissions_BLY, *scores, tags_BL, lengths_B))


class _Kept(Context, Protocol):
    """What the forward pass keeps."""

    in_logs: bool
    kind: torch.dtype


class _TokenLosses(torch.autograd.Function):
    """Forward: the backward messages. Backward: the recursion of the slopes."""

    @staticmethod
    def forward(ctx: _Kept, emissions_BLY: Tensor, *others: Tensor) -> Tensor:
        moves_YY, starts_Y, ends_Y, tags_BL, lengths_B = others
        scores = Scores(moves_YY, starts_Y, ends_Y).double()
        mask_BL = torch.arange(tags_BL.shape[1], device=lengths_B.device) < lengths_B[:, None]
        emissions = emissions_BLY.detach().double().masked_fill(~mask_BL[:, :, None], 0.0)
        tags_BL = tags_BL.masked_fill(~mask_BL, 0)
        found = _scaled(emissions, scores, tags_BL, lengths_B=lengths_B)
        ctx.in_logs = found is None
        if found is None:
            found = _logarithmic(emissions, scores, tags_BL, lengths_B=lengths_B)
        ctx.kind = emissions_BLY.dtype
        ctx.save_for_backward(*found[1:], tags_BL, lengths_B)
        return found.losses_BL.masked_fill(~mask_BL, 0.0).to(emissions_BLY.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Kept, gradient_BL: Tensor) -> tuple[Tensor | None, ...]:
        *parts, tags_BL, lengths_B = ctx.saved_tensors
        mask_BL = torch.arange(tags_BL.shape[1], device=lengths_B.device) < lengths_B[:, None]
        weights_BL = gradient_BL.double().masked_fill(~mask_BL, 0.0)
        found = _Chain(weights_BL, *parts)
        slopes_of = _slopes_in_logs if ctx.in_logs else _slopes
        slopes_BLY, by_moves_YY = slopes_of(found, weights_BL, tags_BL, lengths_B=lengths_B)
        by_moves_YY.index_put_(
            (tags_BL[:, :-1], tags_BL[:, 1:]), -weights_BL[:, 1:], accumulate=True
        )
        by_ends_Y = slopes_BLY[
            torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1
        ].sum(0)
        sums = (slopes_BLY, by_moves_YY, slopes_BLY[:, 0].sum(0), by_ends_Y)
        return *(part.to(ctx.kind) for part in sums), None, None


class _Chain(NamedTuple):
    """The losses, P(y_1), and the factors of a move's probability, as in `crf.Posterior`."""

    losses_BL: Tensor
    first_BY: Tensor
    behind_BLY: Tensor
    suffix_BLY: Tensor
    moves_YY: Tensor


# --- in the probability domain ------------------------------------------------------------------


def _scaled(
    emissions_BLY: Tensor, scores: Scores, tags_BL: Tensor, *, lengths_B: Tensor
) -> _Chain | None:
    """None if a probability on the path of the tags vanishes."""
    found = posterior(emissions_BLY, scores, lengths_B=lengths_B)
    if found.in_logs:
        return None
    here_BL = found.suffix_BLY.gather(2, tags_BL[:, :, None])[:, :, 0]
    before_BL = found.behind_BLY.gather(2, tags_BL[:, :, None])[:, :, 0]
    first_BY = found.marginals_BLY[:, 0]
    chances_BL = torch.cat(
        (
            first_BY.gather(1, tags_BL[:, :1]),
            found.moves_YY[tags_BL[:, :-1], tags_BL[:, 1:]] * here_BL[:, 1:] / before_BL[:, :-1],
        ),
        1,
    )
    mask_BL = torch.arange(tags_BL.shape[1], device=lengths_B.device) < lengths_B[:, None]
    least = torch.minimum(chances_BL, before_BL)[mask_BL].min()
    if not least > _VANISHED:  # also where it is not a number
        return None
    return _Chain(-chances_BL.log(), first_BY, found.behind_BLY, found.suffix_BLY, found.moves_YY)


def _slopes(
    found: _Chain, weights_BL: Tensor, tags_BL: Tensor, *, lengths_B: Tensor
) -> tuple[Tensor, Tensor]:
    """slopes_BLY, and by_moves_YY without the counts of the actual moves."""
    length = tags_BL.shape[1]
    goes_on_BL1 = (torch.arange(length, device=lengths_B.device) < lengths_B[:, None] - 1)[
        :, :, None
    ]
    over_BLY = found.behind_BLY.reciprocal().masked_fill_(
        ~goes_on_BL1 | (found.behind_BLY == 0.0), 0.0
    )
    there_BLY = torch.zeros_like(over_BLY).scatter_(2, tags_BL[:, :, None], weights_BL[:, :, None])
    ahead_BLY = torch.zeros_like(over_BLY[:, 1:]).scatter_(
        2, tags_BL[:, :-1, None], weights_BL[:, 1:, None]
    )
    over, there, ahead = over_BLY.unbind(1), there_BLY.unbind(1), ahead_BLY.unbind(1)
    suffix = found.suffix_BLY.unbind(1)
    slopes = [weights_BL[:, :1] * found.first_BY - there[0]]
    shares = []
    for t in range(length - 1):
        shares.append((slopes[-1] + ahead[t]) * over[t])
        slopes.append((shares[-1] @ found.moves_YY).mul_(suffix[t + 1]).sub_(there[t + 1]))
    slopes_BLY = torch.stack(slopes, 1)
    if length == 1:
        return slopes_BLY, torch.zeros_like(found.moves_YY)
    shares_BMY = torch.stack(shares, 1)
    passed_YY = shares_BMY.flatten(0, 1).T @ found.suffix_BLY[:, 1:].flatten(0, 1)
    return slopes_BLY, found.moves_YY * passed_YY


# --- in logarithms --------------------------------------------------------------------------


def _logarithmic(
    emissions_BLY: Tensor, scores: Scores, tags_BL: Tensor, *, lengths_B: Tensor
) -> _Chain:
    suffix_BLY, behind_BLY = _messages(emissions_BLY, scores, lengths_B)
    first_BY = scores.starts_Y + suffix_BLY[:, 0]
    here_BL = suffix_BLY.gather(2, tags_BL[:, :, None])[:, :, 0]
    entered_BL = torch.cat(
        (scores.starts_Y[tags_BL[:, :1]], scores.moves_YY[tags_BL[:, :-1], tags_BL[:, 1:]]), 1
    )
    before_BL = torch.cat(
        (
            first_BY.logsumexp(1, keepdim=True),
            behind_BLY[:, :-1].gather(2, tags_BL[:, :-1, None])[:, :, 0],
        ),
        1,
    )
    losses_BL = before_BL - entered_BL - here_BL
    return _Chain(losses_BL, first_BY.softmax(1), behind_BLY, suffix_BLY, scores.moves_YY)


def _slopes_in_logs(
    found: _Chain, weights_BL: Tensor, tags_BL: Tensor, *, lengths_B: Tensor
) -> tuple[Tensor, Tensor]:
    """As `_slopes`, in logarithms."""
    batch, length = tags_BL.shape
    rows_B, last_B = torch.arange(batch, device=lengths_B.device), lengths_B - 1
    by_moves_YY = torch.zeros_like(found.moves_YY)
    slopes_BLY = torch.zeros_like(found.suffix_BLY)
    slope_BY = weights_BL[:, :1] * found.first_BY
    slope_BY[rows_B, tags_BL[:, 0]] -= weights_BL[:, 0]
    slopes_BLY[:, 0] = slope_BY
    for t in range(length - 1):
        weight_B = weights_BL[:, t + 1]
        upon_BY = slope_BY.index_put((rows_B, tags_BL[:, t]), weight_B, accumulate=True)
        over_BY = found.behind_BLY[:, t].masked_fill((t >= last_B)[:, None], math.inf)
        passed_BYY = found.moves_YY + found.suffix_BLY[:, t + 1, None, :]
        passed_BYY.sub_(over_BY[:, :, None]).exp_().mul_(upon_BY[:, :, None])
        by_moves_YY += passed_BYY.sum(0)
        slope_BY = passed_BYY.sum(1)
        slope_BY[rows_B, tags_BL[:, t + 1]] -= weight_B
        slopes_BLY[:, t + 1] = slope_BY
    return slopes_BLY, by_moves_YY


def _messages(emissions_BLY: Tensor, scores: Scores, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """suffix_BLY and behind_BLY; in the padding, `behind` is finite but meaningless."""
    suffix_BLY, behind_BLY = torch.empty_like(emissions_BLY), torch.empty_like(emissions_BLY)
    length = emissions_BLY.shape[1]
    ends_BY = scores.ends_Y.expand(len(emissions_BLY), -1)
    for t in range(length - 1, -1, -1):
        if t == length - 1:
            behind_BLY[:, t] = ends_BY
        else:
            pushed_BY = (scores.moves_YY + suffix_BLY[:, t + 1, None, :]).logsumexp(2)
            behind_BLY[:, t] = torch.where((t < lengths_B - 1)[:, None], pushed_BY, ends_BY)
        torch.add(emissions_BLY[:, t], behind_BLY[:, t], out=suffix_BLY[:, t])
    return suffix_BLY, behind_BLY
