"""A common vocabulary of which no site shows a digest: words are counted in buckets, and summed.

A word's keyed digest begins with the number of its bucket. Each site counts its words by bucket and
says of each bucket whether it has a word there, and only the sums over all sites are seen. A bucket
with enough words at enough sites becomes a row, so words of one bucket share a row: of n words in
2^20 buckets, a share of about n / 2^20 (benchmarks/secure/vocabulary.py).

What leaves a site: two numbers for each bucket, in a sum. What never leaves: a word, its digest,
how many words the site has.

Shapes: B buckets of words, C buckets of characters, V rows of the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.vocabulary import (
    bucket_of,
    bucket_rows,
    count_characters,
    count_words,
    digest,
)
from confide.errors import GuardError
from confide.federation.failures import Refusal
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Shapes, Step, Turn
from confide.kinds.vocabulary import training_examples

WORD_BITS, CHARACTER_BITS = 20, 14
MOST_BITS = 24
Counted = NDArray[np.int32]


@dataclass(frozen=True)
class CountBuckets:
    """Count the words and characters of the training text by bucket."""

    how: str = carries("how words are normalised before counting")
    word_bits: int = carries("words have 2 to the power of this many buckets")
    character_bits: int = carries("characters have 2 to the power of this many; 0: none is counted")


@dataclass(frozen=True)
class BucketsCounted:
    """Counts of the training text by bucket: only their sums over all sites are seen."""

    word_counts_B: Counted = carries("how often words of each bucket occur", rule="min_token_count")
    word_sites_B: Counted = carries("1 for each bucket with a word of the site")
    character_counts_C: Counted = carries(
        "how often characters of each bucket occur", rule="min_token_count"
    )
    character_sites_C: Counted = carries("1 for each bucket with a character of the site")


def size_of(bits: int) -> int:
    """How many buckets so many bits make; none if there are no bits."""
    return 2**bits if bits else 0


def shapes_of_buckets(ask: CountBuckets) -> Shapes:
    """One number for each bucket."""
    words, characters = size_of(ask.word_bits), size_of(ask.character_bits)
    return {
        "word_counts_B": {"": (words,)},
        "word_sites_B": {"": (words,)},
        "character_counts_C": {"": (characters,)},
        "character_sites_C": {"": (characters,)},
    }


def buckets_counted(site: Site, ask: CountBuckets, tokens: Iterable[str]) -> BucketsCounted:
    """The site's counts of these tokens by bucket. Raises Refusal for absurd sizes."""
    if not 0 < ask.word_bits <= MOST_BITS or not 0 <= ask.character_bits <= MOST_BITS:
        raise Refusal("bad-ask")
    every = list(tokens)
    key, floor = site.key(), site.guards.min_token_count
    words = count_words(every, ask.how)  # type: ignore[arg-type]
    spelled: Counter[str] = count_characters(every) if ask.character_bits else Counter()
    return BucketsCounted(
        *_counted(key, "word", words, bits=ask.word_bits, floor=floor),
        *_counted(key, "character", spelled, bits=ask.character_bits, floor=floor),
    )


def _counted(
    key: bytes, kind: str, counts: Counter[str], *, bits: int, floor: int
) -> tuple[Counted, Counted]:
    found = np.zeros(size_of(bits), np.int32)
    for text, count in counts.items():
        if count >= floor:
            found[bucket_of(digest(key, kind, text), bits)] += count
    return found, (found > 0).astype(np.int32)


def count_buckets(
    site: Site, memory: object, ask: CountBuckets, turn: Turn
) -> tuple[BucketsCounted, object]:
    """Count the words and characters of the training sentences."""
    tokens = (token for example in training_examples(site) for token in example.tokens)
    return buckets_counted(site, ask, tokens), memory


def check_buckets(ask: CountBuckets, reply: BucketsCounted) -> None:
    """Raise GuardError unless these are counts, and 1 where there is one."""
    for counts, sites in (
        (reply.word_counts_B, reply.word_sites_B),
        (reply.character_counts_C, reply.character_sites_C),
    ):
        if counts.shape != sites.shape or (counts < 0).any() or (sites != (counts > 0)).any():
            raise GuardError("counts and sites of buckets do not fit")


def as_counted(ask: CountBuckets, reply: BucketsCounted, most: float) -> BucketsCounted:
    """The reply itself: counts change no weight, so `max_norm` does not bound them."""
    return reply


COUNT_BUCKETS = Step.of(
    count_buckets,
    summed=True,
    check=check_buckets,
    bound=as_counted,
    shapes=shapes_of_buckets,
)


def common_buckets(
    counts_B: NDArray[np.int64], sites_B: NDArray[np.int64], *, min_count: int, min_sites: int
) -> NDArray[np.uint8]:
    """The rows of a vocabulary by buckets, most frequent first, ties by number. Shape V × 16."""
    kept = (counts_B >= max(1, min_count)) & (sites_B >= max(1, min_sites))
    order = np.lexsort((np.arange(len(counts_B)), -counts_B))
    bits = max(0, len(counts_B) - 1).bit_length()
    return bucket_rows(order[kept[order]], bits)
