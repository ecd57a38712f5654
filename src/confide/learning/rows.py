"""Training a few rows of a large embedding table as if it were all of it.

A row that no example reads has a gradient of zero at every step. A fresh optimiser without weight
decay leaves it where it is, to the bit; yet its zeros are filled in, measured, squared and divided
at every step, and the table is half of a small encoder. So the rows that are read are trained as a
table of their own, and put back.

Shapes: V rows of the whole table, K rows that are read, D numbers of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.learning.weights import named


@contextmanager
def only_rows(model: nn.Module, table: nn.Embedding, ids: NDArray[np.integer]) -> Iterator[None]:
    """Within, `table` is a parameter of just the rows `ids` (any order, repeated as they like).

    It is still asked with the old numbers; one of another row is an IndexError. After, also after
    an exception, it is its old parameter again, whose numbers are replaced and never written over;
    until then `weights.arrays` gives the old parameter as it was.
    Nothing happens where a row may matter that is not read: a table that is shared with another
    module of `model`, has a norm to keep, or is not trained.
    """
    named(model)  # is looked for once: must not find the parameter that passes
    whole = table.weight
    if not _alone(model, table) or not whole.requires_grad:
        yield
        return
    rows_K = torch.from_numpy(np.unique(ids).astype(np.int64))
    place_V = torch.full((len(whole),), len(rows_K))
    place_V[rows_K] = torch.arange(len(rows_K))
    padding = table.padding_idx

    def renumbered(_: nn.Module, asked: tuple[Tensor]) -> tuple[Tensor]:
        return (place_V[asked[0]],)

    if padding is not None:  # its gradient is dropped
        table.padding_idx = int(place_V[padding]) if place_V[padding] < len(rows_K) else None
    table.weight = nn.Parameter(whole.detach()[rows_K])
    hook = table.register_forward_pre_hook(renumbered)
    try:
        yield
    finally:
        hook.remove()
        table.padding_idx = padding
        trained_VD = whole.detach().clone()
        trained_VD[rows_K] = table.weight.detach()
        whole.data = trained_VD
        table.weight = whole


def _alone(model: nn.Module, table: nn.Embedding) -> bool:
    """Whether nobody but an ordinary lookup reads the table."""
    owners = [m for m in model.modules() for p in m.parameters(recurse=False) if p is table.weight]
    settled = table.max_norm is None and not table.scale_grad_by_freq
    return owners == [table] and settled
