"""Generated bags of NYT10's size and lengths, as numbers; there is no text behind them.

NYT10 (Riedel, Yao & McCallum 2010): 466,876 training sentences in the copy of Lin et al. 2016,
about 40 words each and two of a pair, three in four without a relation, 53 relations.

Shapes: S sentences, N words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from confide.kinds.bags.batches import EncodedSentences

RELATIONS = 53
LONGEST = 120
SENTENCES = 466_876


def generated(
    sentences: int, *, words: int, seed: int = 1
) -> tuple[EncodedSentences, list[NDArray[np.int64]]]:
    """Sentences whose words follow Zipf's law over `words`, and their bags."""
    random = np.random.default_rng(seed)
    lengths_S = np.clip(random.lognormal(np.log(37), 0.4, sentences), 6, LONGEST).astype(np.int64)
    from_S1 = np.concatenate([[0], np.cumsum(lengths_S)])
    chances = 1 / np.arange(1, words - 1)
    words_N = 2 + np.searchsorted(
        np.cumsum(chances) / chances.sum(), random.random(int(from_S1[-1]))
    )
    starts_S2 = (random.random((sentences, 2)) * (lengths_S[:, None] - 3)).astype(np.int32)
    spans = [
        np.stack((start, start + random.integers(1, 4, sentences)), 1).astype(np.int32)
        for start in starts_S2.T
    ]
    sizes = np.minimum(random.geometric(0.54, sentences), 500)
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), sentences)) + 1]
    cuts = np.cumsum(sizes)[:-1]
    groups = [group for group in np.split(np.arange(sentences), cuts) if len(group)]
    labels = random.integers(1, RELATIONS, len(groups)) * (random.random(len(groups)) < 0.27)
    encoded = EncodedSentences(
        words_N=words_N.astype(np.int32),
        from_S1=from_S1,
        heads_S2=spans[0],
        tails_S2=spans[1],
        relations_S=np.repeat(labels, [len(group) for group in groups]).astype(np.int32),
        farthest=60,
    )
    return encoded, groups
