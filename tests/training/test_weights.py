"""Weights as arrays: what is set is what is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cases import each
from confide.errors import DataError
from confide.training.vocabulary import VectorFile
from confide.training.weights import arrays, load_weights, named_parameters, set_rows
from training.corpora import tiny

CORPUS = tiny(5)


def test_the_seed_decides_the_weights() -> None:
    torch.manual_seed(0)
    first = arrays(CORPUS.model(1))
    torch.manual_seed(1)
    second, other = arrays(CORPUS.model(1)), arrays(CORPUS.model(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["word.weight"], other["word.weight"])


def test_load_is_the_inverse_of_arrays() -> None:
    source, target = CORPUS.model(1), CORPUS.model(2)
    load_weights(target, arrays(source))
    for mine, theirs in zip(source.parameters(), target.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_arrays_are_copies_of_everything_that_learns() -> None:
    model = CORPUS.model()
    taken = arrays(model)
    assert list(taken) == [name for name, _ in model.named_parameters()]
    before = taken["crf.linear.bias"].copy()
    with torch.no_grad():
        model.crf.linear.bias.add_(1.0)
    assert np.array_equal(taken["crf.linear.bias"], before)


def test_some_parameters_can_be_set_alone() -> None:
    model = CORPUS.model()
    before = arrays(model)
    load_weights(model, {"crf.linear.bias": np.ones(len(CORPUS.tags), np.float32)})
    after = arrays(model)
    changed = [name for name in before if not np.array_equal(before[name], after[name])]
    assert changed == ["crf.linear.bias"]


@each(("name", "shape"), [("crf.linear.bias", (1,)), ("crf.bias", (9,)), ("word.weight", (3, 16))])
def test_what_does_not_fit_changes_nothing(name: str, shape: tuple[int, ...]) -> None:
    model = CORPUS.model()
    before = arrays(model)
    good = np.ones(len(CORPUS.tags), np.float32)
    with pytest.raises(DataError, match=name):
        load_weights(model, {"crf.starts_Y": good, name: np.ones(shape, np.float32)})
    after = arrays(model)
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_word_vectors_land_at_their_ids() -> None:
    model = CORPUS.model()
    before = arrays(model)["word.weight"]
    rows = np.arange(32, dtype=np.float32).reshape(2, 16)
    ids = np.array([3, 2], np.int32)
    set_rows(model.word, VectorFile(16, ids, rows, ""))
    after = arrays(model)["word.weight"]
    assert np.array_equal(after[[3, 2]], rows)
    assert np.array_equal(np.delete(after, [3, 2], 0), np.delete(before, [3, 2], 0))
    with pytest.raises(DataError, match="16 numbers per word; got 4"):
        set_rows(model.word, VectorFile(4, ids, rows[:, :4], ""))


def test_lent_arrays_are_computed_with_and_never_written_to() -> None:
    model = CORPUS.model(1)
    lent = arrays(CORPUS.model(2))
    kept = {name: array.copy() for name, array in lent.items()}
    load_weights(model, lent, lent=True)
    assert all(
        np.shares_memory(p.detach().numpy(), lent[name])
        for name, p in named_parameters(model).items()
    )
    load_weights(model, arrays(CORPUS.model(3)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(np.array_equal(lent[name], kept[name]) for name in lent)


def test_copies_are_taken_of_what_is_not_lent() -> None:
    model, given = CORPUS.model(1), arrays(CORPUS.model(2))
    load_weights(model, given)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(arrays(CORPUS.model(2)).values(), given.values(), strict=True)
    )
