"""Batches of noised passages: what is read, what is written, and in which order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from confide.data.batches.denoising import Batching, Specials, denoising_batch, epoch_plan
from confide.data.batches.noise import Noise, Passage
from confide.data.batches.passages import Passages, passages
from confide.errors import DataError

SPECIALS = Specials(start=101, end=102, padding=0, mask=103)
HOW = Batching(SPECIALS, pieces_per_batch=256, longest=64)


@pytest.fixture
def texts() -> Passages:
    rng = np.random.default_rng(1)
    found = []
    for length in rng.integers(8, 62, 120):
        flags = np.ones(length, np.bool_)
        first = np.arange(length) == 0
        found.append(Passage(rng.integers(200, 300, length).astype(np.int32), flags, first))
    return passages(found)


def test_every_passage_is_in_an_epoch_once_and_batches_are_full(texts: Passages) -> None:
    plan = epoch_plan(texts, HOW, seed=3)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(texts)))
    padded = [len(places) * (texts.lengths_S[places].max() + 2) for places in plan]
    assert max(padded) <= 256
    real = sum(int(texts.lengths_S[places].sum()) + 2 * len(places) for places in plan)
    assert sum(padded) / real < 1.15


def test_an_epochs_order_is_its_seeds(texts: Passages) -> None:
    one, same, other = (
        [places.tolist() for places in epoch_plan(texts, HOW, seed=seed)] for seed in (1, 1, 2)
    )
    assert one == same != other
    lengths = [texts.lengths_S[places].mean() for places in epoch_plan(texts, HOW, seed=1)]
    assert lengths != sorted(lengths)


def test_what_is_written_is_the_passage(texts: Passages) -> None:
    places = np.array([5, 17, 80])
    batch = denoising_batch(texts, places, HOW, seed=4)
    targets = batch.targets_N.split(batch.real_BQ.sum(1).tolist())
    for row, place in enumerate(places):
        own = texts[int(place)].ids_P.tolist()
        assert targets[row].tolist() == [*own, 102]
        assert batch.written_BQ[row][batch.real_BQ[row]].tolist() == [101, *own]
        read = batch.source_BP[row][batch.seen_BP[row]].tolist()
        assert read[0] == 101 and read[-1] == 102 and 103 in read and len(read) <= 64
        assert set(read[1:-1]) <= {*own, 103}
    assert batch.tokens == int(batch.real_BQ.sum()) and len(batch) == 3
    assert (batch.source_BP[~batch.seen_BP] == 0).all()


def test_hidden_pieces_are_those_that_the_noised_text_lacks(texts: Passages) -> None:
    batch = denoising_batch(texts, np.arange(9), HOW, seed=4)
    rows = torch.repeat_interleave(torch.arange(9), batch.real_BQ.sum(1))
    for row, piece, hidden in zip(rows, batch.targets_N, batch.hidden_N, strict=True):
        assert bool(hidden) == (int(piece) not in batch.source_BP[row].tolist())
    assert 0.1 < batch.hidden_N.float().mean() < 0.4


def test_a_passages_noise_does_not_depend_on_its_batch(texts: Passages) -> None:
    both = denoising_batch(texts, np.array([3, 90]), HOW, seed=4)
    alone = denoising_batch(texts, np.array([90]), HOW, seed=4)
    other = denoising_batch(texts, np.array([90]), HOW, seed=5)
    read = both.source_BP[1][both.seen_BP[1]].tolist()
    assert read == alone.source_BP[0].tolist() != other.source_BP[0].tolist()


def test_without_noise_what_is_read_is_written(texts: Passages) -> None:
    how = Batching(SPECIALS, Noise(masked=0.0, permuted=0.0), longest=64)
    batch = denoising_batch(texts, np.array([3]), how, seed=4)
    assert batch.source_BP[0, 1:].tolist() == batch.targets_N.tolist()
    assert not batch.hidden_N.any()


def test_no_text_is_an_error() -> None:
    with pytest.raises(DataError, match="no text"):
        epoch_plan(passages([]), HOW, seed=1)
