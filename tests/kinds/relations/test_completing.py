"""Pseudo-complete annotation of pairs: what is labelled, what is learnt, and what is counted.

Shapes: S pairs, R classes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.kinds.pieces import EncodedRelations, relation_batch
from confide.kinds.protocol import SiteModel
from confide.kinds.relations.batches import NO_RELATION
from confide.kinds.relations.model import LabelledPairs, RelationTrainer
from confide.kinds.relations.site import RelationSpec, among_relations, complete_pairs
from confide.text.document import Document, Relation
from contract.corpus import tiny
from contract.relations import documents
from kinds.configs import config
from methods.relation_runs import started, with_train

LABELS = [0, 1, 0, 0, 1, 0]
"""Of a site that annotates the first relation of three; 0: none."""
BEST = [2, 2, 1, 0, 3, 3]
"""What a model finds likeliest."""
OWN = np.array([True, True, False, False])
ALL = np.ones(4, bool)


def pairs(labels: list[int]) -> EncodedRelations:
    many = len(labels)
    return EncodedRelations(
        ids_N=np.arange(many, dtype=np.int32),
        from_S1=np.arange(many + 1),
        heads_S2=np.zeros((many, 2), np.int32),
        tails_S2=np.zeros((many, 2), np.int32),
        relations_S=np.array(labels, np.int32),
        padding=0,
    )


def likeliest(asked: EncodedRelations) -> Any:
    return np.eye(4, dtype=np.float32)[np.array(BEST)[asked.ids_N]]


# --- which label a pair has (Eq. 5) ---------------------------------------------------------------


def test_a_pair_without_an_own_relation_has_the_models_if_the_site_lacks_it() -> None:
    found = complete_pairs(pairs(LABELS), OWN, nothing=0, logits=likeliest)
    assert found.encoded.text.relations_S.tolist() == [2, 1, 0, 0, 1, 3]
    assert found.encoded.source_S.tolist() == [False, True, True, True, True, False]
    assert (found.own, found.pseudo) == (2, 2)


def test_a_relation_that_the_model_is_not_sure_of_is_not_taken() -> None:
    """Its likeliest class has e / (e + 3) = 0.475."""
    for confidence, pseudo in ((0.47, 2), (0.48, 0)):
        found = complete_pairs(
            pairs(LABELS), OWN, nothing=0, logits=likeliest, confidence=confidence
        )
        assert found.pseudo == pseudo


def test_the_sites_own_pairs_are_not_changed() -> None:
    text = pairs(LABELS)
    complete_pairs(text, OWN, nothing=0, logits=likeliest)
    assert text.relations_S.tolist() == LABELS


@each(("labels", "own_R"), [(LABELS, ALL), ([1] * 6, OWN), ([], OWN)])
def test_a_model_is_not_asked_where_nothing_can_be_found(labels: list[int], own_R: Any) -> None:
    def refuse(asked: EncodedRelations) -> Any:
        raise AssertionError(len(asked))

    found = complete_pairs(pairs(labels), own_R, nothing=0, logits=refuse)
    assert found.encoded.text.relations_S.tolist() == labels
    assert found.encoded.source_S.all()
    assert found.pseudo == 0


def test_of_a_site_without_relations_of_its_own_every_pair_may_be_labelled() -> None:
    none_R = np.array([True, False, False, False])
    found = complete_pairs(pairs([0] * 6), none_R, nothing=0, logits=likeliest)
    assert found.encoded.text.relations_S.tolist() == BEST
    assert (found.own, found.pseudo) == (0, 5)


# --- what is learnt of it -------------------------------------------------------------------------


FOUR = RelationSpec(("none", "causes", "eases", "treats"))
MADE = RelationTrainer(cast(Any, None), FOUR)


class Fixed(torch.nn.Module):
    """Says the same of the pair in each place of a batch, whatever it reads."""

    def forward(self, batch: Any) -> Any:
        return torch.arange(len(batch.rows_B) * 4, dtype=torch.float32).view(-1, 4).sin()


def losses(found: LabelledPairs, rows: list[int], *, each: Any = None) -> tuple[Any, Any]:
    """losses_B of these rows, and the logits that they are made of."""
    model: Any = Fixed()
    batch = relation_batch(found.text, np.array(rows))
    source_B, target_B = MADE.losses(model, found, batch, output=model(batch))
    each_B = 1.0 if each is None else torch.from_numpy(each[rows])
    return each_B * source_B + target_B, model(batch)


def test_what_still_has_no_relation_is_chosen_among_the_sites_own_classes() -> None:
    found = complete_pairs(pairs(LABELS), OWN, nothing=0, logits=likeliest).encoded
    rows = [5, 3, 1]  # a model's, none, the site's own
    have_B, logits_BR = losses(found, rows)
    assert float(have_B[0]) == pytest.approx(float(-logits_BR[0].log_softmax(0)[3]))
    assert float(have_B[1]) == pytest.approx(float(-logits_BR[1, :2].log_softmax(0)[0]))
    assert float(have_B[2]) == pytest.approx(float(-logits_BR[2].log_softmax(0)[1]))


def test_instance_weights_count_for_the_sites_own_labels_alone() -> None:
    each_S = np.array([0.5, 2.0, 0.0, 1.0, 3.0, 4.0], np.float32)
    found = complete_pairs(pairs(LABELS), OWN, nothing=0, logits=likeliest).encoded
    rows = [4, 0, 2, 1, 5]
    have_B, _ = losses(found, rows, each=each_S)
    plain_B, _ = losses(found, rows)
    assert torch.equal(have_B, plain_B * torch.tensor([3.0, 1.0, 0.0, 2.0, 1.0]))


def test_own_labels_alone_are_chosen_among_the_sites_own_classes() -> None:
    have_B, logits_BR = losses(MADE.annotated(pairs([1, 0]), OWN), [0, 1])
    wanted_B = functional.cross_entropy(logits_BR[:, :2], torch.tensor([1, 0]), reduction="none")
    torch.testing.assert_close(have_B, wanted_B)
    every_B, logits_BR = losses(MADE.annotated(pairs([1, 0]), ALL), [0, 1])
    wanted_B = functional.cross_entropy(logits_BR, torch.tensor([1, 0]), reduction="none")
    assert torch.equal(every_B, wanted_B)


# --- at a site -------------------------------------------------------------------------------

TRAIN = documents("site-1", "train", 12)
ONE = [doc for doc in TRAIN if not any(r.type == "eases" for r in doc.relations)]


def site_models(folder: Path, **knows: list[str]) -> tuple[Any, dict[str, Any], Any]:
    """The first state, the sites' models, and the engine; a site need not say what it knows."""
    said = {"site-1": [], "site-2": [], **knows}
    settings = with_train(folder, "pseudo-complete-relations", [ONE, TRAIN], annotates=said)
    method, federation, engine = started(folder, settings)
    state = method.start(federation)
    return state, {name: state.form.at(engine.site(name)) for name in federation.sites}, engine


@each("knows", [{}, {"site-1": ["causes"]}])
def test_a_site_annotates_what_it_says_or_what_its_text_has(tmp_path: Path, knows: Any) -> None:
    _, found, _ = site_models(tmp_path, **knows)
    assert found["site-1"].annotated == {"causes"}
    assert found["site-2"].annotated == {"causes", "eases"}


def test_only_the_relation_that_a_site_lacks_is_found_at_it(tmp_path: Path) -> None:
    state, found, _ = site_models(tmp_path)
    biased = {**state.weights, "relation.bias": np.array([-50, 0, 50], np.float32)}
    site_model: SiteModel = found["site-1"]
    text = site_model.completed(biased)
    causes = sum(len(doc.relations) for doc in ONE)
    assert (text.own, text.pseudo) == (causes, len(ONE) - causes)
    assert site_model.completed(None)[1:] == (causes, 0)
    assert found["site-2"].completed(biased).pseudo == 0
    pulls = site_model.row_gradients(biased, config(), text.encoded)
    assert pulls.target_G.shape == (state.weights["relation.weight"].size,)
    assert (pulls.source.norms_S() > 0).tolist() == text.encoded.source_S.tolist()


def test_without_weights_a_desk_trains_as_under_fedavg(tmp_path: Path) -> None:
    state, found, _ = site_models(tmp_path, **{"site-1": ["causes"]})
    asked = config(optimiser="adamw", epochs=2)
    site_model = found["site-1"]
    plain = site_model.fit(state.weights, asked, seed=3)
    same = site_model.fit(state.weights, asked, seed=3, encoded=site_model.completed(None).encoded)
    assert plain.loss == same.loss
    for name, array in plain.weights.items():
        assert np.array_equal(array, same.weights[name])
    lacked = state.form.relations.index("eases")
    rows_RF = plain.weights["relation.weight"] - state.weights["relation.weight"]
    assert not rows_RF[lacked].any()
    assert rows_RF[0].any()


def test_a_site_without_a_relation_takes_part(tmp_path: Path) -> None:
    bare = [replace(doc, relations=()) for doc in TRAIN]
    knows: Any = {"site-1": [], "site-2": []}
    warm = "options.warmup_rounds=1"
    settings = with_train(
        tmp_path, "pseudo-complete-relations", [bare, TRAIN], warm, annotates=knows
    )
    method, federation, _ = started(tmp_path, settings)
    state = method.start(federation)
    for number in (1, 2, 3):
        state, facts = method.round(state, federation, number)
        assert np.isfinite(facts["loss"])
        assert facts["sites"] == ["site-1", "site-2"]
        assert all(np.isfinite(array).all() for array in state.weights.values())


# --- what is counted ------------------------------------------------------------------------------


@each(("test_knows", "counted"), [((), {NO_RELATION}), (("eases",), {"eases"})])
def test_a_relation_that_nobody_looked_for_is_not_counted(
    tmp_path: Path, test_knows: Any, counted: set[str]
) -> None:
    state, found, engine = site_models(tmp_path, **{"site-1": ["causes"]})
    site = engine.site("site-1")
    site.test_annotates = test_knows
    site.test = ONE
    site_model = found["site-1"]
    biased = {**state.weights, "relation.bias": np.array([0, -50, 50], np.float32)}
    confusion = site_model.scored(biased, "test", apart=True)
    labels = np.array(confusion.labels)
    assert set(labels[confusion.confusion_YY.any(0)]) == counted


def test_a_relation_that_held_out_text_has_is_counted_there(tmp_path: Path) -> None:
    state, found, engine = site_models(tmp_path, **{"site-1": ["causes"]})
    engine.site("site-1").test = TRAIN
    biased = {**state.weights, "relation.bias": np.array([0, -50, 50], np.float32)}
    scored = found["site-1"].scored(biased, "test", apart=True)
    right = scored.confusion_YY[(scored.labels.index("eases"),) * 2]
    assert right == sum(r.type == "eases" for doc in TRAIN for r in doc.relations) > 0


def test_relations_of_other_types_go_and_those_of_gold_text_stay() -> None:
    both = (Relation("R1", "causes", "T1", "T2"), Relation("R2", "treats", "T1", "T2"))
    found = Document("d", "a b", (), both)
    gold = Document("d", "a b", (), both[1:])
    assert among_relations([found], [gold], set()) == [replace(found, relations=both[1:])]
    assert among_relations([found], [gold], {"causes"}) == [found]
    assert among_relations([found], [], {"eases"}) == [replace(found, relations=())]


def test_the_relation_form_says_by_which_part_pairs_are_compared(tmp_path: Path) -> None:
    method, federation, _ = started(tmp_path, tiny(tmp_path, "method=pseudo-complete-relations"))
    state = method.start(federation)
    assert [name for name in state.weights if name.endswith(state.form.slope)] == [
        "relation.weight"
    ]
    assert state.parameters == sum(array.size for array in state.weights.values())
