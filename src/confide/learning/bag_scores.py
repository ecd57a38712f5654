"""Scores of sentences and bags by a trained model of bags.

Shapes: S sentences, G bags, R relations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from confide.data.batches.relation_pieces import (
    EncodedRelations,
    RelationBatch,
    predict_relation_batches,
)
from confide.data.batches.sentences import (
    EncodedSentences,
    SentenceBatch,
    predict_sentence_batches,
)
from confide.errors import DataError
from confide.learning.devices import at_home, beside, home, predicting
from confide.models.bags import BagModel, Denoise, scores_of

Rows = NDArray[np.int64]
EncodedBags = EncodedSentences | EncodedRelations
"""What a model of bags reads: words for a piecewise CNN, word pieces for an encoder."""

_AT_ONCE = 100_000  # sentences that are scored together


def sentence_probabilities(model: BagModel, encoded: EncodedBags) -> NDArray[np.float32]:
    """p_SR: for each sentence, the probability of every relation."""
    said_SR = torch.from_numpy(said(model, encoded)) + home(model.relation.bias)
    found: NDArray[np.float32] = said_SR.softmax(1).numpy()
    return found


def bag_scores(
    model: BagModel, encoded: EncodedBags, groups: Sequence[Rows], *, denoise: Denoise
) -> NDArray[np.float32]:
    """scores_GR between 0 and 1; `groups[g]` are the rows of bag `g`.

    For "none" and "one", each relation's maximum probability over the bag's sentences; for the
    others, see `models.bags`. Raises DataError if a bag is empty.
    """
    if any(not len(group) for group in groups):
        raise DataError("a bag has no sentence")
    scores_GR = np.zeros((len(groups), len(model.relation.bias)), np.float32)
    if not len(groups):
        return scores_GR
    said_SR = said(model, encoded)
    score, bias_R = scores_of(denoise), home(model.relation.bias)
    sizes_G = np.array([len(group) for group in groups])
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes_G) // _AT_ONCE)) + 1
    for numbers in np.split(np.arange(len(groups)), cuts):
        rows_S = np.concatenate([groups[number] for number in numbers])
        bags_S = torch.from_numpy(np.repeat(np.arange(len(numbers)), sizes_G[numbers]))
        own_SR = torch.from_numpy(said_SR[rows_S])
        scores_GR[numbers] = score(own_SR, bias_R, bags_S, len(numbers)).numpy()
    return scores_GR


def said(model: BagModel, encoded: EncodedBags) -> NDArray[np.float32]:
    """said_SR: the linear layer's output without its bias."""
    said_SR = np.zeros((len(encoded), len(model.relation.bias)), np.float32)
    batches: Iterator[SentenceBatch | RelationBatch]
    if isinstance(encoded, EncodedSentences):
        batches = predict_sentence_batches(encoded)
    else:
        batches = predict_relation_batches(encoded)
    with predicting(model):
        weight_FR = model.relation.weight.t()
        for batch in batches:
            said_SR[batch.rows_B] = at_home(model.reader(beside(batch, model)) @ weight_FR)
    return said_SR
