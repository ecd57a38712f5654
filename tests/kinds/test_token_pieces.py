"""Words to pieces: windows, first pieces, batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cases import each
from confide.errors import DataError
from confide.kinds.pieces import (
    Pieces,
    annotated_tokens,
    predict_token_batches,
    token_batch,
    token_text,
)
from confide.training.batches import Example, TagSet

START, END, UNKNOWN, PADDING = 101, 102, 100, 0
PIECES = Pieces((START,), (END,), unknown=UNKNOWN, padding=PADDING, longest=18)  # room for 16


def letters(sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """A piece for each letter; a dot has none."""
    return [[[ord(c) for c in word if c != "."] for word in words] for words in sentences]


def example(text: str) -> Example:
    return Example(0, 0, tuple(text.split()))


def test_each_word_knows_its_first_piece() -> None:
    text = token_text([example("ab . c"), example("d")], pieces=PIECES, cut=letters)
    assert text.ids_N.tolist() == [START, 97, 98, UNKNOWN, 99, END, START, 100, END]
    assert text.from_S1.tolist() == [0, 6, 9]
    assert text.firsts_W.tolist() == [1, 3, 4, 1]
    assert text.words_from_S1.tolist() == [0, 3, 4]


def test_a_sentence_without_a_word_has_no_row() -> None:
    text = token_text([Example(0, 0, ()), example("a")], pieces=PIECES, cut=letters)
    assert (text.examples, len(text)) == (2, 1)
    assert text.windows[0].example == 1
    none = token_text([], pieces=PIECES, cut=letters)
    assert len(none) == 0
    assert list(predict_token_batches(none)) == []


@each("longest", [10, 18, 23])
def test_windows_fit_overlap_and_own_every_word_once(longest: int) -> None:
    pieces = Pieces((START,), (END,), unknown=UNKNOWN, padding=PADDING, longest=longest)
    random = np.random.default_rng(longest)
    examples = [
        Example(0, n, tuple("x" * size for size in random.integers(1, 9, random.integers(1, 80))))
        for n in range(200)
    ]
    text = token_text(examples, pieces=pieces, cut=letters)
    assert text.lengths_S.max() <= longest
    for number, one in enumerate(examples):
        windows = [window for window in text.windows if window.example == number]
        assert windows[0].start == windows[0].own_start == 0
        assert windows[-1].end == windows[-1].own_end == len(one.tokens)
        for before, after in zip(windows, windows[1:], strict=False):
            assert before.start < after.start < before.end < after.end
            assert before.own_end == after.own_start
            assert after.start < after.own_start <= before.end
    assert len(text) > len(examples) + 20


def test_a_very_long_word_is_read_in_part() -> None:
    text = token_text([example("abcdefgh i")], pieces=PIECES, cut=letters)
    assert text.ids_N.tolist() == [START, 97, 98, 99, 100, 105, END]


def test_too_small_a_window_is_refused() -> None:
    pieces = Pieces((START,), (END,), unknown=UNKNOWN, padding=PADDING, longest=9)
    with pytest.raises(DataError, match="too small"):
        token_text([], pieces=pieces, cut=letters)


TAGS = TagSet(("drug", "effect"), "iob2")


def test_a_batch_holds_pieces_words_tags_and_owners() -> None:
    text = token_text([example("ab c"), example("d ef g")], pieces=PIECES, cut=letters)
    spans = [[(0, 1, "drug")], [(1, 3, "effect")]]
    encoded = annotated_tokens(text, spans, tags=TAGS, source={"drug"})
    batch = token_batch(text, np.array([1, 0]), annotated=encoded)
    ids = [[START, 100, 101, 102, 103, END], [START, 97, 98, 99, END, PADDING]]
    assert batch.ids_BP.tolist() == ids
    assert batch.mask_BP is not None
    assert batch.mask_BP.tolist() == [[1] * 6, [1] * 5 + [0]]
    assert batch.firsts_BL.tolist() == [[1, 2, 4], [1, 3, 0]]
    assert batch.lengths_B.tolist() == [3, 2]
    assert batch.tags_BL.tolist() == [[0, 3, 4], [1, 0, 0]]
    assert batch.source_BL.tolist() == [[True, False, False], [True, True, False]]
    assert len(batch) == 2
    bare = token_batch(text, np.array([0]))
    assert bare.mask_BP is None
    assert not bare.tags_BL.any()


def test_batches_hold_every_row_once() -> None:
    examples = [example("a " * (number % 13 + 1)) for number in range(50)]
    text = token_text(examples, pieces=PIECES, cut=letters)
    asked = list(predict_token_batches(text, pieces_per_batch=40))
    assert sorted(np.concatenate([b.rows_B for b in asked]).tolist()) == list(range(50))
    assert max(b.ids_BP.numel() for b in asked) <= 40
