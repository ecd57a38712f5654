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

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.errors import DataError
from confide.kinds.bags.batches import (
    EncodedSentences,
    SentenceBatch,
    encode_sentences,
    predict_sentence_batches,
    sentence_batch,
)
from confide.kinds.pieces import (
    EncodedRelations,
    RelationBatch,
    predict_relation_batches,
    relation_batch,
)
from confide.kinds.relations.batches import RelationExample
from confide.kinds.relations.model import MentionReader, Pool, RelationTrainer
from confide.seeds import seeded
from confide.training.batches import Rows, joined
from confide.training.devices import at_home, beside, home, most_read, placed, predicting, widen
from confide.training.encoder import FrozenEncoder, tune
from confide.training.optimisers import Optimiser, row_steps
from confide.training.tagger import shuffled, start_embedding
from confide.training.trainer import Make, Parts, Random, RowTrainer, only_rows, pieces_read
from confide.training.vocabulary import PAD, Vocabulary

# --- A piecewise convolutional network
#
# The features of a sentence about two entities.
#
# Zeng, Liu, Chen & Zhao, "Distant Supervision for Relation Extraction via Piecewise Convolutional
# Neural Networks", EMNLP 2015, 3.1-3.3; Sui et al., "Distantly Supervised Relation Extraction in
# Federated Settings", Findings of EMNLP 2021:
#
#     word ⊕ position to head ⊕ position to tail → convolution, zeros around the sentence
#     → the maximum of each of three pieces → tanh (or ReLU)
#
# The pieces are the words up to the end of the entity that ends first, those after it up to the
# end of the other, and the rest. An empty piece is zeros.
#
# Nothing is padded, and the convolution is not computed place by place. It is linear, so what a
# word adds to the filters is a product, computed once for each distinct word of a batch, and a
# place is a sum of rows (3 · width of them, for the word and the two positions). Backward, only
# the places that won a maximum count: 3 per filter and sentence, whatever its length. So both
# gradients are sums of few rows too, and the word table's has only the batch's words.
#
# Shapes: N words of a batch, U distinct words, S sentences, W width of the window, D numbers of a
# word with its positions, H filters, Q rows of products, T words of a block of sentences, G pieces
# (three of each sentence), K numbers of a window (W · D).


PIECES = 3
_BLOCK = 2048  # words of a block


class Pcnn(nn.Module):
    """Reads sentences: features_SF, F = 3 · filters, piece after piece.

    `farthest` is the largest distance with its own position; `width` is odd.
    """

    def __init__(
        self,
        words: int,
        *,
        word_dim: int = 50,
        position_dim: int = 5,
        farthest: int = 60,
        filters: int = 230,
        width: int = 3,
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        self.width, self.activation = width, activation
        self.features = PIECES * filters
        self.word = start_embedding(words, word_dim)
        self.head = start_embedding(2 * farthest + 2, position_dim)
        self.tail = start_embedding(2 * farthest + 2, position_dim)
        wide = word_dim + 2 * position_dim
        self.filters = nn.Parameter(torch.empty(filters, width, wide))
        self.bias = nn.Parameter(torch.zeros(filters))
        bound = (6.0 / (width * (wide + filters))) ** 0.5  # Glorot, of a convolution
        nn.init.uniform_(self.filters, -bound, bound)

    def forward(self, batch: SentenceBatch) -> Tensor:
        """features_SF."""
        if batch.ids_N3.device.type != "cpu":
            return self._activated(self.plainly(batch))
        maxima_SF: Tensor = _Maxima.apply(  # type: ignore[no-untyped-call]
            self.word(batch.distinct_U),
            self.head.weight,
            self.tail.weight,
            self.filters,
            self.bias,
            batch.ids_N3,
            batch.pieces_N,
            len(batch),
            torch.is_grad_enabled(),  # autocast is off inside
        )
        return self._activated(maxima_SF)

    def _activated(self, maxima_SF: Tensor) -> Tensor:
        return torch.tanh(maxima_SF) if self.activation == "tanh" else maxima_SF.relu()

    def plainly(self, batch: SentenceBatch) -> Tensor:
        """maxima_SF by ordinary operations, which suit devices of many small units.

        The same numbers as on the processor, except that ties share a gradient.
        """
        ids_N3, pieces_N = batch.ids_N3, batch.pieces_N
        width, total = self.filters.shape[1], len(pieces_N)
        shifts_W = torch.arange(width, device=ids_N3.device) - width // 2
        near_NW = torch.arange(total, device=ids_N3.device)[:, None] + shifts_W
        there_NW, sentence_N = near_NW.clamp(0, total - 1), pieces_N // PIECES
        inside_NW = (sentence_N[there_NW] == sentence_N[:, None]) & (there_NW == near_NW)
        ids_NW3 = ids_N3[there_NW] * inside_NW[:, :, None]
        tables = (self.word(batch.distinct_U), self.head.weight, self.tail.weight)
        looked = [
            functional.embedding(ids_NW3[:, :, n], table, padding_idx=0)
            for n, table in enumerate(tables)
        ]
        answers_NH = torch.cat(looked, 2).flatten(1) @ self.filters.flatten(1).t()
        groups = PIECES * len(batch)
        places_NH = pieces_N[:, None].expand_as(answers_NH)
        least_GH = answers_NH.new_full((groups, answers_NH.shape[1]), -torch.inf)
        maxima_GH = least_GH.scatter_reduce(0, places_NH, answers_NH, "amax") + self.bias
        empty_GH = least_GH.detach().new_zeros(groups, answers_NH.shape[1])
        empty_GH = empty_GH.index_add(0, pieces_N, torch.ones_like(answers_NH)) == 0
        return maxima_GH.masked_fill(empty_GH, 0.0).view(len(batch), -1)


@dataclass(frozen=True)
class _Block:
    """Some sentences of the batch: their words and pieces, and the numbers of each window."""

    pieces: slice
    ids_TW3: Tensor
    pieces_T: Tensor


class _Maxima(torch.autograd.Function):
    """The largest output of each filter in each piece, plus its bias; 0 in an empty piece.

    Of ties, the last place counts.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        tables, (filters_HWD, bias_H) = given[:3], given[3:5]
        ids_N3, pieces_N, sentences, learns = given[5:]
        rows_QH, from_3 = _products(tables, filters_HWD)
        width = filters_HWD.shape[1]
        maxima_GH = rows_QH.new_empty(PIECES * sentences, len(bias_H))
        winners_GH = torch.empty(maxima_GH.shape, dtype=torch.int64) if learns else None
        steps_W3 = torch.arange(width)[:, None] + from_3
        blocks = list(_blocks(ids_N3, pieces_N, sentences, width))
        for block in blocks:
            asked_TX = (block.ids_TW3 * width + steps_W3).flatten(1)
            answers_TH = functional.embedding_bag(asked_TX, rows_QH, mode="sum")
            best_GH = maxima_GH[block.pieces]
            _largest(answers_TH, block.pieces_T, best_GH)
            if winners_GH is not None:
                _places(answers_TH, block.pieces_T, best_GH, winners_GH[block.pieces])
        empty_G1 = torch.bincount(pieces_N, minlength=len(maxima_GH))[:, None] == 0
        maxima_GH.add_(bias_H).masked_fill_(empty_G1, 0.0)
        if winners_GH is not None:
            ctx.save_for_backward(*tables, filters_HWD, winners_GH, empty_G1)
            ctx.blocks = blocks
        return maxima_GH.view(sentences, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_SF: Tensor) -> tuple[Tensor | None, ...]:
        *tables, filters_HWD, winners_GH, empty_G1 = ctx.saved_tensors
        hidden = len(filters_HWD)
        grads_GH = gradient_SF.reshape(-1, hidden).masked_fill(empty_G1, 0.0)
        filters_HK = filters_HWD.flatten(1)
        of_filters_HK = torch.zeros_like(filters_HK)
        of_tables = [torch.zeros_like(table) for table in tables]
        for block in ctx.blocks:
            won_GH, own_GH = winners_GH[block.pieces], grads_GH[block.pieces]
            flat_X3 = block.ids_TW3.view(-1, 3)
            looked = [table.index_select(0, flat_X3[:, n]) for n, table in enumerate(tables)]
            windows_TK = torch.cat(looked, 1).view(len(block.pieces_T), -1)
            of_filters_HK += _weighted(windows_TK, won_GH.t(), own_GH.t())
            windows_XD = _spread(filters_HK, won_GH, own_GH, len(windows_TK)).view(len(flat_X3), -1)
            parts = torch.split(windows_XD, [table.shape[1] for table in tables], 1)
            for n, (whole, part) in enumerate(zip(of_tables, parts, strict=True)):
                whole.index_add_(0, flat_X3[:, n].contiguous(), part.contiguous())
        for table in of_tables:
            table[0] = 0.0  # the surroundings of a sentence are not learnt
        nothing = (None,) * 4
        return (*of_tables, of_filters_HK.view_as(filters_HWD), grads_GH.sum(0), *nothing)


def _products(tables: tuple[Tensor, ...], filters_HWD: Tensor) -> tuple[Tensor, Tensor]:
    """The contribution of each table's rows to each filter, for each place of the window.

    Rows `from_3[n] + id * W + w` are of row `id` of table `n` at place `w`.
    """
    hidden, width, _ = filters_HWD.shape
    sizes = [table.shape[1] for table in tables]
    firsts = np.cumsum([0, *(len(table) * width for table in tables)]).tolist()
    rows_QH = filters_HWD.new_empty(firsts[-1], hidden)
    parts = torch.split(filters_HWD, sizes, 2)
    for table, part_HWD, first in zip(tables, parts, firsts, strict=False):
        weight_DX = part_HWD.permute(2, 1, 0).reshape(part_HWD.shape[2], -1)
        own_QH = rows_QH[first : first + len(table) * width]
        torch.mm(table, weight_DX, out=own_QH.view(len(table), -1))
    return rows_QH, torch.tensor(firsts[:-1])


def _blocks(ids_N3: Tensor, pieces_N: Tensor, sentences: int, width: int) -> Iterator[_Block]:
    """Blocks of sentences, of about `_BLOCK` words, with the ids of every window; 0 is outside."""
    total = len(pieces_N)
    sentence_N = pieces_N // PIECES
    firsts = torch.searchsorted(sentence_N, torch.arange(sentences + 1)).tolist()
    shifts_W = torch.arange(width) - width // 2
    begin = 0
    while begin < sentences:
        end = begin + 1
        while end < sentences and firsts[end + 1] - firsts[begin] <= _BLOCK:
            end += 1
        words = slice(firsts[begin], firsts[end])
        near_TW = torch.arange(words.start, words.stop)[:, None] + shifts_W
        there_TW = near_TW.clamp(0, total - 1)
        inside_TW = (sentence_N[there_TW] == sentence_N[words, None]) & (there_TW == near_TW)
        ids_TW3 = ids_N3[there_TW] * inside_TW[:, :, None]
        pieces = slice(PIECES * begin, PIECES * end)
        yield _Block(pieces, ids_TW3, pieces_N[words] - pieces.start)
        begin = end


def _largest(answers_TH: Tensor, pieces_T: Tensor, best_GH: Tensor) -> None:
    """Write the largest output of each piece to `out`; minus infinity for an empty piece."""
    best_GH.fill_(-torch.inf)
    best_GH.scatter_reduce_(0, pieces_T[:, None].expand_as(answers_TH), answers_TH, "amax")


def _places(answers_TH: Tensor, pieces_T: Tensor, best_GH: Tensor, won_GH: Tensor) -> None:
    """Write which word of the block gave it; 0 for an empty piece. Overwrites the outputs."""
    places_T1 = torch.arange(len(answers_TH), dtype=answers_TH.dtype)[:, None]
    won_TH = answers_TH.eq_(best_GH.index_select(0, pieces_T)).mul_(places_T1)
    last_GH = torch.zeros_like(best_GH)
    last_GH.scatter_reduce_(0, pieces_T[:, None].expand_as(won_TH), won_TH, "amax")
    won_GH.copy_(last_GH)


def _weighted(rows: Tensor, asked: Tensor, weights: Tensor) -> Tensor:
    """For each row of `asked`, the weighted sum of these rows."""
    return functional.embedding_bag(
        asked.contiguous(), rows, mode="sum", per_sample_weights=weights.contiguous()
    )


def _spread(filters_HK: Tensor, won_GH: Tensor, grads_GH: Tensor, words: int) -> Tensor:
    """gradients_TK: of each word, the sum of the filters that it won for, times their gradients."""
    won_X = won_GH.flatten()
    small = np.uint16 if words <= 2**16 else np.int64  # a type that a stable sort sorts by digits
    order_X = torch.from_numpy(np.argsort(won_X.numpy().astype(small), kind="stable"))
    begins_T = torch.zeros(words, dtype=torch.int64)
    torch.cumsum(torch.bincount(won_X, minlength=words)[:-1], 0, out=begins_T[1:])
    return functional.embedding_bag(
        order_X % len(filters_HK),
        filters_HK,
        begins_T,
        mode="sum",
        per_sample_weights=grads_GH.flatten().index_select(0, order_X),
    )


Denoise = Literal["none", "one", "att", "ave", "att-ra"]


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

    def forward(self, sentences: SentenceBatch | RelationBatch) -> Tensor:
        """logits_SR."""
        logits_SR: Tensor = self.relation(self.dropout(self.reader(sentences)))
        return logits_SR


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


def _of_sentences(model: BagModel, batch: BagBatch) -> Tensor:
    logits_SR: Tensor = model(batch.sentences)
    return logits_SR


def _of_means(model: BagModel, batch: BagBatch) -> Tensor:
    features_SF = model.reader(batch.sentences)
    even_S1 = features_SF.new_zeros(len(features_SF), 1)
    return _of_bags(model, features_SF, even_S1, batch)


def _of_attention(model: BagModel, batch: BagBatch) -> Tensor:
    features_SF = model.reader(batch.sentences)
    queries_SF = model.relation.weight[batch.relations_G[batch.bags_S]]
    return _of_bags(model, features_SF, (features_SF * queries_SF).sum(1, keepdim=True), batch)


def _of_bags(model: BagModel, features_SF: Tensor, scores_S1: Tensor, batch: BagBatch) -> Tensor:
    """logits_GR of bags that are means of their sentences, weighted by the softmax of scores."""
    bags = len(batch.relations_G)
    weights_S1 = _softmax(scores_S1, batch.bags_S, bags)
    bags_GF = _per_bag(features_SF * weights_S1, batch.bags_S, bags, "sum")
    logits_GR: Tensor = model.relation(model.dropout(bags_GF))
    return logits_GR


def _of_relations(model: BagModel, batch: BagBatch) -> Tensor:
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


LOGITS: dict[Denoise, Callable[[BagModel, BagBatch], Tensor]] = {
    "none": _of_sentences,
    "one": _of_sentences,
    "ave": _of_means,
    "att": _of_attention,
    "att-ra": _of_relations,
}
"""The functions that give logits_GR in training.

For "none" and "one" a bag is one sentence, chosen beforehand (`clearest`).
"""


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


SCORES: dict[Denoise, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {
    "none": _highest,
    "one": _highest,
    "ave": _mean,
    "att": _attended,
    "att-ra": _attended_by_all,
}
"""The functions that give scores_GR in 0 to 1 from (said_SR, bias_R, bags_S, number of bags).

said_SR is features_SF · weightᵀ, without the bias: no aggregator needs more of a sentence. Scores
of a bag sum to 1 only under "ave" and "att-ra".
"""


# --- Scores of sentences and bags by a trained model of bags
#
# Shapes: S sentences, G bags, R relations.


EncodedBags = EncodedSentences | EncodedRelations
"""The input of a model of bags: words for a piecewise CNN, word pieces for an encoder."""

_PER_BATCH = 2048  # most padded pieces of a batch
_AT_ONCE = 100_000  # sentences that are scored together


def sentence_probabilities(model: BagModel, encoded: EncodedBags) -> NDArray[np.float32]:
    """p_SR: for each sentence, the probability of every relation."""
    said_SR = torch.from_numpy(layer_outputs(model, encoded)) + home(model.relation.bias)
    found: NDArray[np.float32] = said_SR.softmax(1).numpy()
    return found


def bag_scores(
    model: BagModel, encoded: EncodedBags, groups: Sequence[Rows], *, denoise: Denoise
) -> NDArray[np.float32]:
    """scores_GR between 0 and 1; `groups[g]` are the rows of bag `g`.

    For "none" and "one", each relation's maximum probability over the bag's sentences; for the
    others, see `kinds.bags.model`. Raises DataError if a bag is empty.
    """
    if any(not len(group) for group in groups):
        raise DataError("a bag has no sentence")
    scores_GR = np.zeros((len(groups), len(model.relation.bias)), np.float32)
    if not len(groups):
        return scores_GR
    said_SR = layer_outputs(model, encoded)
    score, bias_R = SCORES[denoise], home(model.relation.bias)
    sizes_G = np.array([len(group) for group in groups])
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes_G) // _AT_ONCE)) + 1
    for numbers in np.split(np.arange(len(groups)), cuts):
        rows_S = np.concatenate([groups[number] for number in numbers])
        bags_S = torch.from_numpy(np.repeat(np.arange(len(numbers)), sizes_G[numbers]))
        own_SR = torch.from_numpy(said_SR[rows_S])
        scores_GR[numbers] = score(own_SR, bias_R, bags_S, len(numbers)).numpy()
    return scores_GR


def layer_outputs(model: BagModel, encoded: EncodedBags) -> NDArray[np.float32]:
    """said_SR: the linear layer's output without its bias."""
    said_SR = np.zeros((len(encoded), len(model.relation.bias)), np.float32)
    batches: Iterator[SentenceBatch | RelationBatch]
    if isinstance(encoded, EncodedSentences):
        batches = predict_sentence_batches(encoded)
    else:
        batches = predict_relation_batches(encoded, pieces_per_batch=most_read(model, _PER_BATCH))
    with predicting(model):
        weight_FR = model.relation.weight.t()
        for batch in batches:
            said_SR[batch.rows_B] = at_home(model.reader(beside(batch, model)) @ weight_FR)
    return said_SR


# --- The trainer of models of bags
#
# Training takes a bag as rows of what `BagTrainer.prepared` made. All sentences of a training bag
# have the same relation, the bag's.
#
# Shapes: S sentences, G bags, R relations.


_MOST = 64  # most sentences of a bag that an encoder is trained on in an epoch


@dataclass(frozen=True, eq=False)
class GroupedBags:
    """Encoded sentences in bags; `groups[g]` are the rows of bag `g`."""

    text: EncodedBags
    groups: Sequence[Rows]

    def __len__(self) -> int:
        return len(self.groups)


@dataclass(frozen=True, eq=False)
class BagBatch:
    """The sentences of some bags; `bags_S` is the bag of each."""

    sentences: SentenceBatch | RelationBatch
    bags_S: Tensor
    relations_G: Tensor

    def __len__(self) -> int:
        return len(self.relations_G)

    @property
    def tokens_B(self) -> Rows:  # noqa: N802
        """The tokens of each bag for an encoder, padding included; a CNN reads any number."""
        if isinstance(self.sentences, SentenceBatch):
            return np.zeros(len(self), np.int64)
        return np.bincount(self.bags_S, self.sentences.tokens_B, len(self)).astype(np.int64)

    def part(self, start: int, end: int) -> BagBatch:
        """Some of its bags, whole."""
        begin, stop = torch.searchsorted(self.bags_S, torch.tensor([start, end])).tolist()
        bags_S, sentences = self.bags_S[begin:stop] - start, self.sentences.part(begin, stop)
        return BagBatch(sentences, bags_S, self.relations_G[start:end])


@dataclass(frozen=True)
class BagTrainer(RowTrainer):
    """Makes and trains models of one form, and turns examples into what they read.

    `source` is the vocabulary of a piecewise CNN, or the encoder that reads. `denoise` says how the
    sentences of a bag are combined in training.

    A batch has bags in random order. With "none" each sentence is a bag of its own. With "one" each
    batch picks the sentence of each bag by the current weights. An encoder trains on at most 64
    sentences of a bag, drawn anew in each epoch; a piecewise CNN on all. Words that do not occur
    stay as they are, even with weight decay; under SGD without momentum, weight decay applies only
    to the words of a batch.
    """

    head: ClassVar[str] = "relation"

    form: Any
    source: Vocabulary | FrozenEncoder
    denoise: Denoise = "none"

    def initial(self, seed: int) -> BagModel:
        """A new model; the seed draws its weights except those that an encoder brings."""
        with seeded(seed):
            model = self._new()
            if isinstance(model.reader, MentionReader):
                tune(model, model.reader.encoder, self._relations.tuning)
        return placed(model.eval())

    def _new(self) -> BagModel:
        form = self.form
        reader: Pcnn | MentionReader
        if isinstance(self.source, FrozenEncoder):
            pool: Pool = form.pool
            reader = MentionReader(self._relations.body(), self.source.dim, pool=pool)
            widen(reader)
        else:
            reader = Pcnn(len(self.source), **form.sizes, activation=form.activation)
        return BagModel(reader, len(form.relations), dropout=form.dropout)

    def prepared(self, examples: Sequence[RelationExample]) -> EncodedBags:
        """The examples, encoded. Raises DataError if one has a relation that is not a class."""
        form = self.form
        if isinstance(self.source, FrozenEncoder):
            return self._relations.prepared(examples)
        return encode_sentences(
            examples,
            words=self.source,
            relations=form.relations,
            how=form.how,
            longest=form.longest,
            farthest=form.sizes["farthest"],
        )

    def featured(self, encoded: EncodedBags, model: BagModel, folder: Path) -> EncodedBags:
        """The examples with what a frozen encoder gives of them, if that is what reads them."""
        if isinstance(encoded, EncodedSentences):
            return encoded
        return self._relations.featured(encoded, model, folder=folder)

    def annotated(self, text: EncodedBags, groups: Sequence[Rows]) -> GroupedBags:
        """Bags of these sentences; `groups[g]` are the rows of bag `g`.

        Raises DataError if a bag is empty.
        """
        if any(not len(group) for group in groups):
            raise DataError("a bag has no sentence")
        if self.denoise == "none":
            groups = [row[None] for group in groups for row in group]
        return GroupedBags(text, groups)

    def epoch(
        self, model: BagModel, own: GroupedBags, *, batch_size: int, random: Random
    ) -> Iterator[BagBatch]:
        """The batches of one epoch; for an encoder, bags of similar size are together."""
        for groups in _dealt(own.text, own.groups, batch_size, random):
            yield self._batch(model, own.text, groups)

    def batch(self, model: Any, text: EncodedBags, rows_B: Rows, *, own: Any = None) -> BagBatch:
        """The bags of these numbers."""
        return self._batch(model, text, [own.groups[row] for row in rows_B])

    def counted(self, batch: BagBatch) -> int:
        """The number of sentences."""
        return len(batch.bags_S)

    def output(self, model: BagModel, batch: BagBatch) -> Tensor:
        """logits_GR of the bags."""
        return LOGITS[self.denoise](model, batch)

    def loss(self, model: BagModel, own: GroupedBags, batch: BagBatch, *, output: Tensor) -> Tensor:
        """loss_G: the negative log-likelihood of each bag's relation."""
        return functional.cross_entropy(output, batch.relations_G, reduction="none")

    def losses(
        self, model: BagModel, own: GroupedBags, batch: BagBatch, *, output: Tensor
    ) -> Parts:
        """The loss of each bag, which is all of the site's own annotation."""
        loss_G = self.loss(model, own, batch, output=output)
        return loss_G, torch.zeros_like(loss_G)

    def bag_losses(
        self, model: BagModel, text: EncodedBags, groups: Sequence[Rows]
    ) -> NDArray[np.float64]:
        """losses_G: what training would lose on each bag, without dropout; all sentences count.

        With "none" it is the mean over the bag's sentences.
        """
        losses_G = np.zeros(len(groups))
        with predicting(model):
            for number, group in enumerate(groups):
                own = self.annotated(text, [group])
                batch = beside(self._batch(model, text, own.groups), model)
                output = self.output(model, batch)
                losses_G[number] = float(home(self.loss(model, own, batch, output=output).mean()))
        return losses_G

    @contextmanager
    def reduced(
        self, model: BagModel, own: GroupedBags, optimiser: Optimiser
    ) -> Iterator[Make | None]:
        """Train only the rows of the table that are read; gives what makes the optimiser."""
        reader, text = model.reader, own.text
        if isinstance(reader, Pcnn) and optimiser.rowwise:
            reader.word.sparse = True
            try:
                yield row_steps
            finally:
                reader.word.sparse = False
            return
        within: AbstractContextManager[None] = nullcontext()
        if isinstance(reader, Pcnn) and isinstance(text, EncodedSentences):
            read = text.only(np.concatenate(own.groups)) if own.groups else text
            within = only_rows(model, reader.word, np.append(read.words_N, PAD))
        elif isinstance(reader, MentionReader) and isinstance(text, EncodedRelations):
            within = pieces_read(model, reader.encoder, text, optimiser=optimiser)
        with within:
            yield None

    def _batch(self, model: BagModel, text: EncodedBags, groups: Sequence[Rows]) -> BagBatch:
        chosen = _chosen(model, text, groups) if self.denoise == "one" else groups
        return _batch(text, chosen)

    @cached_property
    def _relations(self) -> RelationTrainer:
        assert isinstance(self.source, FrozenEncoder)
        return RelationTrainer(self.source, self.form)


def _dealt(
    encoded: EncodedBags, groups: Sequence[Rows], batch_size: int, random: np.random.Generator
) -> Iterator[list[Rows]]:
    """The bags of each batch of an epoch; for an encoder, bags of similar size are together."""
    if isinstance(encoded, EncodedSentences):
        order = random.permutation(len(groups))
        starts = range(0, len(order), batch_size)
        for numbers in joined(order[start : start + batch_size] for start in starts):
            yield [groups[number] for number in numbers]
        return
    lengths_S = encoded.lengths_S
    kept = [
        group if len(group) <= _MOST else np.sort(random.choice(group, _MOST, replace=False))
        for group in groups
    ]
    sizes_G = np.array([len(group) * lengths_S[group].max() for group in kept], np.int64)
    for numbers in shuffled(sizes_G, batch_size, random=random):
        yield [kept[number] for number in numbers]


def _batch(encoded: EncodedBags, groups: Sequence[Rows]) -> BagBatch:
    rows_S = np.concatenate(groups)
    bags_S = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    firsts_G = np.array([group[0] for group in groups])
    relations_G = encoded.relations_S[firsts_G].astype(np.int64)
    sentences = (
        sentence_batch(encoded, rows_S)
        if isinstance(encoded, EncodedSentences)
        else relation_batch(encoded, rows_S)
    )
    return BagBatch(sentences, torch.from_numpy(bags_S), torch.from_numpy(relations_G))


def _chosen(model: BagModel, encoded: EncodedBags, groups: Sequence[Rows]) -> list[Rows]:
    """The clearest sentence of each bag under the model's current weights."""
    found = list(groups)
    several = [number for number, group in enumerate(groups) if len(group) > 1]
    if not several:
        return found
    many = [groups[number] for number in several]
    rows_S = np.concatenate(many)
    bags_S = torch.from_numpy(np.repeat(np.arange(len(many)), [len(group) for group in many]))
    relations_G = torch.from_numpy(encoded.relations_S[[group[0] for group in many]]).long()
    logits_SR = torch.from_numpy(layer_outputs(model, encoded.only(rows_S))) + home(
        model.relation.bias
    )
    best_G = clearest(logits_SR, bags_S, relations_G).numpy()
    for number, place in zip(several, best_G, strict=True):
        found[number] = rows_S[place : place + 1]
    return found
