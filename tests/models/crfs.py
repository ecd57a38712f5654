"""Scores of a CRF and tags, drawn at random.

Shapes: B sentences, L tokens, Y tags.
"""

from __future__ import annotations

import torch
from torch import Tensor

from confide.models.crf import Scores

RAGGED = torch.tensor([7, 1, 4, 6, 7])


def random_problem(
    lengths: Tensor,
    tags: int,
    *,
    dtype: torch.dtype = torch.float64,
    scale: float = 1.0,
    seed: int = 7,
) -> tuple[Tensor, Scores, Tensor]:
    """emissions_BLY, the scores of moves, starts and ends, and tags_BL."""
    torch.manual_seed(seed)
    batch, length = len(lengths), int(lengths.max())
    emissions = scale * torch.randn(batch, length, tags, dtype=dtype)
    scores = Scores(
        torch.randn(tags, tags, dtype=dtype),
        torch.randn(tags, dtype=dtype),
        torch.randn(tags, dtype=dtype),
    )
    return emissions, scores, torch.randint(0, tags, (batch, length))
