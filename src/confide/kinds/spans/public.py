"""A public set for the kind that classifies spans: its rows are all runs of words up to a width.

A row has several labels if its span has several types, which share its certainty.

Shapes: T rows of all sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.examples import Span, examples_from, nested_spans
from confide.data.batches.spans import cells_from
from confide.errors import DataError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import carries
from confide.kinds.public import SEVERAL, no_public_set
from confide.kinds.sentences import PublicSentences
from confide.text.document import Document

OUTSIDE = "O"
"""The label of a span that is no entity."""
MOST_SPANS = 1_000_000
"""The largest public set, in spans: each site predicts all in each round."""


@dataclass(frozen=True)
class PublicSpans(PublicSentences):
    """Public sentences without their annotation, of which each span of words is a row."""

    width: int = carries("most words of a span")

    @property
    def rows(self) -> int:
        """The number of spans: each is predicted."""
        return sum(self._each)

    @property
    def row_sentences(self) -> NDArray[np.int64]:
        """For each span the number of its sentence."""
        return np.repeat(np.arange(len(self.sentences)), self._each)

    @property
    def _each(self) -> list[int]:
        return [int(cells_from(len(one), self.width)[-1]) for one in self.sentences]

    def check(self) -> None:
        """Raise Refusal if a sentence or token is empty, or if there are too many spans."""
        if not 0 < self.width <= MOST_SPANS or self.rows > MOST_SPANS:
            raise Refusal("bad-ask")
        super().check()

    def with_sentences(self, sentences: list[list[str]]) -> Self:
        """A set of other sentences, read in the same way."""
        return type(self)(sentences, self.width)

    def told(self, labels: Sequence[str]) -> list[list[Span]]:
        """The spans of each sentence, from the labels of all rows; none without `labels`."""
        found: list[list[Span]] = [[] for _ in self.sentences]
        starts_E1 = np.append(0, np.cumsum(self._each))
        for row, label in enumerate(labels):
            if label != OUTSIDE:
                number = int(np.searchsorted(starts_E1, row, side="right")) - 1
                before_L1 = cells_from(len(self.sentences[number]), self.width)
                place = row - int(starts_E1[number])
                first = int(np.searchsorted(before_L1, place, side="right")) - 1
                end = first + place - int(before_L1[first]) + 1
                found[number] += [(first, end, name) for name in label.split(SEVERAL)]
        return found


def public_spans(
    documents: Sequence[Document], *, width: int, types: Sequence[str]
) -> tuple[PublicSpans, list[str]]:
    """The set as the sites get it, and the label of each span, which sites never get.

    Entities of more words than `width` are left out. Raises SettingsError if there is no sentence
    or too much text, and DataError if an entity has a type that is not among `types`.
    """
    examples, _ = examples_from(documents)
    if not examples:
        raise no_public_set("text with sentences")
    sentences = [list(one.tokens) for one in examples]
    public = PublicSpans(sentences, width)
    if public.rows > MOST_SPANS:
        raise SettingsError(
            "the public set is too large: every site predicts all of its spans in every round",
            expected=f"at most {MOST_SPANS} spans",
            got=f"{public.rows} of at most {width} words",
            fix="name fewer files in [public], take a smaller `share`, or a smaller"
            " `classifier.width`",
        )
    labels: list[str] = []
    for words, spans in zip(sentences, nested_spans(documents), strict=True):
        before_L1, start = cells_from(len(words), width), len(labels)
        labels += [OUTSIDE] * int(before_L1[-1])
        for first, end, name in sorted(set(spans)):
            if name not in types:
                raise DataError(f"the public set has the type {name!r}, which no model learns")
            if end - first <= width:
                row = start + int(before_L1[first]) + end - first - 1
                seen = labels[row]
                labels[row] = name if seen == OUTSIDE else SEVERAL.join((seen, name))
    return public, labels
