"""Devices: names, moves, parts of batches, narrow numbers; no tensor is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import DeviceError, SettingsError
from confide.federation.failures import failure_from
from confide.training import devices
from confide.training.devices import (
    PROCESSOR,
    Place,
    compute_at,
    computing_at,
    enough_memory,
    here,
    place_of,
    where_is,
)
from confide.training.weights import arrays, load_weights
from training.places import KINDS, an_encoder, models_in, on_meta, without_dropout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models_in(tmp_path_factory.mktemp("models"))


def test_names() -> None:
    assert place_of("cpu") == PROCESSOR == Place(torch.device("cpu"), narrow=False)
    assert place_of("auto").device.type in ("cpu", "cuda", "mps")
    assert place_of("cpu", "bfloat16", micro_batch_size=3) == Place(torch.device("cpu"), True, 3)
    with pytest.raises(SettingsError, match=r"nobody knows this precision.*bfloat16; got 'half'"):
        place_of("cpu", "half")
    for odd in ("gpu", "cuda:", "cuda:999", "cpu:1", "meta", ""):
        with pytest.raises(SettingsError, match=r"not the name of a device.*auto, cpu, cuda"):
            place_of(odd)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(SettingsError, match=r'no such device; expected auto, cpu.*device = "auto"'):
        place_of(name)


def test_a_process_computes_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_here", [])
    monkeypatch.setenv(devices.VARIABLE, "nowhere")
    with pytest.raises(SettingsError, match="not the name of a device"):
        here()
    monkeypatch.setenv(devices.VARIABLE, "cpu")
    threads = torch.get_num_threads()
    with computing_at(Place(micro_batch_size=5), threads=1):
        assert here().micro_batch_size == 5 and torch.get_num_threads() == 1
    assert here() == PROCESSOR and torch.get_num_threads() == threads


def test_a_process_holds_nothing_of_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(devices, "_here", [])
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    compute_at(PROCESSOR)
    compute_at(Place(torch.device("cuda:1")))
    assert chosen == [here().device] == [torch.device("cuda:1")]


@each("kind", KINDS)
def test_no_tensor_is_left_behind(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, slopes and gradients of every kind, where a tensor elsewhere would be an error."""
    with on_meta(monkeypatch) as watched:
        own = KINDS[kind](folder)
        assert {p.device.type for p in own.model.parameters()} == {"meta"}
        own.fit()
        for other in own.others:
            other()
        if kind not in ("lightner", "kept states", "adversary"):  # those write until they stop
            own.find()
    assert not watched.mixed and "meta" in watched.seen


def test_a_tensor_that_is_left_behind_is_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_meta(monkeypatch) as watched:
        own = an_encoder(folder)
        own.model.tag.weight = torch.nn.Parameter(torch.zeros(own.model.tag.weight.shape))
        try:
            own.fit()
        except RuntimeError:
            return
    assert watched.mixed


@each("cut", ["rows", "tokens"])
@each("kind", KINDS)
def test_parts_of_a_batch_add_up_to_it(
    kind: str, cut: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same step, whether a batch is computed at once or three examples at a time."""
    if cut == "tokens" and kind == "pcnn":
        return  # reads any number at once
    found = {}
    for micro_batch_size in (0, 3):
        if cut == "tokens":
            monkeypatch.setattr(Place, "padded_tokens", 40 if micro_batch_size else 10**9)
        rows = micro_batch_size if cut == "rows" else 0
        with computing_at(Place(micro_batch_size=rows)):
            own = KINDS[kind](folder)
            without_dropout(own.model)  # it is drawn anew for each part
            assert where_is(own.model).micro_batch_size == rows
            report = own.fit()
            found[micro_batch_size] = arrays(own.model), report
    (whole, one), (parts, other) = found.values()
    steps = (one.steps, one.sentences)
    assert steps == (other.steps, other.sentences)
    if kind == "adversary":  # its loss is of a whole part
        return
    assert one.loss == pytest.approx(other.loss, rel=1e-4)
    moved = 0.0
    for name, value in whole.items():
        assert np.allclose(value, parts[name], atol=2e-4), name
        moved += float(np.abs(value - parts[name]).max())
    assert moved > 0  # other sums


@each("kind", ["encoder", "relations", "bags", "lightner"])
def test_narrow_numbers_stay_in_the_encoder(kind: str, folder: Path) -> None:
    """bfloat16 has eight bits: the same finds nearly, and every weight is float32 still."""
    seen, came = set[torch.dtype](), set[torch.dtype]()
    found = {}
    for narrow in (False, True):
        with computing_at(Place(narrow=narrow)):
            own = KINDS[kind](folder)
            for module in own.model.modules():
                if narrow and isinstance(module, torch.nn.Linear):
                    module.register_forward_hook(lambda _, __, out: seen.add(out.dtype))
            for body in devices._bodies(own.model) if narrow else ():
                body.register_forward_hook(lambda _, __, out: came.add(_dtype(out)))
            report = own.fit()
            found[narrow] = arrays(own.model), report.loss
            own.find()
    (wide, loss), (after, other) = found.values()
    assert torch.bfloat16 in seen and came == {torch.float32}
    assert all(value.dtype == np.float32 for value in after.values())
    assert loss != other and loss == pytest.approx(other, rel=0.05)
    assert any(not np.array_equal(value, after[name]) for name, value in wide.items())


def _dtype(out: Any) -> torch.dtype:
    states = out if isinstance(out, torch.Tensor) else out.last_hidden_state
    found: torch.dtype = states.dtype
    return found


def test_weights_come_home_and_go_back(folder: Path) -> None:
    own = an_encoder(folder)
    before = arrays(own.model)
    own.fit()
    load_weights(own.model, before)
    assert all(np.array_equal(value, before[name]) for name, value in arrays(own.model).items())


@each(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
        ),
        MemoryError(),
    ],
)
def test_out_of_memory_is_one_error(error: Exception) -> None:
    def run() -> None:
        with enough_memory(Place(micro_batch_size=8)):
            raise error

    with pytest.raises(
        DeviceError,
        match=r"cpu ran out of memory; got micro_batch_size = 8.*set `micro_batch_size`",
    ):
        run()
    try:
        run()
    except DeviceError as found:
        assert failure_from(found).code == "device-memory"


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), enough_memory(PROCESSOR):
        raise RuntimeError("shapes do not fit")


def test_training_that_runs_out_of_memory_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = an_encoder(folder)

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(own.model, "features", full)
    for act in (own.fit, own.find, *own.others[1:]):
        with pytest.raises(DeviceError, match="ran out of memory; got whole batches"):
            act()
