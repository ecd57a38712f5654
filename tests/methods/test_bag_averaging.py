"""FedAvg of bags under every denoiser, and the chain: what is averaged, and where one goes on."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.data.bags import training_bags
from confide.data.relations import candidates
from confide.errors import QuorumError, SettingsError
from confide.federation.changes import restored
from confide.learning.bags import BagModeller, fit_bags
from confide.learning.optimisers import Optimiser
from confide.learning.seeds import derive_seed
from confide.learning.weights import arrays, load
from confide.methods import bag_averaging
from confide.methods.bag_averaging import TRAIN_BAGS, FedAvgBags
from confide.kinds.bags.form import bag_form_of, words_of
from confide.kinds.relations.form import rules_of
from confide.kinds.relations.desk import optimiser_of
from confide.text.document import Document
from contract.bags import bag_documents, sentence, write_bags
from contract.corpus import KEY, tiny
from contract.relations import SAID
from methods.relation_runs import Seen, started

UNEQUAL = {
    "site-1": bag_documents("site-1", "train", 30),
    "site-2": bag_documents("site-2", "train", 12),
}
WORDS = "reader.word.weight"


def wide(site: str) -> list[Document]:
    """Forty sentences with words that nobody else has."""
    draw = random.Random(site)
    return [
        sentence(
            draw,
            f"{site}-{number}",
            names=(f"{site}drug{mark}", f"{site}pain{mark}"),
            concepts=(f"D{number}", f"E{number}"),
            said=SAID["eases"],
            relation="eases" if number % 2 else "",
        )
        for number, mark in enumerate(map("".join, itertools.product("abcd", "abcdefghij")))
    ]


WIDE = {"site-1": wide("north"), "site-2": wide("south")}


def begun(
    folder: Path, method: str, *overrides: str, at_least: int = 0, sites: Any = None
) -> tuple[Any, Any, Seen]:
    tables = write_bags(folder / "data", sites or UNEQUAL)
    settings = tiny(folder, f"method={method}", *overrides, site=tables)
    return started(folder, settings, at_least=at_least)


def whole(engine: Seen, site: str, step: str = "train_bags") -> Any:
    """A site's whole reply."""
    kind = engine._hosting.steps[step]
    return restored(kind, engine.asks[step, site], engine.replies[step, site])


def learnt(state: Any, documents: list[Document], **how: Any) -> tuple[dict[str, Any], Any]:
    """The oracle: a model of its own, trained from these weights on these documents."""
    modeller = BagModeller(bag_form_of(state), words_of(state, KEY))
    found = candidates(documents, rules_of(state)).examples
    bags = training_bags(found, documents, same="concept")
    model = modeller.initial(0)
    load(model, how.pop("weights", state.weights))
    report = fit_bags(
        model, modeller.encoded(bags.examples), bags.groups, denoise=state.denoise, **how
    )
    return arrays(model), report


@pytest.mark.parametrize("denoise", ["none", "one", "att", "ave", "att-ra"])
@pytest.mark.parametrize("weighting", ["sentences", "equal"])
def test_the_next_weights_are_the_mean_of_what_sites_learn(
    tmp_path: Path, denoise: str, weighting: str
) -> None:
    """The oracle trains models of its own, and takes numpy's average."""
    method, federation, engine = begun(
        tmp_path, "fedavg-bags", f"bags.denoise={denoise}", f"options.weighting={weighting}"
    )
    state = method.start(federation)
    assert state.denoise == denoise
    after, facts = method.round(state, federation, 1)
    optimiser = optimiser_of(engine.asks["train_bags", "site-1"])
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


@pytest.mark.parametrize("method", ["fedavg-bags", "chain", "lazy-mil"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
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
            for name, step in list(engine._hosting.steps.items()):
                if step.start is not None:
                    whole_tables = replace(step, start=None)
                    engine._hosting.steps[name] = whole_tables
                    for module in ("bag_averaging", "lazy_mil"):
                        place = f"confide.methods.{module}.{name.upper()}"
                        monkeypatch.setattr(place, whole_tables, raising=False)
            kind, federation, engine = begun_again(kind, federation, engine)
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


def trains(method: str) -> str:
    return {"chain": "train_in_turn", "lazy-mil": "train_on_winners"}.get(method, "train_bags")


def begun_again(kind: Any, federation: Any, engine: Seen) -> tuple[Any, Any, Seen]:
    """The same over sites that know the changed steps."""
    for host in engine._hosts.values():
        host._steps = engine._hosting.steps
    return kind, federation, engine


def test_only_rows_of_a_sites_own_words_travel(tmp_path: Path) -> None:
    """Under weight decay too."""
    method, federation, engine = begun(
        tmp_path, "fedavg-bags", "options.weighting=equal", "training.weight_decay=0.01", sites=WIDE
    )
    state = method.start(federation)
    method.round(state, federation, 1)
    words = words_of(state, KEY)
    for site, documents in WIDE.items():
        own = {token.lower() for one in documents for token in one.text.split()}
        ids = set(words.ids(sorted(own)).tolist())
        moved = (whole(engine, site).weights[WORDS] != state.weights[WORDS]).any(1)
        assert len(ids) // 2 < len(np.flatnonzero(moved)) <= len(ids)
        assert set(np.flatnonzero(moved).tolist()) <= ids
        assert len(engine.replies["train_bags", site].weights[WORDS]) == moved.sum()


def test_word_vectors_are_filled_in_once(tmp_path: Path) -> None:
    """Each site puts the file's rows at its words in round 1, and not again."""
    file = tmp_path / "vectors.txt"
    file.write_text("aspirin " + " ".join(["7"] * 8) + "\nnobody " + " ".join(["1"] * 8) + "\n")
    tables = write_bags(tmp_path / "data", UNEQUAL)
    for table in tables:
        table["vectors"] = str(file)
    for method in ("fedavg-bags", "lazy-mil", "chain"):
        settings = tiny(tmp_path, f"method={method}", site=tables)
        kind, federation, engine = started(tmp_path / method, settings)
        state = kind.start(federation)
        (row,) = words_of(state, KEY).ids(["aspirin"])
        assert np.abs(state.weights[WORDS][row]).max() < 2
        after, _ = kind.round(state, federation, 1)
        np.testing.assert_allclose(after.weights[WORDS][row], 7, atol=0.5)
        again, _ = kind.round(after, federation, 2)
        assert not np.array_equal(again.weights[WORDS][row], np.full(8, 7, np.float32))
        assert engine.asks[trains(method), "site-1"].vectors is False


# --- the chain ------------------------------------------------------------------------------------


def test_in_a_chain_each_site_trains_from_where_the_one_before_stopped(tmp_path: Path) -> None:
    method, federation, engine = begun(tmp_path, "chain", "bags.denoise=ave")
    state = method.start(federation)
    orders = set()
    for number in (1, 2, 3, 4):
        before = state
        state, facts = method.round(state, federation, number)
        orders.add(tuple(facts["order"]))
        weights = before.weights
        optimiser: Optimiser = optimiser_of(engine.asks["train_in_turn", "site-1"])
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


@pytest.mark.parametrize("at_least", [0, 1])
def test_a_link_that_fails_is_passed_over_if_enough_are_left(tmp_path: Path, at_least: int) -> None:
    method, federation, engine = begun(tmp_path, "chain", at_least=at_least)
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


# --- sites without text, and settings -------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg-bags", "chain"])
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
        FedAvgBags(tiny(tmp_path, "method=fedavg-bags", "options.weihgting=equal"))
    with pytest.raises(SettingsError, match="unknown key 'weighting'"):
        started(tmp_path, tiny(tmp_path, "method=chain", "options.weighting=equal"))
    assert TRAIN_BAGS.summed
    assert not bag_averaging.TRAIN_IN_TURN.summed
