"""A linear-chain CRF: loss with an analytic gradient, token by token too, Viterbi, marginals.

    score(y) = start(y_1) + sum_t emission_t(y_t) + sum_t move(y_t, y_t+1) + end(y_L)
    P(y)     = exp(score(y)) / Z          (Lafferty, McCallum & Pereira 2001)

The forward and the backward recursion run side by side in one loop, in the probability domain and
scaled at each step (Rabiner 1989, section V.A). They run in float64, whose range holds every path
that matters while the emissions of a token differ by less than about 230. Beyond that the scales
vanish; this is detected, and the (slow) log-domain recursion runs instead.

Moves that a tag scheme forbids get `FORBIDDEN` added, in the loss and in decoding alike; there is
no setting for this.

Shapes: B sentences, L tokens, Y tags (in YY the first is the tag before), M moves of a sentence,
N spans, K tokens of a span. Rows of a batch are padded at their end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.training.devices import at_home, on, where_doubles_are

FORBIDDEN = -1e4
_VANISHED = 1e-280


Rules = tuple[Tensor, Tensor, Tensor]  # moves_YY, starts_Y, ends_Y: true if allowed


class Scores(NamedTuple):
    """The scores of a path's moves: between neighbours, into the first tag, out of the last."""

    moves_YY: Tensor
    starts_Y: Tensor
    ends_Y: Tensor

    def only(self, tags: Sequence[int]) -> Scores:
        """The scores of paths that have only these tags."""
        kept = torch.tensor(tags)
        return Scores(self.moves_YY[kept][:, kept], self.starts_Y[kept], self.ends_Y[kept])

    def double(self) -> Scores:
        """The scores in float64, detached from the graph."""
        return Scores(*(scores.detach().double() for scores in self))


class Posterior(NamedTuple):
    """The result of the two recursions for a batch, in float64.

    `marginals_BLY` is P(y_t = y), zero in the padding. `move_counts_BYY` is the expected number of
    each move in a sentence. `behind_BLY` weighs all that follows a token's tag, `suffix_BLY` the
    token's own emission and all that follows; both are logarithms if `in_logs`, up to a factor that
    token t's `behind` shares with `moves_YY` times token t + 1's `suffix`.
    """

    log_partition_B: Tensor
    marginals_BLY: Tensor
    move_counts_BYY: Tensor
    behind_BLY: Tensor
    suffix_BLY: Tensor
    moves_YY: Tensor
    in_logs: bool


class CRF(nn.Module):
    """The part of a tagger that depends on its tag set: features to emissions, and moves' scores.

    `forward` gives only emissions; the functions of this module turn them and `scores()` into a
    loss or tags. Without `rules` every move is allowed.
    """

    def __init__(self, features: int, tags: int, *, rules: Rules | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(features, tags)
        self.moves_YY = nn.Parameter(torch.zeros(tags, tags))
        self.starts_Y = nn.Parameter(torch.zeros(tags))
        self.ends_Y = nn.Parameter(torch.zeros(tags))
        moves = (self.moves_YY, self.starts_Y, self.ends_Y)
        allowed = rules or tuple(torch.ones_like(part, dtype=torch.bool) for part in moves)
        for name, part in zip(Scores._fields, allowed, strict=True):
            penalty = torch.zeros(part.shape).masked_fill(~part, FORBIDDEN)
            self.register_buffer(f"forbidden_{name}", penalty, persistent=False)

    def scores(self) -> Scores:
        """The moves' scores with the rules applied."""
        return Scores(
            self.moves_YY + self.get_buffer("forbidden_moves_YY"),
            self.starts_Y + self.get_buffer("forbidden_starts_Y"),
            self.ends_Y + self.get_buffer("forbidden_ends_Y"),
        )

    def forward(self, features_BLD: Tensor) -> Tensor:
        """emissions_BLY: one score per token and tag."""
        emissions_BLY: Tensor = self.linear(features_BLD)
        return emissions_BLY


def negative_log_likelihood(
    emissions_BLY: Tensor, scores: Scores, *, tags_BL: Tensor, lengths_B: Tensor
) -> Tensor:
    """loss_B = log Z - score(tags), differentiable once, in the emissions' type.

    Every sentence has at least one token; padding is never read. The sums are of 64-bit numbers;
    Apple's GPUs have none, so there the processor computes them.
    """
    apply = cast(Callable[..., Tensor], _NegativeLogLikelihood.apply)
    return apply(*where_doubles_are(emissions_BLY, *scores, tags_BL, lengths_B))


class CRFLoss(torch.autograd.Function):
    """A loss whose gradient is the surplus of each tag and move: expected minus actual counts.

    `forward` takes emissions, the three scores and two more tensors. It saves the surplus of each
    tag (BLY) and of each move (B, YY), the place of each last token (B), and the emissions' type.
    """

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient by the emissions and by the three scores."""
        surplus_BLY, surplus_moves_BM, last_B = ctx.saved_tensors
        weight_B = gradient_B.double()
        surplus_BLY = surplus_BLY * weight_B[:, None, None]
        tags = surplus_BLY.shape[2]
        by_scores = (
            (weight_B @ surplus_moves_BM).view(tags, tags),
            surplus_BLY[:, 0].sum(0),
            surplus_BLY[torch.arange(len(last_B), device=last_B.device), last_B].sum(0),
        )
        return surplus_BLY.to(ctx.kind), *(g.to(ctx.kind) for g in by_scores), None, None


class _NegativeLogLikelihood(CRFLoss):
    """The gradient of the loss is the expected minus the actual counts."""

    @staticmethod
    def forward(ctx: Any, emissions_BLY: Tensor, *others: Tensor) -> Tensor:
        moves_YY, starts_Y, ends_Y, tags_BL, lengths_B = others
        scores = Scores(moves_YY, starts_Y, ends_Y).double()
        length, tags = emissions_BLY.shape[1:]
        mask_BL = mask_of(lengths_B, length)
        emissions = emissions_BLY.detach().double().masked_fill(~mask_BL[:, :, None], 0.0)
        found = _recursions(emissions, scores, lengths_B)
        here_BL1, there_BL1 = tags_BL[:, :, None], mask_BL[:, :, None].double()
        moved_BM = tags_BL[:, :-1] * tags + tags_BL[:, 1:]
        there_BM = mask_BL[:, 1:].double()
        last_B = lengths_B - 1
        score_B = (
            emissions.gather(2, here_BL1).sum((1, 2))
            + (scores.moves_YY.flatten()[moved_BM] * there_BM).sum(1)
            + scores.starts_Y[tags_BL[:, 0]]
            + scores.ends_Y[tags_BL.gather(1, last_B[:, None])[:, 0]]
        )
        ctx.kind, ctx.of_crf = emissions_BLY.dtype, True
        ctx.save_for_backward(
            found.marginals_BLY.scatter_add(2, here_BL1, -there_BL1),
            found.move_counts_BYY.flatten(1).scatter_add(1, moved_BM, -there_BM),
            last_B,
        )
        return (found.log_partition_B - score_B).to(emissions_BLY.dtype)


def gradient_of_scores(loss_B: Tensor) -> Scores | None:
    """The gradient of each row's loss by the scores: moves_BYY, starts_BY, ends_BY.

    `loss_B` comes straight from a loss of a CRF, before its backward pass; None if it does not.
    """
    node: Any = loss_B.grad_fn
    if not getattr(node, "of_crf", False):
        return None
    surplus_BLY, surplus_moves_BM, last_B = (one.to(loss_B) for one in node.saved_tensors)
    batch, _, tags = surplus_BLY.shape
    rows_B = torch.arange(batch, device=loss_B.device)
    ends_BY = surplus_BLY[rows_B, last_B.long()]
    return Scores(surplus_moves_BM.view(batch, tags, tags), surplus_BLY[:, 0], ends_BY)


def posterior(emissions_BLY: Tensor, scores: Scores, *, lengths_B: Tensor) -> Posterior:
    """Compute the CRF's probabilities of each token and move, detached from the graph."""
    outside_BL1 = ~mask_of(lengths_B, emissions_BLY.shape[1])[:, :, None]
    emissions = emissions_BLY.detach().double().masked_fill(outside_BL1, 0.0)
    return _recursions(emissions, scores.double(), lengths_B)


def _recursions(emissions_BLY: Tensor, scores: Scores, lengths_B: Tensor) -> Posterior:
    """The recursions, in whichever form is exact here."""
    fast, least = _scaled(emissions_BLY, scores, lengths_B)
    return fast if _is_exact(least) else _logarithmic(emissions_BLY, scores, lengths_B)


def _is_exact(least: Tensor) -> bool:
    """Look at the least scale: one that vanished, or that is not a number, makes a result void.

    This is the one number of a step that the processor waits for.
    """
    return bool(least > _VANISHED)


def _scaled(emissions_BLY: Tensor, scores: Scores, lengths_B: Tensor) -> tuple[Posterior, Tensor]:
    """Both recursions as one: each is "multiply by the moves, then by the emissions".

    The backward one runs on length-reversed sentences and transposed moves. Emissions in the
    padding are 0. Gives the least scale too, for `_is_exact`.
    """
    batch, length, _ = emissions_BLY.shape
    mask_BL1 = mask_of(lengths_B, length)[:, :, None]
    shift_BL1 = emissions_BLY.amax(2, keepdim=True)
    weights_BLY = (emissions_BLY - shift_BL1).exp_()
    shifts = [part.max() for part in scores]
    moves_YY, starts_Y, ends_Y = (
        (part - shift).exp_() for part, shift in zip(scores, shifts, strict=True)
    )

    device = lengths_B.device
    rows_B, steps_L = torch.arange(batch, device=device), torch.arange(length, device=device)
    mirror_BL = mirrored(lengths_B, length)
    lanes_L2B = torch.stack([steps_L[:, None].expand(length, batch), mirror_BL.T], 1)
    weights_L2BY = _rows(weights_BLY, lanes_L2B + rows_B * length)
    pushed_L2BY, states_L2BY, scales_L2B = _steps(
        weights_L2BY, torch.stack([moves_YY, moves_YY.T]), torch.stack([starts_Y, ends_Y])
    )
    ahead_BL = 2 * batch * steps_L + rows_B[:, None]
    back_BL = 2 * batch * mirror_BL + (rows_B + batch)[:, None]
    prefix_BLY = _rows(states_L2BY, ahead_BL)
    behind_BLY, suffix_BLY = _rows(pushed_L2BY, back_BL), _rows(states_L2BY, back_BL)

    scales_BL1 = scales_L2B[:, 0].T[:, :, None].masked_fill(~mask_BL1, 1.0)
    product_BLY = prefix_BLY * behind_BLY
    norm_BL1 = product_BLY.sum(2, keepdim=True).masked_fill_(~mask_BL1, 1.0)
    least = torch.minimum(norm_BL1.min(), scales_BL1.min())
    last_B11 = (lengths_B - 1)[:, None, None]
    log_partition_B = (
        (scales_BL1.log() + shift_BL1).sum((1, 2))
        + norm_BL1.gather(1, last_B11)[:, 0, 0].log()
        + (lengths_B - 1) * shifts[0]
        + shifts[1]
        + shifts[2]
    )
    share_BL1 = norm_BL1.reciprocal().masked_fill_(~mask_BL1, 0.0)
    left_BLY = prefix_BLY * share_BL1.scatter(1, last_B11, 0.0)
    found = Posterior(
        log_partition_B,
        product_BLY * share_BL1,
        moves_YY * (left_BLY[:, :-1].transpose(1, 2) @ suffix_BLY[:, 1:]),
        behind_BLY,
        suffix_BLY,
        moves_YY,
        in_logs=False,
    )
    return found, least


def _rows(values_Y: Tensor, places: Tensor) -> Tensor:
    """The rows of Y numbers at these flat indices over all leading dimensions."""
    tags = values_Y.shape[-1]
    picked: Tensor = values_Y.view(-1, tags).index_select(0, places.flatten())
    return picked.view(*places.shape, tags)


def _steps(weights_L2BY: Tensor, moves_2YY: Tensor, edges_2Y: Tensor) -> tuple[Tensor, ...]:
    """The loop: pushed = state × moves, state = pushed * weights, divided by its sum (the scale).

    Only every second step is scaled; the others have scale 1.
    """
    length, _, batch, _ = weights_L2BY.shape
    pushed_L2BY, states_L2BY = torch.empty_like(weights_L2BY), torch.empty_like(weights_L2BY)
    scales_L2B1 = weights_L2BY.new_ones(length, 2, batch, 1)
    pushed_L2BY[0] = edges_2Y[:, None, :]
    pushed, weights = pushed_L2BY.unbind(), weights_L2BY.unbind()
    states, scales = states_L2BY.unbind(), scales_L2B1.unbind()
    for t in range(length):
        if t:
            torch.bmm(states[t - 1], moves_2YY, out=pushed[t])
        torch.mul(pushed[t], weights[t], out=states[t])
        if t % 2 == 0:
            torch.sum(states[t], 2, keepdim=True, out=scales[t])
            states[t].div_(scales[t])
    return pushed_L2BY, states_L2BY, scales_L2B1[:, :, :, 0]


def _logarithmic(emissions_BLY: Tensor, scores: Scores, lengths_B: Tensor) -> Posterior:
    """Compute the posterior by log-sum-exp over every pair of tags: slow, but safe at any scale."""
    length, moves_YY = emissions_BLY.shape[1], scores.moves_YY
    prefix_BLY, behind_BLY, suffix_BLY = _messages(emissions_BLY, scores, lengths_B)
    log_partition_B = suffix_BLY[:, 0].add(scores.starts_Y).logsumexp(1)
    counts_BYY = moves_YY.new_zeros(len(emissions_BLY), *moves_YY.shape)
    for t in range(length - 1):
        pair_BYY = prefix_BLY[:, t, :, None] + moves_YY + suffix_BLY[:, t + 1, None, :]
        chance_BYY = (pair_BYY - log_partition_B[:, None, None]).exp()
        counts_BYY += chance_BYY.masked_fill((t >= lengths_B - 1)[:, None, None], 0.0)
    marginals_BLY = (prefix_BLY + behind_BLY - log_partition_B[:, None, None]).exp()
    outside_BL1 = ~mask_of(lengths_B, length)[:, :, None]
    return Posterior(
        log_partition_B,
        marginals_BLY.masked_fill(outside_BL1, 0.0),
        counts_BYY,
        behind_BLY,
        suffix_BLY,
        moves_YY,
        in_logs=True,
    )


def _messages(
    emissions_BLY: Tensor, scores: Scores, lengths_B: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """prefix_BLY, behind_BLY and suffix_BLY as logarithms; autograd can go through them."""
    moves_YY, starts_Y, ends_Y = scores
    emissions = emissions_BLY.unbind(1)
    prefix = [starts_Y + emissions[0]]
    for emissions_BY in emissions[1:]:
        prefix.append((prefix[-1][:, :, None] + moves_YY).logsumexp(1) + emissions_BY)
    behind, suffix = [ends_Y.expand_as(prefix[0])], [ends_Y + emissions[-1]]
    for t in range(len(emissions) - 2, -1, -1):
        onward_BY = (moves_YY + suffix[-1][:, None, :]).logsumexp(2)
        behind.append(torch.where((t < lengths_B - 1)[:, None], onward_BY, ends_Y))
        suffix.append(behind[-1] + emissions[t])
    return torch.stack(prefix, 1), torch.stack(behind[::-1], 1), torch.stack(suffix[::-1], 1)


def viterbi(emissions_BLY: Tensor, scores: Scores, *, lengths_B: Tensor) -> Tensor:
    """tags_BL: the best path of each sentence, 0 in the padding.

    The forward pass keeps only the best scores; the backward pass finds the previous tag only along
    the path, for the whole batch at once, in numpy: its steps are too small for torch.
    """
    length = emissions_BLY.shape[1]
    from_YY1 = scores.moves_YY.unsqueeze(2)
    emissions = emissions_BLY.permute(1, 2, 0).contiguous().unbind()
    best_LYB = [scores.starts_Y.unsqueeze(1) + emissions[0]]
    for emissions_YB in emissions[1:]:
        best_LYB.append((best_LYB[-1].unsqueeze(1) + from_YY1).amax(0).add_(emissions_YB))
    best_LBY = at_home(torch.stack(best_LYB).transpose(1, 2).contiguous())
    into_YY, ends_Y = at_home(scores.moves_YY.T.contiguous()), at_home(scores.ends_Y)

    last_B = at_home(lengths_B) - 1
    shortest = last_B.min()
    tags_B = (best_LBY[last_B, np.arange(len(last_B))] + ends_Y).argmax(1)
    tags_LB = np.empty((length, len(last_B)), np.int64)
    for t in range(length - 1, -1, -1):
        if t < length - 1:
            before_B = (into_YY.take(tags_B, 0) + best_LBY[t]).argmax(1)
            tags_B = before_B if t < shortest else np.where(t < last_B, before_B, tags_B)
        tags_LB[t] = tags_B
    tags_LB[np.arange(length)[:, None] > last_B] = 0
    return on(np.ascontiguousarray(tags_LB.T), emissions_BLY)


def span_probabilities(
    found: Posterior, at_2N: Tensor, *, tags_NK: Tensor, lengths_N: Tensor
) -> Tensor:
    """chance_N: the exact probability that the tokens of a span have exactly these tags.

    `at_2N` holds the row and first token of each span, `tags_NK` its tags (padded), `lengths_N`
    their number. A CRF's posterior is a Markov chain: the first tag's marginal times
    P(y_t+1 = j | y_t = i) = exp(move(i, j)) suffix_t+1(j) / behind_t(i).
    """
    chance_N = found.marginals_BLY[at_2N[0], at_2N[1], tags_NK[:, 0]]
    steps_K = torch.arange(1, tags_NK.shape[1], device=tags_NK.device)
    inside_NK = steps_K < lengths_N[:, None]
    rows_N1, first_N1 = at_2N[:, :, None].unbind()
    after_NK = torch.where(inside_NK, first_N1 + steps_K, 0)
    before_NK = torch.where(inside_NK, after_NK - 1, 0)
    from_NK, to_NK = tags_NK[:, :-1], tags_NK[:, 1:]
    move_NK = found.moves_YY[from_NK, to_NK]
    suffix_NK = found.suffix_BLY[rows_N1, after_NK, to_NK]
    behind_NK = found.behind_BLY[rows_N1, before_NK, from_NK]
    if found.in_logs:
        move_NK = (move_NK + suffix_NK - behind_NK).exp()
    else:
        move_NK = (move_NK * suffix_NK / behind_NK).nan_to_num(0.0)  # 0 / 0: impossible tags
    return chance_N * move_NK.masked_fill(~inside_NK, 1.0).prod(1)


def mirrored(lengths_B: Tensor, length: int) -> Tensor:
    """places_BL that reverse each sentence and leave its padding in place."""
    steps_L = torch.arange(length, device=lengths_B.device)
    turned_BL = lengths_B[:, None] - 1 - steps_L
    return torch.where(turned_BL >= 0, turned_BL, steps_L)


def mask_of(lengths_B: Tensor, length: int) -> Tensor:
    """mask_BL: true at tokens, false in the padding."""
    return torch.arange(length, device=lengths_B.device) < lengths_B[:, None]


# --- A CRF's loss, token by token
#
# log P(y) = Σ_t log P(y_t | y_1 … y_t-1), exactly.
#
# A linear chain depends on only the last of the tags before; what follows comes as a message
# (Lafferty, McCallum & Pereira 2001; Rabiner 1989, section III.B):
#
#     suffix_t(j) = emission_t(j) + behind_t(j)
#     behind_t(i) = log Σ_j exp(move(i, j) + suffix_t+1(j)),   behind_L = end
#     log P(y_1)         = start(y_1) + suffix_1(y_1) - log Σ_j exp(start(j) + suffix_1(j))
#     log P(y_t | y_t-1) = move(y_t-1, y_t) + suffix_t(y_t) - behind_t-1(y_t-1)
#
# So a sentence's loss splits into the losses of some tokens and those of the others, as Wang et
# al. 2023, Eq. 6 to 9, split it for a model that writes symbol by symbol. The parts depend on the
# direction in which tokens are read; their sum does not: it is `crf.negative_log_likelihood`.
#
# The gradient is analytic. Let weight_t be the factor of token t's loss, and slope_t the gradient
# by suffix_t, which is also that by emission_t. From the first token to the last,
#
#     slope_1(j)   = weight_1 (P(y_1 = j) - [j = y_1])
#     upon_t(i)    = slope_t(i) + weight_t+1 [i = y_t]          the gradient by behind_t
#     slope_t+1(j) = Σ_i upon_t(i) P(j | i) - weight_t+1 [j = y_t+1]
#
# Both recursions run in float64 and in the probability domain, scaled as in `crf`, where Σ_i is a
# matrix product. If something on the path of a sentence's own tags vanishes, they run in
# logarithms instead (slow), so no score is too large or too small.
#
# Shapes: B sentences, L tokens, Y tags (in YY the first is the tag before).


def token_losses(
    emissions_BLY: Tensor, scores: Scores, *, tags_BL: Tensor, lengths_B: Tensor
) -> Tensor:
    """loss_BL = -log P(tag | tags before), 0 in the padding; differentiable once.

    In the emissions' type, computed where `crf.negative_log_likelihood` is. Every sentence has at
    least one token; padding is never read.
    """
    apply = cast(Callable[..., Tensor], _TokenLosses.apply)
    return apply(*where_doubles_are(emissions_BLY, *scores, tags_BL, lengths_B))


class _TokenLosses(torch.autograd.Function):
    """Forward: the backward messages. Backward: the recursion of the gradients."""

    @staticmethod
    def forward(ctx: Any, emissions_BLY: Tensor, *others: Tensor) -> Tensor:
        moves_YY, starts_Y, ends_Y, tags_BL, lengths_B = others
        scores = Scores(moves_YY, starts_Y, ends_Y).double()
        mask_BL = mask_of(lengths_B, tags_BL.shape[1])
        emissions = emissions_BLY.detach().double().masked_fill(~mask_BL[:, :, None], 0.0)
        tags_BL = tags_BL.masked_fill(~mask_BL, 0)
        found = _scaled_chain(emissions, scores, tags_BL, lengths_B=lengths_B)
        ctx.in_logs = found is None
        if found is None:
            found = _logarithmic_chain(emissions, scores, tags_BL, lengths_B=lengths_B)
        ctx.kind = emissions_BLY.dtype
        ctx.save_for_backward(*found[1:], tags_BL, lengths_B)
        return found.losses_BL.masked_fill(~mask_BL, 0.0).to(emissions_BLY.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BL: Tensor) -> tuple[Tensor | None, ...]:
        *parts, tags_BL, lengths_B = ctx.saved_tensors
        mask_BL = mask_of(lengths_B, tags_BL.shape[1])
        weights_BL = gradient_BL.double().masked_fill(~mask_BL, 0.0)
        found = _Chain(weights_BL, *parts)
        gradients_of = _slopes_in_logs if ctx.in_logs else _slopes
        grads_BLY, by_moves_YY = gradients_of(found, weights_BL, tags_BL, lengths_B=lengths_B)
        by_moves_YY.index_put_(
            (tags_BL[:, :-1], tags_BL[:, 1:]), -weights_BL[:, 1:], accumulate=True
        )
        by_ends_Y = grads_BLY[
            torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1
        ].sum(0)
        sums = (grads_BLY, by_moves_YY, grads_BLY[:, 0].sum(0), by_ends_Y)
        return *(part.to(ctx.kind) for part in sums), None, None


class _Chain(NamedTuple):
    """The losses, P(y_1), and the factors of a move's probability, as in `crf.Posterior`."""

    losses_BL: Tensor
    first_BY: Tensor
    behind_BLY: Tensor
    suffix_BLY: Tensor
    moves_YY: Tensor


# --- in the probability domain ------------------------------------------------------------------


def _scaled_chain(
    emissions_BLY: Tensor, scores: Scores, tags_BL: Tensor, *, lengths_B: Tensor
) -> _Chain | None:
    """None if a probability on the path of the tags vanishes."""
    found, least_scale = _scaled(emissions_BLY, scores, lengths_B)
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
    mask_BL = mask_of(lengths_B, tags_BL.shape[1])
    least_BL = torch.minimum(chances_BL, before_BL).masked_fill(~mask_BL, math.inf)
    if not _is_exact(torch.minimum(least_scale, least_BL.min())):
        return None
    return _Chain(-chances_BL.log(), first_BY, found.behind_BLY, found.suffix_BLY, found.moves_YY)


def _slopes(
    found: _Chain, weights_BL: Tensor, tags_BL: Tensor, *, lengths_B: Tensor
) -> tuple[Tensor, Tensor]:
    """grads_BLY, and by_moves_YY without the counts of the actual moves."""
    length = tags_BL.shape[1]
    goes_on_BL1 = mask_of(lengths_B - 1, length)[:, :, None]
    over_BLY = found.behind_BLY.reciprocal().masked_fill_(
        ~goes_on_BL1 | (found.behind_BLY == 0.0), 0.0
    )
    there_BLY = torch.zeros_like(over_BLY).scatter_(2, tags_BL[:, :, None], weights_BL[:, :, None])
    ahead_BLY = torch.zeros_like(over_BLY[:, 1:]).scatter_(
        2, tags_BL[:, :-1, None], weights_BL[:, 1:, None]
    )
    over, there, ahead = over_BLY.unbind(1), there_BLY.unbind(1), ahead_BLY.unbind(1)
    suffix = found.suffix_BLY.unbind(1)
    gradients = [weights_BL[:, :1] * found.first_BY - there[0]]
    shares = []
    for t in range(length - 1):
        shares.append((gradients[-1] + ahead[t]) * over[t])
        gradients.append((shares[-1] @ found.moves_YY).mul_(suffix[t + 1]).sub_(there[t + 1]))
    grads_BLY = torch.stack(gradients, 1)
    if length == 1:
        return grads_BLY, torch.zeros_like(found.moves_YY)
    shares_BMY = torch.stack(shares, 1)
    passed_YY = shares_BMY.flatten(0, 1).T @ found.suffix_BLY[:, 1:].flatten(0, 1)
    return grads_BLY, found.moves_YY * passed_YY


# --- in logarithms --------------------------------------------------------------------------


def _logarithmic_chain(
    emissions_BLY: Tensor, scores: Scores, tags_BL: Tensor, *, lengths_B: Tensor
) -> _Chain:
    _, behind_BLY, suffix_BLY = _messages(emissions_BLY, scores, lengths_B)
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
    """Compute `_slopes` in logarithms."""
    batch, length = tags_BL.shape
    rows_B, last_B = torch.arange(batch, device=lengths_B.device), lengths_B - 1
    by_moves_YY = torch.zeros_like(found.moves_YY)
    grads_BLY = torch.zeros_like(found.suffix_BLY)
    slope_BY = weights_BL[:, :1] * found.first_BY
    slope_BY[rows_B, tags_BL[:, 0]] -= weights_BL[:, 0]
    grads_BLY[:, 0] = slope_BY
    for t in range(length - 1):
        weight_B = weights_BL[:, t + 1]
        upon_BY = slope_BY.index_put((rows_B, tags_BL[:, t]), weight_B, accumulate=True)
        over_BY = found.behind_BLY[:, t].masked_fill((t >= last_B)[:, None], math.inf)
        passed_BYY = found.moves_YY + found.suffix_BLY[:, t + 1, None, :]
        passed_BYY.sub_(over_BY[:, :, None]).exp_().mul_(upon_BY[:, :, None])
        by_moves_YY += passed_BYY.sum(0)
        slope_BY = passed_BYY.sum(1)
        slope_BY[rows_B, tags_BL[:, t + 1]] -= weight_B
        grads_BLY[:, t + 1] = slope_BY
    return grads_BLY, by_moves_YY


# --- Log marginals
#
# Of a linear chain's tokens, log P(y_t = y), differentiable.
#
# The forward and the backward recursion in logarithms (Lafferty, McCallum & Pereira 2001; Rabiner
# 1989, section III.B):
#
#     prefix_1(j) = start(j) + emission_1(j)
#     prefix_t(j) = log Σ_i exp(prefix_t-1(i) + move(i, j)) + emission_t(j)
#     behind_L(i) = end(i)
#     behind_t(i) = log Σ_j exp(move(i, j) + emission_t+1(j) + behind_t+1(j))
#     log P(y_t = y) = prefix_t(y) + behind_t(y) - log Z
#
# `crf.posterior` gives the same numbers faster, but without gradient; a student that learns
# others' predictions of each token (`training.trainer`) needs it, and autograd computes it here.
#
# Shapes: B sentences, L tokens, Y tags (in YY the first is the tag before).


LEAST = -60.0
"""The least logarithm, so a tag that a rule forbids has no gradient, and no weight in a sum."""


def log_marginals(emissions_BLY: Tensor, scores: Scores, *, lengths_B: Tensor) -> Tensor:
    """The logarithm of each token's P(y_t = y), in float64, at least `LEAST`.

    The exponentials of a token's numbers sum to 1. Every sentence has at least one token; padding
    is never read, and its results are meaningless. Apple's GPUs have no float64, so there the
    processor computes them, and has the results.
    """
    emissions_BLY, *parts, lengths_B = where_doubles_are(emissions_BLY, *scores, lengths_B)
    outside_BL1 = ~mask_of(lengths_B, emissions_BLY.shape[1])[:, :, None]
    emissions = emissions_BLY.double().masked_fill(outside_BL1, 0.0)
    scores = Scores(*(part.double() for part in parts))
    prefix_BLY, behind_BLY, _ = _messages(emissions, scores, lengths_B)
    return (prefix_BLY + behind_BLY).log_softmax(2).clamp_min(LEAST)


# --- The likelihood of partial annotation
#
# A token may have any of the tags that are allowed there.
#
# A site that annotates some of the types says nothing of the others: at a token outside its own
# entities, `O` and every tag of the types that it lacks are possible. A partial annotation stands
# for all paths through allowed tags, and its likelihood is their sum (Greenberg, Bansal, Verga &
# McCallum, "Marginal Likelihood Training of BiLSTM-CRF for Biomedical Named Entity Recognition
# from Disjoint Label Sets", EMNLP 2018; Tsuboi et al. 2008):
#
#     log P(inner | outer) = log Z_inner - log Z_outer
#
# where Z_A sums exp(score) over the paths whose every tag is in A, by the recursions of `crf`. A
# tag may also be allowed with a weight below 1, which multiplies exp(score) of each path once per
# token that has it. That is a prior: a type that a site lacks is possible, but rarer than the
# model says. If `outer` allows every tag and `inner` one path, this is the likelihood of `crf`.
# By the chain rule log P(inner) = log P(inner | middle) + log P(middle) for inner ⊂ middle, so
# the loss of a sentence splits into that of its own annotation and that of what another model
# found besides.
#
# A model that classifies each word by itself has the same with Z_A = Σ_{y in A} exp(logit(y)) for
# each word.
#
# What is allowed is given by the logarithm of its weight: 0 for an allowed tag, -inf for another.
#
# Shapes: B sentences, L tokens, Y tags; P = 2B rows, first of inner, then of outer.


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
    def forward(ctx: Any, emissions_BLY: Tensor, *others: Tensor) -> Tensor:
        moves_YY, starts_Y, ends_Y, allowed_2BLY, lengths_B = others
        scores = Scores(moves_YY, starts_Y, ends_Y)
        # both as rows of one batch: a step of the recursions costs little more for twice the rows
        rows_PLY = (emissions_BLY.detach() + allowed_2BLY).flatten(0, 1)
        both = posterior(rows_PLY, scores, lengths_B=lengths_B.repeat(2))
        ctx.kind, ctx.of_crf = emissions_BLY.dtype, True
        ctx.save_for_backward(
            _surplus(both.marginals_BLY), _surplus(both.move_counts_BYY).flatten(1), lengths_B - 1
        )
        return _surplus(both.log_partition_B).to(emissions_BLY.dtype)


def _surplus(both_P: Tensor) -> Tensor:
    """Subtract the inner half of the rows from the outer half."""
    inner_B, outer_B = both_P.chunk(2)
    return outer_B - inner_B


def partial_word_losses(
    logits_BLY: Tensor, *, inner_BLY: Tensor, outer_BLY: Tensor, lengths_B: Tensor
) -> Tensor:
    """loss_BL = -log P(inner | outer) of each word by itself, 0 in the padding."""
    inner_BL, outer_BL = (
        (logits_BLY + allowed_BLY).logsumexp(2) for allowed_BLY in (inner_BLY, outer_BLY)
    )
    inside_BL = mask_of(lengths_B, logits_BLY.shape[1])
    return (outer_BL - inner_BL).masked_fill(~inside_BL, 0.0)
