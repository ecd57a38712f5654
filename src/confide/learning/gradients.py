"""The gradient of one batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from confide.data.batches.least import check_covers
from confide.learning.devices import at_home, drawing, enough_memory, home, where_is
from confide.learning.weights import Arrays, named
from confide.seeds import derive_seed


def gradients(
    model: nn.Module, loss: Callable[[], Tensor], *, seed: int, clip: float
) -> tuple[float, Arrays]:
    """The mean of `loss` (loss_B of a batch), and its gradient by trained parameter.

    The norm of the whole gradient is at most `clip` (0: no bound). Dropout is drawn from the seed.
    The model keeps its weights, and is left in training mode. Raises SmallBatchError for a batch of
    fewer rows than a gradient may cover.
    """
    parameters = {name: p for name, p in named(model).items() if p.requires_grad}
    for parameter in parameters.values():
        parameter.grad = None
    if not model.training:
        model.train()
    with drawing(model, derive_seed(seed, "dropout")), enough_memory(where_is(model)):
        loss_B = loss()
        check_covers(len(loss_B))
        mean = loss_B.mean()
        mean.backward()  # type: ignore[no-untyped-call]
    if clip > 0.0:
        nn.utils.clip_grad_norm_(parameters.values(), clip)
    slopes = {
        name: at_home(torch.zeros_like(p) if p.grad is None else p.grad)
        for name, p in parameters.items()
    }
    return float(home(mean)), slopes
