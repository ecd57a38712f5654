"""Batches: every window once, padded right, in the order that the seed says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from confide.training.batches import Encoded, Example, TagSet, encode_examples
from confide.training.tagger import batch_of, predict_batches, shuffled
from confide.training.vocabulary import PAD, UNK, count_characters, count_words, numbered
from training.corpora import drawn_batch, train_batches

RANDOM = np.random.default_rng(5)
LENGTHS = RANDOM.integers(1, 60, 500)


@pytest.fixture(scope="module")
def encoded() -> Encoded:
    examples = [
        Example(0, i, tuple(f"w{RANDOM.integers(0, 90)}" for _ in range(n)), ((0, 1, "A"),))
        for i, n in enumerate(LENGTHS)
    ]
    tokens = [token for example in examples for token in example.tokens]
    return encode_examples(
        examples,
        words=numbered(count_words(tokens, "none")),
        characters=numbered(count_characters(tokens), kind="character"),
        tags=TagSet(("A",)),
        how="none",
    )


def test_an_epoch_has_every_window_once_with_little_padding(encoded: Encoded) -> None:
    batches = list(train_batches(encoded, batch_size=16, seed=3))
    seen = np.concatenate([batch.rows_B for batch in batches])
    assert sorted(seen) == list(range(500))
    assert {len(batch) for batch in batches} == {16, 4}
    padded = sum(batch.words_BL.numel() for batch in batches)
    assert padded < 1.15 * LENGTHS.sum()
    assert sum(int(batch.lengths_B.sum()) for batch in batches) == LENGTHS.sum()


def test_the_seed_decides_the_batches(encoded: Encoded) -> None:
    def order(seed: int) -> list[list[int]]:
        batches = train_batches(encoded, batch_size=16, seed=seed)
        return [batch.rows_B.tolist() for batch in batches]

    assert order(1) == order(1)
    assert order(1) != order(2)
    longest_first = [LENGTHS[rows].max() for rows in order(1)]
    assert longest_first != sorted(longest_first)


def test_cells_are_what_the_windows_hold(encoded: Encoded) -> None:
    batch = batch_of(encoded, np.array([7, 0, 3]))
    for row, window in enumerate([7, 0, 3]):
        start, end = encoded.tokens_from_S1[window : window + 2]
        length = end - start
        forms = encoded.forms_N[start:end]
        assert batch.lengths_B[row] == length
        assert batch.words_BL[row, :length].tolist() == encoded.words_F[forms].tolist()
        assert batch.tags_BL[row, :length].tolist() == encoded.tags_N[start:end].tolist()
        assert (batch.words_BL[row, length:] == PAD).all()
        assert not batch.tags_BL[row, length:].any() and not batch.mask_BL[row, length:].any()
        for place, form in enumerate(forms):
            at = int(batch.forms_BL[row, place])
            first, last = encoded.characters_from_F1[form : form + 2]
            spelled = batch.characters_UC[at, : batch.character_lengths_U[at]]
            assert spelled.tolist() == encoded.characters_M[first:last].tolist()
    bounds = [encoded.tokens_from_S1[window : window + 2] for window in (7, 0, 3)]
    distinct = len({form for start, end in bounds for form in encoded.forms_N[start:end]})
    assert len(batch.characters_UC) == distinct


def test_word_dropout_hides_words_but_not_their_characters(encoded: Encoded) -> None:
    plain = list(train_batches(encoded, batch_size=16, seed=3))
    dropped = list(train_batches(encoded, batch_size=16, seed=3, word_dropout=0.2))
    lost = total = 0
    for before, after in zip(
        sorted(plain, key=lambda b: b.rows_B.tolist()),
        sorted(dropped, key=lambda b: b.rows_B.tolist()),
        strict=True,
    ):
        changed = before.words_BL != after.words_BL
        assert (after.words_BL[changed] == UNK).all()
        assert torch.equal(before.forms_BL, after.forms_BL)
        assert not changed[~before.mask_BL].any()
        lost, total = lost + int(changed.sum()), total + int(before.lengths_B.sum())
    assert lost / total == pytest.approx(0.2, abs=0.02)


def test_no_batch_that_is_read_is_larger_than_memory_allows(encoded: Encoded) -> None:
    batches = list(predict_batches(encoded, tokens_per_batch=256))
    seen = np.concatenate([batch.rows_B for batch in batches])
    assert sorted(seen) == list(range(500))
    assert max(batch.words_BL.numel() for batch in batches) <= 256


def test_a_batch_of_training_is_whole_however_long_its_sentences(encoded: Encoded) -> None:
    long = replace(encoded, tokens_from_S1=encoded.tokens_from_S1 * 1000)
    random = np.random.default_rng(1)
    sizes = [len(rows_B) for rows_B in shuffled(long.lengths_S, 64, random=random)]
    assert sorted(sizes) == [500 % 64, *[64] * (500 // 64)]


def test_a_window_larger_than_the_bound_has_a_batch_of_its_own(encoded: Encoded) -> None:
    batches = list(predict_batches(encoded, tokens_per_batch=10))
    assert all(len(b) == 1 or b.words_BL.numel() <= 10 for b in batches)
    assert sum(len(batch) for batch in batches) == 500


def test_a_drawn_batch_has_neighbours_in_length_and_every_sentence_its_chance(
    encoded: Encoded,
) -> None:
    drawn = np.zeros(500, int)
    wide = 0
    for seed in range(1000):
        batch = drawn_batch(encoded, 10, seed=seed)
        assert len(set(batch.rows_B.tolist())) == 10
        drawn[batch.rows_B] += 1
        lengths = LENGTHS[batch.rows_B]
        wide += int(lengths.max() - lengths.min() > 10)
    assert wide < 40  # one draw in fifty joins the longest and the shortest
    assert abs(drawn - 20).max() < 25 and drawn.min() > 3
    again = drawn_batch(encoded, 10, seed=7)
    assert np.array_equal(again.rows_B, drawn_batch(encoded, 10, seed=7).rows_B)
    assert len(drawn_batch(encoded, 900, seed=1)) == 500


def test_a_drawn_batch_loses_words_too(encoded: Encoded) -> None:
    batch = drawn_batch(encoded, 100, seed=2, word_dropout=0.5)
    lost = (batch.words_BL[batch.mask_BL] == UNK).float().mean()
    assert 0.45 < float(lost) < 0.55
    assert not (batch.words_BL[~batch.mask_BL] == UNK).any()
