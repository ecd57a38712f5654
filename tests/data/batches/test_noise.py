"""Text infilling and sentence permutation: their rates, their shapes, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from cases import each
from confide.data.batches.noise import Noise, Passage, infilled, noised, permuted

MASK = 0
KEEP = Noise(permuted=0.0)


def passage(words: list[int], sentences: list[int]) -> Passage:
    """Numbered pieces 1, 2, ...: `words` are pieces of each word, `sentences` words of each."""
    begins = np.concatenate([[True] + [False] * (count - 1) for count in words])
    firsts = np.flatnonzero(begins)[np.cumsum([0, *sentences[:-1]])]
    starts = np.zeros(len(begins), np.bool_)
    starts[firsts] = True
    return Passage(np.arange(1, len(begins) + 1, dtype=np.int32), begins, starts)


def drawn(rng: np.random.Generator, words: int = 60) -> Passage:
    return passage(
        list(rng.integers(1, 4, words)), [words // 3, words // 3, words - 2 * (words // 3)]
    )


def word_of(text: Passage) -> dict[int, int]:
    return dict(zip(text.ids_P.tolist(), np.cumsum(text.words_P).tolist(), strict=True))


def spans(text: Passage, ids: np.ndarray) -> list[int]:
    """How many words are gone between what stays, where a mask stands in between."""
    of = word_of(text)
    gone, last = [], 0
    for piece in ids.tolist():
        if piece == MASK:
            continue
        if of[piece] > last + 1:
            gone.append(of[piece] - last - 1)
        last = max(last, of[piece])
    words = int(text.words_P.sum())
    return gone + ([words - last] if words > last else [])


@each("share", [0.15, 0.3, 0.5])
def test_the_share_of_words_that_is_masked(share: float) -> None:
    rng = np.random.default_rng(1)
    masked = words = 0
    for length in [7, 31, 60] * 100:
        text = drawn(rng, length)
        kept = infilled(text, Noise(masked=share), mask=MASK, longest=999, rng=rng)
        masked += length - len({word_of(text)[piece] for piece in kept.tolist() if piece != MASK})
        words += length
    assert masked / words == pytest.approx(share, abs=0.01)


def test_a_short_text_is_masked_at_the_same_rate() -> None:
    rng = np.random.default_rng(2)
    text = passage([1], [1])
    hidden = [
        infilled(text, Noise(), mask=MASK, longest=9, rng=rng).tolist() == [MASK]
        for _ in range(2000)
    ]
    assert np.mean(hidden) == pytest.approx(0.3, abs=0.04)


def test_words_are_whole_and_in_order_and_masks_stand_where_words_are_gone() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        text = drawn(rng)
        found = infilled(text, Noise(), mask=MASK, longest=999, rng=rng)
        kept = found[found != MASK]
        assert (np.diff(kept) > 0).all()  # every piece at most once, in the old order
        stays = {word_of(text)[piece] for piece in kept.tolist()}
        whole = [piece for piece, word in word_of(text).items() if word in stays]
        assert kept.tolist() == whole
        assert int((found == MASK).sum()) >= len(spans(text, found)) > 0
        for place in np.flatnonzero(np.diff([0, *kept.tolist()]) > 1):
            before = np.flatnonzero(found == kept[place])[0]
            assert found[before - 1] == MASK


def test_lengths_of_spans_are_of_poisson() -> None:
    """With little masked, spans hardly touch, and each has the length that was drawn."""
    rng = np.random.default_rng(4)
    text = passage([1] * 4000, [4000])
    found = infilled(text, Noise(masked=0.02), mask=MASK, longest=9999, rng=rng)
    lengths = spans(text, found)
    for _ in range(40):
        lengths += spans(text, infilled(text, Noise(masked=0.02), mask=MASK, longest=9999, rng=rng))
    expected = 3 / (1 - np.exp(-3))  # a Poisson number that is not 0
    assert np.mean(lengths) == pytest.approx(expected, rel=0.08)


def test_spans_of_no_word_put_masks_in() -> None:
    rng = np.random.default_rng(5)
    text = passage([1] * 300, [300])
    masks = gaps = 0
    for _ in range(200):
        found = infilled(text, Noise(), mask=MASK, longest=999, rng=rng)
        masks += int((found == MASK).sum())
        gaps += len(spans(text, found))
    rare = Noise(mean_span=20.0)  # e^-20 of them: none
    found = infilled(text, rare, mask=MASK, longest=999, rng=rng)
    assert 1.05 < masks / gaps < 1.8
    assert int((found == MASK).sum()) <= len(spans(text, found)) + 2  # some touch


def test_no_mask_is_put_in_beyond_the_longest() -> None:
    rng = np.random.default_rng(6)
    often = Noise(masked=0.1, mean_span=0.1)
    text = passage([1] * 40, [40])
    free = [len(infilled(text, often, mask=MASK, longest=999, rng=rng)) for _ in range(50)]
    bound = [len(infilled(text, often, mask=MASK, longest=40, rng=rng)) for _ in range(50)]
    assert max(free) > 40 and max(bound) == 40


def test_sentences_come_in_every_order_and_stay_whole() -> None:
    rng = np.random.default_rng(7)
    text = passage([1, 2, 1, 1, 3], [2, 1, 2])
    whole = {(1, 2, 3), (4,), (5, 6, 7, 8)}
    orders = set()
    for _ in range(200):
        found = permuted(text, rng)
        parts = np.split(found.ids_P, np.flatnonzero(found.sentences_P)[1:])
        order = tuple(tuple(part.tolist()) for part in parts)
        assert set(order) == whole
        assert sorted(found.words_P.tolist()) == sorted(text.words_P.tolist())
        orders.add(order)
    assert len(orders) == 6


def test_a_share_of_texts_is_permuted() -> None:
    rng = np.random.default_rng(8)
    text = passage([1] * 8, [1] * 8)
    half = Noise(masked=0.0, permuted=0.5)
    same = [
        np.array_equal(noised(text, half, mask=MASK, longest=9, rng=rng), text.ids_P)
        for _ in range(400)
    ]
    assert np.mean(same) == pytest.approx(0.5, abs=0.1)


def test_the_same_seed_gives_the_same_noise() -> None:
    text = drawn(np.random.default_rng(0))
    one, same, other = (
        noised(text, Noise(), mask=MASK, longest=999, rng=np.random.default_rng(seed)).tolist()
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_an_empty_text_stays_as_it_is() -> None:
    none = Passage(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.bool_))
    assert not len(noised(none, KEEP, mask=MASK, longest=9, rng=np.random.default_rng(1)))
