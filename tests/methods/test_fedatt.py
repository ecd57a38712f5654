"""FedAtt: attention by hand, and a round that is the formula over what sites sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.errors import SettingsError
from confide.federation.quantising import restore_reply
from confide.methods.fedatt import TRAIN_ALONE, attended
from contract.corpus import tiny
from contract.relations import documents
from methods.relation_runs import Seen, started, with_train

UNEQUAL = [documents("site-1", "train", 16), documents("site-2", "train", 8)]


def trained(engine: Seen, site: str) -> Any:
    """A site's whole reply."""
    place = ("train_alone", site)
    return restore_reply(TRAIN_ALONE, engine.asks[place], engine.replies[place])


def f32(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_attention_by_hand() -> None:
    """Two sites, two layers: distances 5 and 0, then 1 and 2; each layer has its own softmax."""
    before = {"a": f32(1, 1), "b": f32([2.0, 0.0])}
    one = {"a": f32(4, 5), "b": f32([3.0, 0.0])}
    two = {"a": f32(1, 1), "b": f32([2.0, 2.0])}
    found = attended(before, [one, two], epsilon=0.5)
    first = np.exp(5) / (np.exp(5) + np.exp(0))
    np.testing.assert_allclose(found["a"], [1 + 0.5 * first * 3, 1 + 0.5 * first * 4], rtol=1e-6)
    near = np.exp(1) / (np.exp(1) + np.exp(2))
    np.testing.assert_allclose(found["b"], [[2 + 0.5 * near, 0.5 * (1 - near) * 2]], rtol=1e-6)
    assert found["a"].dtype == np.float32


def test_one_site_moves_the_weights_by_epsilon_times_its_difference() -> None:
    for epsilon in (1.0, 1.2, 0.25):
        found = attended({"a": f32(1, -2)}, [{"a": f32(3, -6)}], epsilon=epsilon)
        np.testing.assert_allclose(found["a"], [1 + epsilon * 2, -2 - epsilon * 4], rtol=1e-6)


def test_sites_that_are_as_far_are_attended_to_alike() -> None:
    found = attended({"a": f32(0, 0)}, [{"a": f32(2, 0)}, {"a": f32(0, -2)}], epsilon=1.0)
    np.testing.assert_allclose(found["a"], [1, -1])
    still = attended({"a": f32(7, 9)}, [{"a": f32(7, 9)}] * 3, epsilon=1.2)
    assert still["a"].tolist() == [7, 9]


def test_a_site_that_is_very_far_gets_all_attention_and_nothing_overflows() -> None:
    far = {"a": f32(1e5, 0)}
    found = attended({"a": f32(0, 0)}, [far, {"a": f32(0, 1)}], epsilon=1.0)
    np.testing.assert_allclose(found["a"], [1e5, 0], rtol=1e-6, atol=1e-6)


def test_a_round_of_fedatt_is_the_formula_over_what_sites_sent(tmp_path: Path) -> None:
    settings = with_train(tmp_path, "fedatt-relations", UNEQUAL, "options.epsilon=0.7")
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    one, two = (trained(engine, s) for s in ("site-1", "site-2"))
    assert one.weight == two.weight == 1.0
    for name, start in state.weights.items():
        away = np.array([start - one.weights[name], start - two.weights[name]], np.float64)
        powers = np.exp([np.linalg.norm(away[0]), np.linalg.norm(away[1])])
        attention = powers / powers.sum()
        expected = start - 0.7 * np.tensordot(attention, away, 1)
        np.testing.assert_allclose(after.weights[name], expected, rtol=1e-4, atol=1e-6)
    assert facts["loss"] == pytest.approx((one.loss + two.loss) / 2)
    assert facts["sentences"] == 24


def test_there_is_only_epsilon_to_set(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="epsilon is wrong"):
        started(tmp_path, tiny(tmp_path, "method=fedatt-relations", "options.epsilon=0"))
    with pytest.raises(SettingsError, match="unknown key 'weighting'"):
        started(tmp_path, tiny(tmp_path, "method=fedatt-relations", "options.weighting=equal"))
    assert not TRAIN_ALONE.summed
