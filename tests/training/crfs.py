"""Scores of a CRF and tags, drawn at random.

Shapes: B sentences, L tokens, Y tags.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from confide.training.crf import Scores

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


class OnApple(Tensor):
    """A tensor that says it is on Apple's GPU: it has no 64-bit numbers and meets no others."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        given += [one for many in given if isinstance(many, (tuple, list)) for one in many]
        tensors = [one for one in given if isinstance(one, Tensor)]
        with torch._C.DisableTorchFunctionSubclass():
            if func == Tensor.device.__get__:
                return torch.device("mps")
            if func == Tensor.cpu:
                return args[0].as_subclass(Tensor)
            found = func(*args, **(kwargs or {}))
        assert all(isinstance(one, OnApple) or not one.ndim for one in tensors), "two devices"
        parts = found if isinstance(found, (tuple, list)) else [found]
        tensors = [one for one in parts if isinstance(one, Tensor)]
        assert all(one.dtype != torch.float64 for one in tensors), "no 64-bit numbers here"
        return found.as_subclass(cls) if isinstance(found, Tensor) else found


def on_apple(tensor: Tensor) -> Tensor:
    """The tensor, as if it lay on Apple's GPU."""
    return tensor.as_subclass(OnApple)
