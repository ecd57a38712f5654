"""FedAvg of bags under every denoiser: what is averaged, and which rows travel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import SettingsError
from confide.kinds.bags.site import words_of
from confide.methods.fedavg import TRAIN
from confide.seeds import derive_seed
from confide.text.document import Document
from contract.bags import write_bags
from contract.corpus import KEY, tiny
from kinds.bag_runs import UNEQUAL, WIDE, WORDS, begun, learnt, trains, whole
from methods.relation_runs import started


@each("denoise", ["none", "one", "att", "ave", "att-ra"])
@each("weighting", ["sentences", "equal"])
def test_the_next_weights_are_the_mean_of_what_sites_learn(
    tmp_path: Path, denoise: str, weighting: str
) -> None:
    """The oracle trains models of its own, and takes numpy's average."""
    method, federation, engine = begun(
        tmp_path, "fedavg-bags", f"bags.denoise={denoise}", f"options.weighting={weighting}"
    )
    state = method.start(federation)
    assert state.form.denoise == denoise
    after, facts = method.round(state, federation, 1)
    optimiser = engine.asks["train", "site-1"].config.steps
    found, losses = [], []
    for site, documents in UNEQUAL.items():
        seed = derive_seed(federation.seed, 1, site, "train_bags")
        how: dict[str, Any] = {"optimiser": optimiser, "seed": seed, "epochs": 1, "batch_size": 6}
        weights, report = learnt(state, documents, **how)
        found.append(weights)
        losses.append(report.loss)
    shares = [30, 12] if weighting == "sentences" else [1, 1]
    assert [whole(engine, site).weight for site in UNEQUAL] == shares
    assert facts["loss"] == pytest.approx(np.average(losses, weights=shares))
    for name, array in after.weights.items():
        mean = np.average([one[name].astype(np.float64) for one in found], axis=0, weights=shares)
        np.testing.assert_allclose(array, mean, rtol=1e-5, atol=1e-7)


def test_denoisers_learn_differently(tmp_path: Path) -> None:
    found = []
    for denoise in ("none", "one", "att", "ave", "att-ra"):
        folder = tmp_path / denoise
        method, federation, _ = begun(folder, "fedavg-bags", f"bags.denoise={denoise}")
        after, _ = method.round(method.start(federation), federation, 1)
        found.append(after.weights["relation.weight"].tobytes())
    assert len(set(found)) == 5


# --- rows -----------------------------------------------------------------------------------------


@each("method", ["fedavg-bags", "chain-bags", "lazy-mil-bags"])
@each("optimiser", ["sgd", "adam"])
def test_sparse_rows_give_the_same_numbers_as_dense(
    tmp_path: Path, method: str, optimiser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that sends whole tables comes to the same weights, bit for bit, and sends more."""
    states, sent = [], []
    for dense in (False, True):
        kind, federation, engine = begun(
            tmp_path / str(dense), method, f"training.optimiser={optimiser}", sites=WIDE
        )
        if dense:
            whole = "confide.federation.quantising.drop_unchanged_rows"
            monkeypatch.setattr(whole, lambda step, ask, reply: reply)
        state = kind.start(federation)
        for number in (1, 2):
            state, _ = kind.round(state, federation, number)
        states.append(state)
        sent.append(len(engine.sent[trains(method), "site-2"]))
    for name, array in states[0].weights.items():
        assert np.array_equal(array.view(np.uint32), states[1].weights[name].view(np.uint32))
    rows = states[0].weights[WORDS].shape[0]
    assert rows > 160
    assert sent[1] - sent[0] > rows // 3 * 8 * 4  # half of the table, nearly


def test_only_rows_of_a_sites_own_words_travel(tmp_path: Path) -> None:
    """Under weight decay too."""
    method, federation, engine = begun(
        tmp_path, "fedavg-bags", "options.weighting=equal", "training.weight_decay=0.01", sites=WIDE
    )
    state = method.start(federation)
    method.round(state, federation, 1)
    words = words_of(state.form, KEY)
    for site, documents in WIDE.items():
        own = {token.lower() for one in documents for token in one.text.split()}
        ids = set(words.ids(sorted(own)).tolist())
        moved = (whole(engine, site).weights[WORDS] != state.weights[WORDS]).any(1)
        assert len(ids) // 2 < len(np.flatnonzero(moved)) <= len(ids)
        assert set(np.flatnonzero(moved).tolist()) <= ids
        assert len(engine.replies["train", site].weights[WORDS]) == moved.sum()


def test_word_vectors_are_filled_in_once(tmp_path: Path) -> None:
    """Each site puts the file's rows at its words in round 1, and not again."""
    file = tmp_path / "vectors.txt"
    file.write_text("aspirin " + " ".join(["7"] * 8) + "\nnobody " + " ".join(["1"] * 8) + "\n")
    tables = write_bags(tmp_path / "data", UNEQUAL)
    for table in tables:
        table["vectors"] = str(file)
    for method in ("fedavg-bags", "lazy-mil-bags", "chain-bags"):
        settings = tiny(tmp_path, f"method={method}", site=tables)
        kind, federation, engine = started(tmp_path / method, settings)
        state = kind.start(federation)
        (row,) = words_of(state.form, KEY).ids(["aspirin"])
        assert np.abs(state.weights[WORDS][row]).max() < 2
        after, _ = kind.round(state, federation, 1)
        np.testing.assert_allclose(after.weights[WORDS][row], 7, atol=0.5)
        again, _ = kind.round(after, federation, 2)
        assert not np.array_equal(again.weights[WORDS][row], np.full(8, 7, np.float32))
        assert engine.asks[trains(method), "site-1"].config.vectors is False


# --- sites without text, and settings -------------------------------------------------------------


@each("name", ["fedavg-bags", "chain-bags"])
def test_a_site_without_training_text_is_not_asked_to_train(tmp_path: Path, name: str) -> None:
    sites = {**UNEQUAL, "site-3": [Document("empty", "nothing .")]}
    method, federation, engine = begun(tmp_path, name, sites=sites)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    assert (trains(name), "site-3") not in engine.asks
    assert facts["sites"] == ["site-1", "site-2", "site-3"]
    assert method.score(after, federation, part="test", round=1)["site-3"].bags > 0
    federation.draw = lambda *_: ("site-3",)
    again, facts = method.round(after, federation, 2)
    assert all(np.array_equal(again.weights[n], a) for n, a in after.weights.items())
    assert (facts["loss"], facts["sentences"]) == (None, 0)


def test_a_site_that_lets_no_row_out_bounds_its_change(tmp_path: Path) -> None:
    method, federation, engine = begun(tmp_path, "fedavg-bags", "options.weighting=equal")
    state = method.start(federation)
    site = engine.site("site-1")
    site.guards = replace(site.guards, max_norm=0.01)
    method.round(state, federation, 1)
    change = [
        array.astype(np.float64) - state.weights[name]
        for name, array in whole(engine, "site-1").weights.items()
    ]
    assert np.sqrt(sum(np.square(one).sum() for one in change)) == pytest.approx(0.01, rel=1e-3)


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"did you mean 'weighting'"):
        started(tmp_path, tiny(tmp_path, "method=fedavg-bags", "options.weihgting=equal"))
    assert TRAIN.summed
