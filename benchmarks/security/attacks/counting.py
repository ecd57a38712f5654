"""Frequencies: which keyed digest, or which bucket, is which word, by how often it occurs.

The attacker has public text like the sites' (development text that no site trains on), and takes
the k-th most frequent digest for the k-th most frequent word of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from listening import Heard, masked, step_of

from confide.federation.messages import decode
from confide.kinds.agreement import COUNT_BUCKETS
from confide.training.vocabulary import bucket_of, keyed_digest

DRAWS = 200
"""How many random orders make up what is read by chance."""


def frequencies(
    heard: Heard, *, method: str, sums: str, own: Counter[str], public: Counter[str], key: bytes
) -> list[dict[str, Any]]:
    """What is read of the site's words, from its bytes and, under masks, from the opened sum."""
    if sums == "plain":
        step = step_of("count_vocabulary", method)
        reply = decode(step.reply, heard.replies["count_vocabulary", 0][0])
        names = [row.tobytes() for row in reply.word_digests_W16]
        of = {word: keyed_digest(key, "word", word) for word in {*own, *public}}
        return [read("bytes", reply.word_counts_W, names, of=of, own=own, public=public)]
    ask, layout, lanes = masked(heard, COUNT_BUCKETS, 0)
    counts_B = layout.views(lanes)["word_counts_B", ""]
    summed_B = heard.sums[COUNT_BUCKETS.name, 0].word_counts_B
    buckets = {
        word: bucket_of(keyed_digest(key, "word", word), ask.word_bits) for word in {*own, *public}
    }
    every = range(len(counts_B))
    return [
        read("bytes", counts_B, every, of=buckets, own=own, public=public),
        read("sum", summed_B, every, of=buckets, own=own, public=public),
    ]


def read(
    seen: str, counts: np.ndarray, names: Any, *, of: Any, own: Counter[str], public: Counter[str]
) -> dict[str, Any]:
    """The share of running words that are read rightly, and what as many guesses at random give."""
    guesses = [word for word, _ in public.most_common()]
    draws = np.random.default_rng(0)
    shuffled = draws.permutation(len(counts))  # of equals, whichever
    order = shuffled[np.argsort(-counts[shuffled].astype(np.float64), kind="stable")]
    held = order[: len(guesses)]
    total = sum(own.values())

    def right(places: np.ndarray) -> list[str]:
        return [
            word
            for place, word in zip(places, guesses, strict=False)
            if word in own and of[word] == names[place]
        ]

    found = right(held)
    there = [place for place in order if counts[place] > 0]
    by_chance = [sum(own[word] for word in right(draws.permutation(there))) for _ in range(DRAWS)]
    return {
        "attack": "frequency", "seen": seen, "has": len(own),
        "distinct": len(found) / len(own), "running": sum(own[word] for word in found) / total,
        "found": sum(own[word] for word in found) / total,
        "chance": float(np.mean(by_chance)) / total,
    }  # fmt: skip
