"""The gradient of one batch."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from confide.data.batches import TaggerBatch
from confide.learning.seeds import derive_seed, seeded
from confide.learning.weights import named
from confide.models import tagger
from confide.models.tagger import Tagger

Arrays = dict[str, NDArray[Any]]


def gradients(model: Tagger, batch: TaggerBatch, *, seed: int, clip: float) -> tuple[float, Arrays]:
    """The mean loss of the batch's sentences, and its gradient by parameter.

    Dropout is drawn from the seed; the norm of the whole gradient is bounded by `clip` (0: not).
    The model keeps its weights, and is left in training mode.
    """
    parameters = named(model)
    for parameter in parameters.values():
        parameter.grad = None
    if not model.training:
        model.train()
    with seeded(derive_seed(seed, "dropout")):
        loss = tagger.loss(model, batch).mean()
        loss.backward()  # type: ignore[no-untyped-call]
    if clip > 0.0:
        nn.utils.clip_grad_norm_(parameters.values(), clip)
    slopes = {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy()
        for name, p in parameters.items()
    }
    return float(loss.detach()), slopes
