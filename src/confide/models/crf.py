"""A linear-chain conditional random field: loss with an analytic gradient, Viterbi, marginals.

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

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from confide.models.autograd import Context, where_doubles_are

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
    """What the two recursions know about a batch, in float64.

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


class Surplus(Context, Protocol):
    """What the forward pass keeps. `of_crf` marks the losses of this class."""

    kind: torch.dtype
    of_crf: bool


class CRFLoss(torch.autograd.Function):
    """A loss whose gradient is the surplus of each tag and move: expected minus actual counts.

    `forward` takes emissions, the three scores and two more tensors. It saves the surplus of each
    tag (BLY) and of each move (B, YY), the place of each last token (B), and the emissions' type.
    """

    @staticmethod
    @once_differentiable
    def backward(ctx: Surplus, gradient_B: Tensor) -> tuple[Tensor | None, ...]:
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
    def forward(ctx: Surplus, emissions_BLY: Tensor, *others: Tensor) -> Tensor:
        moves_YY, starts_Y, ends_Y, tags_BL, lengths_B = others
        scores = Scores(moves_YY, starts_Y, ends_Y).double()
        length, tags = emissions_BLY.shape[1:]
        mask_BL = _mask(lengths_B, length)
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


def slopes_of_scores(loss_B: Tensor) -> Scores | None:
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
    """What the CRF believes about each token and move, detached from the graph."""
    outside_BL1 = ~_mask(lengths_B, emissions_BLY.shape[1])[:, :, None]
    emissions = emissions_BLY.detach().double().masked_fill(outside_BL1, 0.0)
    return _recursions(emissions, scores.double(), lengths_B)


def _recursions(emissions_BLY: Tensor, scores: Scores, lengths_B: Tensor) -> Posterior:
    """The recursions, in whichever form is exact here."""
    fast = _scaled(emissions_BLY, scores, lengths_B)
    return fast or _logarithmic(emissions_BLY, scores, lengths_B)


def _scaled(emissions_BLY: Tensor, scores: Scores, lengths_B: Tensor) -> Posterior | None:
    """Both recursions as one: each is "multiply by the moves, then by the emissions".

    The backward one runs on length-reversed sentences and transposed moves. Emissions in the
    padding are 0. None if a scale vanishes.
    """
    batch, length, _ = emissions_BLY.shape
    mask_BL1 = _mask(lengths_B, length)[:, :, None]
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
    if not min(norm_BL1.min(), scales_BL1.min()) > _VANISHED:  # also if one is not a number
        return None
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
    return Posterior(
        log_partition_B,
        product_BLY * share_BL1,
        moves_YY * (left_BLY[:, :-1].transpose(1, 2) @ suffix_BLY[:, 1:]),
        behind_BLY,
        suffix_BLY,
        moves_YY,
        in_logs=False,
    )


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
    """The same quantities by log-sum-exp over every pair of tags: slow, but safe at any scale."""
    length = emissions_BLY.shape[1]
    moves_YY, starts_Y, ends_Y = scores
    prefix = [starts_Y + emissions_BLY[:, 0]]
    for t in range(1, length):
        prefix.append((prefix[-1][:, :, None] + moves_YY).logsumexp(1) + emissions_BLY[:, t])
    behind, suffix = [ends_Y.expand_as(prefix[0])], [ends_Y + emissions_BLY[:, -1]]
    for t in range(length - 2, -1, -1):
        onward_BY = (moves_YY + suffix[-1][:, None, :]).logsumexp(2)
        behind.append(torch.where((t < lengths_B - 1)[:, None], onward_BY, ends_Y))
        suffix.append(behind[-1] + emissions_BLY[:, t])
    prefix_BLY = torch.stack(prefix, 1)
    behind_BLY, suffix_BLY = torch.stack(behind[::-1], 1), torch.stack(suffix[::-1], 1)
    log_partition_B = suffix_BLY[:, 0].add(starts_Y).logsumexp(1)
    counts_BYY = moves_YY.new_zeros(len(emissions_BLY), *moves_YY.shape)
    for t in range(length - 1):
        pair_BYY = prefix_BLY[:, t, :, None] + moves_YY + suffix_BLY[:, t + 1, None, :]
        chance_BYY = (pair_BYY - log_partition_B[:, None, None]).exp()
        counts_BYY += chance_BYY.masked_fill((t >= lengths_B - 1)[:, None, None], 0.0)
    marginals_BLY = (prefix_BLY + behind_BLY - log_partition_B[:, None, None]).exp()
    outside_BL1 = ~_mask(lengths_B, length)[:, :, None]
    return Posterior(
        log_partition_B,
        marginals_BLY.masked_fill(outside_BL1, 0.0),
        counts_BYY,
        behind_BLY,
        suffix_BLY,
        moves_YY,
        in_logs=True,
    )


def viterbi(emissions_BLY: Tensor, scores: Scores, *, lengths_B: Tensor) -> Tensor:
    """tags_BL: the best path of each sentence, 0 in the padding.

    The forward pass keeps only the best scores; the backward pass finds the previous tag only along
    the path, for the whole batch at once.
    """
    length = emissions_BLY.shape[1]
    from_YY1 = scores.moves_YY.unsqueeze(2)
    emissions = emissions_BLY.permute(1, 2, 0).contiguous().unbind()
    best_LYB = [scores.starts_Y.unsqueeze(1) + emissions[0]]
    for emissions_YB in emissions[1:]:
        best_LYB.append((best_LYB[-1].unsqueeze(1) + from_YY1).amax(0).add_(emissions_YB))
    best_LBY = torch.stack(best_LYB).transpose(1, 2).contiguous()
    best, into_YY = best_LBY.unbind(), scores.moves_YY.T.contiguous()

    last_B = lengths_B - 1
    shortest = int(last_B.min())
    before_last = _mask(last_B, length).T.unbind()
    tags_B = (best_LBY[last_B, torch.arange(len(last_B))] + scores.ends_Y).argmax(1)
    path = [tags_B]
    for t in range(length - 2, -1, -1):
        before_B = into_YY.index_select(0, tags_B).add_(best[t]).argmax(1)
        tags_B = before_B if t < shortest else torch.where(before_last[t], before_B, tags_B)
        path.append(tags_B)
    return torch.stack(path[::-1], 1).masked_fill(~_mask(lengths_B, length), 0)


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


def _mask(lengths_B: Tensor, length: int) -> Tensor:
    return torch.arange(length, device=lengths_B.device) < lengths_B[:, None]
