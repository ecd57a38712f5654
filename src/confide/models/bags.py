"""Bags of sentences: a reader of sentences, a linear layer, and how sentences are combined.

- "none": every sentence has its bag's label. A bag is scored by the maximum over its sentences.
- "one": training uses the sentence that states the label most clearly (Zeng, Liu, Chen & Zhao,
  EMNLP 2015, 3.5). A bag is scored by the maximum.
- "ave": a bag is the mean of its sentences (Lin, Shen, Liu, Luan & Sun, ACL 2016, the rival "AVE").
- "att": a bag is the mean weighted by the attention that its label pays to each sentence (Lin et
  al. 2016, 3.2; the query is the label's row of the linear layer). A held-out bag has no label:
  each relation is scored by the mean under its own attention.
- "att-ra": for each relation, a bag is the mean weighted by that relation's attention, in training
  as well (Ye & Ling, NAACL 2019, relation-aware attention within a bag).

Dropout acts on what the linear layer reads (a sentence or a bag), not on what attention reads.

Shapes: S sentences of a batch, G bags of a batch, R relations, F features of a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from confide.models.pcnn import Pcnn, SentenceInput
from confide.models.relation import MentionReader, RelationInput

Denoise = Literal["none", "one", "att", "ave", "att-ra"]


class BagInput(Protocol):
    """`sentences` is the reader's input; `bags_S` is the bag of each sentence, ascending from 0."""

    @property
    def sentences(self) -> SentenceInput | RelationInput: ...  # noqa: D102
    @property
    def bags_S(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def relations_G(self) -> Tensor: ...  # noqa: D102, N802


class BagModel(nn.Module):
    """A `reader` that gives features_SF (F is its `features`) of sentences, and a linear layer.

    Called with a batch of sentences, it gives logits_SR.
    """

    def __init__(self, reader: Pcnn | MentionReader, relations: int, *, dropout: float) -> None:
        super().__init__()
        self.reader = reader
        self.dropout = nn.Dropout(dropout)
        self.relation = nn.Linear(reader.features, relations)
        nn.init.xavier_uniform_(self.relation.weight)
        nn.init.zeros_(self.relation.bias)

    def forward(self, sentences: SentenceInput | RelationInput) -> Tensor:
        """logits_SR."""
        logits_SR: Tensor = self.relation(self.dropout(self.reader(sentences)))
        return logits_SR


def logits_of(denoise: Denoise) -> Callable[[BagModel, BagInput], Tensor]:
    """The function that gives logits_GR in training.

    For "none" and "one" a bag is one sentence, chosen beforehand (`clearest`).
    """
    return _LOGITS[denoise]


def clearest(logits_SR: Tensor, bags_S: Tensor, relations_G: Tensor) -> Tensor:
    """rows_G: for each bag, the sentence with the likeliest relation; the first of ties.

    `bags_S` ascends, and every bag has a sentence.
    """
    likely_S = logits_SR.log_softmax(1).gather(1, relations_G[bags_S, None]).flatten()
    best_G = _per_bag(likely_S[:, None], bags_S, len(relations_G), "amax").flatten()
    rows_S = torch.arange(len(bags_S), device=bags_S.device)
    rows_S = rows_S.masked_fill(likely_S < best_G[bags_S], len(bags_S))
    return _per_bag(rows_S[:, None], bags_S, len(relations_G), "amin").flatten()


# --- logits in training -----------------------------------------------------------------------


def _of_sentences(model: BagModel, batch: BagInput) -> Tensor:
    logits_SR: Tensor = model(batch.sentences)
    return logits_SR


def _of_means(model: BagModel, batch: BagInput) -> Tensor:
    features_SF = model.reader(batch.sentences)
    even_S1 = features_SF.new_zeros(len(features_SF), 1)
    return _of_bags(model, features_SF, even_S1, batch)


def _of_attention(model: BagModel, batch: BagInput) -> Tensor:
    features_SF = model.reader(batch.sentences)
    queries_SF = model.relation.weight[batch.relations_G[batch.bags_S]]
    return _of_bags(model, features_SF, (features_SF * queries_SF).sum(1, keepdim=True), batch)


def _of_bags(model: BagModel, features_SF: Tensor, scores_S1: Tensor, batch: BagInput) -> Tensor:
    """logits_GR of bags that are means of their sentences, weighted by the softmax of scores."""
    bags = len(batch.relations_G)
    weights_S1 = _softmax(scores_S1, batch.bags_S, bags)
    bags_GF = _per_bag(features_SF * weights_S1, batch.bags_S, bags, "sum")
    logits_GR: Tensor = model.relation(model.dropout(bags_GF))
    return logits_GR


def _of_relations(model: BagModel, batch: BagInput) -> Tensor:
    """logits_GR where each relation weights the sentences for itself: o_k = r_k · b_k + d_k.

    r_k · Σ_s α_sk x_s = Σ_s α_sk (r_k · x_s), so no bag's features are ever computed.
    """
    bags, bags_S = len(batch.relations_G), batch.bags_S
    features_SF = model.reader(batch.sentences)
    said_SR = features_SF @ model.relation.weight.t()
    weights_SR = _softmax(said_SR, bags_S, bags)
    if model.training and model.dropout.p > 0.0:
        kept_GF = model.dropout(features_SF.new_ones(bags, features_SF.shape[1]))
        said_SR = (features_SF * kept_GF[bags_S]) @ model.relation.weight.t()
    logits_GR: Tensor = _per_bag(weights_SR * said_SR, bags_S, bags, "sum") + model.relation.bias
    return logits_GR


_LOGITS: dict[Denoise, Callable[[BagModel, BagInput], Tensor]] = {
    "none": _of_sentences,
    "one": _of_sentences,
    "ave": _of_means,
    "att": _of_attention,
    "att-ra": _of_relations,
}


def _per_bag(values_SX: Tensor, bags_S: Tensor, bags: int, how: str) -> Tensor:
    """values_GX: the sum, the largest ("amax") or the smallest ("amin") of each bag."""
    found_GX = values_SX.new_zeros(bags, values_SX.shape[1])
    if how == "sum":
        return found_GX.index_add(0, bags_S, values_SX)
    places_SX = bags_S[:, None].expand_as(values_SX)
    return found_GX.scatter_reduce(0, places_SX, values_SX, how, include_self=False)


def _softmax(scores_SX: Tensor, bags_S: Tensor, bags: int) -> Tensor:
    """weights_SX that sum to 1 over the sentences of each bag."""
    most_GX = _per_bag(scores_SX.detach(), bags_S, bags, "amax")
    powers_SX = (scores_SX - most_GX[bags_S]).exp()
    return powers_SX / _per_bag(powers_SX, bags_S, bags, "sum")[bags_S]


# --- scores of held-out bags ------------------------------------------------------------------


def scores_of(denoise: Denoise) -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:
    """The function that gives scores_GR in 0 to 1 from (said_SR, bias_R, bags_S, number of bags).

    said_SR is features_SF · weightᵀ, without the bias: no aggregator needs more of a sentence.
    Scores of a bag sum to 1 only under "ave" and "att-ra".
    """
    return _SCORES[denoise]


def _highest(said_SR: Tensor, bias_R: Tensor, bags_S: Tensor, bags: int) -> Tensor:
    return _per_bag((said_SR + bias_R).softmax(1), bags_S, bags, "amax")


def _mean(said_SR: Tensor, bias_R: Tensor, bags_S: Tensor, bags: int) -> Tensor:
    weights_S1 = _softmax(torch.zeros_like(said_SR[:, :1]), bags_S, bags)
    return (_per_bag(said_SR * weights_S1, bags_S, bags, "sum") + bias_R).softmax(1)


def _attended_by_all(said_SR: Tensor, bias_R: Tensor, bags_S: Tensor, bags: int) -> Tensor:
    weights_SR = _softmax(said_SR, bags_S, bags)
    return (_per_bag(weights_SR * said_SR, bags_S, bags, "sum") + bias_R).softmax(1)


def _attended(said_SR: Tensor, bias_R: Tensor, bags_S: Tensor, bags: int) -> Tensor:
    """Relation k's probability in the bag's mean under k's own attention."""
    weights_SR = _softmax(said_SR, bags_S, bags)
    relations = said_SR.shape[1]
    scores_GR = said_SR.new_empty(bags, relations)
    for k in range(relations):
        logits_GR = _per_bag(weights_SR[:, k, None] * said_SR, bags_S, bags, "sum") + bias_R
        scores_GR[:, k] = logits_GR.softmax(1)[:, k]
    return scores_GR


_SCORES: dict[Denoise, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {
    "none": _highest,
    "one": _highest,
    "ave": _mean,
    "att": _attended,
    "att-ra": _attended_by_all,
}
