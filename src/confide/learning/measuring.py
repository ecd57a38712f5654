"""What a model loses on each row of a text: nothing is learnt, and nothing is dropped.

Shapes: S rows, E examples, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.data.batches.encoding import Window
from confide.learning.devices import at_home, beside, predicting

B = TypeVar("B")
Floats = NDArray[np.float64]


class Cut(Protocol):
    """A text whose long examples are cut into windows."""

    @property
    def examples(self) -> int:
        """The number of examples."""
        ...

    @property
    def windows(self) -> tuple[Window, ...]:
        """What each row is."""
        ...


def row_losses(
    model: nn.Module,
    batches: Iterable[tuple[NDArray[np.int64], B]],
    loss: Callable[[B], Tensor],
    *,
    rows: int,
) -> Floats:
    """losses_S of so many rows, in evaluation mode; `batches` come with their rows."""
    losses_S = np.zeros(rows)
    with predicting(model):
        for rows_B, plain in batches:
            losses_S[rows_B] = at_home(loss(beside(plain, model)))
    return losses_S


def by_example(losses_S: Floats, cut: Cut) -> Floats:
    """losses_E: the sum over the windows of each example."""
    owners_S = np.array([window.example for window in cut.windows], np.int64)
    losses_E = np.zeros(cut.examples)
    np.add.at(losses_E, owners_S, losses_S)
    return losses_E
