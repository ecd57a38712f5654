"""Reading text with an encoder of transformers: the one place where models call theirs.

Shapes: B texts, P pieces, D numbers of a state.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class PieceInput(Protocol):
    """A padded batch of pieces; `mask_BP` is None if nothing is padded."""

    @property
    def ids_BP(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def mask_BP(self) -> Tensor | None: ...  # noqa: D102, N802


def states_of(encoder: Any, batch: PieceInput) -> Tensor:
    """states_BPD of the last layer.

    An encoder that says `never_trained` is read without dropout and without gradients, so that its
    states of a text never change.
    """
    still = getattr(encoder, "never_trained", False)
    if not still:
        return _states(encoder, batch)
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            return _states(encoder, batch)
    finally:
        encoder.train(was_training)


def _states(encoder: Any, batch: PieceInput) -> Tensor:
    found = encoder(input_ids=batch.ids_BP, attention_mask=batch.mask_BP)
    states_BPD: Tensor = found.last_hidden_state
    return states_BPD
