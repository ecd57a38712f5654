"""Noise for a denoising model to remove: text infilling and sentence permutation.

Lewis et al. 2020, "BART", section 2.2. Text infilling: spans of words, their lengths drawn from a
Poisson distribution, are each replaced by one [MASK]; a span of length 0 inserts a [MASK].
Sentence permutation: the sentences of a text in random order.

What the paper leaves open: 30 % of the *words* are masked, as whole words and exactly in
expectation (the count in a short text is rounded up or down at random). Spans and remaining words
are arranged uniformly at random, so two spans may touch. A [MASK] is inserted only if the noised
text stays within `longest`.

Shapes: P pieces of a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Noise:
    """How much noise: the share of words to mask, and the mean length of a span in words.

    `permuted` is the share of texts whose sentences are shuffled.
    """

    masked: float = 0.3
    mean_span: float = 3.0
    permuted: float = 1.0


class Passage(NamedTuple):
    """Text as pieces: their numbers, and which of them begin a word or a sentence."""

    ids_P: Ints
    words_P: Flags
    sentences_P: Flags


def noised(
    passage: Passage, noise: Noise, *, mask: int, longest: int, rng: np.random.Generator
) -> Ints:
    """The passage's pieces, its sentences permuted first, then infilled; at most `longest`."""
    if rng.random() < noise.permuted:
        passage = permuted(passage, rng)
    return infilled(passage, noise, mask=mask, longest=longest, rng=rng)


def permuted(passage: Passage, rng: np.random.Generator) -> Passage:
    """The same sentences in a random order, all equally likely."""
    starts = np.flatnonzero(passage.sentences_P)
    if len(starts) < 2:
        return passage
    sentences = np.split(np.arange(len(passage.ids_P)), starts[1:])
    order_P = np.concatenate([sentences[place] for place in rng.permutation(len(sentences))])
    return Passage(*(part[order_P] for part in passage))


def infilled(
    passage: Passage, noise: Noise, *, mask: int, longest: int, rng: np.random.Generator
) -> Ints:
    """The pieces with each span of words replaced by one `mask`, in the order of the text."""
    starts = np.flatnonzero(passage.words_P)
    if not len(starts):
        return passage.ids_P
    spans, inserts = _span_lengths(len(starts), noise, rng)
    ends = np.append(starts[1:], len(passage.ids_P))
    kept = len(starts) - sum(spans)
    items = np.array([-1] * kept + spans, np.int64)  # -1: a word that stays
    rng.shuffle(items)
    written: list[Ints] = []
    word = 0
    for length in items:
        if length < 0:
            written.append(passage.ids_P[starts[word] : ends[word]])
            word += 1
        else:
            written.append(np.array([mask], np.int32))
            word += int(length)
    room = longest - sum(map(len, written))
    for _ in range(min(inserts, room)):
        written.insert(int(rng.integers(len(written) + 1)), np.array([mask], np.int32))
    return np.concatenate(written)


def _span_lengths(words: int, noise: Noise, rng: np.random.Generator) -> tuple[list[int], int]:
    """Lengths of spans that cover the share of words, and how many of length 0 were drawn."""
    exact = noise.masked * words
    budget = int(exact) + int(rng.random() < exact - int(exact))
    spans: list[int] = []
    inserts = 0
    while budget > 0:
        length = min(int(rng.poisson(noise.mean_span)), budget)
        if length:
            spans.append(length)
            budget -= length
        else:
            inserts += 1
    return spans, inserts
