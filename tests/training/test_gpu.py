"""What a GPU computes is what the processor computes. Run where there is one: `pytest -m gpu`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import DeviceError
from confide.training.devices import computing_at, place_of, where_is
from confide.training.weights import arrays
from training.places import KINDS, an_encoder, models_in, without_dropout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]
GPU = "cuda"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models_in(tmp_path_factory.mktemp("models"))


def trained(kind: str, folder: Path, device: str, precision: str = "float32") -> Any:
    """Weights after training without dropout, its loss, and the device."""
    with computing_at(place_of(device, precision)):
        own = KINDS[kind](folder)
        without_dropout(own.model)
        report = own.fit()
        own.find()
        for other in own.others:
            other()
        return arrays(own.model), report.loss, where_is(own.model).device.type


@each("kind", KINDS)
def test_a_step_is_that_of_the_processor(kind: str, folder: Path) -> None:
    before, loss, _ = trained(kind, folder, "cpu")
    after, other, device = trained(kind, folder, GPU)
    assert device == torch.device(GPU).type and loss == pytest.approx(other, rel=1e-3)
    for name, value in before.items():
        assert after[name].dtype == np.float32
        assert np.allclose(value, after[name], atol=1e-3), name


@each("kind", ["encoder", "relations", "bags", "lightner"])
def test_bfloat16_learns_nearly_the_same(kind: str, folder: Path) -> None:
    _, loss, _ = trained(kind, folder, GPU)
    after, other, _ = trained(kind, folder, GPU, "bfloat16")
    assert loss != other and loss == pytest.approx(other, rel=0.05)
    assert all(value.dtype == np.float32 for value in after.values())


def test_two_runs_are_the_same(folder: Path) -> None:
    one, two = (trained("encoder", folder, GPU)[0] for _ in range(2))
    assert all(np.allclose(value, two[name], atol=1e-5) for name, value in one.items())


def test_attention_is_not_planned_anew_for_each_shape(folder: Path) -> None:
    trained("encoder", folder, GPU)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@each("kind", ["encoder", "relations", "bags", "lightner"])
def test_a_step_waits_for_nothing(kind: str, folder: Path) -> None:
    """What waits belongs to an epoch, which reads its losses, and not to a step."""
    with computing_at(place_of(GPU)):
        own = KINDS[kind](folder)
        own.fit()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                steps = own.fit().steps
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waited = [str(one.message) for one in seen if "synchronizing" in str(one.message)]
    assert len(waited) < max(steps, 2), waited


def test_what_runs_out_of_memory_leaves_the_gpu_usable(folder: Path) -> None:
    with computing_at(place_of(GPU)):
        own = an_encoder(folder)
        own.model.register_forward_pre_hook(lambda *_: torch.empty(2**42, device=GPU))
        with pytest.raises(DeviceError, match="ran out of memory"):
            own.fit()
    assert trained("encoder", folder, GPU)[2] == torch.device(GPU).type
