"""What is to be written of a text, and back; batches; windows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cases import each
from confide.errors import DataError
from confide.kinds.lightner.model import (
    NOTHING,
    Pointers,
    pointer_batch,
    pointer_batches,
    pointers,
    spelled,
)
from confide.kinds.pieces import Pieces, TokenText, token_text
from confide.training.batches import Example, TypedSpan

TYPES = ("drug", "effect")
STOP = 2
PIECES = Pieces(before=(90,), after=(91, 92), unknown=93, padding=99, longest=19)


def cut(sentences: object) -> list[list[list[int]]]:
    """A word's letters are its pieces."""
    return [[[ord(letter) for letter in word] for word in words] for words in sentences]  # type: ignore[attr-defined]


def text(*sentences: str) -> TokenText:
    examples = [Example(0, n, tuple(words.split(" "))) for n, words in enumerate(sentences)]
    return token_text(examples, pieces=PIECES, cut=cut)


def written(
    of: TokenText, *spans: list[TypedSpan], source: set[str] | None = None, most: int = 100
) -> Pointers:
    own = {"drug"} if source is None else source
    return pointers(of, spans, types=TYPES, source=own, most=most)


def rows(of: Pointers) -> list[list[int]]:
    return [part.tolist() for part in np.split(of.symbols_N, of.from_S1[1:-1])]


def test_entities_are_written_by_their_start_and_then_stop() -> None:
    found = written(text("a b c d", "a"), [(2, 4, "effect"), (0, 1, "drug")], [])
    assert rows(found) == [[3, 3, 0, 5, 6, 1, STOP], [STOP]]
    assert len(found) == 2
    own = np.split(found.source_N, found.from_S1[1:-1])
    assert own[0].tolist() == [True] * 3 + [False] * 3 + [True]
    assert own[1].tolist() == [True]


def test_what_is_written_says_the_spans_again() -> None:
    random = np.random.default_rng(1)
    of = text(*["abc " * 4 + "d"] * 20)
    for _ in range(20):
        spans: list[list[TypedSpan]] = []
        for _ in range(20):
            borders = sorted(random.choice(6, 4, replace=False).tolist())
            names = random.choice(TYPES, 2).tolist()
            both = [(borders[0], borders[1], names[0]), (borders[2], borders[3], names[1])]
            spans.append(both[: random.integers(3)])
        # windows of one sentence each: five words of at most three letters
        for row, expected in zip(rows(written(of, *spans)), spans, strict=True):
            back, irregular = spelled(row, [0.0] * len(row), types=TYPES)
            assert [span for span, _ in back] == expected
            assert not irregular


def test_long_sentences_are_cut_and_so_are_entities_at_borders() -> None:
    of = text("ab " * 12 + "ab")
    assert len(of.windows) > 1
    spans: list[TypedSpan] = [(0, 2, "drug"), (5, 9, "effect"), (12, 13, "drug")]
    for window, row in zip(of.windows, rows(written(of, spans)), strict=True):
        back, _ = spelled(row, [0.0] * len(row), types=TYPES)
        inside = [
            (max(start, window.start) - window.start, min(end, window.end) - window.start, name)
            for start, end, name in spans
            if max(start, window.start) < min(end, window.end)
        ]
        assert [span for span, _ in back] == inside


def test_there_may_be_more_entities_than_places() -> None:
    found = written(text("a b c"), [(n, n + 1, "drug") for n in range(3)], most=8)
    assert rows(found) == [[3, 3, 0, 4, 4, 0, STOP]]


@each(
    ("spans", "what"),
    [
        ([[(0, 1, "gene")]], "outside the declared set"),
        ([[(1, 3, "drug")]], "outside its sentence"),
        ([[(1, 1, "drug")]], "outside its sentence"),
        ([[], []], "do not belong to these"),
    ],
)
def test_what_is_no_annotation_of_the_text(spans: list[list[TypedSpan]], what: str) -> None:
    with pytest.raises(DataError, match=what):
        written(text("a b"), *spans)


def test_a_chance_is_that_of_three_symbols() -> None:
    log_probs = [math.log(share) for share in (0.5, 0.5, 0.8, 1.0, 0.25, 0.5, 0.1)]
    found, irregular = spelled([3, 4, 1, 6, 6, 0, STOP], log_probs, types=TYPES)
    assert [span for span, _ in found] == [(0, 2, "effect"), (3, 4, "drug")]
    assert [chance for _, chance in found] == pytest.approx([0.2, 0.125])
    assert not irregular


@each(
    ("symbols", "spans", "irregular"),
    [
        ([0, 3, 3, 1, STOP], [(0, 1, "effect")], 1),  # a type without words
        ([4, 3, 1, 3, 3, 0, STOP], [(0, 1, "drug")], 1),  # an end before its start
        ([3, 4, 5, 0, STOP], [], 1),  # three words
        ([3, 0, 4, 4, 1, STOP], [(1, 2, "effect")], 1),  # one word
        ([3, 5, 0, 4, 4, 1, STOP], [(0, 3, "drug")], 1),  # inside of another
        ([5, 5, 0, 3, 3, 1, STOP], [(0, 1, "effect"), (2, 3, "drug")], 0),  # out of order
        ([3, 3, 1, 4, STOP], [(0, 1, "effect")], 1),  # words without a type
        ([3, 3], [], 1),
        ([3, 3, 1, STOP, 4, 4, 1], [(0, 1, "effect")], 0),
        ([3, 3, 1, NOTHING, NOTHING], [(0, 1, "effect")], 0),
        ([STOP], [], 0),
    ],
)
def test_irregular_pieces_are_dropped(
    symbols: list[int], spans: list[TypedSpan], irregular: int
) -> None:
    found, dropped = spelled(symbols, [0.0] * len(symbols), types=TYPES)
    assert [span for span, _ in found] == spans
    assert dropped == irregular


def test_a_batch_is_padded_with_nothing() -> None:
    of = text("ab c", "d", "e f g")
    batch = pointer_batch(of, np.array([2, 0]), written=written(of, [(0, 1, "effect")], [], []))
    assert batch.ids_BP.tolist() == [
        [90, ord("e"), ord("f"), ord("g"), 91, 92],
        [90, ord("a"), ord("b"), ord("c"), 91, 92],
    ]
    assert batch.mask_BP is None
    assert batch.firsts_BL.tolist() == [[1, 2, 3], [1, 3, 0]]
    assert batch.lengths_B.tolist() == [3, 2]
    assert batch.symbols_BT.tolist() == [[STOP, *[NOTHING] * 3], [3, 3, 1, STOP]]
    assert batch.source_BT.tolist() == [[True] * 4, [False] * 3 + [True]]
    assert len(batch) == 2
    bare = pointer_batch(of, np.array([1]))
    assert bare.symbols_BT.shape == (1, 0)


def test_every_row_is_in_one_batch() -> None:
    of = text(*("ab " * (n % 5) + "c" for n in range(40)))
    what = written(of, *[[(0, 1, "drug")]] * 40)
    found = list(pointer_batches(of, written=what, pieces_per_batch=30))
    assert sorted(row for batch in found for row in batch.rows_B.tolist()) == list(range(40))
    assert all(batch.symbols_BT[:, 0].tolist() == [3] * len(batch) for batch in found)
