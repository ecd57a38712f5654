"""The gradient of one batch."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from torch import nn

from confide.data.batches import TaggerBatch
from confide.learning.seeds import derive_seed, seeded
from confide.models import tagger
from confide.models.tagger import Tagger

Arrays = dict[str, NDArray[Any]]


def gradients(model: Tagger, batch: TaggerBatch, *, seed: int, clip: float) -> tuple[float, Arrays]:
    """The mean loss of the batch's sentences, and its gradient by parameter.

    Dropout is drawn from the seed; the norm of the whole gradient is bounded by `clip` (0: not).
    The model keeps its weights, and no gradient.
    """
    model.train()
    model.zero_grad(set_to_none=True)
    with seeded(derive_seed(seed, "dropout")):
        loss = tagger.loss(model, batch).mean()
        loss.backward()  # type: ignore[no-untyped-call]
    model.eval()
    if clip > 0.0:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    found = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), found
