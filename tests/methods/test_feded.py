"""FedED: the teacher is what numpy makes of the predictions, and the student learns from it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import QuorumError, SettingsError
from confide.federation.messages import Arrays, encode, forms_of
from confide.federation.seals import is_digest
from confide.kinds.pieces import relation_batch
from confide.kinds.relations.batches import NO_RELATION, candidates
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import RelationSpec, rules_of
from confide.methods.feded import Predicted, columns, teacher_of
from confide.runs.run import run
from confide.seeds import derive_seed
from confide.text.document import Document, Entity, Relation
from confide.training.encoder import load_encoder
from confide.training.weights import load_weights
from contract.corpus import tiny
from contract.relations import documents
from methods.relation_runs import asked, reply_of, started, with_train
from training.encoders import tiny_bert

STEP = "train_and_predict"


def softmax(logits: NDArray[Any], temperature: float = 1.0) -> NDArray[np.float64]:
    powers = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    found: NDArray[np.float64] = powers / powers.sum(-1, keepdims=True)
    return found


def total_of(*replies: Predicted) -> Predicted:
    """Their sum, as a federation makes it."""
    whole = replies[0].said_SQ.dtype.kind == "i"
    sums = [reply.said_SQ.astype(np.int64 if whole else np.float64) for reply in replies]
    knows = [reply.knows[""].astype(np.float64) for reply in replies if reply.knows]
    return replace(
        replies[0],
        said_SQ=np.sum(sums, 0),
        knows={"": np.sum(knows, 0)} if knows else {},
        sites=len(replies),
    )


LOGITS = np.random.default_rng(1).normal(scale=3, size=(3, 4, 3)).astype(np.float32)
"""Of three sites, four public examples, three classes."""
NEAR = {"float32": 1e-6, "float16": 2e-3, "int8": 0.03}
"""How near probabilities are, by what travels."""


# --- the teacher ------------------------------------------------------------------------------


@each("wire_dtype", NEAR)
@each("temperature", [1.0, 2.0])
def test_the_teacher_is_the_softened_mean_of_the_logits(
    wire_dtype: str, temperature: float
) -> None:
    """Eq. 4 and 5, without a column left out and without a detour over the wire."""
    ask = asked(wire_dtype=wire_dtype)
    total = total_of(*(reply_of(one, ask) for one in LOGITS))
    expected = softmax(LOGITS.mean(0, dtype=np.float64), temperature)
    found = teacher_of(total, ask, temperature=temperature)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=NEAR[wire_dtype])
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)


@each("wire_dtype", NEAR)
def test_or_the_mean_of_the_probabilities(wire_dtype: str) -> None:
    ask = asked(upload="probabilities", most=1.0, wire_dtype=wire_dtype)
    total = total_of(*(reply_of(one, ask) for one in LOGITS))
    mean = softmax(LOGITS.astype(np.float64)).mean(0)
    np.testing.assert_allclose(teacher_of(total, ask, temperature=1.0), mean, atol=NEAR[wire_dtype])
    softer = np.sqrt(mean) / np.sqrt(mean).sum(1, keepdims=True)  # τ = 2
    np.testing.assert_allclose(
        teacher_of(total, ask, temperature=2.0), softer, atol=NEAR[wire_dtype]
    )


def test_one_column_less_says_the_same() -> None:
    for one in LOGITS:
        found = columns(one, np.ones(3, bool), upload="logits", average="all")
        assert found.shape == (4, 2)
        np.testing.assert_allclose(
            softmax(np.concatenate((np.zeros((4, 1)), found), 1)), softmax(one), rtol=1e-6
        )
        np.testing.assert_allclose(
            columns(one, np.ones(3, bool), upload="probabilities", average="all"),
            softmax(one)[:, 1:],
            rtol=1e-6,
        )


@each("upload", ["logits", "probabilities"])
def test_a_relation_is_the_mean_over_the_sites_that_know_it(upload: str) -> None:
    """Site 1 knows the second class alone, nobody the third; the numbers are worked out here."""
    ask = asked(S=1, R=3, average="known", upload=upload, most=8.0 if upload == "logits" else 1.0)
    first = reply_of(np.array([[0.0, 4.0, 7.0]]), ask, [True, True, False])
    other = reply_of(np.array([[1.0, 5.0, 2.0]]), ask, [True, False, False])
    assert first.said_SQ.shape == (1, 2)
    assert (first.said_SQ[0, 1], other.said_SQ.tolist()) == (0, [[0, 0]])
    found = teacher_of(total_of(first, other), ask, temperature=1.0)[0]
    assert found[2] == 0  # nobody says anything of it
    expected = math.exp(4) / (1 + math.exp(4))
    assert found[1] == pytest.approx(expected, rel=1e-3)
    assert found[0] == pytest.approx(1 - expected, rel=0.05)


def test_where_all_know_all_both_means_are_the_same() -> None:
    one, other = asked(), asked(average="known")
    found = teacher_of(total_of(*(reply_of(x, one) for x in LOGITS)), one, temperature=2.0)
    same = teacher_of(total_of(*(reply_of(x, other) for x in LOGITS)), other, temperature=2.0)
    assert np.array_equal(found, same)


@each("wire_dtype", NEAR)
def test_no_relation_keeps_its_share_where_sites_know_different_ones(wire_dtype: str) -> None:
    """Each weighs its relation against none: 9 to 1, so 9 : 9 : 1 together, as with logits."""
    odds = math.log(9)
    for upload, most in (("logits", 8.0), ("probabilities", 1.0)):
        ask = asked(S=1, R=4, average="known", upload=upload, most=most, wire_dtype=wire_dtype)
        one = reply_of(np.array([[0.0, odds, 0.0, 5.0]]), ask, [True, True, False, False])
        two = reply_of(np.array([[0.0, 0.0, odds, 5.0]]), ask, [True, False, True, False])
        found = teacher_of(total_of(one, two), ask, temperature=1.0)[0]
        np.testing.assert_allclose(found, [1 / 19, 9 / 19, 9 / 19, 0], atol=0.02)


def test_a_site_that_knows_several_weighs_each_against_none() -> None:
    """The second site, which knows but one of them and rules it out, takes nothing from others."""
    ask = asked(S=1, R=3, average="known", upload="probabilities", wire_dtype="float32", most=1.0)
    one = reply_of(np.log([[0.1, 0.6, 0.3]]), ask, [True, True, True])
    two = reply_of(np.log([[0.1, 0.6, 0.1]]), ask, [True, True, False])
    np.testing.assert_allclose(one.said_SQ, [[6 / 7, 3 / 4]], rtol=1e-6)
    np.testing.assert_allclose(two.said_SQ, [[6 / 7, 0]], rtol=1e-6)
    found = teacher_of(total_of(one, two), ask, temperature=1.0)[0]
    np.testing.assert_allclose(found, [0.1, 0.6, 0.3], rtol=1e-5)


# --- a round ----------------------------------------------------------------------------------


def test_sites_send_what_their_models_say_of_the_public_set(tmp_path: Path) -> None:
    """The oracle trains a model of each site's own, and asks it without the wire."""
    settings = tiny(tmp_path, "method=feded-relations", "options.wire_dtype=float32", sites=2)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    _, facts = method.round(state, federation, 1)
    trainer = RelationTrainer(load_encoder(state.form.encoder), state.form)
    public = trainer.prepared(state.public.examples())
    assert len(public) == 24
    for name in ("site-1", "site-2"):
        found = candidates(engine.site(name).train, rules_of(state.form)).examples
        model = trainer.initial(0)
        load_weights(model, state.weights)
        report = trainer.fit(
            model,
            trainer.annotated(trainer.prepared(found)),
            epochs=1,
            batch_size=6,
            optimiser=engine.asks[STEP, name].config.steps,
            seed=derive_seed(settings.seed, 1, name, STEP),
        )
        logits = trainer.row_logits(model, public)
        reply = engine.replies[STEP, name]
        np.testing.assert_allclose(
            reply.said_SQ, logits[:, 1:] - logits[:, :1], rtol=1e-5, atol=1e-5
        )
        assert reply.loss == round(report.loss, 4)
        assert (reply.sentences, reply.sites) == (18, 1)
    assert facts["sites"] == ["site-1", "site-2"]
    losses = [engine.replies[STEP, name].loss for name in ("site-1", "site-2")]
    assert facts["loss"] == pytest.approx(sum(losses) / 2)
    assert facts["saturated"] == 0


@each("overrides", [(), ("public.labelled=false",)])
@each("student", [1.0, 2.0])
def test_the_student_steps_down_the_loss_of_equation_6(
    tmp_path: Path, overrides: tuple[str, ...], student: float
) -> None:
    """One batch of all public examples, one step of plain SGD, computed again by autograd."""
    own = ("training.optimiser=sgd", "training.momentum=0", "training.clip=1e9")
    own += ("options.distil_batch_size=24", "options.distil_learning_rate=0.5")
    own += (f"options.temper_student={str(student != 1.0).lower()}", "classifier.dropout=0")
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    own += (f"classifier.encoder={tiny_bert(tmp_path / 'still', initializer_range=0.1, **still)}",)
    settings = tiny(tmp_path, "method=feded-relations", *own, *overrides, sites=2)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    assert len(state.labels) == (0 if overrides else 24)

    replies = [engine.replies[STEP, name] for name in ("site-1", "site-2")]
    teacher = teacher_of(total_of(*replies), engine.asks[STEP, "site-1"], temperature=2.0)
    trainer = RelationTrainer(load_encoder(state.form.encoder), state.form)
    encoded = trainer.prepared(state.public.examples(state.labels))
    model = trainer.initial(0)
    load_weights(model, state.weights)
    q = torch.from_numpy(teacher)
    logits = model(relation_batch(encoded, np.arange(24)))
    p = torch.softmax(logits / student, -1)
    loss = (q * (q.log() - p.log())).sum(-1) * student**2
    if not overrides:
        wanted = torch.tensor([state.form.relations.index(label) for label in state.labels])
        loss = loss - torch.softmax(logits, -1)[torch.arange(24), wanted].log()
    loss.mean().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        slope = np.zeros(1) if parameter.grad is None else parameter.grad.numpy()
        expected = state.weights[name] - 0.5 * slope
        np.testing.assert_allclose(after.weights[name], expected, rtol=1e-4, atol=1e-4)
    assert facts["distil_loss"] == pytest.approx(loss.mean().item(), rel=1e-4)


def test_a_public_set_without_labels_is_not_looked_at(tmp_path: Path) -> None:
    """Its relations make no difference to any number."""
    plain = tuple(replace(one, relations=()) for one in documents("public", "set", 24))
    settings = tiny(tmp_path, "method=feded-relations", "public.labelled=false")
    states = []
    for public in ({}, {"public": plain}):
        method, federation, _ = started(tmp_path, settings, **public)
        states.append(method.round(method.start(federation), federation, 1)[0])
    assert encode(states[0]) == encode(states[1])


def test_int8_saturates_and_the_share_of_what_did_is_told(tmp_path: Path) -> None:
    settings = tiny(
        tmp_path,
        "method=feded-relations",
        "options.wire_dtype=int8",
        "options.max_logit=0.01",
        sites=2,
    )
    method, federation, engine = started(tmp_path, settings)
    _, facts = method.round(method.start(federation), federation, 1)
    replies = [engine.replies[STEP, name] for name in ("site-1", "site-2")]
    codes = np.concatenate([reply.said_SQ for reply in replies])
    assert np.abs(codes.astype(int)).max() == 127
    assert codes.min() >= -127
    everybody = np.abs(sum(reply.said_SQ.astype(int) for reply in replies)) == 2 * 127
    assert facts["saturated"] == everybody.mean() > 0.5


# --- the public set ---------------------------------------------------------------------------


def test_the_labels_of_the_public_set_are_not_sent(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, "method=feded-relations"))
    state = method.start(federation)
    memory = engine.memory("site-1")
    assert memory.public.texts == state.public.texts
    assert len(state.labels) == state.public.rows == 24
    assert {one.relation for one in memory.public.examples()} == {NO_RELATION}
    assert not any("label" in name for name in forms_of(method.pair.Memory))


FORM = RelationSpec(
    relations=[NO_RELATION, "causes"],
    types=[],
    known_types=[],
    pairs=[("Drug", "Pain"), ("Drug", "No")],
    direction="directed",
    max_sentences=0,
    max_tokens=-1,
    encoder="e",
    digest="d",
    blind=True,
    pool="sum",
    dropout=0.1,
    longest=32,
    tuning="",
)


def marked(text: str, head: tuple[int, int], tail: tuple[int, int], *types: str) -> Document:
    """A document with a head, and a tail that it causes nothing in."""
    head_type, tail_type = types
    entities = (Entity("T1", head_type, (head,)), Entity("T2", tail_type, (tail,)))
    return Document(text, text, entities)


def test_the_number_of_a_public_set_tells_sets_apart() -> None:
    one = marked("aspirin eases pain", (0, 7), (14, 18), "Drug", "Pain")
    two = marked("no aspirin", (3, 10), (0, 2), "Drug", "No")
    form = replace(FORM, pairs=[(a, b) for a in ("Drug", "Dose") for b in ("Pain", "No", "Dose")])

    def digest(*documents: Document) -> str:
        return form.public(documents)[0].digest

    first = digest(one, two)
    assert first == digest(one, two)
    assert is_digest(first)
    labelled = [
        replace(doc, id="other", relations=(Relation("R1", "causes", "T1", "T2"),))
        for doc in (one, two)
    ]
    assert digest(*labelled) == first
    assert form.public(labelled)[1] == ["causes", "causes"]
    others = [
        (marked("aspirin eases gain", (0, 7), (14, 18), "Drug", "Pain"), two),
        (marked("aspirin eases pain", (0, 6), (14, 18), "Drug", "Pain"), two),
        (marked("aspirin eases pain", (0, 7), (14, 17), "Drug", "Pain"), two),
        (marked("aspirin eases pain", (0, 7), (14, 18), "Dose", "Pain"), two),
        (marked("aspirin eases pain", (0, 7), (14, 18), "Drug", "Dose"), two),
        (two, one),
        (one,),
        (two,),
    ]
    assert len({digest(*each) for each in others} | {first}) == len(others) + 1


def test_a_site_that_has_another_public_set_says_so(tmp_path: Path) -> None:
    method, federation, _ = started(tmp_path, tiny(tmp_path, "method=feded-relations"))
    state = method.start(federation)
    with pytest.raises(QuorumError, match=r"site site-1.*a public set other than the one"):
        texts = [*state.public.texts[:-1], state.public.texts[-1].upper()]
        other = replace(state.public, texts=texts)
        method.round(replace(state, public=other), federation, 1)


@each("public", [(), (Document("d", "Nothing is marked here."),)])
def test_there_has_to_be_a_public_set(tmp_path: Path, public: tuple[Document, ...]) -> None:
    settings = tiny(tmp_path, "method=feded-relations")
    method, federation, _ = started(tmp_path, settings, public=public)
    with pytest.raises(SettingsError, match=r"needs a public set"):
        method.start(federation)


# --- sites that know different relations ---------------------------------------------------------


def knowing(*relations: str, site: str, part: str = "train", count: int = 24) -> list[Document]:
    """Documents of a site, without relations that it does not annotate."""
    return [
        one
        for one in documents(site, part, count)
        if all(relation.type in relations for relation in one.relations)
    ]


SPLIT = [knowing("causes", site="site-1"), knowing("eases", site="site-2")]
KNOWS: Any = {"annotates": {"site-1": ["causes"], "site-2": ["eases"]}}


@each("upload", ["logits", "probabilities"])
def test_sites_answer_for_the_relations_that_they_know(tmp_path: Path, upload: str) -> None:
    overrides = ("options.average=known", f"options.upload={upload}")
    settings = with_train(tmp_path, "feded-relations", SPLIT, *overrides, **KNOWS)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    assert state.form.relations == [NO_RELATION, "causes", "eases"]
    method.round(state, federation, 1)
    one, two = (engine.replies[STEP, name] for name in ("site-1", "site-2"))
    assert (one.knows[""].tolist(), two.knows[""].tolist()) == ([1, 0], [0, 1])
    assert one.said_SQ[:, 0].all() and not one.said_SQ[:, 1].any()
    assert two.said_SQ[:, 1].all() and not two.said_SQ[:, 0].any()


def test_a_relation_that_no_site_knows_is_learnt_from_the_public_labels(tmp_path: Path) -> None:
    """Without the public set's labels, the model unlearns it altogether."""
    sites = [knowing("causes", site=f"site-{n}") for n in (1, 2)]
    knows: Any = {"annotates": {"site-1": ["causes"], "site-2": ["causes"]}}
    overrides = ("options.average=known", "options.distil_epochs=15", "training.batch_size=4")
    overrides += ("options.temper_student=false",)  # τ² = 4 lets the teacher's 0 weigh more
    settings = with_train(
        tmp_path, "feded-relations", sites, *overrides, "classifier.dropout=0", **knows
    )
    method, federation, _ = started(tmp_path, settings)
    state = method.start(federation)
    assert state.form.relations == [NO_RELATION, "causes", "eases"]
    after, _ = method.round(state, federation, 1)
    trainer = RelationTrainer(load_encoder(state.form.encoder), state.form)
    eases = [one for one in state.public.examples(state.labels) if one.relation == "eases"]

    def likely(weights: Arrays) -> float:
        model = trainer.initial(0)
        load_weights(model, weights)
        return float(softmax(trainer.row_logits(model, trainer.prepared(eases)))[:, 2].mean())

    without, _ = method.round(replace(state, labels=[]), federation, 1)
    assert likely(without.weights) < 0.1 < 0.3 < likely(after.weights)


def test_a_relation_that_the_public_set_alone_has_is_a_class(tmp_path: Path) -> None:
    sites = [knowing("causes", site=f"site-{n}") for n in (1, 2)]
    method, federation, engine = started(tmp_path, with_train(tmp_path, "feded-relations", sites))
    state = method.start(federation)
    assert state.form.relations == [NO_RELATION, "causes", "eases"]
    assert "eases" not in engine.replies["describe_relations", "site-1"].relations
    after, facts = method.round(state, federation, 1)
    assert math.isfinite(facts["distil_loss"])
    assert set(method.score(after, federation, part="test", round=1)) == {"site-1", "site-2"}


def test_a_site_that_has_a_relation_it_does_not_know_is_told(tmp_path: Path) -> None:
    sites = [documents("site-1", "train", 18), documents("site-2", "train", 18)]
    knows: Any = {"annotates": {"site-2": ["causes"]}}
    method, federation, _ = started(
        tmp_path, with_train(tmp_path, "feded-relations", sites, **knows)
    )
    with pytest.raises(QuorumError, match=r"site site-2.*its own `annotates` does not name"):
        method.start(federation)


def test_each_site_alone_may_have_other_relations(tmp_path: Path) -> None:
    """Their classifiers have another number of classes each, and one public set."""
    sites = [knowing("causes", site="site-1"), documents("site-2", "train", 18)]
    settings = with_train(tmp_path, "feded-relations", sites, "public.labelled=false", "rounds=1")
    alone = settings.model_copy(update={"method": "alone", "base": "feded"})
    done = run(alone, out=tmp_path / "run")
    assert sorted(done.result.scores.sites) == ["site-1", "site-2"]
    only = settings.model_copy(update={"site": settings.site[1:]})
    one = run(only, out=tmp_path / "one").result
    assert one.scores.sites["site-2"] == done.result.scores.sites["site-2"]
