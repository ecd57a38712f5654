"""The chain: where one site goes on, and what happens where one fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cases import each
from confide.errors import QuorumError, SettingsError
from confide.methods.chain import TRAIN_IN_TURN
from confide.seeds import derive_seed
from confide.training.optimisers import Optimiser
from contract.corpus import tiny
from kinds.bag_runs import UNEQUAL, begun, learnt, whole
from methods.relation_runs import started


def test_in_a_chain_each_site_trains_from_where_the_one_before_stopped(tmp_path: Path) -> None:
    method, federation, engine = begun(tmp_path, "chain-bags", "bags.denoise=ave")
    state = method.start(federation)
    orders = set()
    for number in (1, 2, 3, 4):
        before = state
        state, facts = method.round(state, federation, number)
        orders.add(tuple(facts["order"]))
        weights = before.weights
        optimiser: Optimiser = engine.asks["train_in_turn", "site-1"].config.steps
        for site in facts["order"]:
            asked = engine.asks["train_in_turn", site].weights
            assert all(np.array_equal(asked[name], weights[name]) for name in weights)
            seed = derive_seed(federation.seed, number, site, "train_in_turn")
            weights, _ = learnt(
                before, UNEQUAL[site], weights=weights, optimiser=optimiser, seed=seed,
                epochs=1, batch_size=6,
            )  # fmt: skip
        assert all(np.array_equal(state.weights[name], weights[name]) for name in weights)
        assert facts["sentences"] == 42
    assert orders == {("site-1", "site-2"), ("site-2", "site-1")}


@each("at_least", [0, 1])
def test_a_link_that_fails_is_passed_over_if_enough_are_left(tmp_path: Path, at_least: int) -> None:
    method, federation, engine = begun(tmp_path, "chain-bags", at_least=at_least)
    state = method.start(federation)
    engine.site("site-2").key_file = None
    if not at_least:
        with pytest.raises(QuorumError, match=r"step train_in_turn.*site-2"):
            method.round(state, federation, 1)
        return
    after, facts = method.round(state, federation, 1)
    assert facts["order"] == ["site-1"]
    reply = whole(engine, "site-1", "train_in_turn")
    assert all(np.array_equal(after.weights[name], a) for name, a in reply.weights.items())
    assert [fault.site for fault in federation.faults] == ["site-2"]


def test_there_is_nothing_to_set(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unknown key 'weighting'"):
        started(tmp_path, tiny(tmp_path, "method=chain-bags", "options.weighting=equal"))
    assert not TRAIN_IN_TURN.summed
