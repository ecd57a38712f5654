"""How sites agree on a relation classifier, and what a site needs to take part."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import FederationError, GuardError, QuorumError
from confide.federation.guards import Guards, check_reply
from confide.federation.messages import decode, encode
from confide.kinds.relations.batches import NO_RELATION
from confide.kinds.relations.site import (
    ANY,
    DESCRIBE_RELATIONS,
    DescribeRelations,
    RelationsDescribed,
    RelationSpec,
    rules_of,
)
from confide.text.document import Document
from contract.corpus import tiny
from contract.models import folder_of
from contract.relations import documents, encoder
from methods.relation_runs import started, with_train
from training.encoders import tiny_bert

EVERY = ("feded-relations", "fedavg-relations", "fedatt-relations")
PLAIN = Document("plain", "the patient took nothing .")
TRAIN = documents("site-1", "train", 12)


@each("method", EVERY)
def test_the_form_is_the_union_of_what_the_sites_have(tmp_path: Path, method: str) -> None:
    one = [doc for doc in TRAIN if all(r.type == "causes" for r in doc.relations)]
    two = [
        replace(doc, entities=tuple(replace(e, type=f"{e.type}-2") for e in doc.entities))
        for doc in TRAIN
    ]
    overrides = (
        "pairs.max_tokens=7",
        "classifier.typed_markers=true",
        "pairs.direction=undirected",
    )
    made, federation, engine = started(
        tmp_path, with_train(tmp_path, method, [one, two], *overrides)
    )
    state = made.start(federation)
    assert state.form.relations == [NO_RELATION, "causes", "eases"]
    assert state.form.types == state.form.known_types == ["Drug", "Drug-2", "Pain", "Pain-2"]
    assert state.form.pairs == [("Drug", "Pain"), ("Drug-2", "Pain-2")]
    for site in federation.sites:
        memory = engine.memory(site)
        assert memory.form == state.form
        assert (memory.form.max_tokens, memory.form.max_sentences) == (7, 0)
        assert decode(made.pair.Memory, encode(memory)) == memory
        rules = rules_of(memory.form)
        assert rules.types == {("Drug", "Pain"), ("Drug-2", "Pain-2")}
        assert (rules.direction, rules.max_tokens, rules.max_sentences) == ("undirected", 7, 0)
    described = engine.replies["describe_relations", "site-1"]
    assert described.relations == ["causes"]
    assert described.types == ["Drug", "Pain"]


def test_settings_may_say_which_pairs_are_looked_at(tmp_path: Path) -> None:
    overrides = ('pairs.types=[["Pain","Drug"]]', "pairs.max_sentences=inf")
    made, federation, _ = started(
        tmp_path, with_train(tmp_path, "fedavg-relations", [TRAIN], *overrides)
    )
    state = made.start(federation)
    assert state.form.pairs == [("Pain", "Drug")]
    assert state.form.types == []
    assert (state.form.max_sentences, state.form.max_tokens) == (ANY, ANY)
    assert rules_of(state.form).max_sentences is rules_of(state.form).max_tokens is None


@each("method", EVERY)
def test_somebody_has_to_have_a_relation(tmp_path: Path, method: str) -> None:
    made, federation, engine = started(tmp_path, tiny(tmp_path, f"method={method}"), public=())
    for site in federation.sites:
        engine.site(site).train = [PLAIN]
    with pytest.raises(FederationError, match="no site has a relation"):
        made.start(federation)


# --- encoders ---------------------------------------------------------------------------------


@each("method", EVERY)
def test_a_site_with_another_encoder_is_named(tmp_path: Path, method: str) -> None:
    other = tiny_bert(tmp_path / "other", seed=7, initializer_range=0.1)
    settings = with_train(tmp_path, method, [TRAIN, TRAIN], context={"site-2": str(other)})
    made, federation, _ = started(tmp_path, settings)
    with pytest.raises(FederationError, match="do not have the server's encoder: site-2 differs"):
        made.start(federation)


def test_a_copy_of_the_encoder_is_the_same_encoder(tmp_path: Path) -> None:
    copy = shutil.copytree(folder_of(encoder()), tmp_path / "copy")
    settings = with_train(
        tmp_path, "fedavg-relations", [TRAIN, TRAIN], context={"site-2": str(copy)}
    )
    made, federation, engine = started(tmp_path, settings)
    state, _ = made.round(made.start(federation), federation, 1)
    assert engine.replies["describe_relations", "site-2"].encoder == state.form.digest
    assert made.score(state, federation, part="test", round=1).keys() == {"site-1", "site-2"}


@each("method", EVERY)
def test_a_site_without_the_encoder_says_so(tmp_path: Path, method: str) -> None:
    context = {"site-2": str(tmp_path / "nowhere")}
    settings = with_train(tmp_path, method, [TRAIN, TRAIN], context=context)
    made, federation, _ = started(tmp_path, settings)
    with pytest.raises(QuorumError, match=r"site-2.*cannot use the frozen encoder") as caught:
        made.start(federation)
    assert "nowhere" not in str(caught.value)


@each("method", EVERY)
def test_a_site_whose_encoder_changed_in_the_middle_says_so(tmp_path: Path, method: str) -> None:
    made, federation, engine = started(tmp_path, tiny(tmp_path, f"method={method}"))
    state = made.start(federation)
    other = tiny_bert(tmp_path / "other", seed=7, initializer_range=0.1)
    engine.site("site-2").context = str(other)
    with pytest.raises(QuorumError, match=r"site-2.*encoder is not the one that the run began"):
        made.round(state, federation, 1)


# --- text -------------------------------------------------------------------------------------


@each("method", EVERY)
def test_a_site_without_an_example_is_not_asked_to_train(tmp_path: Path, method: str) -> None:
    settings = with_train(tmp_path, method, [TRAIN, TRAIN[:6], [PLAIN]])
    made, federation, engine = started(tmp_path, settings)
    state = made.start(federation)
    take = "take_public_set" if method == "feded-relations" else "take"
    assert [engine.replies[take, site].size for site in federation.sites] == [12, 6, 0]
    assert state.idle == ["site-3"]
    after, facts = made.round(state, federation, 1)
    assert not federation.faults
    trained = {site for step, site in engine.asks if step.startswith("train")}
    assert trained == {"site-1", "site-2"}
    assert facts["sites"] == ["site-1", "site-2", "site-3"]
    assert facts["sentences"] == 18
    assert all(np.isfinite(array).all() for array in after.weights.values())
    counts = made.score(after, federation, part="test", round=1)
    assert counts.keys() == {"site-1", "site-2", "site-3"}


@each("method", EVERY)
def test_a_site_without_held_out_text_has_no_counts(tmp_path: Path, method: str) -> None:
    made, federation, engine = started(tmp_path, tiny(tmp_path, f"method={method}"))
    state = made.start(federation)
    engine.site("site-2").test = []
    counts = made.score(state, federation, part="test", round=1)
    assert counts["site-2"].confusion == {}
    assert sum(counts["site-1"].confusion.values()) == 8


@each("method", EVERY)
def test_a_site_that_has_no_example_of_a_relation_takes_part(tmp_path: Path, method: str) -> None:
    """And its test text may hold relations that nobody trains on: they are missed."""
    one = [doc for doc in TRAIN if not any(r.type == "eases" for r in doc.relations)]
    settings = with_train(tmp_path, method, [one, TRAIN])
    made, federation, engine = started(tmp_path, settings)
    engine.site("site-1").test = [
        replace(doc, relations=tuple(replace(r, type="unheard") for r in doc.relations))
        for doc in TRAIN
    ]
    state, _ = made.round(made.start(federation), federation, 1)
    assert "unheard" not in state.form.relations
    counts = made.score(state, federation, part="test", round=1)
    gold = {gold for gold, _ in counts["site-1"].confusion}
    assert gold == {"unheard", NO_RELATION}
    assert "unheard" not in {predicted for _, predicted in counts["site-1"].confusion}


@each("method", EVERY)
def test_a_relation_that_came_later_is_refused(tmp_path: Path, method: str) -> None:
    made, federation, engine = started(tmp_path, tiny(tmp_path, f"method={method}"))
    state = made.start(federation)
    site = engine.site("site-2")
    site.cache.clear()
    site.train = [
        replace(doc, relations=tuple(replace(r, type="new") for r in doc.relations))
        for doc in site.train
    ]
    with pytest.raises(QuorumError, match=r"site-2.*a relation that it did not have when the run"):
        made.round(state, federation, 1)


@each("method", EVERY)
def test_a_sites_guards_count_examples(tmp_path: Path, method: str) -> None:
    made, federation, engine = started(tmp_path, tiny(tmp_path, f"method={method}"))
    engine.site("site-2").guards = Guards(min_sentences=19)
    with pytest.raises(QuorumError, match=r"site-2.*fewer training sentences than its own guard"):
        made.round(made.start(federation), federation, 1)


@each("method", EVERY)
def test_a_site_whose_memory_is_gone_says_so(tmp_path: Path, method: str) -> None:
    settings = tiny(tmp_path, f"method={method}")
    made, federation, _ = started(tmp_path, settings)
    state = made.start(federation)
    for path in (tmp_path / "sites" / "site-2" / "memory").iterdir():
        path.unlink()
    made, federation, _ = started(tmp_path, settings)
    with pytest.raises(QuorumError, match=r"site-2.*the site has no memory of this run"):
        made.round(state, federation, 1)


@each("method", EVERY)
def test_a_site_does_not_find_what_it_does_not_annotate(tmp_path: Path, method: str) -> None:
    one = [doc for doc in TRAIN if not any(r.type == "eases" for r in doc.relations)]
    settings = with_train(tmp_path, method, [one, TRAIN], annotates={"site-1": ["causes"]})
    made, federation, _ = started(tmp_path, settings)
    state = made.start(federation)
    biased = {**state.weights, "relation.bias": np.array([-50, 0, 50], np.float32)}
    counts = made.score(replace(state, weights=biased), federation, part="test", round=1)
    assert {predicted for _, predicted in counts["site-1"].confusion} == {"causes"}
    assert {predicted for _, predicted in counts["site-2"].confusion} == {"eases"}


@each("method", EVERY)
def test_a_run_where_no_site_has_an_example_is_refused(tmp_path: Path, method: str) -> None:
    """They annotate relations, but between entities that are not looked at."""
    settings = tiny(tmp_path, f"method={method}", 'pairs.types=[["Drug","Pain"]]')
    made, federation, engine = started(tmp_path, settings)
    for site in federation.sites:
        engine.site(site).train = [
            replace(doc, entities=tuple(replace(e, type=f"{e.type}-2") for e in doc.entities))
            for doc in TRAIN
        ]
    with pytest.raises(FederationError, match="no site has any training text"):
        made.start(federation)


# --- what is refused ----------------------------------------------------------------------------


@each(
    "changes",
    [
        {"dim": 0},
        {"dim": 10**6},
        {"encoder": "x" * 65},
        {"relations": ["causes", ""]},
        {"types": [""]},
    ],
)
def test_a_description_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    good = RelationsDescribed("d" * 64, 16, ["causes"], [("Drug", "Pain")], ["Drug", "Pain"])
    ask = DescribeRelations("somewhere")
    check_reply(DESCRIBE_RELATIONS, ask, good)
    with pytest.raises(GuardError):
        check_reply(DESCRIBE_RELATIONS, ask, replace(good, **changes))


def test_what_is_agreed_on_is_what_settings_say(tmp_path: Path) -> None:
    overrides = ("classifier.blind=false", "classifier.pool=start", "classifier.max_length=24")
    made, federation, engine = started(
        tmp_path,
        with_train(tmp_path, "fedatt-relations", [TRAIN], *overrides, "classifier.dropout=0.3"),
    )
    made.start(federation)
    form: RelationSpec = engine.memory("site-1").form
    assert (form.blind, form.pool, form.longest, form.dropout) == (False, "start", 24, 0.3)
