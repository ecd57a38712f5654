"""From sentences to an encoder's word pieces, for a classifier of words.

A sentence of more pieces than the encoder reads at once is cut between words into windows that
overlap by about a quarter; an entity belongs to the window that owns its first token, as in
`data.encoding`. A word without a piece (a control character, an unusual space) is read as the
unknown piece. A word longer than a quarter of a window is cut to that many pieces.

Annotation comes later (`data.annotation`) and never changes a piece.

Shapes: N pieces of all windows, W words of all windows, S windows, B windows of a batch, P pieces,
L words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.data.batches.annotation import annotation, of_rows
from confide.data.batches.encoding import Bools, Ints, TagSet, Window
from confide.data.batches.examples import Example, Span
from confide.data.batches.flat import Rows, offsets, padded, rows_of
from confide.data.batches.tagger import longest_first
from confide.errors import DataError

Cut = Callable[[Sequence[Sequence[str]]], list[list[list[int]]]]
"""Sentences to the numbers of each word's pieces, without special ones."""

LEAST = 8
"""The fewest pieces between the special ones; a smaller window leaves no context."""


@dataclass(frozen=True)
class Pieces:
    """How an encoder reads: the special pieces around a text, and those for padding and unknowns.

    `longest` is how many pieces it reads at once, special ones included.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    unknown: int
    padding: int
    longest: int = 128

    @property
    def room(self) -> int:
        """How many pieces fit between the special ones. Raises DataError if too few."""
        room = self.longest - len(self.before) - len(self.after)
        if room < LEAST:
            raise DataError(
                "the window is too small for a sentence",
                expected=f"at least {LEAST} pieces between the special ones",
                got=str(self.longest),
            )
        return room


@dataclass(frozen=True, eq=False)
class TokenText:
    """Sentences as numbers. Window `s` has the pieces `ids_N[from_S1[s]:from_S1[s + 1]]`.

    `firsts_W[words_from_S1[s]:words_from_S1[s + 1]]` are the places in it of its words' first
    pieces. `cut` lists the examples of more than one window, with their number of tokens.
    `features_WD` are what a frozen encoder gives of each word, if that is known.
    """

    examples: int
    windows: tuple[Window, ...]
    ids_N: Ints
    from_S1: NDArray[np.int64]
    firsts_W: Ints
    words_from_S1: NDArray[np.int64]
    padding: int
    cut: tuple[tuple[int, int], ...] = ()
    features_WD: NDArray[np.float32] | None = None

    @property
    def lengths_S(self) -> NDArray[np.int64]:  # noqa: N802
        """Pieces of each window, special ones included."""
        return np.diff(self.from_S1)

    def __len__(self) -> int:
        return len(self.windows)


@dataclass(frozen=True, eq=False)
class EncodedTokens:
    """A text with the tag of each word; `source_W` is false where another model found an entity.

    `open_Y`: the tags that a word outside all entities may have as far as the site knows.
    """

    text: TokenText
    tags_W: Ints
    source_W: Bools
    open_Y: Bools

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True, eq=False)
class PieceBatch:
    """What an encoder reads; `mask_BP` is None if nothing is padded.

    `rows_B` (numpy) are the positions in the encoded text.
    """

    rows_B: Rows
    ids_BP: Tensor
    mask_BP: Tensor | None

    @property
    def tokens(self) -> int:
        """Pieces without padding."""
        return self.ids_BP.numel() if self.mask_BP is None else int(self.mask_BP.sum())

    def __len__(self) -> int:
        return len(self.rows_B)

    def part(self, start: int, end: int) -> Self:
        """Some of its rows."""
        return rows_of(self, start, end)


@dataclass(frozen=True, eq=False)
class TokenBatch(PieceBatch):
    """What a token classifier reads; `lengths_B` counts words. Unannotated, all tags are 0."""

    firsts_BL: Tensor
    lengths_B: Tensor
    tags_BL: Tensor
    source_BL: Tensor
    features_BLD: Tensor | None = None


def token_text(examples: Sequence[Example], *, pieces: Pieces, cut: Cut) -> TokenText:
    """Every word as pieces, whatever the examples' spans. Sentences without a word have no row."""
    room = pieces.room
    most = room // 4
    windows: list[Window] = []
    long: list[tuple[int, int]] = []
    ids: list[int] = []
    firsts: list[int] = []
    lengths: list[int] = []
    for number, words in enumerate(cut([example.tokens for example in examples])):
        words = [word[:most] or [pieces.unknown] for word in words]
        found = list(_windows(number, [len(word) for word in words], room))
        if len(found) > 1:
            long.append((number, len(words)))
        windows += found
        for window in found:
            place = len(pieces.before)
            ids += pieces.before
            for word in words[window.start : window.end]:
                firsts.append(place)
                ids += word
                place += len(word)
            ids += pieces.after
            lengths.append(place + len(pieces.after))
    return TokenText(
        examples=len(examples),
        windows=tuple(windows),
        ids_N=np.array(ids, np.int32),
        from_S1=offsets(lengths),
        firsts_W=np.array(firsts, np.int32),
        words_from_S1=offsets([window.end - window.start for window in windows]),
        padding=pieces.padding,
        cut=tuple(long),
    )


def annotated_tokens(
    text: TokenText, spans: Sequence[Sequence[Span]], *, tags: TagSet, source: Set[str]
) -> EncodedTokens:
    """The text with these spans of each example. Raises DataError as `annotation` does."""
    found = annotation(text.windows, spans, examples=text.examples, tags=tags, source=source)
    return EncodedTokens(text, *found)


def predict_token_batches(
    text: TokenText, *, annotated: EncodedTokens | None = None, pieces_per_batch: int = 2048
) -> Iterator[TokenBatch]:
    """Every window once, longest first, at most `pieces_per_batch` padded pieces in a batch."""
    for rows in longest_first(text.lengths_S, pieces_per_batch):
        yield token_batch(text, rows, annotated=annotated)


def token_batch(
    text: TokenText, rows_B: Rows, *, annotated: EncodedTokens | None = None
) -> TokenBatch:
    """These windows as one batch, in this order."""
    words_BL, inside_BL = padded(text.words_from_S1, rows_B)
    tags_BL = np.zeros(inside_BL.shape, np.int64)
    source_BL = inside_BL
    if annotated is not None:
        tags_BL = np.where(inside_BL, annotated.tags_W[words_BL], 0).astype(np.int64)
        source_BL = of_rows(annotated.source_W, text.words_from_S1, rows_B)
    ids_BP, mask_BP = pieces_of(text.ids_N, text.from_S1, rows_B, padding=text.padding)
    return TokenBatch(
        rows_B=rows_B,
        ids_BP=ids_BP,
        mask_BP=mask_BP,
        firsts_BL=torch.from_numpy(
            np.where(inside_BL, text.firsts_W[words_BL], 0).astype(np.int64)
        ),
        lengths_B=torch.from_numpy(inside_BL.sum(1)),
        tags_BL=torch.from_numpy(tags_BL),
        source_BL=torch.from_numpy(source_BL),
        features_BLD=_features(text, words_BL, inside_BL),
    )


def _features(text: TokenText, words_BL: Rows, inside_BL: Bools) -> Tensor | None:
    """The features of the batch's words, 0 in the padding."""
    if text.features_WD is None:
        return None
    values_BLD = np.zeros((*inside_BL.shape, text.features_WD.shape[1]), np.float32)
    values_BLD[inside_BL] = text.features_WD[words_BL[inside_BL]]
    return torch.from_numpy(values_BLD)


def pieces_of(
    ids_N: Ints, from_S1: Rows, rows_B: Rows, *, padding: int
) -> tuple[Tensor, Tensor | None]:
    """ids_BP of these rows, and the mask, which is None if nothing is padded."""
    places_BP, real_BP = padded(from_S1, rows_B)
    ids_BP = np.where(real_BP, ids_N[places_BP], padding).astype(np.int64)
    mask_BP = None if real_BP.all() else torch.from_numpy(real_BP.astype(np.int64))
    return torch.from_numpy(ids_BP), mask_BP


# --- windows --------------------------------------------------------------------------------


def _windows(example: int, lengths: Sequence[int], room: int) -> Iterator[Window]:
    """Windows of words whose pieces fit; none for no word.

    Neighbours share as many words as fit into a quarter; each owns half of them. `lengths`: pieces
    of each word, at most a quarter of the room.
    """
    ends = np.cumsum(lengths)  # pieces up to and with each word
    start = own_start = pieces = 0
    while start < len(lengths):
        end = int(np.searchsorted(ends, pieces + room, side="right"))
        if end == len(lengths):
            yield Window(example, start, end, own_start, end)
            return
        after = int(np.searchsorted(ends, ends[end - 1] - room // 4, side="left")) + 1
        own_end = (after + end + 1) // 2
        yield Window(example, start, end, own_start, own_end)
        start, own_start, pieces = after, own_end, int(ends[after - 1])
