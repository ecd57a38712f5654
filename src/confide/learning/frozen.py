"""What a frozen encoder gives of each example: computed once, kept on disk, used in every round.

With `tune = "frozen"` (`learning.tuning`) only the layer behind the encoder is trained, so the
encoder runs once over a text, however many rounds and epochs follow. The file's name is a digest of
the encoder, of how the model reads it and of the pieces, so another encoder or text never finds it;
the file itself is as in `learning.context`. **It reveals much of its text.**

Shapes: W words of all windows, S examples, N pieces, D and F numbers of a feature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.data.batches.relation_pieces import (
    EncodedRelations,
    predict_relation_batches,
)
from confide.data.batches.token_pieces import TokenText, predict_token_batches
from confide.learning.context import kept_rows
from confide.learning.devices import at_home, beside, predicting, where_is

_DTYPE = np.dtype("<f4")
_PER_BATCH = 2048  # most padded pieces of a batch


def with_word_features(
    text: TokenText, model: nn.Module, *, reads: str, folder: Path | None
) -> TokenText:
    """The text with the state of each word's first piece.

    `reads` says what the states depend on besides the pieces: a digest of the encoder, and how the
    model reads. With `folder=None` they stay in memory. Raises DataError and DeviceError.
    """
    if not len(text):
        return text
    words, width = int(text.words_from_S1[-1]), _width(model)

    def blocks() -> Iterator[tuple[int, NDArray[np.float32]]]:
        for batch in predict_token_batches(text, pieces_per_batch=_PER_BATCH):
            found_BLD = _features(model, batch)
            lengths_B = batch.lengths_B.tolist()
            for row, states_LD, length in zip(batch.rows_B, found_BLD, lengths_B, strict=True):
                yield int(text.words_from_S1[row]), states_LD[:length]

    key = _key(
        "words", _reads(reads, model), text.ids_N, text.from_S1, text.firsts_W, text.words_from_S1
    )
    shape = (words, width)
    with predicting(model):
        found = kept_rows(key, shape, blocks(), folder=folder, dtype=_DTYPE)
    return replace(text, features_WD=found.rows)


def with_pair_features(
    encoded: EncodedRelations, model: nn.Module, *, reads: str, folder: Path | None
) -> EncodedRelations:
    """The examples with what the model's last layer reads of each; otherwise as for words."""
    if not len(encoded):
        return encoded

    def blocks() -> Iterator[tuple[int, NDArray[np.float32]]]:
        for batch in predict_relation_batches(encoded, pieces_per_batch=_PER_BATCH):
            found_BF = _features(model, batch)
            for row, features_F in zip(batch.rows_B, found_BF, strict=True):
                yield int(row), features_F[None]

    key = _key(
        "pairs",
        _reads(reads, model),
        encoded.ids_N,
        encoded.from_S1,
        encoded.heads_S2,
        encoded.tails_S2,
    )
    shape = (len(encoded), _width(model))
    with predicting(model):
        found = kept_rows(key, shape, blocks(), folder=folder, dtype=_DTYPE)
    return replace(encoded, features_SF=found.rows)


def _features(model: Any, batch: object) -> NDArray[np.float32]:
    """What the last layer reads of a batch: `features` of a classifier, a bag model's reader."""
    read = model.reader if hasattr(model, "reader") else model.features
    found: Tensor = read(beside(batch, model))
    array: NDArray[np.float32] = at_home(found)
    return array


def _width(model: Any) -> int:
    last: nn.Linear = getattr(model, "tag", None) or model.relation
    return last.in_features


def _reads(reads: str, model: nn.Module) -> str:
    return f"{reads} narrow" if where_is(model).narrow else reads


def _key(what: str, reads: str, *arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256(f"confide features 1 {what} {reads} ".encode())
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
