"""Tags and owners of tokens, laid over windows."""

from __future__ import annotations

import numpy as np
import pytest

from cases import each
from confide.errors import DataError
from confide.training.batches import Example, TagSet, Window, annotation, encode_examples, of_rows
from confide.training.vocabulary import ClearVocabulary

TAGS = TagSet(("drug", "effect"))


def whole(*lengths: int) -> list[Window]:
    return [Window(number, 0, length, 0, length) for number, length in enumerate(lengths)]


def names(tags: np.ndarray) -> list[str]:
    return [TAGS.tags[tag] for tag in tags]


def test_own_entities_and_what_is_outside_are_source() -> None:
    found = annotation(
        whole(4, 3),
        [[(0, 1, "drug"), (2, 4, "effect")], [(1, 2, "effect")]],
        examples=2,
        tags=TAGS,
        source={"drug"},
    )
    assert names(found.tags_N) == ["S-drug", "O", "B-effect", "E-effect", "O", "S-effect", "O"]
    assert found.source_N.tolist() == [True, True, False, False, True, False, True]


def test_windows_have_the_tags_that_encoding_gives_them() -> None:
    random = np.random.default_rng(4)
    examples = []
    for number in range(20):
        borders = np.sort(random.choice(60, 10, replace=False)).tolist()
        spans = tuple(
            (start, end, str(random.choice(TAGS.types)))
            for start, end in zip(borders[::2], borders[1::2], strict=True)
        )
        examples.append(Example(0, number, ("w",) * int(random.integers(60, 90)), spans))
    nothing = ClearVocabulary(())
    encoded = encode_examples(
        examples, words=nothing, characters=None, tags=TAGS, how="none", max_tokens=16
    )
    assert len(encoded.windows) > 60
    found = annotation(
        encoded.windows,
        [example.spans for example in examples],
        examples=20,
        tags=TAGS,
        source=set(),
    )
    assert np.array_equal(found.tags_N, encoded.tags_N)
    assert np.array_equal(found.source_N, encoded.tags_N == 0)


@each(
    ("spans", "says"),
    [
        ([[]], "do not belong to these"),
        ([[], [], []], "do not belong to these"),
        ([[], [(0, 1, "dose")]], "outside the declared set"),
        ([[(3, 5, "drug")], []], "outside its sentence"),
        ([[(2, 2, "drug")], []], "outside its sentence"),
        ([[(-1, 1, "drug")], []], "outside its sentence"),
    ],
)
def test_what_cannot_be_is_refused(spans: list[list[tuple[int, int, str]]], says: str) -> None:
    with pytest.raises(DataError, match=says):
        annotation(whole(4, 3), spans, examples=2, tags=TAGS, source=set())


def test_values_of_rows_are_padded_with_false() -> None:
    values = np.array([True, False, True, True, True])
    found = of_rows(values, np.array([0, 2, 5]), np.array([1, 0]))
    assert found.tolist() == [[True, True, True], [True, False, False]]
