"""Sentences and tokens of raw text: exact offsets, and the cases that clinical prose brings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.text.document import Document, Sentence
from confide.text.segment import _BREAK, RuleSegmenter, _breaks, segmented

segment = RuleSegmenter()


def sentences(text):
    return [text[sentence.start : sentence.end] for sentence in segment(text)]


def tokens(text):
    return [text[start:end] for sentence in segment(text) for start, end in sentence.tokens]


@given(
    st.text(st.sampled_from("aZ1 .,!?\n\t-(5mg’'éा。\u2028\x85"), max_size=80)
    | st.text(max_size=80)
)
def test_every_character_but_white_space_is_in_one_token_of_one_sentence(text):
    found = segment(text)
    spans = [token for sentence in found for token in sentence.tokens]
    covered = [position for start, end in spans for position in range(start, end)]
    assert covered == [n for n, character in enumerate(text) if not character.isspace()]
    for sentence in found:
        assert sentence.tokens
        assert (sentence.start, sentence.end) == (sentence.tokens[0][0], sentence.tokens[-1][1])
    assert all(a.end <= b.start for a, b in zip(found, found[1:], strict=False))


@given(st.text(st.sampled_from('aA .!?\n"’)。؟」'), max_size=40))
def test_places_where_sentences_may_end_are_found_by_their_first_character(text):
    expected = [found.span() for found in _BREAK.finditer(text)]
    assert [found.span() for found in _breaks(text)] == expected


@each(
    "expected",
    [
        ["The pain is severe.", "It began today."],
        ["Dr. Smith saw Mr. Jones vs. no one."],
        ["Give 3.5 mg.", "Then stop."],
        ["E. coli and H. pylori were found."],
        ["Seen by J. Smith."],
        ["As Lee et al. (2010) wrote."],
        ["See No. 5 of 6."],
        ["She took vitamin D.", "The pain went."],
        ["Take it b.i.d. with food."],
        ["Take it b.i.d.", "The patient agreed."],
        ["Really?!", "Yes."],
        ['He said "no."', "She left."],
        ["It rose (see Fig. 3).", "It fell."],
        ["approx. 5 ml, i.e. little, e.g. one."],
        ["ALLERGIES:\n", "Penicillin\n", "Latex"],
        ["1. Aspirin\n", "2. Metformin 500 mg"],
        ["- aspirin\n", "- metformin"],
        ["The patient was admitted\n\n", "the day before"],
        ["The patient was\nadmitted with pain."],
        ["The patient was admitted to the cardiology ward of a hospital by\nDr. House today."],
        ["HISTORY\n", "Pain"],
        ["痛い。", "熱がある。"],
        ["The dose was 5. The next was 6."[:15], "The next was 6."],
    ],
)
def test_sentences(expected):
    text = "".join(part if part.endswith("\n") else f"{part} " for part in expected)
    if "。" in text:
        text = text.replace(" ", "")
    assert sentences(text) == [part.strip() for part in expected]


@each(
    ("text", "expected"),
    [
        ("500mg q6h", ["500", "mg", "q6h"]),
        ("3.5 10,000 12/03/2020", ["3.5", "10,000", "12", "/", "03", "/", "2020"]),
        ("patient's don't", ["patient", "'s", "don", "'t"]),
        ("BRCA1-related", ["BRCA1", "-", "related"]),
        ("wait... ===", ["wait", "...", "==="]),
        ("na\u0131\u0308ve", ["na\u0131\u0308ve"]),
        ("(pain)", ["(", "pain", ")"]),
        ("a_b", ["a", "_", "b"]),
        ("हिन्दी", ["हिन्दी"]),
        ("頭痛", ["頭", "痛"]),
        ("  ", []),
    ],
)
def test_tokens(text, expected):
    assert tokens(text) == expected


def test_given_sentences_are_kept_and_others_are_made():
    given_one = Document("d", "a b", sentences=(Sentence(0, 3, ((0, 3),)),))
    assert segmented(given_one) is given_one
    assert len(segmented(Document("d", "a b")).sentences[0].tokens) == 2

    def letters(text):
        return tuple(Sentence(n, n + 1, ((n, n + 1),)) for n in range(len(text)))

    assert len(segmented(Document("d", "abc"), letters).sentences) == 3


@pytest.mark.parametrize("unit", ["word ", ".", " ", "\n", "1.", "a. ", "? ", "'", "5"])
def test_long_texts_take_linear_time(unit):
    segment(unit * 40_000)
