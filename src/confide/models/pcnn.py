"""A piecewise convolutional network: the features of a sentence about two entities.

Zeng, Liu, Chen & Zhao, "Distant Supervision for Relation Extraction via Piecewise Convolutional
Neural Networks", EMNLP 2015, 3.1-3.3; Sui et al., "Distantly Supervised Relation Extraction in
Federated Settings", Findings of EMNLP 2021:

    word ⊕ position to head ⊕ position to tail → convolution, zeros around the sentence
    → the maximum of each of three pieces → tanh (or ReLU)

The pieces are the words up to the end of the entity that ends first, those after it up to the end
of the other, and the rest. An empty piece is zeros.

Nothing is padded, and the convolution is not computed place by place. It is linear, so what a word
adds to the filters is a product, computed once for each distinct word of a batch, and a place is a
sum of rows (3 · width of them, for the word and the two positions). Backward, only the places that
won a maximum count: 3 per filter and sentence, whatever its length. So both gradients are sums of
few rows too, and the word table's has only the batch's words.

Shapes: N words of a batch, U distinct words, S sentences, W width of the window, D numbers of a
word with its positions, H filters, Q rows of products, T words of a block of sentences, G pieces
(three of each sentence), K numbers of a window (W · D).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.models.autograd import Context
from confide.models.layers import start_embedding

PIECES = 3
_BLOCK = 2048  # words of a block

Activation = Literal["tanh", "relu"]


class SentenceInput(Protocol):
    """Concatenated sentences, as in `confide.data.batches.sentences.SentenceBatch`."""

    @property
    def distinct_U(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def ids_N3(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def pieces_N(self) -> Tensor: ...  # noqa: D102, N802
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class PcnnSizes:
    """`farthest` is the largest distance with its own position; `width` is odd."""

    words: int
    word_dim: int = 50
    position_dim: int = 5
    farthest: int = 60
    filters: int = 230
    width: int = 3
    activation: Activation = "tanh"


class Pcnn(nn.Module):
    """Reads sentences: features_SF, F = 3 · filters, piece after piece."""

    def __init__(self, sizes: PcnnSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.features = PIECES * sizes.filters
        self.word = start_embedding(sizes.words, sizes.word_dim)
        self.head = start_embedding(2 * sizes.farthest + 2, sizes.position_dim)
        self.tail = start_embedding(2 * sizes.farthest + 2, sizes.position_dim)
        wide = sizes.word_dim + 2 * sizes.position_dim
        self.filters = nn.Parameter(torch.empty(sizes.filters, sizes.width, wide))
        self.bias = nn.Parameter(torch.zeros(sizes.filters))
        bound = (6.0 / (sizes.width * (wide + sizes.filters))) ** 0.5  # Glorot, of a convolution
        nn.init.uniform_(self.filters, -bound, bound)

    def forward(self, batch: SentenceInput) -> Tensor:
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
        return torch.tanh(maxima_SF) if self.sizes.activation == "tanh" else maxima_SF.relu()

    def plainly(self, batch: SentenceInput) -> Tensor:
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


class _Kept(Context, Protocol):
    """What the forward pass keeps."""

    blocks: list[_Block]


class _Maxima(torch.autograd.Function):
    """The largest output of each filter in each piece, plus its bias; 0 in an empty piece.

    Of ties, the last place counts.
    """

    @staticmethod
    def forward(ctx: _Kept, *given: Any) -> Tensor:
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
    def backward(ctx: _Kept, gradient_SF: Tensor) -> tuple[Tensor | None, ...]:
        *tables, filters_HWD, winners_GH, empty_G1 = ctx.saved_tensors
        hidden = len(filters_HWD)
        slopes_GH = gradient_SF.reshape(-1, hidden).masked_fill(empty_G1, 0.0)
        filters_HK = filters_HWD.flatten(1)
        of_filters_HK = torch.zeros_like(filters_HK)
        of_tables = [torch.zeros_like(table) for table in tables]
        for block in ctx.blocks:
            won_GH, own_GH = winners_GH[block.pieces], slopes_GH[block.pieces]
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
        return (*of_tables, of_filters_HK.view_as(filters_HWD), slopes_GH.sum(0), *nothing)


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
    told_TH = answers_TH.eq_(best_GH.index_select(0, pieces_T)).mul_(places_T1)
    last_GH = torch.zeros_like(best_GH)
    last_GH.scatter_reduce_(0, pieces_T[:, None].expand_as(told_TH), told_TH, "amax")
    won_GH.copy_(last_GH)


def _weighted(rows: Tensor, asked: Tensor, weights: Tensor) -> Tensor:
    """For each row of `asked`, the weighted sum of these rows."""
    return functional.embedding_bag(
        asked.contiguous(), rows, mode="sum", per_sample_weights=weights.contiguous()
    )


def _spread(filters_HK: Tensor, won_GH: Tensor, slopes_GH: Tensor, words: int) -> Tensor:
    """gradients_TK: for each word, the sum of the filters that it won for, times their slopes."""
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
        per_sample_weights=slopes_GH.flatten().index_select(0, order_X),
    )
