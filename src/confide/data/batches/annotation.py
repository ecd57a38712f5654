"""Annotation laid over text that is already numbers: a tag for each token, and its source.

A token of an entity that the site annotated itself, or of no entity, belongs to the source loss; a
token of an entity that another model found belongs to the target loss (Wang et al. 2023, Eq. 6-9).

Shapes: N tokens of all windows, E examples, S windows, B windows of a batch, L tokens, Y tags.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from confide.data.batches.encoding import Bools, Ints, TagSet, Window
from confide.data.batches.examples import Span
from confide.data.batches.flat import Rows, offsets, padded
from confide.errors import DataError


class Annotation(NamedTuple):
    """`source_N` is false at tokens of entities that another model found.

    `open_Y` is true for the tags that a token outside all entities may have as far as the site
    knows: `O`, and those of the types that it did not annotate.
    """

    tags_N: Ints
    source_N: Bools
    open_Y: Bools


def annotation(
    windows: Sequence[Window],
    spans: Sequence[Sequence[Span]],
    *,
    examples: int,
    tags: TagSet,
    source: Set[str],
) -> Annotation:
    """The tags of every window's tokens, window after window.

    `spans` has the spans of each of the `examples`, in tokens and without overlap. `source` are the
    types that the site annotated itself. If an entity crosses a window's border, the part inside is
    an entity. Raises DataError if a type is not in `tags`, a span lies outside its example, or the
    number of examples differs.
    """
    check_spans(spans, windows, examples=examples)
    starts = offsets([window.end - window.start for window in windows])
    tags_N = np.zeros(starts[-1], np.int32)
    source_N = np.ones(starts[-1], np.bool_)
    for window, begin in zip(windows, starts.tolist(), strict=False):
        for start, end, name in spans[window.example]:
            first, stop = max(start, window.start), min(end, window.end)
            if first < stop:
                shift = begin - window.start
                tags_N[first + shift : stop + shift] = tags.path(name, stop - first)
                source_N[first + shift : stop + shift] = name in source
    lacked = [name not in source for name in tags.types for _ in tags.prefixes]
    return Annotation(tags_N, source_N, np.array([True, *lacked]))


def check_spans(
    spans: Sequence[Sequence[Span]], windows: Sequence[Window], *, examples: int
) -> None:
    """Raise DataError unless there are spans for each example, all inside its sentence."""
    if len(spans) != examples:
        raise DataError(
            "the spans do not belong to these sentences",
            expected=f"{examples} lists of spans",
            got=str(len(spans)),
        )
    words_E = np.zeros(examples, np.int64)
    for window in windows:
        words_E[window.example] = window.end  # the last one ends the sentence
    for example, found in enumerate(spans):
        for start, end, _ in found:
            if not 0 <= start < end <= words_E[example]:
                raise DataError(
                    "a span lies outside its sentence",
                    expected=f"tokens 0 to {words_E[example]}",
                    got=f"{start} to {end}",
                )


def of_rows(values_N: Bools, from_S1: Rows, rows_B: Rows) -> Bools:
    """values_BL of these rows, false in the padding."""
    places_BL, inside_BL = padded(from_S1, rows_B)
    found_BL: Bools = values_N[places_BL] & inside_BL
    return found_BL
