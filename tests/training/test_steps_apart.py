"""A GPU computes while the processor goes on: what waits, is copied and is launched is counted.

The device is torch's meta device, so nothing here needs a GPU, and nothing here is a time.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.training import devices, optimisers
from confide.training.devices import Place, _moved, beside
from confide.training.encoder import load_encoder
from confide.training.weights import Arrays, arrays, load_weights
from training.families import tiny
from training.places import KINDS, OneDevice, a_tagger, models_in, of_entities, on_meta, users

COUNTS = {  # of a step: looks that wait, copies, launches at most; and copies at the start
    "tagger": (1, 3, 1000, 2),  # a CRF looks whether its scales vanished
    "encoder": (0, 2, 235, 2),  # a batch and its weights; the rows of the table
    "lightner": (0, 2, 340, 0),
    "kept states": (0, 2, 260, 1),  # the text that the encoder reads once
    "adversary": (2, 2, 470, 0),  # its symbols are picked by number
    "relations": (0, 1, 215, 2),
    "pcnn": (0, 1, 110, 2),
    "bags": (0, 1, 270, 2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models_in(tmp_path_factory.mktemp("models"))


def counted(make: Any, patch: pytest.MonkeyPatch, **how: Any) -> tuple[OneDevice, int]:
    """What a training asks of its device but for the optimiser's own step, and its steps."""
    patch.setattr(optimisers, "clip", lambda *_: None)
    patch.setattr(optimisers.FusedSteps, "step", lambda _: None)
    with on_meta(patch) as watched:
        own = make()
        watched.waits.clear()
        watched.copies = watched.launched = 0
        steps = own.fit(**how).steps
    return watched, steps


@each("kind", KINDS)
def test_a_step_of_training(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, steps = counted(partial(KINDS[kind], folder), monkeypatch)
    waits, copies, launched, at_start = COUNTS[kind]
    assert len(watched.waits) == waits * steps, watched.waits
    assert watched.copies == copies * steps + at_start
    assert watched.launched <= launched * steps


@each("kind", ["tagger", "encoder"])
def test_rows_that_count_alike_bring_nothing_but_themselves(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, steps = counted(partial(KINDS[kind], folder), monkeypatch, weights_S=None)
    waits, _, _, at_start = COUNTS[kind]
    assert (len(watched.waits), watched.copies) == (waits * steps, steps + at_start)


@each("family", ["modernbert", "deberta-v3", "distilbert"])  # each has a way with masks of its own
def test_no_family_looks_at_its_mask(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(str(tiny(family, tmp_path / family)))
    form = EncoderSpec(("Drug", "Effect"), longest=24, dropout=0.0)
    watched, _ = counted(lambda: of_entities(TokenTrainer(encoder, form), 8), monkeypatch)
    assert not watched.waits


def test_what_waits_is_seen() -> None:
    with OneDevice() as watched:
        there = torch.zeros(3, device="meta")
        if there[0] > 0:
            there[there > 1] = 0
        torch.ones(3).to("meta")
        there + torch.ones(3).to("meta", non_blocking=True)
    assert watched.waits == [
        "aten._local_scalar_dense.default",
        "aten.index_put_.default",
        "aten._to_copy.default",
    ]
    assert watched.copies == 2


def test_a_batch_travels_as_one_block() -> None:
    numbers = np.arange(12)
    tensors = [
        torch.from_numpy(numbers.reshape(3, 4).T),
        torch.tensor([True, False, True]),
        torch.zeros(0, 5),
        torch.tensor(2.5),
        torch.rand(3, 7, dtype=torch.float64),
    ]
    for before, after in zip(tensors, _moved(tensors, torch.device("cpu")), strict=True):
        assert torch.equal(before, after) and before.dtype is after.dtype


@each("kind", KINDS)
def test_batches_of_every_kind_arrive_whole(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same weights to the bit, whether batches stay or are copied as blocks."""

    def copied(batch: Any, _: Any) -> Any:
        block = devices._moved(list(devices._tensors(batch)), torch.device("cpu"))
        return devices._with(batch, iter(block))

    own = KINDS[kind](folder)
    own.fit()
    other = KINDS[kind](folder)
    for module in users():
        if getattr(module, "beside", None) is beside:
            monkeypatch.setattr(module, "beside", copied)
    other.fit()
    after = arrays(other.model)
    assert all(np.array_equal(value, after[name]) for name, value in arrays(own.model).items())


def test_a_device_apart_reads_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(1, 1)
    assert [devices.most_read(model, places) for places in (512, 4096)] == [512, 4096]
    monkeypatch.setattr(Place, "apart", True)
    assert [devices.most_read(model, places) for places in (512, 4096)] == [16_384, 32_768]


def test_the_next_batch_is_asked_for_before_the_last_is_decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same finds; the batches are larger, and the processor decodes one while the next is read."""
    own = a_tagger(folder)
    monkeypatch.setattr(type(own.made), "per_batch", 16)
    monkeypatch.setattr(devices, "_APART", 2)
    monkeypatch.setattr(devices, "_LEAST_APART", 0)
    happened: list[str] = []
    real = type(own.made).spans

    def spans(made: Any, *given: Any, **how: Any) -> Any:
        happened.append("decoded")
        return real(made, *given, **how)

    monkeypatch.setattr(type(own.made), "spans", spans)
    own.model.register_forward_hook(lambda *_: happened.append("read"))
    found = own.find()
    each_in_turn = len(happened) // 2
    assert happened == ["read", "decoded"] * each_in_turn
    happened.clear()
    monkeypatch.setattr(Place, "apart", True)
    assert own.find() == found
    fewer = len(happened) // 2
    assert 1 < fewer < each_in_turn
    assert happened == ["read", *["read", "decoded"] * (fewer - 1), "decoded"]


def test_weights_of_an_lstm_are_laid_end_to_end_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid: list[torch.nn.Module] = []

    def layers() -> int:
        own = a_tagger(folder).model
        every = sum(isinstance(one, torch.nn.LSTM) for one in own.modules())
        weights = {name: np.zeros(one.shape, np.float32) for name, one in own.named_parameters()}
        laid.clear()
        load_weights(own, weights)
        return every

    monkeypatch.setattr(torch.nn.LSTM, "flatten_parameters", lambda one: laid.append(one))
    layers()
    assert not laid
    with on_meta(monkeypatch):
        assert layers() == len({*laid}) == len(laid) > 0


def test_what_several_sites_are_lent_travels_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = arrays(a_tagger(folder).model)
    for one in lent.values():
        one.flags.writeable = False
    with on_meta(monkeypatch) as watched:
        model = a_tagger(folder).model

        def copies(values: Arrays, *, lent: bool) -> int:
            before = watched.copies
            load_weights(model, values, lent=lent)
            return watched.copies - before

        every = len(lent)
        assert [copies(lent, lent=True), copies(lent, lent=True)] == [every, 0]
        # it may be trained in between, or the arrays may change
        assert [copies(lent, lent=False), copies(lent, lent=True)] == [every, every]
        own = {name: one.copy() for name, one in lent.items()}
        assert [copies(own, lent=True), copies(own, lent=True)] == [every, every]
