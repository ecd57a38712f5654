"""FedAvg of a relation classifier: the mean is the one that numpy computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import GuardError, SettingsError
from confide.federation.guards import check_reply, clipped
from confide.federation.messages import Arrays
from confide.federation.quantising import restore_reply
from confide.kinds.relations.batches import candidates
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import rules_of
from confide.methods.fedavg import TRAIN, Train, Update
from confide.seeds import derive_seed
from confide.training.encoder import load_encoder
from confide.training.weights import arrays, load_weights
from contract.corpus import tiny
from contract.relations import documents
from kinds.configs import config
from methods.relation_runs import Seen, started, with_train

TABLE = "encoder.embeddings.word_embeddings.weight"
UNEQUAL = [documents("site-1", "train", 16), documents("site-2", "train", 8)]


def trained(engine: Seen, site: str, step: str = "train") -> Any:
    """A site's whole reply."""
    kind = engine._hosting.steps[step]
    return restore_reply(kind, engine.asks[step, site], engine.replies[step, site])


@each("weighting", ["equal", "examples"])
def test_the_next_weights_are_the_mean_of_the_replies(tmp_path: Path, weighting: str) -> None:
    """The oracle is numpy's average of what the two sites really sent."""
    settings = with_train(tmp_path, "fedavg-relations", UNEQUAL, f"options.weighting={weighting}")
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    assert engine.replies["take", "site-1"].size == 16
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
    settings = tiny(tmp_path, "method=fedavg-relations", *overrides, sites=1)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    trainer = RelationTrainer(load_encoder(state.form.encoder), state.form)
    found = candidates(engine.site("site-1").train, rules_of(state.form)).examples
    model, encoded = trainer.initial(0), trainer.annotated(trainer.prepared(found))
    load_weights(model, state.weights)
    for number in (1, 2):
        state, facts = method.round(state, federation, number)
        report = trainer.fit(
            model,
            encoded,
            epochs=2,
            batch_size=6,
            optimiser=engine.asks["train", "site-1"].config.steps,
            seed=derive_seed(settings.seed, number, "site-1", "train_relations"),
        )
        assert facts["loss"] == pytest.approx(report.loss)
        assert facts["sentences"] == report.sentences == 36
        for name, array in arrays(model).items():
            assert np.array_equal(state.weights[name], array)


def test_rows_of_pieces_that_nobody_has_stay_and_do_not_travel(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, "method=fedavg-relations"))
    state = method.start(federation)
    after, _ = method.round(state, federation, 1)
    sent = engine.replies["train", "site-1"].weights
    changed = (after.weights[TABLE] != state.weights[TABLE]).any(1)
    assert 0 < changed.sum() < len(changed)
    assert len(sent[TABLE]) < len(changed)
    moved = trained(engine, "site-1").weights[TABLE] / trained(engine, "site-1").weight
    own = (moved != state.weights[TABLE]).any(1)
    assert (own <= changed).mean() > 0.9


# --- what is refused --------------------------------------------------------------------------


def f32(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


START: Arrays = {"a": f32(1, 2), TABLE: f32([1, 1], [2, 2])}
ASK = Train(START, config(optimiser="adamw", epochs=2), "equal", [])


@each(
    "changes",
    [
        {"weight": 0.0},
        {"weight": 2.0},
        {"weight": -1.0},
        {"examples": 0},
        {"seen": {TABLE: f32(1, 1)}},
        {"loss": float("nan")},
        {"weights": {"a": f32(1, 2)}},
        {"weights": {**START, "a": f32(1, 2, 3)}},
        {"weights": {**START, "a": f32(1, np.inf)}},
        {"weights": {**START, "a": np.ones(2)}},
    ],
)
def test_a_reply_that_would_turn_the_mean_over_is_refused(changes: dict[str, Any]) -> None:
    good = Update(START, 1.0, {}, 0.5, 8)
    check_reply(TRAIN, ASK, good)
    by_size = replace(ASK, weighting="examples")
    check_reply(TRAIN, by_size, replace(good, weight=4.0))
    with pytest.raises(GuardError):
        check_reply(TRAIN, ASK, replace(good, **changes))


@each("weight", [1.0, 3.0])
def test_a_site_goes_no_further_than_its_guard_lets_it(weight: float) -> None:
    moved = {"a": f32(4, 6), TABLE: f32([1, 1], [2, 14])}  # 3, 4 and 12: its norm is 13
    sent = {name: array * np.float32(weight) for name, array in moved.items()}
    reply = Update(sent, weight, {}, 0.5, 8)
    ask = replace(ASK, weighting="examples")
    assert clipped(TRAIN, ask, reply, most=13.001) is reply
    found = clipped(TRAIN, ask, reply, most=6.5)
    np.testing.assert_allclose(found.weights["a"] / weight, [2.5, 4], rtol=1e-6)
    np.testing.assert_allclose(found.weights[TABLE] / weight, [[1, 1], [2, 8]], rtol=1e-6)
    check_reply(TRAIN, ask, found)


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown key 'weihgting'.*did you mean 'weighting'"):
        started(tmp_path, tiny(tmp_path, "method=fedavg-relations", "options.weihgting=equal"))
