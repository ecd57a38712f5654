"""Every method that crosses kinds trains each of them: two rounds on the tiny corpora."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cases import each
from confide.errors import ConfideError, QuorumError, SettingsError
from confide.federation.guards import Guards
from confide.federation.messages import decode, encode
from confide.kinds import KINDS
from confide.kinds.bags.site import words_of
from confide.kinds.protocol import train_config
from confide.methods import METHODS
from confide.seeds import derive_seed
from confide.training.vocabulary import UNK
from contract.corpus import KEY, lacking, tiny
from contract.entries import APART, ENTRIES, FEDAVG, pairs
from kinds.bag_runs import WIDE as SITES
from kinds.bag_runs import WORDS, begun, learnt, whole
from methods.relation_runs import started

PAIRS = [
    *(f"{method}-{kind}" for method in ("fedavg", "fedatt", "chain") for kind in KINDS),
    *(f"fedner-{kind}" for kind in ("encoder", "lightner", "relations")),
]
OWN = {"fedner": ("training.optimiser=adam",)}
"""What a method needs besides."""


@pytest.mark.parametrize("name", pairs(of=PAIRS))
def test_two_rounds_of_every_pair_learn_something_finite(tmp_path: Path, name: str) -> None:
    pair = METHODS[name]
    settings = tiny(tmp_path, f"method={name}", *OWN.get(pair.method, ()))
    assert settings.trained_by == name
    method, federation, engine = started(tmp_path, settings)
    first = state = method.start(federation)
    for number in (1, 2):
        before = state
        state, facts = method.round(before, federation, number)
        assert np.isfinite(facts["loss"])
        assert facts["sentences"] > 0
        assert state.weights.keys() == first.weights.keys()
        assert all(np.isfinite(array).all() for array in state.weights.values())
        assert any((state.weights[n] != before.weights[n]).any() for n in state.weights)
    assert not federation.faults
    scored = method.score(state, federation, part="test", round=2)
    assert sorted(scored) == ["site-1", "site-2", "site-3"]
    assert encode(decode(method.pair.State, encode(state))) == encode(state)
    for site in federation.sites:
        memory = engine.memory(site)
        assert encode(decode(method.pair.Memory, encode(memory))) == encode(memory)
        if pair.personal:
            assert not memory.own.keys() & state.weights.keys()
            assert memory.steps == 2


# --- sites without text, and guards ---------------------------------------------------------------

STARTED = [name for name in APART if METHODS[name].method not in ("fedatt", "chain")]


@pytest.mark.parametrize("name", pairs(of=STARTED))
def test_a_site_without_training_text_is_idle_under_every_method(tmp_path: Path, name: str) -> None:
    settings = tiny(tmp_path, f"method={name}", *OWN.get(METHODS[name].method, ()))
    method, federation, engine = started(tmp_path, settings)
    engine.site("site-3").train = []
    state = method.start(federation)
    assert state.idle == ["site-3"]
    after, facts = method.round(state, federation, 1)
    assert np.isfinite(facts["loss"])
    assert not federation.faults
    scored = method.score(after, federation, part="test", round=1)
    assert sorted(scored) == ["site-1", "site-2", "site-3"]
    federation.draw = lambda *_: ("site-3",)  # type: ignore[method-assign]
    again, facts = method.round(after, federation, 2)
    assert (facts["loss"], facts["sentences"]) == (None, 0)
    assert all(np.array_equal(again.weights[name], a) for name, a in after.weights.items())


@pytest.mark.parametrize("name", pairs(fast=FEDAVG, of=STARTED))
def test_a_run_in_which_every_site_is_idle_is_refused(tmp_path: Path, name: str) -> None:
    settings = tiny(tmp_path, f"method={name}", *OWN.get(METHODS[name].method, ()))
    method, federation, engine = started(tmp_path, settings)
    for site in federation.sites:
        engine.site(site).train = []
    with pytest.raises(ConfideError, match="no site has a"):
        method.start(federation)


@each("name", FEDAVG)
def test_a_part_that_a_site_keeps_to_itself_is_trained_nowhere_else(
    tmp_path: Path, name: str
) -> None:
    """The guard `private` stands where the part would leave, whatever the kind."""
    method, federation, engine = started(tmp_path, tiny(tmp_path, f"method={name}"))
    state = method.start(federation)
    part = sorted(state.weights)[-1].rpartition(".")[0]
    engine.site("site-2").guards = Guards(private=(part,))
    with pytest.raises(QuorumError, match=r"site site-2, step train, .*own guard `private`"):
        method.round(state, federation, 1)


def test_what_a_site_does_not_look_for_is_not_counted_there(tmp_path: Path) -> None:
    """Under FedAvg as under pseudo-complete annotation."""
    name = "fedavg-tagger"
    usual = tiny(tmp_path, f"method={name}", *ENTRIES[name].learning)
    tables = [table.model_dump(exclude_none=True) for table in usual.site]
    tables[2]["annotates"] = ["Drug"]
    settings = tiny(tmp_path, f"method={name}", *ENTRIES[name].learning, site=tables)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    for number in range(1, settings.rounds + 1):
        state, _ = method.round(state, federation, number)
    found = method.pair.extractor(state, None, key=KEY)(engine.site("site-3").test)
    assert {entity.type for one in found for entity in one.entities} == {"Drug", "Effect"}
    counts = method.score(state, federation, part="test", round=1)
    assert counts["site-3"].strict.keys() == {"Drug"}
    assert counts["site-1"].strict.keys() == {"Drug", "Effect"}


# --- rows -----------------------------------------------------------------------------------------


@each("weighting", ["equal", "examples"])
def test_a_row_of_a_pcnn_may_be_the_mean_over_the_sites_that_have_its_word(
    tmp_path: Path, weighting: str
) -> None:
    """The oracle trains each site's model by itself, and looks up by the key whose word it is."""
    sites = {"site-1": SITES["site-1"], "site-2": SITES["site-2"][:20]}
    overrides = ("options.rows=seen", f"options.weighting={weighting}")
    method, federation, _ = begun(tmp_path, "fedavg-bags", *overrides, sites=sites)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    words = words_of(state.form, KEY)
    rows_VD = np.zeros_like(state.weights[WORDS], np.float64)
    total_V = np.zeros(len(rows_VD))
    for site, documents in sites.items():
        seed = derive_seed(federation.seed, 1, site, "train_bags")
        optimiser = train_config(method.run, 1).steps
        own, _ = learnt(state, documents, optimiser=optimiser, seed=seed, epochs=1, batch_size=6)
        tokens = {token.lower() for one in documents for token in one.text.split()}
        ids = np.unique([UNK, *words.ids(sorted(tokens))])
        weight = len(documents) if weighting == "examples" else 1
        rows_VD[ids] += weight * own[WORDS][ids].astype(np.float64)
        total_V[ids] += weight
    assert len(set(total_V)) > 2  # words of nobody, of one site, and of both
    mean_VD = rows_VD / np.maximum(total_V, 1)[:, None]
    expected_VD = np.where(total_V[:, None] > 0, mean_VD, state.weights[WORDS])
    np.testing.assert_allclose(after.weights[WORDS], expected_VD, rtol=1e-5, atol=1e-7)
    assert np.isfinite(facts["loss"])


@each("rows", ["all", "seen"])
def test_a_relation_may_be_the_mean_over_the_sites_that_annotate_it(
    tmp_path: Path, rows: str
) -> None:
    """Two sites annotate `causes`, the third only `eases`: it has nothing to say of the former."""
    usual = tiny(tmp_path, "method=fedavg-relations")
    tables = [table.model_dump(exclude_none=True) for table in usual.site]
    for number, table in enumerate(tables):
        table |= lacking("re", number)
    overrides = (f"options.rows={rows}", "options.weighting=equal", "training.weight_decay=0")
    settings = tiny(tmp_path, "method=fedavg-relations", *overrides, site=tables)
    method, federation, engine = started(tmp_path, settings)
    before = method.start(federation)
    after, _ = method.round(before, federation, 1)
    replies = {site: whole(engine, site) for site in federation.sites}
    causes = before.form.relations.index("causes")
    for name in ("relation.weight", "relation.bias"):
        said = [replies[site].weights[name][causes] for site in ("site-1", "site-2")]
        start = before.weights[name][causes]
        lacked = 0 * start if rows == "seen" else start
        assert np.array_equal(replies["site-3"].weights[name][causes], lacked)
        mean = np.mean(said if rows == "seen" else [*said, start], 0)
        np.testing.assert_allclose(after.weights[name][causes], mean, rtol=1e-5, atol=1e-7)
        assert not np.allclose(mean, start)
    if rows == "seen":
        assert list(replies["site-3"].seen["relation.bias"]) == [
            float(one != "causes") for one in before.form.relations
        ]


@each("kind", ["encoder", "lightner"])
def test_rows_of_a_kind_without_a_table_of_words_are_refused(tmp_path: Path, kind: str) -> None:
    settings = tiny(tmp_path, f"method=fedavg-{kind}", "options.rows=seen")
    with pytest.raises(SettingsError, match="has no word table") as caught:
        method, federation, _ = started(tmp_path, settings)
        method.start(federation)
    assert 'options.rows = "all"' in str(caught.value)


def test_rows_of_bags_that_an_encoder_reads_are_refused(tmp_path: Path) -> None:
    settings = tiny(
        tmp_path,
        "method=fedavg-bags",
        "bags.reader=encoder",
        "training.optimiser=adamw",
        "options.rows=seen",
    )
    with pytest.raises(SettingsError, match="has no word table"):
        method, federation, _ = started(tmp_path, settings)
        method.start(federation)
