"""The models of a tagger, BiLSTM-CNNs-CRF or linear, their layers and their batches.

The layers: an LSTM for each direction, locked dropout, characters to words.

Sequences are not packed: packing leaves a CPU's fast path. The backward direction is an ordinary
LSTM over length-reversed sentences, so padding always comes last.

Shapes: B sentences, L tokens, U distinct words, C characters, D features in, H features out.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from confide.training.batches import Encoded, PaddedBatch, Rows, joined, padded
from confide.training.crf import CRF, Posterior, Rules, Scores, mirrored, posterior, viterbi
from confide.training.vocabulary import PAD, UNK


class _Mirror(torch.autograd.Function):
    """Reverses sentences. It is its own inverse, so the gradient is the same operation."""

    @staticmethod
    def forward(ctx: Any, values_BLD: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        turned: Tensor = values_BLD.flatten(0, 1).index_select(0, rows)
        return turned.view(values_BLD.shape)

    @staticmethod
    def backward(ctx: Any, gradient_BLD: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        turned = gradient_BLD.reshape(-1, gradient_BLD.shape[2]).index_select(0, rows)
        return turned.view(gradient_BLD.shape), None


def mirror(values_BLD: Tensor, lengths_B: Tensor) -> Tensor:
    """Each sentence from its last token to its first; padding stays in place."""
    return _turned(values_BLD, mirrored(lengths_B, values_BLD.shape[1]))


def _turned(values_BLD: Tensor, places_BL: Tensor) -> Tensor:
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if tracing or torch.compiler.is_exporting():  # no function of our own in a graph
        return values_BLD.gather(1, places_BL[:, :, None].expand_as(values_BLD))
    batch, length, _ = values_BLD.shape
    rows = (places_BL + length * torch.arange(batch, device=places_BL.device)[:, None]).flatten()
    turned: Tensor = _Mirror.apply(values_BLD, rows)  # type: ignore[no-untyped-call]
    return turned


class LockedDropout(nn.Module):
    """Dropout with one mask per sentence, the same for all tokens (Gal & Ghahramani 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values_BLD: Tensor) -> Tensor:
        """The values, in training with some features of each sentence set to zero."""
        if not self.training or self.rate == 0.0:
            return values_BLD
        shape = (values_BLD.shape[0], 1, values_BLD.shape[2])
        keep_B1D = torch.empty(shape, device=values_BLD.device)
        keep_B1D.bernoulli_(1.0 - self.rate).div_(1.0 - self.rate)
        return values_BLD * keep_B1D.to(values_BLD.dtype)


class BiLSTM(nn.Module):
    """Stacked bidirectional LSTM: BLD -> BL(2H), the same numbers as a packed `nn.LSTM`.

    `forwards` and `backwards` hold one LSTM per layer; dropout is applied between layers.
    """

    def __init__(
        self, features: int, hidden: int, *, layers: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = [features] + [2 * hidden] * (layers - 1)
        self.forwards = nn.ModuleList(nn.LSTM(w, hidden, batch_first=True) for w in widths)
        self.backwards = nn.ModuleList(nn.LSTM(w, hidden, batch_first=True) for w in widths)
        self.between = LockedDropout(dropout)
        for name, parameter in self.named_parameters():
            _start_lstm(name, parameter)

    def forward(self, values_BLD: Tensor, lengths_B: Tensor) -> Tensor:
        """Both directions of the last layer side by side; values in the padding are meaningless."""
        places_BL = mirrored(lengths_B, values_BLD.shape[1])
        for layer, (ahead, back) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if layer:
                values_BLD = self.between(values_BLD)
            ahead_BLH, _ = ahead(values_BLD)
            back_BLH, _ = back(_turned(values_BLD, places_BL))
            values_BLD = torch.cat([ahead_BLH, _turned(back_BLH, places_BL)], 2)
        return values_BLD


_DRAWN: ContextVar[bool] = ContextVar("drawn", default=True)


@contextmanager
def undrawn() -> Iterator[None]:
    """Draw no weights of LSTMs made within, as all will be set: it takes longer than to open a run.

    Orthogonal ones are a matrix decomposition each.
    """
    before = _DRAWN.set(False)
    try:
        yield
    finally:
        _DRAWN.reset(before)


def _start_lstm(name: str, parameter: nn.Parameter) -> None:
    """Glorot for input weights, orthogonal for recurrent ones, forget gates open (bias 1)."""
    if not _DRAWN.get():
        return
    with torch.no_grad():
        gates = parameter.chunk(4)
        if "weight_ih" in name:
            for gate in gates:
                nn.init.xavier_uniform_(gate)
        elif "weight_hh" in name:
            for gate in gates:
                nn.init.orthogonal_(gate)
        else:
            parameter.zero_()
            if "bias_ih" in name:
                gates[1].fill_(1.0)


class CharacterCNN(nn.Module):
    """Words from characters: embedding, convolution, maximum over places (Ma & Hovy 2016, 2.1)."""

    def __init__(
        self, characters: int, dim: int, *, filters: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = start_embedding(characters, dim)
        self.convolution = nn.Conv1d(dim, filters, width, padding=width // 2)
        self.dropout = LockedDropout(dropout)
        self.features = filters
        nn.init.xavier_uniform_(self.convolution.weight)
        nn.init.zeros_(self.convolution.bias)  # type: ignore[arg-type]

    def forward(self, characters_UC: Tensor, lengths_U: Tensor) -> Tensor:
        """words_UH: the maximum of each filter over a word."""
        if not torch.is_inference_mode_enabled() or characters_UC.device.type != "cpu":
            return self._spelled(characters_UC, lengths_U)
        words_UH = self.convolution.weight.new_empty(len(characters_UC), self.features)
        for rows_U, longest in _alike(lengths_U):
            found_UH = self._spelled(characters_UC[rows_U, :longest], lengths_U[rows_U])
            words_UH[rows_U] = found_UH
        return words_UH

    def _spelled(self, characters_UC: Tensor, lengths_U: Tensor) -> Tensor:
        values_UDC = self.dropout(self.embedding(characters_UC)).transpose(1, 2)
        answers_UHC = self.convolution(values_UDC)[:, :, : characters_UC.shape[1]]
        outside_UC = _steps(characters_UC.shape[1], lengths_U) >= lengths_U[:, None]
        words_UH: Tensor = answers_UHC.masked_fill(outside_UC[:, None, :], -math.inf).amax(2)
        return words_UH


_FEWEST_ALIKE = 16


def _alike(lengths_U: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Words of similar length, as rows, and the length of the longest that there may be.

    Most words are short, and one long word would pad all of them to its length.
    """
    order_U = lengths_U.argsort(stable=True)
    ordered = lengths_U[order_U].tolist()
    start, longest = 0, 4
    while start < len(ordered):
        end = bisect_right(ordered, longest, start)
        rest = len(ordered) - end
        if longest >= ordered[-1] or (end - start >= _FEWEST_ALIKE and rest >= _FEWEST_ALIKE):
            yield order_U[start:end], longest
            start = end
        longest *= 2


class CharacterBiLSTM(nn.Module):
    """Words from characters: the last state of each direction (Lample et al. 2016, 4.1)."""

    def __init__(self, characters: int, dim: int, *, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embedding = start_embedding(characters, dim)
        self.bilstm = BiLSTM(dim, hidden)
        self.dropout = LockedDropout(dropout)
        self.features = 2 * hidden

    def forward(self, characters_UC: Tensor, lengths_U: Tensor) -> Tensor:
        """words_UH: forward direction at the last character, backward direction at the first."""
        values_UCD = self.dropout(self.embedding(characters_UC))
        states_UCH: Tensor = self.bilstm(values_UCD, lengths_U)
        half = states_UCH.shape[2] // 2
        ahead_UH = states_UCH[_steps(lengths_U.shape[0], lengths_U), lengths_U - 1, :half]
        return torch.cat([ahead_UH, states_UCH[:, 0, half:]], 1)


class WordCNN(nn.Module):
    """Parallel convolutions over the words of a sentence, one for each width (Kim 2014).

    Sentences are zero-padded on both sides, so their values do not depend on their batch. Widths
    are odd.
    """

    def __init__(self, features: int, *, filters: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(features, filters, width, padding=width // 2) for width in widths
        )
        self.features = filters * len(widths)
        for name, parameter in self.named_parameters():
            start = nn.init.zeros_ if name.endswith("bias") else nn.init.xavier_uniform_
            start(parameter)

    def forward(self, values_BLD: Tensor, lengths_B: Tensor) -> Tensor:
        """values_BLH, rectified; those in the padding are meaningless."""
        inside_BL1 = (_steps(values_BLD.shape[1], lengths_B) < lengths_B[:, None])[:, :, None]
        values_BDL = (values_BLD * inside_BL1).transpose(1, 2)
        answers_BHL = torch.cat([convolve(values_BDL) for convolve in self.convolutions], 1)
        return torch.relu(answers_BHL).transpose(1, 2)


def _steps(count: int, beside: Tensor) -> Tensor:
    return torch.arange(count, device=beside.device)


def start_embedding(rows: int, dim: int) -> nn.Embedding:
    """From scratch: uniform in ±sqrt(3 / dim) (Ma & Hovy 2016, 3.1); row 0 is padding."""
    embedding = nn.Embedding(rows, dim, padding_idx=0)
    bound = math.sqrt(3.0 / dim)
    with torch.no_grad():
        embedding.weight.uniform_(-bound, bound)
        embedding.weight[0].zero_()
    return embedding


# --- BiLSTM-CNNs-CRF
#
# Words and characters in, emissions out (Ma & Hovy 2016, Fig. 3).
#
#     word embedding ⊕ characters (CNN or BiLSTM) ⊕ contextual features
#         → word CNN → BiLSTM → linear → CRF, with dropout after each
#
# Contextual features and the word CNN are those of Ge et al. 2020, 3.1 (FedNER); without them it
# is Ma & Hovy's tagger, and characters, word CNN and BiLSTM can each be left out.
#
# The parts are attributes with fixed names (`PARTS`), so a method can name those that it shares;
# `crf` is the linear layer and the moves: all that depends on the tag set. Contextual features
# have no parameters. Loss, decoding and posterior are functions beside the model, on the same
# `forward`.
#
# Shapes: B sentences, L tokens, U distinct words of the batch, D features, X contextual features,
# Y tags, R rows with an entity.


PARTS = ("word", "character", "cnn", "bilstm", "crf")
"""The parts of a tagger that have parameters, from bottom to top."""


@dataclass(frozen=True)
class TaggerSizes:
    """A tagger's sizes, and its dropout rate.

    `words`, `characters` and `tags` count ids, including those of padding and the unknown.
    `context_dim = 0` means no contextual features; `cnn_filters` is per width of `cnn_widths`, 0
    means no word CNN; `bilstm_layers = 0` means no BiLSTM.
    """

    words: int
    characters: int
    tags: int
    word_dim: int = 100
    character: Literal["cnn", "bilstm", "none"] = "cnn"
    character_dim: int = 30
    character_filters: int = 30
    character_width: int = 3
    character_hidden: int = 25
    context_dim: int = 0
    cnn_filters: int = 0
    cnn_widths: tuple[int, ...] = (3,)
    bilstm_hidden: int = 200
    bilstm_layers: int = 1
    dropout: float = 0.5


class CrfTagger(nn.Module):
    """Any model whose `forward` gives the emissions_BLY of a `TaggerBatch`, and its CRF."""

    crf: CRF


class Tagger(CrfTagger):
    """The model of one tag set; a part that it lacks is None.

    Without `rules` every move between tags is allowed.
    """

    def __init__(self, sizes: TaggerSizes, rules: Rules | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.word = start_embedding(sizes.words, sizes.word_dim)
        self.character = _character_part(sizes)
        width = sizes.word_dim + (self.character.features if self.character else 0)
        width += sizes.context_dim
        self.cnn = None
        if sizes.cnn_filters:
            self.cnn = WordCNN(width, filters=sizes.cnn_filters, widths=sizes.cnn_widths)
            width = self.cnn.features
        self.bilstm = None
        if sizes.bilstm_layers:
            self.bilstm = BiLSTM(
                width, sizes.bilstm_hidden, layers=sizes.bilstm_layers, dropout=sizes.dropout
            )
            width = 2 * sizes.bilstm_hidden
        self.crf = CRF(width, sizes.tags, rules=rules)
        self.dropout = LockedDropout(sizes.dropout)

    def forward(self, batch: TaggerBatch) -> Tensor:
        """emissions_BLY; those in the padding are meaningless."""
        features = [self.word(batch.words_BL)]
        if self.character is not None:
            spelled_UD = self.character(batch.characters_UC, batch.character_lengths_U)
            features.append(spelled_UD[batch.forms_BL])
        if self.sizes.context_dim:
            assert batch.context_BLX is not None
            features.append(batch.context_BLX)
        values_BLD = self.dropout(torch.cat(features, 2))
        if self.cnn is not None:
            values_BLD = self.dropout(self.cnn(values_BLD, batch.lengths_B))
        if self.bilstm is not None:
            values_BLD = self.dropout(self.bilstm(values_BLD, batch.lengths_B))
        emissions_BLY: Tensor = self.crf(values_BLD)
        return emissions_BLY


def _character_part(sizes: TaggerSizes) -> CharacterCNN | CharacterBiLSTM | None:
    if sizes.character == "cnn":
        return CharacterCNN(
            sizes.characters,
            sizes.character_dim,
            filters=sizes.character_filters,
            width=sizes.character_width,
            dropout=sizes.dropout,
        )
    if sizes.character == "bilstm":
        return CharacterBiLSTM(
            sizes.characters,
            sizes.character_dim,
            hidden=sizes.character_hidden,
            dropout=sizes.dropout,
        )
    return None


def decode_with_posterior(
    emissions_BLY: Tensor, scores: Scores, *, lengths_B: Tensor
) -> tuple[Tensor, Tensor, Posterior | None]:
    """The best paths, the rows that have an entity, and the posterior of only these rows.

    The posterior is None if no row has an entity.
    """
    tags_BL = viterbi(emissions_BLY, scores, lengths_B=lengths_B)
    rows_R = tags_BL.any(1).nonzero()[:, 0]
    if not len(rows_R):
        return tags_BL, rows_R, None
    found = posterior(emissions_BLY[rows_R], scores, lengths_B=lengths_B[rows_R])
    return tags_BL, rows_R, found


# --- A linear-chain CRF on hashed features
#
# Its emissions are sums of weights of features (Lafferty et al. 2001).
#
#     emission_t(y) = Σ_o Σ_f w[h(f, o, y)] + v_y · state_t + b_y
#
# where f are the features of the word at place t + o, for o from -2 to 2. A feature comes as a
# keyed number, its *mark*, and h maps mark, offset and tag into a table of a fixed size
# (Weinberger, Dasgupta, Langford, Smola & Attenberg, "Feature Hashing for Large Scale Multitask
# Learning", ICML 2009). So there is no vocabulary to agree on, and the table is as large for one
# type as for twenty: the tags of a type share a row, `O` has one by itself. h depends on a type's
# name and not on its place, so that models of other tag sets mean the same by a row. States of a
# frozen encoder are optional. The loss is convex.
#
# A row is `SPECIALS` plus the highest bits of mark × factor, modulo 2^64, with an odd factor for
# each offset and type (Dietzfelbinger, Hagerup, Katajainen & Penttonen 1997). The two lowest bits
# of a mark say how far it is read.
#
# Shapes: B sentences, L tokens, U distinct words of the batch, C features of a word, N distinct
# features of the batch, T blocks of tags (`O`, then the types), K tags of a type, Y tags, M rows
# of the table that are looked up.


SPECIALS = 2
"""The first rows of every table, which belong to no feature."""
WINDOW = 2
"""The number of neighbours on each side that a word's tag depends on."""
REACH_BITS = 2
EDGE = 1 << REACH_BITS | WINDOW
"""The mark of what lies beyond the ends of a sentence; a keyed one is larger."""


@dataclass(frozen=True)
class LinearSizes:
    """A table of 2^`bits` rows; `prefixes` counts the tags of each of the `types`.

    `context_dim = 0` means no contextual features.
    """

    types: tuple[str, ...]
    prefixes: int
    bits: int = 16
    context_dim: int = 0

    @property
    def tags(self) -> int:
        """The number of tags, `O` included."""
        return 1 + len(self.types) * self.prefixes


class _Lookup(NamedTuple):
    """Which rows of the table a batch reads.

    `rows_M` has the rows of each offset's features in turn, a block of tags after the other;
    `counts` says how many features each offset has. `places_UC` says for each offset which of its
    features a word has; one past the last means none.
    """

    rows_M: Tensor
    counts: list[int]
    places_UC: list[Tensor]


class LinearTagger(CrfTagger):
    """The model of one tag set; all weights are 0 at the start."""

    def __init__(self, sizes: LinearSizes, rules: Rules | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.table = nn.Embedding(2**sizes.bits + SPECIALS, sizes.prefixes, padding_idx=0)
        # without states the layer reads a constant
        self.crf = CRF(sizes.context_dim or 1, sizes.tags, rules=rules)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        factors = [
            [_factor(place, name) for name in ("", *sizes.types)]
            for place in range(-WINDOW, WINDOW + 1)
        ]
        self.register_buffer("factors_OT", torch.tensor(factors), persistent=False)

    def forward(self, batch: TaggerBatch) -> Tensor:
        """emissions_BLY; those in the padding are meaningless."""
        forms_BL = self._forms(batch)
        found = self._lookup(batch)
        values_MK = self.table(found.rows_M)
        blocks = self.get_buffer("factors_OT").shape[1]
        parts = values_MK.split([count * blocks for count in found.counts])
        length = batch.forms_BL.shape[1]
        emissions_BLY: Tensor = self.crf(self._dense(batch))
        for offset, (part_MK, places_UC) in enumerate(zip(parts, found.places_UC, strict=True)):
            part_NY = functional.pad(self._by_tag(part_MK), (0, 0, 0, 1))
            none = len(part_NY) - 1
            words_UY = functional.embedding_bag(places_UC, part_NY, mode="sum", padding_idx=none)
            at_BL = forms_BL[:, offset : offset + length]
            emissions_BLY = emissions_BLY + functional.embedding(at_BL, words_UY)
        return emissions_BLY

    def rows(self, batch: TaggerBatch) -> Tensor:
        """The rows of the table that these sentences read, each once."""
        with torch.no_grad():
            rows_M: Tensor = torch.unique(self._lookup(batch).rows_M)
            return rows_M

    def _forms(self, batch: TaggerBatch) -> Tensor:
        """forms_BL with `WINDOW` more on each side; what lies beyond a sentence is number U."""
        beyond = len(batch.characters_UC)
        steps_L = torch.arange(batch.forms_BL.shape[1], device=batch.lengths_B.device)
        forms_BL = batch.forms_BL.masked_fill(steps_L >= batch.lengths_B[:, None], beyond)
        return functional.pad(forms_BL, (WINDOW, WINDOW), value=beyond)

    def _dense(self, batch: TaggerBatch) -> Tensor:
        if self.sizes.context_dim:
            assert batch.context_BLX is not None
            return batch.context_BLX
        return torch.ones(*batch.forms_BL.shape, 1).to(self.crf.linear.weight)

    def _lookup(self, batch: TaggerBatch) -> _Lookup:
        """The rows of a batch's features; the word beyond the ends has only `EDGE`."""
        marks_UC = batch.characters_UC
        edge_C = functional.pad(marks_UC.new_tensor([EDGE]), (0, marks_UC.shape[1] - 1))
        marks_UC = torch.cat([marks_UC, edge_C[None]])
        marks_N, places_UC = torch.unique(marks_UC, return_inverse=True)
        reach_N = (marks_N & (2**REACH_BITS - 1)).masked_fill(marks_N == 0, -1)
        factors_OT = self.get_buffer("factors_OT")
        rows, counts, places = [], [], []
        for offset in range(-WINDOW, WINDOW + 1):
            read_N = reach_N >= abs(offset)
            rows.append(self._rows_of(marks_N[read_N], factors_OT[offset + WINDOW]))
            counts.append(len(rows[-1]))
            numbers_N = torch.where(read_N, read_N.cumsum(0) - 1, counts[-1])
            places.append(numbers_N[places_UC])
        return _Lookup(torch.cat([part.flatten() for part in rows]), counts, places)

    def _rows_of(self, marks_N: Tensor, factor_T: Tensor) -> Tensor:
        bits = self.sizes.bits
        hashed_NT = marks_N[:, None] * factor_T
        rows_NT: Tensor = (hashed_NT >> (64 - bits) & (2**bits - 1)) + SPECIALS
        return rows_NT

    def _by_tag(self, values_MK: Tensor) -> Tensor:
        """values_NY of N features, from those of their blocks."""
        blocks, prefixes = 1 + len(self.sizes.types), self.sizes.prefixes
        values_NTK = values_MK.view(-1, blocks, prefixes)
        return torch.cat([values_NTK[:, 0, :1], values_NTK[:, 1:].flatten(1)], 1)


def _factor(place: int, name: str) -> int:
    """The odd factor of an offset and a type; `O` is the type without a name."""
    found = hashlib.blake2b(f"{place} {name}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(found.digest(), "big", signed=True) | 1


# --- Batches of similar length, as tensors
#
# The only place where anything is padded.
#
# Shapes: B sentences (windows), L tokens, U distinct words of the batch, C characters of a word,
# X contextual features.


_POOL = 32  # batches that are drawn together and sorted by length


@dataclass(frozen=True, eq=False)
class TaggerBatch(PaddedBatch):
    """A batch for a tagger. Padding is `PAD` (0) everywhere, and tag `O` (0).

    `forms_BL` says which of the batch's distinct words stands where, so that characters are
    worked on once per distinct word.
    """

    words_BL: Tensor
    lengths_B: Tensor
    mask_BL: Tensor
    forms_BL: Tensor
    characters_UC: Tensor
    character_lengths_U: Tensor
    tags_BL: Tensor
    context_BLX: Tensor | None = None


def shuffled(lengths_S: Rows, batch_size: int, *, random: np.random.Generator) -> Iterator[Rows]:
    """The rows of each batch of one epoch in random order, each batch of similar lengths.

    Rows are shuffled, sorted by length within pools of 32 batches, cut into batches, and the
    batches are shuffled. All have `batch_size` rows but the last of each pool. Where a gradient
    must cover more rows, short batches are joined to their neighbours.
    """
    order = random.permutation(len(lengths_S))
    pool = batch_size * _POOL
    batches: list[Rows] = []
    for begin in range(0, len(order), pool):
        rows = order[begin : begin + pool]
        rows = rows[np.argsort(lengths_S[rows], kind="stable")]
        batches.extend(rows[n : n + batch_size] for n in range(0, len(rows), batch_size))
    batches = joined(batches)
    for index in random.permutation(len(batches)):
        yield batches[index]


def drawn_rows(lengths_S: Rows, size: int, *, random: np.random.Generator) -> Rows:
    """`size` rows (all, if there are fewer), drawn so that each has the same chance.

    They are neighbours in a ring sorted by length, with ties broken at random: the longest are
    followed by the shortest. So their lengths are similar in all but a few draws.
    """
    order = np.lexsort((random.random(len(lengths_S)), lengths_S))
    places = np.arange(min(size, len(order))) + random.integers(len(order))
    found: Rows = np.sort(order[places % len(order)])
    return found


def predict_batches(encoded: Encoded, *, tokens_per_batch: int = 4096) -> Iterator[TaggerBatch]:
    """Every window once, longest first, at most `tokens_per_batch` padded tokens in a batch."""
    for rows in longest_first(encoded.lengths_S, tokens_per_batch):
        yield batch_of(encoded, rows)


def longest_first(lengths_S: Rows, max_tokens: int) -> Iterator[Rows]:
    """The rows of each batch, as `predict_batches` says."""
    return _bounded(np.argsort(-lengths_S, kind="stable"), lengths_S, max_tokens)


def batch_of(encoded: Encoded, rows_B: Rows) -> TaggerBatch:
    """These windows as one batch, in this order."""
    lengths_B = encoded.lengths_S[rows_B]
    places_BL, mask_BL = padded(encoded.tokens_from_S1, rows_B)
    forms_U, spread = np.unique(encoded.forms_N[places_BL][mask_BL], return_inverse=True)
    forms_BL = np.zeros(mask_BL.shape, np.int64)
    forms_BL[mask_BL] = spread
    words_BL = np.where(mask_BL, encoded.words_F[forms_U][forms_BL], PAD)
    spelled_UC, inside_UC = padded(encoded.characters_from_F1, forms_U)
    characters_UC = np.zeros(inside_UC.shape, np.int64)
    if encoded.characters_M.size:
        characters_UC = np.where(inside_UC, encoded.characters_M[spelled_UC], PAD).astype(np.int64)
    return TaggerBatch(
        rows_B=rows_B,
        words_BL=torch.from_numpy(words_BL.astype(np.int64)),
        lengths_B=torch.from_numpy(lengths_B),
        mask_BL=torch.from_numpy(mask_BL),
        forms_BL=torch.from_numpy(forms_BL),
        characters_UC=torch.from_numpy(characters_UC),
        character_lengths_U=torch.from_numpy(inside_UC.sum(1)),
        tags_BL=torch.from_numpy(np.where(mask_BL, encoded.tags_N[places_BL], 0).astype(np.int64)),
        context_BLX=_context(encoded, rows_B, mask_BL=mask_BL),
    )


def _context(encoded: Encoded, rows_B: Rows, *, mask_BL: NDArray[np.bool_]) -> Tensor | None:
    """The contextual features of the batch's tokens, 0 in the padding."""
    if encoded.context_TX is None or encoded.context_from_S is None:
        return None
    values_BLX = np.zeros((*mask_BL.shape, encoded.context_TX.shape[1]), np.float32)
    steps_L = np.arange(mask_BL.shape[1])
    rows_BL = encoded.context_from_S[rows_B][:, None] + steps_L
    values_BLX[mask_BL] = encoded.context_TX[rows_BL[mask_BL]]
    return torch.from_numpy(values_BLX)


def lose_words(batch: TaggerBatch, random: np.random.Generator, share: float) -> None:
    """Make a share of the words `UNK`."""
    if share > 0.0:
        lost_BL = random.random(batch.words_BL.shape) < share
        batch.words_BL[torch.from_numpy(lost_BL) & batch.mask_BL] = UNK


def _bounded(rows: Rows, lengths_S: Rows, max_tokens: int) -> Iterator[Rows]:
    """The rows cut where rows times their longest would be more than `max_tokens`."""
    start, longest = 0, 0
    for place, length in enumerate(lengths_S[rows].tolist()):
        grown = max(longest, length)
        if place > start and grown * (place - start + 1) > max_tokens:
            yield rows[start:place]
            start, grown = place, length
        longest = grown
    if start < len(rows):
        yield rows[start:]
