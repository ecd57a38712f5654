"""FedAvg and FedAtt of a relation classifier: the means are those that numpy computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.data.relations import candidates
from confide.errors import GuardError, SettingsError
from confide.federation.changes import restored
from confide.federation.guards import check_reply
from confide.federation.messages import Arrays
from confide.learning.encoder import load_encoder
from confide.learning.relations import fit_relations
from confide.learning.seeds import derive_seed
from confide.learning.weights import arrays, load
from confide.methods.relation_averaging import (
    TRAIN_RELATIONS,
    FedAvgRE,
    RelationsTrained,
    TrainRelations,
    attended,
    bounded_trained,
)
from confide.kinds.relations.form import modeller_of, rules_of
from confide.kinds.relations.desk import optimiser_of
from contract.corpus import tiny
from contract.relations import documents
from methods.relation_runs import Seen, started, with_train

TABLE = "encoder.embeddings.word_embeddings.weight"
UNEQUAL = [documents("site-1", "train", 16), documents("site-2", "train", 8)]


def trained(engine: Seen, site: str, step: str = "train_relations") -> Any:
    """A site's whole reply."""
    kind = engine._hosting.steps[step]
    return restored(kind, engine.asks[step, site], engine.replies[step, site])


@pytest.mark.parametrize("weighting", ["equal", "examples"])
def test_the_next_weights_are_the_mean_of_the_replies(tmp_path: Path, weighting: str) -> None:
    """The oracle is numpy's average of what the two sites really sent."""
    settings = with_train(tmp_path, "fedavg-re", UNEQUAL, f"options.weighting={weighting}")
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    assert engine.replies["take_form", "site-1"].examples == 16
    after, facts = method.round(state, federation, 1)
    one, two = trained(engine, "site-1"), trained(engine, "site-2")
    weights = [1.0, 1.0] if weighting == "equal" else [16.0, 8.0]
    assert [one.weight, two.weight] == weights
    for name, array in after.weights.items():
        own = [one.weights[name] / weights[0], two.weights[name] / weights[1]]
        mean = np.average(np.array(own, np.float64), axis=0, weights=weights)
        assert (array.dtype, array.shape) == (np.float32, state.weights[name].shape)
        np.testing.assert_allclose(array, mean, rtol=1e-5, atol=1e-7)
    loss = np.average([one.loss / weights[0], two.loss / weights[1]], weights=weights)
    assert facts["loss"] == pytest.approx(loss)
    assert facts["sentences"] == 24
    assert facts["sites"] == ["site-1", "site-2"]


def test_one_site_learns_what_it_would_without_a_federation(tmp_path: Path) -> None:
    """The oracle is local training of one model, from the first weights, twice."""
    overrides = ("training.local_epochs=2", "options.weighting=equal")
    settings = tiny(tmp_path, "method=fedavg-re", *overrides, sites=1)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    modeller = modeller_of(state, load_encoder(state.encoder))
    found = candidates(engine.site("site-1").train, rules_of(state)).examples
    model, encoded = modeller.initial(0), modeller.encoded(found)
    load(model, state.weights)
    for number in (1, 2):
        state, facts = method.round(state, federation, number)
        report = fit_relations(
            model,
            encoded,
            epochs=2,
            batch_size=6,
            optimiser=optimiser_of(engine.asks["train_relations", "site-1"]),
            seed=derive_seed(settings.seed, number, "site-1", "train_relations"),
        )
        assert facts["loss"] == pytest.approx(report.loss)
        assert facts["sentences"] == report.sentences == 36
        for name, array in arrays(model).items():
            assert np.array_equal(state.weights[name], array)


def test_rows_of_pieces_that_nobody_has_stay_and_do_not_travel(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, "method=fedavg-re"))
    state = method.start(federation)
    after, _ = method.round(state, federation, 1)
    sent = engine.replies["train_relations", "site-1"].weights
    changed = (after.weights[TABLE] != state.weights[TABLE]).any(1)
    assert 0 < changed.sum() < len(changed)
    assert len(sent[TABLE]) < len(changed)
    moved = trained(engine, "site-1").weights[TABLE] / trained(engine, "site-1").weight
    own = (moved != state.weights[TABLE]).any(1)
    assert (own <= changed).mean() > 0.9


# --- FedAtt -----------------------------------------------------------------------------------


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
    settings = with_train(tmp_path, "fedatt-re", UNEQUAL, "options.epsilon=0.7")
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    one, two = (trained(engine, s, "train_relations_alone") for s in ("site-1", "site-2"))
    assert one.weight == two.weight == 1.0
    for name, start in state.weights.items():
        away = np.array([start - one.weights[name], start - two.weights[name]], np.float64)
        powers = np.exp([np.linalg.norm(away[0]), np.linalg.norm(away[1])])
        attention = powers / powers.sum()
        expected = start - 0.7 * np.tensordot(attention, away, 1)
        np.testing.assert_allclose(after.weights[name], expected, rtol=1e-4, atol=1e-6)
    assert facts["loss"] == pytest.approx((one.loss + two.loss) / 2)
    assert facts["sentences"] == 24


# --- what is refused --------------------------------------------------------------------------

START: Arrays = {"a": f32(1, 2), TABLE: f32([1, 1], [2, 2])}
ASK = TrainRelations(0.1, "adamw", 0.9, 0.0, 1.0, 4, 2, START, "equal")


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": 0.0},
        {"weight": 2.0},
        {"weight": -1.0},
        {"sentences": 0},
        {"loss": float("nan")},
        {"weights": {"a": f32(1, 2)}},
        {"weights": {**START, "a": f32(1, 2, 3)}},
        {"weights": {**START, "a": f32(1, np.inf)}},
        {"weights": {**START, "a": np.ones(2)}},
    ],
    ids=str,
)
def test_a_reply_that_would_turn_the_mean_over_is_refused(changes: dict[str, Any]) -> None:
    good = RelationsTrained(START, 1.0, 0.5, 8)
    check_reply(TRAIN_RELATIONS, ASK, good)
    by_size = replace(ASK, weighting="examples")
    check_reply(TRAIN_RELATIONS, by_size, replace(good, weight=4.0))
    with pytest.raises(GuardError):
        check_reply(TRAIN_RELATIONS, ASK, replace(good, **changes))


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_site_goes_no_further_than_its_guard_lets_it(weight: float) -> None:
    moved = {"a": f32(4, 6), TABLE: f32([1, 1], [2, 14])}  # 3, 4 and 12: its norm is 13
    reply = RelationsTrained(
        {name: array * np.float32(weight) for name, array in moved.items()}, weight, 0.5, 8
    )
    ask = replace(ASK, weighting="examples")
    assert bounded_trained(ask, reply, 13.001) is reply
    found = bounded_trained(ask, reply, 6.5)
    np.testing.assert_allclose(found.weights["a"] / weight, [2.5, 4], rtol=1e-6)
    np.testing.assert_allclose(found.weights[TABLE] / weight, [[1, 1], [2, 8]], rtol=1e-6)
    check_reply(TRAIN_RELATIONS, ask, found)


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown key 'weihgting'.*did you mean 'weighting'"):
        FedAvgRE(tiny(tmp_path, "method=fedavg-re", "options.weihgting=equal"))
    with pytest.raises(SettingsError, match="epsilon is wrong"):
        started(tmp_path, tiny(tmp_path, "method=fedatt-re", "options.epsilon=0"))
