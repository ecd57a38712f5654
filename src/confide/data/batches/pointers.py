"""Entities as what a pointing decoder writes: start, end, type of each, then stop.

Symbols are numbered: the types first, then stop, then the words of a window from left to right. An
entity's end is its last word. Entities are written in the order of their start (Wang et al.,
Findings of ACL 2023, Eq. 2). The text itself comes from `data.token_pieces`: windows of long
sentences, the place of each word's first piece, the unknown piece for a word without one.

Annotation comes later and never changes a piece.

Shapes: N symbols of all windows, S windows, B windows of a batch, P pieces, L words, T symbols, D
numbers of an encoder's state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.data.batches.annotation import check_spans
from confide.data.batches.encoding import Bools, Ints
from confide.data.batches.examples import Span
from confide.data.batches.flat import Rows, offsets, padded
from confide.data.batches.tagger import longest_first
from confide.data.batches.token_pieces import PieceBatch, TokenText, token_batch
from confide.errors import DataError

NOTHING = -1


@dataclass(frozen=True, eq=False)
class Pointers:
    """What to write for each window: `symbols_N[from_S1[s]:from_S1[s + 1]]`, stop included.

    `source_N` is false at the symbols of entities that another model found. `left_out` counts
    entities that a decoder has no room for.
    """

    symbols_N: Ints
    source_N: Bools
    from_S1: NDArray[np.int64]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.from_S1) - 1


@dataclass(frozen=True, eq=False)
class PointerBatch(PieceBatch):
    """What a pointing decoder reads and writes. `lengths_B` counts words.

    `symbols_BT` is `NOTHING` in its padding, and empty without annotation. `states_BPD` are the
    encoder's, where they are known already.
    """

    firsts_BL: Tensor
    lengths_B: Tensor
    symbols_BT: Tensor
    source_BT: Tensor
    states_BPD: Tensor | None = None


def pointers(
    text: TokenText,
    spans: Sequence[Sequence[Span]],
    *,
    types: Sequence[str],
    source: Set[str],
    most: int,
) -> Pointers:
    """What to write for each window, with these spans of each example.

    `spans` has the spans of each example, in tokens, without overlap, in any order. `source` are
    the types that the site annotated itself; stop counts as source. If an entity crosses a window's
    border, the part inside is an entity. `most` is how many symbols a decoder can write; a window's
    last entities are left out and counted if it cannot write them all. Raises DataError if a type
    is not in `types`, a span lies outside its example, or the number of examples differs.
    """
    check_spans(spans, text.windows, examples=text.examples)
    _check_types(spans, types)
    numbers = {name: number for number, name in enumerate(types)}
    symbols: list[int] = []
    own: list[bool] = []
    lengths: list[int] = []
    left_out = 0
    for window in text.windows:
        inside = sorted(
            (max(start, window.start) - window.start, min(end, window.end) - window.start, name)
            for start, end, name in spans[window.example]
            if start < window.end and end > window.start
        )
        room = (most - 1) // 3
        left_out += max(0, len(inside) - room)
        for start, end, name in inside[:room]:
            symbols += [len(types) + 1 + start, len(types) + end, numbers[name]]
            own += [name in source] * 3
        symbols.append(len(types))
        own.append(True)
        lengths.append(3 * min(len(inside), room) + 1)
    return Pointers(
        symbols_N=np.array(symbols, np.int32),
        source_N=np.array(own, np.bool_),
        from_S1=offsets(lengths),
        left_out=left_out,
    )


def _check_types(spans: Sequence[Sequence[Span]], types: Sequence[str]) -> None:
    for found in spans:
        for _, _, name in found:
            if name not in types:
                raise DataError(
                    "an entity has a type outside the declared set",
                    expected=", ".join(types) or "no type at all",
                    got=name,
                    fix="add the type, or map it in the site's `tags`",
                )


def spelled(
    symbols: Sequence[int], log_probs: Sequence[float], *, types: Sequence[str]
) -> tuple[list[tuple[Span, float]], int]:
    """The spans that a row of symbols states, by start, with the probability of their symbols.

    Also how many irregular pieces were dropped: a type that does not follow exactly two words, an
    end before its start, words without a type, an entity that overlaps an earlier one.
    """
    found: list[tuple[Span, float]] = []
    irregular, stop = 0, len(types)
    words: list[int] = []
    chance = 0.0
    for symbol, log_prob in zip(symbols, log_probs, strict=True):
        if symbol in (stop, NOTHING):
            break
        chance += log_prob
        if symbol > stop:
            words.append(symbol - stop - 1)
            continue
        if len(words) == 2 and words[0] <= words[1]:
            found.append(((words[0], words[1] + 1, types[symbol]), math.exp(chance)))
        else:
            irregular += 1
        words, chance = [], 0.0
    irregular += bool(words)
    kept: list[tuple[Span, float]] = []
    for span, sure in found:
        if any(span[0] < other[1] and other[0] < span[1] for other, _ in kept):
            irregular += 1
        else:
            kept.append((span, sure))
    return sorted(kept), irregular


def pointer_batches(
    text: TokenText, *, written: Pointers | None = None, pieces_per_batch: int = 2048
) -> Iterator[PointerBatch]:
    """Every window once, longest first, at most `pieces_per_batch` padded pieces in a batch."""
    for rows in longest_first(text.lengths_S, pieces_per_batch):
        yield pointer_batch(text, rows, written=written)


def pointer_batch(
    text: TokenText, rows_B: Rows, *, written: Pointers | None = None
) -> PointerBatch:
    """These windows as one batch, in this order."""
    read = token_batch(text, rows_B)
    symbols_BT = np.zeros((len(rows_B), 0), np.int64)
    source_BT = np.zeros((len(rows_B), 0), np.bool_)
    if written is not None:
        places_BT, inside_BT = padded(written.from_S1, rows_B)
        symbols_BT = np.where(inside_BT, written.symbols_N[places_BT], NOTHING).astype(np.int64)
        source_BT = written.source_N[places_BT] | ~inside_BT
    return PointerBatch(
        rows_B=rows_B,
        ids_BP=read.ids_BP,
        mask_BP=read.mask_BP,
        firsts_BL=read.firsts_BL,
        lengths_B=read.lengths_B,
        symbols_BT=torch.from_numpy(symbols_BT),
        source_BT=torch.from_numpy(source_BT),
    )
