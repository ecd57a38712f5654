"""The modeller of linear CRFs on hashed features: that of all CRFs, with another model and text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide.data.batches.encoding import Encoded
from confide.data.batches.examples import Example
from confide.data.batches.features import Marks, with_features
from confide.data.batches.tagger import predict_batches
from confide.learning.crf_modelling import CrfModeller, EncodedSplit
from confide.learning.devices import at_home, beside
from confide.learning.fit import FitReport
from confide.learning.optimisers import Optimiser
from confide.learning.rows import only_rows
from confide.models.linear import LinearTagger


@dataclass(frozen=True, kw_only=True)
class LinearModeller(CrfModeller):
    """Makes linear CRFs of one form: `EntityModeller[Encoded, EncodedSplit]`.

    `marks` turns words into features.
    """

    marks: Marks

    def prepared(self, examples: Sequence[Example]) -> Encoded:
        """Sentences, encoded, without their spans."""
        return with_features(super().prepared(examples), examples, self.marks)

    def fit(
        self,
        model: nn.Module,
        encoded: EncodedSplit,
        *,
        weights_S: NDArray[np.float32] | None,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place as any CRF; rows of the table that the text does not read stay as is."""
        assert isinstance(model, LinearTagger)
        with only_rows(model, model.table, rows_read(model, encoded.encoded)):
            return super().fit(
                model,
                encoded,
                weights_S=weights_S,
                epochs=epochs,
                batch_size=batch_size,
                optimiser=optimiser,
                seed=seed,
            )


def rows_read(model: LinearTagger, text: Encoded) -> NDArray[np.int64]:
    """The rows of the model's table that this text reads, each once."""
    seen_V = np.zeros(len(model.table.weight), np.bool_)
    for batch in predict_batches(text):
        seen_V[at_home(model.rows(beside(batch, model)))] = True
    found: NDArray[np.int64] = np.flatnonzero(seen_V)
    return found
