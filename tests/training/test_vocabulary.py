"""Vocabularies in the clear and by digest."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.errors import DataError
from confide.training import vocabulary
from confide.training.vocabulary import (
    UNK,
    ClearVocabulary,
    KeyedVocabulary,
    count_characters,
    count_words,
    keyed_digest,
    normalise,
    numbered,
)

KEY = b"k" * 32


def keyed(texts: tuple[str, ...], key: bytes = KEY, kind: str = "word") -> KeyedVocabulary:
    rows = [np.frombuffer(keyed_digest(key, kind, text), np.uint8) for text in texts]
    return KeyedVocabulary(np.array(rows).reshape(-1, 16), kind, key)


def test_the_digest_is_hmac_sha256_of_kind_nul_text() -> None:
    expected = hmac.new(KEY, b"word\0Fieber \xc3\xa4", hashlib.sha256).digest()[:16]
    assert keyed_digest(KEY, "word", "Fieber ä") == expected
    assert keyed_digest(KEY, "character", "a") != keyed_digest(KEY, "word", "a")
    assert keyed_digest(b"j" * 32, "word", "a") != keyed_digest(KEY, "word", "a")
    assert len(keyed_digest(KEY, "word", "\ud800")) == 16


@given(st.lists(st.text(), unique=True), st.lists(st.text()))
def test_a_keyed_vocabulary_numbers_like_a_clear_one(known: list[str], asked: list[str]) -> None:
    clear, secret = ClearVocabulary(tuple(known)), keyed(tuple(known))
    questions = known + asked
    assert secret.ids(questions).tolist() == clear.ids(questions).tolist()
    assert clear.ids(known).tolist() == list(range(2, len(known) + 2))
    assert secret.ids(questions[::-1]).tolist() == clear.ids(questions[::-1]).tolist()
    assert len(secret) == len(clear) == len(known) + 2


def test_a_keyed_vocabulary_remembers_so_many_words_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vocabulary, "_MOST_SEEN", 3)
    secret = keyed(("fever", "pain"))
    for _ in range(2):
        assert secret.ids(["rash", "pain", "cough", "fever", "rash"]).tolist() == [1, 3, 1, 2, 1]
    assert not secret._seen
    assert secret.ids(["pain"]).tolist() == [3]
    monkeypatch.setattr(vocabulary, "keyed_digest", None)
    assert secret.ids(["pain"]).tolist() == [3]


def test_another_key_or_kind_knows_nothing() -> None:
    words = ("fever", "pain")
    digests = keyed(words).digests_V16
    for other in (KeyedVocabulary(digests, "word", b"x" * 32), KeyedVocabulary(digests, "c", KEY)):
        assert other.ids(words).tolist() == [UNK, UNK]


def test_the_key_is_not_shown() -> None:
    assert "kkkk" not in repr(keyed(("fever",)))


def test_rows_that_are_no_digests_are_refused() -> None:
    with pytest.raises(DataError, match="V x 16"):
        KeyedVocabulary(np.zeros((3, 8), np.uint8), "word", KEY)


def test_ways_to_normalise() -> None:
    assert normalise("IL-12b", "none") == "IL-12b"
    assert normalise("IL-12b", "lower") == "il-12b"
    assert normalise("IL-12b", "lower-digits") == "il-00b"
    with pytest.raises(DataError, match="upper"):
        normalise("a", "upper")  # type: ignore[arg-type]


def test_counts_and_numbers() -> None:
    tokens = ["Pain", "pain", "of", "2", "7"]
    counts = count_words(tokens, "lower-digits")
    assert counts == {"pain": 2, "of": 1, "0": 2}
    assert count_characters(tokens) == {**dict.fromkeys("P", 1), "a": 2, "i": 2, "n": 2, "p": 1,
                                        "o": 1, "f": 1, "2": 1, "7": 1}  # fmt: skip
    assert numbered(counts).texts == ("0", "pain", "of")
    assert numbered(counts, min_count=2).texts == ("0", "pain")
