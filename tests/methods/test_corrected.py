"""FedProx, SCAFFOLD, FedDyn, Ditto and FedBN: what their papers promise of the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.federation.memory import MemoryStore
from confide.federation.messages import decode
from confide.methods import METHODS
from confide.methods.fedbn import shared
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import states

SITES = ("site-1", "site-2", "site-3")


def ended(folder: Path, pair: str, *overrides: str) -> tuple[Any, dict[str, Any], Any]:
    """The last state of a run, the sites' memories, and its result."""
    done = run(tiny(folder, f"method={pair}", *overrides), out=folder / "run")
    kind = METHODS[pair]
    state: Any = decode(kind.State, [*states(done.folder).values()][-1])
    folders = {site: done.folder / "sites" / site / "memory" for site in SITES}
    kept: dict[str, Any] = {n: MemoryStore(one, kind.Memory).latest() for n, one in folders.items()}
    return state, kept, done.result


def mean(arrays: list[np.ndarray]) -> np.ndarray:
    return np.mean(np.stack(arrays), 0, dtype=np.float64)


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    return float(sum(np.square(array - other[name]).sum() for name, array in one.items()))


def test_fedprox_is_fedavg_with_its_term(tmp_path: Path) -> None:
    one, _, _ = ended(tmp_path / "prox", "fedprox-tagger", "options.mu=0.5")
    two, _, _ = ended(tmp_path / "avg", "fedavg-tagger", "options.proximal=0.5")
    assert all(np.array_equal(array, two.weights[name]) for name, array in one.weights.items())


def test_scaffolds_variate_is_the_mean_of_the_sites(tmp_path: Path) -> None:
    """Line 17 of Algorithm 1 keeps it so, if all sites take part."""
    state, kept, _ = ended(tmp_path, "scaffold-tagger", "rounds=3")
    assert any(array.any() for array in state.control.values())
    for name, array in state.control.items():
        own = mean([memory.control[name] for memory in kept.values()])
        np.testing.assert_allclose(array, own, rtol=1e-3, atol=1e-5)


def test_feddyns_drift_is_the_mean_of_the_sites_gradients(tmp_path: Path) -> None:
    state, kept, _ = ended(tmp_path, "feddyn-tagger", "rounds=3", "options.alpha=0.2")
    assert any(array.any() for array in state.drift.values())
    for name, array in state.drift.items():
        own = mean([memory.gradient[name] for memory in kept.values()])
        np.testing.assert_allclose(array, own, rtol=1e-3, atol=1e-5)


def test_dittos_models_are_held_to_the_common_one(tmp_path: Path) -> None:
    found = []
    for pull in (0.0, 5.0):
        state, kept, result = ended(tmp_path / str(pull), "ditto-tagger", f"options.pull={pull}")
        assert result.personal
        apart = [distance(memory.own, state.weights) for memory in kept.values()]
        assert all(one > 0 for one in apart)
        found.append(sum(apart))
    assert found[1] < found[0]


def test_layer_norms_stay_at_the_sites(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
    state, kept, result = ended(tmp_path, "fedbn-encoder")
    assert result.personal
    assert shared(state.weights).keys() == state.weights.keys()
    for memory in kept.values():
        assert memory.own
        assert not shared(memory.own)
        assert not memory.own.keys() & state.weights.keys()
