"""What modellers share whose models read windows of word pieces: training, gradients and slopes.

A modeller says what its model's last layer is, and what makes of the layer's output the two losses
of each row: that of the site's own annotation, and that of what another model found.

Shapes: S rows (sentences, or windows of long ones), B rows of a batch, G numbers of the last
layer's weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.data.batches.flat import Rows
from confide.data.batches.tagger import drawn_rows
from confide.data.batches.token_pieces import (
    EncodedTokens,
    TokenBatch,
    TokenText,
    predict_token_batches,
    token_batch,
    train_token_batches,
)
from confide.learning.devices import at_home, beside, on
from confide.learning.fit import FitReport, train
from confide.learning.gradients import gradients
from confide.learning.measuring import by_example, row_losses
from confide.learning.modelling import Slopes
from confide.learning.optimisers import Optimiser
from confide.learning.rows import only_rows, table_of
from confide.learning.slopes import last_layer_slopes
from confide.learning.unit_slopes import unit_gradients
from confide.learning.weights import Arrays, still
from confide.privacy.clipping import UnitSlopes

Losses = Callable[[Tensor], tuple[Tensor, Tensor]]
"""What makes of a batch's logits source_B and target_B, each row's two losses."""


class Annotated(Protocol):
    """An encoded text with annotation."""

    @property
    def text(self) -> TokenText:
        """The text alone."""
        ...

    def __len__(self) -> int: ...


T = TypeVar("T", bound=Annotated)


class Epochs(NamedTuple):
    """How many epochs, in which steps and in which order a text is read."""

    epochs: int
    batch_size: int
    optimiser: Optimiser
    seed: int


class PieceModeller(ABC, Generic[T]):
    """How models that read windows of word pieces are trained. `head`: the last linear layer."""

    head: ClassVar[str]
    pieces_per_batch: ClassVar[int]
    """Most padded pieces of a batch that is only read."""

    @abstractmethod
    def losses(self, encoded: T, batch: TokenBatch) -> Losses:
        """What makes of the model's output for this batch each row's two losses."""

    def tagged(self, encoded: T) -> EncodedTokens | None:
        """The text with the tag of each word, if batches carry that."""
        return None

    def fit(
        self,
        model: nn.Module,
        encoded: T,
        *,
        weights_S: NDArray[np.float32] | None,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place with a fresh optimiser on the mean loss of each batch's rows.

        A row's loss is its weight times the loss of its source, plus that of its target. Only rows
        of pieces that this text reads are trained, as in `fit_relations`. Raises DataError if there
        is no row.
        """

        def loss(batch: TokenBatch) -> Tensor:
            source_B, target_B = self.losses(encoded, batch)(model(batch))
            if weights_S is not None:
                source_B = source_B * on(weights_S[batch.rows_B], source_B)
            return source_B + target_B

        return self.train_on(model, encoded, loss, how=Epochs(epochs, batch_size, optimiser, seed))

    def train_on(
        self, model: nn.Module, encoded: T, loss: Callable[[TokenBatch], Tensor], *, how: Epochs
    ) -> FitReport:
        """Train in place on this loss, with only the rows of pieces that the text reads."""
        tagged = self.tagged(encoded)

        def batches(seed: int) -> Iterator[TokenBatch]:
            return train_token_batches(
                encoded.text, annotated=tagged, batch_size=how.batch_size, seed=seed
            )

        read = np.append(encoded.text.ids_N, encoded.text.padding)
        table = only_rows(model, table_of(model), read)
        with table if how.optimiser.keeps_still else nullcontext():
            return train(
                model, batches, loss, epochs=how.epochs, optimiser=how.optimiser, seed=how.seed
            )

    def gradient(
        self, model: nn.Module, encoded: T, *, size: int, clip: float, seed: int
    ) -> tuple[float, Arrays]:
        """The mean loss of `size` rows drawn by the seed, and its gradient by parameter."""
        random = np.random.default_rng(seed)
        rows_B = drawn_rows(encoded.text.lengths_S, size, random=random)
        batch = beside(token_batch(encoded.text, rows_B, annotated=self.tagged(encoded)), model)

        def loss() -> Tensor:
            source_B, target_B = self.losses(encoded, batch)(model(batch))
            return source_B + target_B

        return gradients(model, loss, seed=seed, clip=clip)

    def unit_gradients(
        self, model: nn.Module, encoded: T, units: Iterable[Rows]
    ) -> Iterator[UnitSlopes]:
        """As `unit_slopes.unit_gradients`."""
        tagged = self.tagged(encoded)

        def losses(rows_B: Rows) -> Tensor:
            batch = beside(token_batch(encoded.text, rows_B, annotated=tagged), model)
            source_B, target_B = self.losses(encoded, batch)(model(batch))
            return source_B + target_B

        return unit_gradients(model, losses, units, lengths_S=encoded.text.lengths_S)

    def example_losses(self, model: nn.Module, encoded: T) -> NDArray[np.float64]:
        """losses_E of the examples, without dropout."""

        def loss(batch: TokenBatch) -> Tensor:
            source_B, target_B = self.losses(encoded, batch)(model(batch))
            return source_B + target_B

        given = predict_token_batches(
            encoded.text, annotated=self.tagged(encoded), pieces_per_batch=self.pieces_per_batch
        )
        losses_S = row_losses(model, ((one.rows_B, one) for one in given), loss, rows=len(encoded))
        return by_example(losses_S, encoded.text)

    def slopes(self, model: nn.Module, encoded: T) -> Slopes:
        """The gradients of each row's two losses by the last layer's weight, without dropout."""
        linear = model.get_submodule(self.head)
        assert isinstance(linear, nn.Linear)
        shape = (len(encoded), linear.weight.numel())
        source_SG, target_SG = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        given = predict_token_batches(
            encoded.text, annotated=self.tagged(encoded), pieces_per_batch=self.pieces_per_batch
        )
        with still(model):
            for one in given:
                batch = beside(one, model)
                found = last_layer_slopes(
                    linear, partial(model, batch), losses=self.losses(encoded, batch)
                )
                source_SG[batch.rows_B], target_SG[batch.rows_B] = map(at_home, found)
        return Slopes(source_SG, target_SG)
