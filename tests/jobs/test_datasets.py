"""Corpora to and from Hugging Face's datasets: the same entities at the same characters."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from confide.errors import DataError
from confide.jobs.datasets import from_dataset, to_dataset
from confide.text.document import Document, Entity


@pytest.fixture(scope="module", autouse=True)
def datasets() -> Any:
    """The library, which takes seconds to be imported and warns of itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("datasets")


NOTE = Document("n", "Rash  after\tvarelozil.\nNo pain.", (
    Entity("T1", "ADE", ((0, 4),)), Entity("T2", "DRUG", ((12, 21),)),
    Entity("T3", "PART", ((0, 4), (12, 21))), Entity("T4", "ADE", ((26, 30),)),
))  # fmt: skip


def test_a_corpus_comes_back_with_its_characters() -> None:
    data, lost = to_dataset([NOTE])
    assert data.features["ner_tags"].feature.names[:3] == ["O", "B-ADE", "I-ADE"]
    assert [problem.kind for problem in lost] == ["discontinuous"]
    first, second = from_dataset(data)
    assert first.text == "Rash  after\tvarelozil."
    assert [(first.surface(one), one.type) for one in first.entities] == [
        ("Rash", "ADE"), ("varelozil", "DRUG"),
    ]  # fmt: skip
    assert [second.surface(one) for one in second.entities] == ["pain"]


def test_rows_of_others_need_tokens_and_tags_only(datasets: Any) -> None:
    data = datasets.Dataset.from_dict(
        {"words": [["New", "York", "won"]], "labels": [["B-LOC", "I-LOC", "O"]]}
    )
    (found,) = from_dataset(data, tokens="words", tags="labels")
    assert found.text == "New York won"
    assert [found.surface(one) for one in found.entities] == ["New York"]
    with pytest.raises(DataError, match=r"no column 'tokens'.*name the columns"):
        from_dataset(data)


def test_offsets_that_do_not_fit_are_not_believed(datasets: Any) -> None:
    row = {"text": ["abc def"], "tokens": [["abc", "def"]], "offsets": [[[0, 3], [3, 6]]],
           "ner_tags": [["O", "B-X"]]}  # fmt: skip
    (found,) = from_dataset(datasets.Dataset.from_dict(row))
    assert found.surface(found.entities[0]) == "def"


def test_numbers_without_names_and_rows_that_do_not_fit_are_refused(datasets: Any) -> None:
    with pytest.raises(DataError, match=r"row 0.*numbers"):
        from_dataset(datasets.Dataset.from_dict({"tokens": [["a"]], "ner_tags": [[1]]}))
    with pytest.raises(DataError, match="expected 1 tags; got 2"):
        from_dataset(datasets.Dataset.from_dict({"tokens": [["a"]], "ner_tags": [["O", "O"]]}))
