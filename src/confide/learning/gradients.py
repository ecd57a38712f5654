"""The gradient of one batch, and of single units: documents, or whatever noise is to hide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from confide.data.batches.flat import Rows
from confide.learning.devices import at_home, drawing, enough_memory, home, where_is
from confide.learning.slopes import row_slopes
from confide.learning.weights import Arrays, named, still
from confide.seeds import derive_seed


def gradients(
    model: nn.Module, loss: Callable[[], Tensor], *, seed: int, clip: float
) -> tuple[float, Arrays]:
    """The mean of `loss` (loss_B of a batch), and its gradient by trained parameter.

    The norm of the whole gradient is at most `clip` (0: no bound). Dropout is drawn from the seed.
    The model keeps its weights, and is left in training mode.
    """
    parameters = {name: p for name, p in named(model).items() if p.requires_grad}
    for parameter in parameters.values():
        parameter.grad = None
    if not model.training:
        model.train()
    with drawing(model, derive_seed(seed, "dropout")), enough_memory(where_is(model)):
        mean = loss().mean()
        mean.backward()  # type: ignore[no-untyped-call]
    if clip > 0.0:
        nn.utils.clip_grad_norm_(parameters.values(), clip)
    slopes = {
        name: at_home(torch.zeros_like(p) if p.grad is None else p.grad)
        for name, p in parameters.items()
    }
    return float(home(mean)), slopes


RowLosses = Callable[[Rows], Tensor]
"""loss_B of these rows of an encoded text."""
_ROWS = 128
"""Most rows of units that are worked out together."""


def unit_gradients(model: nn.Module, losses: RowLosses, units: Iterable[Rows]) -> Iterator[Arrays]:
    """The gradient of each unit's loss by trained parameter, without dropout.

    A unit's loss is the sum over its rows, none of which any other unit has; without a row it is 0.
    The model keeps its weights.
    """
    parameters = {name: p for name, p in named(model).items() if p.requires_grad}
    for rows_B in units:
        for parameter in parameters.values():
            parameter.grad = None
        with still(model), enough_memory(where_is(model)):
            if len(rows_B):
                losses(rows_B).sum().backward()  # type: ignore[no-untyped-call]
        yield {
            name: at_home(torch.zeros_like(p) if p.grad is None else p.grad).copy()
            for name, p in parameters.items()
        }


def is_all(model: nn.Module, head: str) -> bool:
    """Whether nothing of the model is trained but this layer."""
    return all(name.startswith(f"{head}.") for name, p in named(model).items() if p.requires_grad)


def head_gradients(
    model: nn.Module,
    units: Iterable[Rows],
    *,
    head: str,
    outputs: Callable[[Rows], tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]],
) -> Iterator[Arrays]:
    """As `unit_gradients`, of a model of which only its last linear layer `head` is trained.

    `outputs(rows)` gives what runs the model to that layer's output on these rows, and what makes
    loss_B of it. Many units are worked out in one pass.
    """
    linear = model.get_submodule(head)
    assert isinstance(linear, nn.Linear)
    for some in _together(units):
        rows_B = [row for rows in some for row in rows]
        weights_BYD = biases_BY = None
        if rows_B:
            with still(model), enough_memory(where_is(model)):
                weights_BYD, biases_BY = row_slopes(linear, *outputs(np.array(rows_B, np.int64)))
        start = 0
        for rows in some:
            own, start = slice(start, start + len(rows)), start + len(rows)
            yield {
                f"{head}.{name}": at_home(
                    torch.zeros_like(parameter) if each is None else each[own].sum(0)
                )
                for name, parameter, each in (
                    ("weight", linear.weight, weights_BYD),
                    ("bias", linear.bias, biases_BY),
                )
            }


def _together(units: Iterable[Rows]) -> Iterator[list[Rows]]:
    """The units, some at a time."""
    some: list[Rows] = []
    for rows in units:
        if some and sum(map(len, some)) + len(rows) > _ROWS:
            yield some
            some = []
        some.append(rows)
    if some:
        yield some
