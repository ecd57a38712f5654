"""Documents to passages: whole sentences, once each, within the longest, some held out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from confide.data.batches import passages as module
from confide.data.batches.passages import Cutter, Passages, held_out, passages
from confide.errors import DataError
from confide.text.document import Document

LETTERS = "abcdefghijklmnopqrstuvwxyz."
CONTINUES = np.array([False] * len(LETTERS) + [True] * len(LETTERS))


def tokenise(texts: Sequence[str]) -> list[list[int]]:
    """A piece for each letter; the first of a word begins it."""
    found = []
    for text in texts:
        words = [word.lower() for word in text.split()]
        found.append(
            [
                LETTERS.index(c) + len(LETTERS) * (i > 0)
                for word in words
                for i, c in enumerate(word)
            ]
        )
    return found


def cutter(longest: int = 40) -> Cutter:
    return Cutter(tokenise, CONTINUES, longest=longest)


def document(*sentences: str) -> Document:
    return Document("d", "\n\n".join(sentences))


def read(found: Passages) -> list[str]:
    """What stands in each passage."""
    texts = []
    for place in range(len(found)):
        one, text = found[place], ""
        for piece, word in zip(one.ids_P.tolist(), one.words_P.tolist(), strict=True):
            text += (" " if word else "") + LETTERS[piece % len(LETTERS)]
        texts.append(text.strip())
    return texts


def test_sentences_of_a_document_go_together_as_far_as_there_is_room() -> None:
    texts = document("Alpha beta gamma.", "Delta epsilon.", "Zeta eta theta iota kappa.")
    found = cutter(32).cut([texts, document("Another lambda.")])
    assert read(passages(found)) == [
        "alpha beta gamma. delta epsilon.", "zeta eta theta iota kappa.", "another lambda.",
    ]  # fmt: skip
    assert [one.sentences_P.sum() for one in found] == [2, 1, 1]
    assert all(one.sentences_P[0] and one.words_P[0] for one in found)


def test_a_long_sentence_is_cut_between_words_and_a_long_word_within() -> None:
    words = ["abcdefgh", "ijklmnop", "qrstuvwx", "abcdefgh"]
    found = read(passages(cutter(20).cut([document(" ".join(words) + ".")])))
    assert found == ["abcdefgh ijklmnop", "qrstuvwx abcdefgh."]
    found = read(passages(cutter(10).cut([document("abcdefghijklmnopqrst")])))
    assert found == ["abcdefghij", "klmnopqrst"]


def test_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 1)
    rng = np.random.default_rng(1)
    texts = []
    for _ in range(30):
        lengths = rng.integers(3, 9, rng.integers(4, 30))
        texts.append(" ".join("".join(rng.choice(list("abcdef"), n)) for n in lengths))
    found = passages(cutter(50).cut([document(*texts)]))
    assert "".join(read(found)).replace(" ", "") == "".join(texts).replace(" ", "")
    assert found.lengths_S.max() <= 50 and found.lengths_S.sum() == len(found.ids_N)


def test_a_sentence_is_read_once_whatever_its_signs_and_blanks() -> None:
    cut = cutter()
    assert len(cut.cut([document("Fever and cough."), document("fever  and cough .")])) == 1
    assert len(cut.cut([document("Fever and cough")])) == 0
    assert cut.repeated == 2


def test_what_stands_in_test_text_is_not_read() -> None:
    cut = cutter()
    cut.leave_out([document("Fever and cough.")])
    found = passages(cut.cut([document("Fever and cough.", "Nothing else was seen.")]))
    assert read(found) == ["nothing else was seen."]


def test_a_passage_of_a_few_pieces_is_left_out() -> None:
    assert cutter().cut([document("No.")]) == []
    assert len(passages([])) == 0


def test_whole_documents_are_held_out_by_a_seed() -> None:
    texts = [Document(str(number), "x") for number in range(200)]
    learnt, out = held_out(texts, share=0.1, seed=1)
    assert len(out) == 20 and {one.id for one in learnt} | {one.id for one in out} == {
        one.id for one in texts
    }
    assert held_out(texts, share=0.1, seed=1)[1] == out != held_out(texts, share=0.1, seed=2)[1]
    assert len(held_out(texts[:2], share=0.01, seed=1)[1]) == 1
    with pytest.raises(DataError, match="too few documents"):
        held_out(texts[:1], share=0.1, seed=1)


def test_a_passage_that_is_not_there() -> None:
    found = passages(cutter().cut([document("Fever and cough.")]))
    with pytest.raises(IndexError):
        found[1]
