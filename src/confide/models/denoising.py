"""The cross-entropy over a large table of pieces, which is most of the cost of denoising.

A state's logits are its products with every row of the table (Lewis et al. 2020, section 2.1: the
input and output tables are tied). The gradient is computed with the loss, for some states at a
time: the logits of all are never in memory at once, and nothing is computed twice.

With `Rows`, only some rows of the table take part: those of all targets, plus a uniform sample that
stands for the rest. Each sampled row counts 1 / (its probability of being drawn) times in the
softmax's sum, which is then right in expectation (importance sampling; Jean et al. 2015, section
3).

Shapes: N states, D numbers of one, V rows of the table, U rows that take part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from confide.models.autograd import Context, where_doubles_are

_AT_ONCE = 1 << 23  # logits, 32 MB


class Rows(NamedTuple):
    """Which rows of the table take part, and what is added to the logits of each."""

    rows_U: Tensor
    added_U: Tensor

    def on(self, device: torch.device) -> Rows:
        """The rows on another device."""
        return Rows(self.rows_U.to(device), self.added_U.to(device))


def drawn_rows(
    targets_N: Tensor, size: int, *, count: int, generator: torch.Generator
) -> Rows | None:
    """The rows of the targets and `count` others of a table of `size`; None if that is all."""
    wanted_T = torch.unique(targets_N)
    others = size - len(wanted_T)
    if count >= others:
        return None
    chance_V = torch.ones(size)
    chance_V[wanted_T] = 0.0
    drawn_K = torch.multinomial(chance_V, count, generator=generator)
    rows_U, order_U = torch.cat((wanted_T, drawn_K)).sort()
    added_U = torch.full((len(rows_U),), math.log(others / count))
    added_U[: len(wanted_T)] = 0.0
    return Rows(rows_U, added_U[order_U])


def cross_entropy(
    states_ND: Tensor, table_VD: Tensor, targets_N: Tensor, *, rows: Rows | None = None
) -> Tensor:
    """The sum over all states of -log of the softmax at their targets (a number)."""
    if rows is None:
        return _summed(states_ND, table_VD, targets_N, None)
    places_N = torch.searchsorted(rows.rows_U, targets_N)
    return _summed(states_ND, table_VD[rows.rows_U], places_N, rows.added_U)


def likeliest(states_ND: Tensor, table_VD: Tensor) -> Tensor:
    """places_N: the row of the table with the greatest logit, of each state."""
    step = max(1, _AT_ONCE // len(table_VD))
    starts = range(0, len(states_ND), step)
    parts = [(states_ND[start : start + step] @ table_VD.T).argmax(1) for start in starts]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


def _summed(
    states_ND: Tensor, table_UD: Tensor, targets_N: Tensor, added_U: Tensor | None
) -> Tensor:
    apply: Callable[..., Tensor] = _CrossEntropy.apply
    return apply(states_ND, table_UD, (targets_N, added_U))


class _Kept(Context, Protocol):
    """What the forward pass keeps."""

    slopes: tuple[Tensor | None, Tensor | None]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Kept, states_ND: Tensor, table_UD: Tensor, sought: tuple[Tensor, Tensor | None]
    ) -> Tensor:
        targets_N, added_U = sought
        for_states, for_table = ctx.needs_input_grad[:2]
        slopes_ND = torch.empty_like(states_ND) if for_states else None
        slopes_UD = torch.zeros_like(table_UD) if for_table else None
        total = where_doubles_are(states_ND.new_zeros(()))[0].double()
        step = max(1, _AT_ONCE // len(table_UD))
        for start in range(0, len(states_ND), step):
            part = slice(start, start + step)
            logits_nU = states_ND[part] @ table_UD.T
            if added_U is not None:
                logits_nU += added_U
            sums_n = logits_nU.logsumexp(1)
            targets_n1 = targets_N[part, None]
            (losses_n,) = where_doubles_are(sums_n - logits_nU.gather(1, targets_n1)[:, 0])
            total += losses_n.sum(dtype=torch.float64)
            if slopes_ND is None and slopes_UD is None:
                continue
            likely_nU = logits_nU.sub_(sums_n[:, None]).exp_()
            likely_nU.scatter_add_(1, targets_n1, likely_nU.new_full(targets_n1.shape, -1.0))
            if slopes_ND is not None:
                slopes_ND[part] = likely_nU @ table_UD
            if slopes_UD is not None:
                slopes_UD.addmm_(likely_nU.T, states_ND[part])
        ctx.slopes = (slopes_ND, slopes_UD)
        return total.to(states_ND.dtype).to(states_ND.device)

    @staticmethod
    def backward(ctx: _Kept, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (slope,) = slopes
        slopes_ND, slopes_UD = ctx.slopes
        return (
            None if slopes_ND is None else slopes_ND * slope,
            None if slopes_UD is None else slopes_UD * slope,
            None,
        )
