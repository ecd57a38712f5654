"""Sentences for a piecewise CNN: words, positions and pieces."""

from __future__ import annotations

import numpy as np
import pytest

from cases import each
from confide.errors import DataError
from confide.kinds.bags.batches import (
    EncodedSentences,
    encode_sentences,
    predict_sentence_batches,
    sentence_batch,
)
from confide.kinds.relations.batches import RelationExample
from confide.training.vocabulary import UNK, ClearVocabulary

WORDS = ClearVocabulary(("the", "head", "tail", "of", "x"))
RELATIONS = ("none", "causes")


def example(text: str, relation: str = "causes") -> RelationExample:
    """`[` and `]` are around the head, `(` and `)` around the tail."""
    places = {}
    for mark in "[]()":
        plain = text.translate({ord(other): None for other in "[]()" if other != mark})
        places[mark] = plain.index(mark)
    clean = text.translate({ord(mark): None for mark in "[]()"})
    head, tail = (places["["], places["]"]), (places["("], places[")"])
    return RelationExample("e", clean, (head,), (tail,), "a", "b", relation)


def encoded(*texts: str, longest: int = 120, farthest: int = 3) -> EncodedSentences:
    return encode_sentences(
        [example(text) for text in texts],
        words=WORDS,
        relations=RELATIONS,
        how="lower",
        longest=longest,
        farthest=farthest,
    )


def test_words_positions_and_pieces() -> None:
    found = encoded("The (tail x) of the [head] , x x x x", "[head](tail)")
    batch = sentence_batch(found, np.array([1, 0]))
    own = batch.ids_N3[-11:]
    assert batch.distinct_U[own[:, 0]].tolist() == [2, 4, 6, 5, 2, 3, UNK, 6, 6, 6, 6]
    assert (own[:, 1] - 4).tolist() == [-3, -3, -3, -2, -1, 0, 1, 2, 3, 3, 3]
    assert (own[:, 2] - 4).tolist() == [-1, 0, 0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert (batch.pieces_N[-11:] - 3).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert batch.distinct_U[0] == 0
    assert len(batch) == 2
    assert batch.relations_B.tolist() == [1, 1]


@each("longest", [8, 12, 20])
@each(("before", "between", "after"), [(50, 0, 50), (3, 60, 3), (0, 2, 90)])
def test_a_long_sentence_is_cut_around_its_entities(
    longest: int, before: int, between: int, after: int
) -> None:
    text = f"{'x ' * before}[head] {'of ' * between}(tail){' x' * after}"
    found = encoded(text, longest=longest)
    words = found.words_N
    assert len(words) == longest
    assert words[found.heads_S2[0, 0] : found.heads_S2[0, 1]].tolist() == [3]
    assert words[found.tails_S2[0, 0] : found.tails_S2[0, 1]].tolist() == [4]


def test_an_entity_beyond_the_window_is_cut_and_counted() -> None:
    found = encoded(f"[head{' x' * 40} head] of (tail)", longest=10)
    assert len(found.words_N) <= 10
    start, end = found.heads_S2[0]
    assert found.words_N[start] == found.words_N[end - 1] == 3
    start, end = found.tails_S2[0]
    assert found.words_N[start:end].tolist() == [4]


def test_only_some_and_batches_of_all() -> None:
    texts = [f"{'x ' * n}[head] of (tail){' of' * (9 - n)}" for n in range(9)]
    found = encoded(*texts)
    some = found.only(np.array([7, 2]))
    assert len(some) == 2
    for place, row in enumerate((7, 2)):
        one, other = sentence_batch(some, np.array([place])), sentence_batch(found, np.array([row]))
        assert one.distinct_U[one.ids_N3[:, 0]].tolist() == (
            other.distinct_U[other.ids_N3[:, 0]].tolist()
        )
        assert one.ids_N3[:, 1:].tolist() == other.ids_N3[:, 1:].tolist()
        assert one.pieces_N.tolist() == other.pieces_N.tolist()
    rows = [batch.rows_B.tolist() for batch in predict_sentence_batches(found, words_per_batch=30)]
    assert [row for own in rows for row in own] == list(range(9))
    assert len(rows) > 1


def test_a_text_without_words_is_one_unknown_word() -> None:
    blank = RelationExample("e", "  ", ((0, 1),), ((1, 2),), "a", "b", "none")
    found = encode_sentences([blank], words=WORDS, relations=RELATIONS, how="lower")
    assert found.words_N.tolist() == [UNK]
    assert found.heads_S2.tolist() == found.tails_S2.tolist() == [[0, 1]]


def test_nothing_is_nothing() -> None:
    found = encode_sentences([], words=WORDS, relations=RELATIONS, how="lower")
    assert len(found) == len(found.words_N) == 0
    assert list(predict_sentence_batches(found)) == []


def test_bad_input_is_named() -> None:
    with pytest.raises(DataError, match="outside the declared set"):
        encode_sentences(
            [example("[a] (b)", "cures")], words=WORDS, relations=RELATIONS, how="none"
        )
    with pytest.raises(DataError, match="at least 8"):
        encoded("[a] (b)", longest=7)
