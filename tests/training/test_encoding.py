"""Tag sets against the schemes of `text`, and the ragged arrays against their examples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError
from confide.text.tagging import spans_from_tags, tags_from_spans
from confide.training.batches import Encoded, Example, TagScheme, TagSet, TypedSpan, encode_examples
from confide.training.vocabulary import (
    UNK,
    ClearVocabulary,
    count_characters,
    count_words,
    numbered,
)

SCHEMES: tuple[TagScheme, ...] = ("iobes", "iob2")
TYPES = ("ADE", "Drug")


@st.composite
def spans(draw: st.DrawFn, length: int = 12) -> list[TypedSpan]:
    borders = sorted(draw(st.sets(st.integers(0, length), max_size=8)))
    pairs = list(itertools.pairwise(borders))
    kept = [pair for pair in pairs if draw(st.booleans())]
    return [(start, end, draw(st.sampled_from(TYPES))) for start, end in kept]


@pytest.mark.parametrize("scheme", SCHEMES)
@given(found=spans())
def test_spans_survive_the_tags(scheme: TagScheme, found: list[TypedSpan]) -> None:
    tags = TagSet(TYPES, scheme)
    ids = tags.encode(12, found)
    assert [tags.tags[i] for i in ids] == tags_from_spans(12, found, scheme)
    assert tags.spans(ids) == found
    moves, starts, ends = tags.rules
    assert starts[ids[0]] and ends[ids[-1]]
    assert all(moves[i, j] for i, j in itertools.pairwise(ids))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(data=st.data())
def test_malformed_tags_are_repaired_like_text_does(scheme: TagScheme, data: st.DataObject) -> None:
    tags = TagSet(TYPES, scheme)
    ids = np.array(data.draw(st.lists(st.integers(0, len(tags) - 1), max_size=10)), np.int32)
    expected, _ = spans_from_tags([tags.tags[i] for i in ids], scheme)
    assert tags.spans(ids) == expected


@each("scheme", SCHEMES)
def test_rules_allow_exactly_what_is_not_malformed(scheme: TagScheme) -> None:
    tags = TagSet(TYPES, scheme)
    moves, starts, ends = tags.rules
    for path in itertools.product(range(len(tags)), repeat=3):
        _, malformed = spans_from_tags([tags.tags[i] for i in path], scheme)
        legal = bool(
            starts[path[0]]
            and ends[path[2]]
            and moves[path[0], path[1]]
            and moves[path[1], path[2]]
        )
        assert legal == (not malformed), [tags.tags[i] for i in path]


def test_a_type_outside_the_set_is_refused() -> None:
    with pytest.raises(DataError, match="outside the declared set; expected ADE, Drug; got Dose"):
        TagSet(TYPES).encode(3, [(0, 1, "Dose")])
    with pytest.raises(DataError, match="named twice"):
        TagSet(("a", "a"))
    with pytest.raises(DataError, match="iobes or iob2"):
        TagSet(TYPES, "bilou")  # type: ignore[arg-type]


def examples() -> list[Example]:
    return [
        Example(0, 0, ("No", "severe", "pain"), ((1, 3, "ADE"),)),
        Example(0, 2, ("Aspirin",), ((0, 1, "Drug"),)),
        Example(1, 0, ("no", "Aspirin", "no")),
    ]


def encoded(given: list[Example], max_tokens: int = 512, max_characters: int = 40) -> Encoded:
    tokens = [token for example in given for token in example.tokens]
    return encode_examples(
        given,
        words=numbered(count_words(tokens, "lower"), min_count=2),
        characters=numbered(count_characters(tokens), kind="character"),
        tags=TagSet(TYPES),
        how="lower",
        max_tokens=max_tokens,
        max_characters=max_characters,
    )


def test_arrays_say_what_the_examples_said() -> None:
    found = encoded(examples())
    assert len(found) == found.examples == 3
    assert found.lengths_S.tolist() == [3, 1, 3]
    assert found.words_F[found.forms_N].tolist() == [2, UNK, UNK, 3, 2, 3, 2]
    assert len(found.words_F) == 5  # No, severe, pain, Aspirin, no
    tags = [found.tags.tags[i] for i in found.tags_N]
    assert tags == ["O", "B-ADE", "E-ADE", "S-Drug", "O", "O", "O"]
    alphabet = numbered(count_characters(t for e in examples() for t in e.tokens)).texts
    start, end = found.characters_from_F1[3:5]
    assert "".join(alphabet[i - 2] for i in found.characters_M[start:end]) == "Aspirin"


def test_long_words_keep_their_ends() -> None:
    given = [Example(0, 0, ("abcdefghij",))]
    found = encoded(given, max_characters=5)
    alphabet = numbered(count_characters(given[0].tokens)).texts
    assert "".join(alphabet[i - 2] for i in found.characters_M) == "abcij"


def test_without_characters_there_are_none() -> None:
    vocabulary = ClearVocabulary(("no",))
    found = encode_examples(
        examples(), words=vocabulary, characters=None, tags=TagSet(TYPES), how="lower"
    )
    assert not len(found.characters_M) and not found.characters_from_F1.any()


@given(length=st.integers(1, 200), max_tokens=st.integers(8, 40))
def test_windows_own_every_token_once_and_see_around_it(length: int, max_tokens: int) -> None:
    found = encoded([Example(0, 0, ("no",) * length)], max_tokens=max_tokens)
    owned = [t for w in found.windows for t in range(w.own_start, w.own_end)]
    assert owned == list(range(length))
    margin = max_tokens // 8
    for window in found.windows:
        assert window.end - window.start <= max_tokens
        assert window.start <= max(window.own_start - margin, 0)
        assert min(window.own_end + margin, length) <= window.end
    assert (len(found) > 1) == (length > max_tokens)


def test_an_entity_over_a_border_is_an_entity_in_both_windows() -> None:
    found = encoded([Example(0, 0, ("no",) * 20, ((5, 12, "ADE"),))], max_tokens=8)
    pieces = [
        found.tags.spans(found.tags_N[start:end])
        for start, end in itertools.pairwise(found.tokens_from_S1)
    ]
    windows = [(w.start, w.end) for w in found.windows]
    assert windows[:3] == [(0, 8), (6, 14), (12, 20)]
    assert pieces[:3] == [[(5, 8, "ADE")], [(0, 6, "ADE")], []]


def test_no_example_is_no_window() -> None:
    found = encoded([])
    assert len(found) == 0 and found.examples == 0 and len(found.tags_N) == 0
