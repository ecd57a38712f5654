"""Training a few rows of a large embedding table as if they were the whole table.

A row that no example reads has a gradient of zero at every step. A fresh optimiser without weight
decay leaves it as it is, bit for bit, but still fills in, squares and divides its zeros at every
step, and the table is half of a small encoder. So the rows that are read are trained as a table of
their own, then put back.

Shapes: V rows of the whole table, K rows that are read, D numbers of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.learning.devices import on
from confide.learning.optimisers import Optimiser
from confide.learning.weights import named


@contextmanager
def only_rows(model: nn.Module, table: nn.Embedding, ids: NDArray[np.integer]) -> Iterator[None]:
    """Reduce `table` to the rows `ids` (in any order, with repeats) for the duration.

    Lookups still use the old ids; any other id is an IndexError. Afterwards, even after an
    exception, the table has its old parameter again, whose data is replaced and never overwritten;
    until then `weights.arrays` gives the old values. Nothing happens if unread rows may matter: if
    the table is shared with another module of `model`, has a maximum norm, or is not trained.
    """
    named(model)  # cached on first use, which must not see the temporary parameter
    whole = table.weight
    if not _alone(model, table) or not whole.requires_grad:
        yield
        return
    read_K = torch.from_numpy(np.unique(ids).astype(np.int64))
    place_V = torch.full((len(whole),), len(read_K))
    place_V[read_K] = torch.arange(len(read_K))
    padding = table.padding_idx
    # its gradient is discarded
    kept = None if padding is None or place_V[padding] == len(read_K) else int(place_V[padding])
    rows_K, place_V = on(read_K, whole), on(place_V, whole)

    def renumbered(_: nn.Module, asked: tuple[Tensor]) -> tuple[Tensor]:
        return (place_V[asked[0]],)

    table.padding_idx = kept
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
    """Whether the table is only used by ordinary lookups."""
    owners = [m for m in model.modules() for p in m.parameters(recurse=False) if p is table.weight]
    settled = table.max_norm is None and not table.scale_grad_by_freq
    return owners == [table] and settled


def pieces_read(
    model: nn.Module, encoder: Any, text: Any, *, optimiser: Optimiser
) -> AbstractContextManager[None]:
    """Reduce the table of this encoder, a part of `model`, to the pieces that the text has.

    Nothing happens if the optimiser moves rows that are not read.
    """
    if not optimiser.keeps_still:
        return nullcontext()
    read_N = np.append(text.ids_N, text.padding)
    return only_rows(model, encoder.get_input_embeddings(), read_N)
