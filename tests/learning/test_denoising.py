"""Denoising training: what learns and what stays, going on from a snapshot, and its measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from confide.data.batches.denoising import Batching, DenoisingBatch, Specials, denoising_batch
from confide.data.batches.noise import Noise, Passage
from confide.data.batches.passages import Passages, passages
from confide.errors import DataError
from confide.learning.bart_making import make_bart
from confide.learning.denoising import Denoiser, Denoising, rate
from learning.barts import ours, theirs
from learning.encoders import tiny_bert

SPECIALS = Specials(start=2, end=3, padding=0, mask=4)
HOW = Denoising(learning_rate=1e-2, sampled=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made")
    return make_bart(
        tiny_bert(place / "bert", initializer_range=0.1), place / "it", decoder_layers=1
    )


@pytest.fixture(scope="module")
def texts() -> Passages:
    rng = np.random.default_rng(1)
    found = []
    for length in rng.integers(8, 15, 24):
        ids = np.sort(rng.choice(np.arange(5, 40), length, replace=False)).astype(np.int32)
        found.append(Passage(ids, np.ones(length, np.bool_), np.arange(length) == 0))
    return passages(found)


def batch(texts: Passages, seed: int, rows: int = 24) -> DenoisingBatch:
    how = Batching(SPECIALS, Noise(permuted=0.0), longest=24)
    return denoising_batch(texts, np.arange(rows), how, seed=seed)


def denoiser(folder: Path, how: Denoising = HOW) -> Denoiser:
    return Denoiser(ours(folder, dropout=how.dropout), how)


def trained(one: Denoiser, texts: Passages, *, first: int = 0, last: int) -> list[float]:
    return [
        one.step(batch(texts, number), number=number, share=0.1) for number in range(first, last)
    ]


def test_it_learns(folder: Path, texts: Passages) -> None:
    one = denoiser(folder)
    before = one.measured([batch(texts, 99)])
    losses = trained(one, texts, last=40)
    after = one.measured([batch(texts, 99)])
    assert losses[-1] < 0.85 * losses[0] and after.loss < 0.85 * before.loss
    assert after.right > before.right and after.pieces == before.pieces == batch(texts, 99).tokens


@pytest.mark.parametrize("train", ["decoder", "all"])
def test_only_what_shall_learn_does(folder: Path, texts: Passages, train: str) -> None:
    one = denoiser(folder, Denoising(train=train, sampled=0))  # type: ignore[arg-type]
    before = {name: value.copy() for name, value in one.arrays().items()}
    trained(one, texts, last=2)
    moved = {n for n, value in one.arrays().items() if not np.array_equal(value, before[n])}
    still = {n for n in before if n.startswith(("model.encoder", "model.shared"))}
    still.add("final_logits_bias")
    if train == "decoder":
        assert not moved & still and len(moved) == len(before) - len(still)
    else:
        assert len(moved) == len(before) - 1


def test_loss_is_that_of_transformers(folder: Path, texts: Passages) -> None:
    one = denoiser(folder)
    noisy = batch(texts, 5)
    labels = torch.full(noisy.written_BQ.shape, -100)
    labels[noisy.real_BQ] = noisy.targets_N
    with torch.inference_mode():
        expected = theirs(folder)(
            input_ids=noisy.source_BP,
            attention_mask=noisy.seen_BP.long(),
            decoder_input_ids=noisy.written_BQ,
            labels=labels,
        ).loss
    assert one.measured([noisy]).loss == pytest.approx(float(expected), abs=1e-5)
    half = [batch(texts, 5, rows=9), batch(texts, 5, rows=9)]
    assert one.measured(half).loss == pytest.approx(one.measured(half[:1]).loss, abs=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_going_on_from_a_snapshot_gives_the_same_bits(
    folder: Path, texts: Passages, dropout: float
) -> None:
    how = Denoising(learning_rate=1e-3, sampled=20, dropout=dropout)
    whole = denoiser(folder, how)
    losses = trained(whole, texts, last=6)
    first = denoiser(folder, how)
    trained(first, texts, last=3)
    second = denoiser(folder, how)
    second.restore(first.snapshot(), steps=3)
    assert trained(second, texts, first=3, last=6) == losses[3:]
    expected = whole.snapshot()
    for name, value in second.snapshot().items():
        assert np.array_equal(value, expected[name]), name


def test_a_snapshot_without_moments_or_of_another_model(folder: Path, texts: Passages) -> None:
    one = denoiser(folder)
    begun = one.snapshot()
    denoiser(folder).restore(begun, steps=0)
    with pytest.raises(DataError, match="different model"):
        denoiser(folder).restore(begun, steps=3)
    trained(one, texts, last=1)
    kept = one.snapshot()
    name = min(n for n in kept if ":" not in n)
    with pytest.raises(DataError, match="different model"):
        denoiser(folder).restore(kept | {name: kept[name][:1]}, steps=1)


def test_drawn_rows_learn_as_well(folder: Path, texts: Passages) -> None:
    one = denoiser(folder, Denoising(learning_rate=1e-2, sampled=30))
    before = one.measured([batch(texts, 99)]).loss
    trained(one, texts, last=40)
    assert one.measured([batch(texts, 99)]).loss < 0.85 * before


def test_dropout_is_of_the_step_and_not_of_what_was_drawn(folder: Path, texts: Passages) -> None:
    how = Denoising(dropout=0.5, sampled=0)
    one, other = denoiser(folder, how), denoiser(folder, how)
    first = one.step(batch(texts, 1), number=1, share=0.1)
    torch.rand(7)
    assert other.step(batch(texts, 1), number=1, share=0.1) == first
    assert denoiser(folder, how).step(batch(texts, 1), number=2, share=0.1) != first


def test_the_rate_rises_then_falls() -> None:
    how = Denoising(learning_rate=2.0, warm_up=0.1)
    found = [rate(share, how) for share in (0.0, 0.05, 0.1, 0.55, 1.0)]
    assert found == pytest.approx([0.0, 1.0, 2.0, 1.0, 0.0])
    assert rate(0.0, Denoising(learning_rate=2.0, warm_up=0.0)) == 2.0


def test_a_loss_that_is_no_number_is_an_error(folder: Path, texts: Passages) -> None:
    one = denoiser(folder)
    with torch.no_grad():
        one.model.model.decoder.layers[0].fc1.bias[0] = float("nan")
    with pytest.raises(DataError, match="diverged"):
        trained(one, texts, last=1)


def test_it_writes_what_it_has_learnt_by_heart(folder: Path, texts: Passages) -> None:
    one = denoiser(folder, Denoising(learning_rate=1e-2, sampled=0, train="all"))
    few = passages([texts[0], texts[1]])
    how = Batching(SPECIALS, Noise(permuted=0.0), longest=24)
    for number in range(120):
        noisy = denoising_batch(few, np.arange(2), how, seed=number)
        one.step(noisy, number=number, share=0.1)
    source = denoising_batch(few, np.array([1]), how, seed=777).source_BP[0].tolist()
    assert one.written(source, SPECIALS, longest=30) == few[1].ids_P.tolist()
    assert len(one.written(source, SPECIALS, longest=4)) == 4
