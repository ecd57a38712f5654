"""Tokens in little memory: they are what a tuple of the same spans is."""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Sequence

import pytest

from confide.text.document import Document, Sentence, SpacedWords, Span, pack_spans

SPANS = ((4, 6), (7, 8), (9, 14))
TEXT = "one ab c défgh two"
BOTH = pytest.mark.parametrize(
    "tokens", [pack_spans(SPANS), SpacedWords(TEXT, 4, 14)], ids=["packed", "words"]
)


@BOTH
def test_they_are_a_sequence_equal_to_the_tuple(tokens: Sequence[Span]) -> None:
    assert tokens == SPANS and tokens == SPANS
    assert tokens != SPANS[1:] and tokens != list(SPANS) and tokens != ()
    assert hash(tokens) == hash(SPANS)
    assert (len(tokens), tuple(tokens), repr(tokens)) == (3, SPANS, repr(SPANS))
    assert [tokens[place] for place in range(-3, 3)] == [*SPANS, *SPANS]
    assert tokens[1:] == SPANS[1:] and tokens[::-1] == SPANS[::-1]
    with pytest.raises(IndexError):
        tokens[3]
    assert bisect_right(tokens, 8, key=lambda span: span[0]) == 2
    assert pickle.loads(pickle.dumps(tokens)) == tokens  # noqa: S301 - workers get documents so


def test_one_of_many_is_found_without_a_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search among the tokens of a long sentence went through all of them at each step."""
    many = " ".join(["a"] * 1000)
    sequences = (
        pack_spans((2 * n, 2 * n + 1) for n in range(1000)),
        SpacedWords(many, 0, len(many)),
    )
    assert all(one[500] == (1000, 1001) for one in sequences)

    def never(self: object) -> None:
        raise AssertionError("looked at all")

    for one in sequences:
        monkeypatch.setattr(type(one), "__iter__", never)
        assert (one[0], one[-1], one[998]) == ((0, 1), (1998, 1999), (1996, 1997))
        assert bisect_right(one, 1000, key=lambda span: span[1]) == 500


def test_packed_and_words_are_equal() -> None:
    assert pack_spans(SPANS) == SpacedWords(TEXT, 4, 14)
    assert (
        Sentence(4, 14, pack_spans(SPANS))
        == Sentence(4, 14, SPANS)
        == Sentence(4, 14, SpacedWords(TEXT, 4, 14))
    )
    assert len({Sentence(4, 14, pack_spans(SPANS)), Sentence(4, 14, SPANS)}) == 1


@BOTH
def test_their_words_are_those_of_the_document(tokens: Sequence[Span]) -> None:
    document = Document("d", TEXT)
    assert document.token_texts(Sentence(4, 14, tokens)) == ("ab", "c", "défgh")


def test_words_of_another_text_are_only_places() -> None:
    """As with any spans: a document that got another text has the words of that one."""
    document = Document("d", TEXT.upper())
    assert document.token_texts(Sentence(4, 14, SpacedWords(TEXT, 4, 14))) == ("AB", "C", "DÉFGH")


def test_no_span_is_packed_too() -> None:
    assert pack_spans([]) == () and len(pack_spans([])) == 0
