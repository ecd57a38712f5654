"""FedEx-LoRA: the mean of updates of low rank is exact, and sites send their factors alone."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.errors import SettingsError
from confide.federation.ledger import read_ledger
from confide.methods import METHODS
from confide.methods.fedex import below, exact_mean
from confide.runs.folder import RunFolder
from confide.runs.loading import open_models
from confide.runs.run import run
from contract.corpus import tiny

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra confide[lora]")


def test_weights_and_updates_together_are_the_mean_of_what_sites_have() -> None:
    draw = np.random.default_rng(5)

    def numbers(*shape: int) -> np.ndarray:
        return draw.normal(size=shape).astype(np.float32)

    parts = "base_layer", "lora_A.default", "lora_B.default"
    base, down, up = (f"q.{name}.weight" for name in parts)
    start = {"tag.bias": numbers(3), base: numbers(5, 7), down: numbers(2, 7), up: numbers(5, 2)}
    changes = [{n: numbers(*start[n].shape) for n in start if not below(n)} for _ in range(3)]
    shares, scale = [0.5, 0.3, 0.2], 3.0
    found = exact_mean(start, changes, shares=shares, scale=scale)
    sites = [{**start, **{n: start[n] + one for n, one in change.items()}} for change in changes]

    def whole(one: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(one[base] + scale * one[up] @ one[down])

    exact = sum(w * whole(one) for w, one in zip(shares, sites, strict=True))
    np.testing.assert_allclose(whole(found), exact, rtol=1e-4, atol=1e-4)
    for name in changes[0]:
        mean = sum(w * one[name] for w, one in zip(shares, sites, strict=True))
        np.testing.assert_allclose(found[name], mean, rtol=1e-5, atol=1e-6)
    assert list(found) == list(start) and {one.dtype for one in found.values()} == {np.dtype("f4")}
    assert np.abs(found[base] - start[base]).max() > 0.1
    alone = exact_mean(start, changes[:1], shares=[1.0], scale=scale)
    np.testing.assert_allclose(alone[base], start[base], atol=1e-6)


def test_the_server_corrects_weights_that_no_site_sends(tmp_path: Path) -> None:
    how = ("encoder.rank=2", "rounds=2", "training.learning_rate=0.01")
    done = run(tiny(tmp_path, "method=fedex-encoder", *how), out=tmp_path / "run")
    folder = RunFolder(done.folder)
    state: Any = folder.trained(METHODS["fedex-encoder"], None)[0]
    assert state.form.tuning == "lora 2 16 exact"
    start = state.form.first(1)
    corrected = {name: array for name, array in state.weights.items() if below(name)}
    assert len(corrected) == 4
    assert all(np.abs(array - start[name]).max() > 1e-6 for name, array in corrected.items())
    model: Any = open_models(done.folder).entities
    here = dict(model.model.named_parameters())
    for name, array in corrected.items():
        assert np.array_equal(here[name].detach().numpy(), array) and not here[name].requires_grad
    ups = [row for row in read_ledger(done.folder / "ledger.jsonl") if row.direction == "up"]
    sent = {row.bytes for row in ups if (row.step, row.field) == ("train_factors", "change")}
    assert sent == {sum(array.nbytes for name, array in start.items() if not below(name))}


def test_it_refuses_what_hides_a_sites_update_or_has_no_factors(tmp_path: Path) -> None:
    for overrides, said in {
        ("federation.sums=masked",): "read only sums",
        ("encoder.tune=top",): "averages updates of low rank",
        ("encoder.factors=b",): "averages updates of low rank",
        ("federation.combine=median",): "takes no mean",
    }.items():
        with pytest.raises(SettingsError, match=said):
            run(tiny(tmp_path, "method=fedex-encoder", *overrides), out=tmp_path / "run")
    own = ("method=fedavg-encoder", "encoder.tune=lora", "encoder.factors=exact")
    with pytest.raises(SettingsError, match='is for method = "fedex"'):
        run(tiny(tmp_path, *own), out=tmp_path / "run")
