"""Annotation of spans that may share words, laid over text that is already numbers.

Shapes: S windows, C annotated cells of all windows (4: first word and last word of the window,
type, 1 if the site annotated it), B windows of a batch, N spans of a row (first word, then width),
Y types.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.annotation import check_spans
from confide.data.batches.examples import Span
from confide.data.batches.flat import Rows, offsets
from confide.data.batches.token_pieces import TokenText

Cells = NDArray[np.int32]
_USUAL = 256
"""What is worked out for sentences of no more words is kept."""


@dataclass(frozen=True, eq=False)
class EncodedSpans:
    """A text with its annotated spans. `own_Y`: the types that the site annotates itself.

    `left_out` counts spans that no row can learn: longer than `width`, or across a window's border.
    """

    text: TokenText
    cells_C4: Cells
    from_S1: NDArray[np.int64]
    own_Y: NDArray[np.bool_]
    width: int
    left_out: int = field(default=0)

    def __len__(self) -> int:
        return len(self.text)


def annotated_spans(
    text: TokenText,
    spans: Sequence[Sequence[Span]],
    *,
    types: Sequence[str],
    source: Set[str],
    width: int,
) -> EncodedSpans:
    """The text with these spans of each example, which may share words.

    Raises DataError if a span lies outside its example, or the number of examples differs.
    """
    check_spans(spans, text.windows, examples=text.examples)
    number = {name: place for place, name in enumerate(types)}
    cells: list[tuple[int, int, int, int]] = []
    counts: list[int] = []
    learnt: set[tuple[int, Span]] = set()
    for window in text.windows:
        before = len(cells)
        for span in spans[window.example]:
            start, end, name = span
            fits = window.start <= start and end <= window.end and end - start <= width
            if fits:
                first, last = start - window.start, end - window.start - 1
                cells.append((first, last, number[name], int(name in source)))
                learnt.add((window.example, span))
        counts.append(len(cells) - before)
    total = sum(len(set(own)) for own in spans)
    return EncodedSpans(
        text,
        cells_C4=np.array(cells, np.int32).reshape(-1, 4),
        from_S1=offsets(counts),
        own_Y=np.array([name in source for name in types]),
        width=width,
        left_out=total - len(learnt),
    )


def gold_of(encoded: EncodedSpans, rows_B: Rows, *, words: int) -> NDArray[np.float32]:
    """gold_BNY of these rows, padded to this many words: 1 where a span has the type."""
    gold = np.zeros((len(rows_B), words, encoded.width, len(encoded.own_Y)), np.float32)
    for place, row in enumerate(rows_B):
        cells = encoded.cells_C4[encoded.from_S1[row] : encoded.from_S1[row + 1]]
        gold[place, cells[:, 0], cells[:, 1] - cells[:, 0], cells[:, 2]] = 1.0
    return gold.reshape(len(rows_B), words * encoded.width, -1)


def cells_from(words: int, width: int) -> NDArray[np.int64]:
    """For each word of a sentence, and its end, the number of spans that begin before it.

    >>> cells_from(3, 2).tolist()
    [0, 2, 4, 5]
    """
    return _cells(words, width) if words <= _USUAL else _cells.__wrapped__(words, width)


@lru_cache(maxsize=4096)
def _cells(words: int, width: int) -> NDArray[np.int64]:
    each_L = np.minimum(width, words - np.arange(words))
    found = np.append(0, np.cumsum(each_L)).astype(np.int64)
    found.setflags(write=False)
    return found
