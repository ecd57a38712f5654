"""Batches of similar length, as tensors: the only place where anything is padded.

Shapes: B sentences (windows), L tokens, U distinct words of the batch, C characters of a word,
X contextual features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.data.batches.encoding import Encoded
from confide.data.batches.flat import Rows as Rows
from confide.data.batches.flat import padded, rows_of
from confide.data.batches.least import joined
from confide.data.batches.vocabulary import PAD, UNK

_POOL = 32  # batches that are drawn together and sorted by length


@dataclass(frozen=True, eq=False)
class TaggerBatch:
    """What a tagger reads. Padding is `PAD` (0) everywhere, and tag `O` (0).

    `forms_BL` says which of the batch's distinct words stands where, so that characters are
    worked on once per distinct word. `rows_B` (numpy) are the positions in the `Encoded`.
    """

    rows_B: Rows
    words_BL: Tensor
    lengths_B: Tensor
    mask_BL: Tensor
    forms_BL: Tensor
    characters_UC: Tensor
    character_lengths_U: Tensor
    tags_BL: Tensor
    context_BLX: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return int(self.lengths_B.sum())

    def __len__(self) -> int:
        return len(self.rows_B)

    def part(self, start: int, end: int) -> TaggerBatch:
        """Some of its sentences."""
        return rows_of(self, start, end)


def train_batches(
    encoded: Encoded,
    *,
    batch_size: int,
    seed: int,
    word_dropout: float = 0.0,
    max_tokens: int = 8192,
) -> Iterator[TaggerBatch]:
    """One epoch in random order, each batch of similar lengths; the same seed, the same batches.

    Sentences are shuffled, sorted by length within pools of 32 batches, cut into batches, and the
    batches are shuffled. A batch that would hold more than `max_tokens` padded tokens is split, so
    that very long sentences cannot exhaust memory. `word_dropout` is the share of tokens to read as
    `UNK`, which is how the unknown word is learnt; their characters stay.
    """
    random = np.random.default_rng(seed)
    for rows in shuffled(encoded.lengths_S, batch_size, random=random, max_tokens=max_tokens):
        batch = batch_of(encoded, rows)
        lose_words(batch, random, word_dropout)
        yield batch


def shuffled(
    lengths_S: Rows, batch_size: int, *, random: np.random.Generator, max_tokens: int = 8192
) -> Iterator[Rows]:
    """The rows of each batch of one epoch, as `train_batches` says.

    Where a gradient must cover more rows, short batches are joined to their neighbours.
    """
    order = random.permutation(len(lengths_S))
    pool = batch_size * _POOL
    cuts: list[Rows] = []
    for begin in range(0, len(order), pool):
        rows = order[begin : begin + pool]
        rows = rows[np.argsort(lengths_S[rows], kind="stable")]
        for start in range(0, len(rows), batch_size):
            cuts.extend(_bounded(rows[start : start + batch_size], lengths_S, max_tokens))
    cuts = joined(cuts)
    for index in random.permutation(len(cuts)):
        yield cuts[index]


def drawn_batch(
    encoded: Encoded, size: int, *, seed: int, word_dropout: float = 0.0
) -> TaggerBatch:
    """`size` sentences, drawn by `drawn_rows`."""
    random = np.random.default_rng(seed)
    batch = batch_of(encoded, drawn_rows(encoded.lengths_S, size, random=random))
    lose_words(batch, random, word_dropout)
    return batch


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
