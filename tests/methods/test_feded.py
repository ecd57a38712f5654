"""FedED: the teacher is what numpy makes of the predictions, and the student learns from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.data.relation_pieces import relation_batch
from confide.data.relations import NO_RELATION, candidates
from confide.errors import QuorumError, SettingsError
from confide.federation.coarse import fixed
from confide.federation.messages import Arrays, encode
from confide.learning.encoder import load_encoder
from confide.learning.relations import fit_relations, relation_logits
from confide.learning.seeds import derive_seed
from confide.learning.weights import load
from confide.methods import feded
from confide.methods.feded import teacher_of
from confide.methods.feded.steps import (
    Predicted,
    PublicSet,
    TrainAndPredict,
    columns,
    examples_of,
    public_of,
)
from confide.methods.relation_form import RelationMemory, modeller_of, rules_of
from confide.methods.relations import optimiser_of
from confide.run import run
from confide.text.document import Document
from contract.corpus import tiny
from contract.relations import documents
from learning.encoders import tiny_bert
from methods.relation_runs import started, with_train

STEP = "train_and_predict"


def softmax(logits: NDArray[Any], temperature: float = 1.0) -> NDArray[np.float64]:
    powers = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    found: NDArray[np.float64] = powers / powers.sum(-1, keepdims=True)
    return found


def asked(S: int = 4, R: int = 3, **changes: Any) -> TrainAndPredict:
    """An ask of the defaults, about S public examples and R classes."""
    ask = TrainAndPredict(
        learning_rate=0.01,
        optimiser="adamw",
        momentum=0.9,
        weight_decay=0.0,
        clip=1.0,
        batch_size=4,
        local_epochs=2,
        weights={},
        version=1,
        public=77,
        examples=S,
        classes=R,
        upload="logits",
        average="all",
        wire_dtype="float16",
        most=16.0,
    )
    return replace(ask, **changes)


def reply_of(
    logits_SR: NDArray[Any], ask: TrainAndPredict, knows: Sequence[bool] | None = None
) -> Predicted:
    """What a site says whose model has these logits."""
    knows_R = np.array(knows or [True] * ask.classes)
    found_SQ = columns(logits_SR, knows_R, upload=ask.upload)
    return Predicted(
        predictions_SQ=fixed(found_SQ, ask.wire_dtype, most=ask.most),  # type: ignore[arg-type]
        knows={"R": knows_R.astype(np.float32)} if ask.average == "known" else {},
        public=ask.public,
        sites=1,
        loss=0.5,
        sentences=8,
        clipped=0,
    )


def total_of(*replies: Predicted) -> Predicted:
    """Their sum, as a federation makes it."""
    whole = replies[0].predictions_SQ.dtype.kind == "i"
    sums = [reply.predictions_SQ.astype(np.int64 if whole else np.float64) for reply in replies]
    knows = [reply.knows["R"].astype(np.float64) for reply in replies if reply.knows]
    return replace(
        replies[0],
        predictions_SQ=np.sum(sums, 0),
        knows={"R": np.sum(knows, 0)} if knows else {},
        sites=len(replies),
        public=sum(reply.public for reply in replies),
    )


LOGITS = np.random.default_rng(1).normal(scale=3, size=(3, 4, 3)).astype(np.float32)
"""Of three sites, four public examples, three classes."""
NEAR = {"float32": 1e-6, "float16": 2e-3, "int8": 0.03}
"""How near probabilities are, by what travels."""


# --- the teacher ------------------------------------------------------------------------------


@pytest.mark.parametrize("wire_dtype", NEAR)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
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


@pytest.mark.parametrize("wire_dtype", NEAR)
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
        found = columns(one, np.ones(3, bool), upload="logits")
        assert found.shape == (4, 2)
        np.testing.assert_allclose(
            softmax(np.concatenate((np.zeros((4, 1)), found), 1)), softmax(one), rtol=1e-6
        )
        np.testing.assert_allclose(
            columns(one, np.ones(3, bool), upload="probabilities"), softmax(one)[:, 1:], rtol=1e-6
        )


@pytest.mark.parametrize("upload", ["logits", "probabilities"])
def test_a_relation_is_the_mean_over_the_sites_that_know_it(upload: str) -> None:
    """Site 1 knows the second class alone, nobody the third; the numbers are worked out here."""
    ask = asked(S=1, R=3, average="known", upload=upload, most=8.0 if upload == "logits" else 1.0)
    first = reply_of(np.array([[0.0, 4.0, 7.0]]), ask, [True, True, False])
    other = reply_of(np.array([[1.0, 5.0, 2.0]]), ask, [True, False, False])
    assert first.predictions_SQ.shape == (1, 2)
    assert (first.predictions_SQ[0, 1], other.predictions_SQ.tolist()) == (0, [[0, 0]])
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


def test_probabilities_of_sites_that_know_different_relations_are_still_probabilities() -> None:
    """Each is sure of the one that it knows: together they are sure of more than everything."""
    ask = asked(S=1, R=3, average="known", upload="probabilities", most=1.0)
    one = reply_of(np.array([[0.0, 9.0, 0.0]]), ask, [True, True, False])
    two = reply_of(np.array([[0.0, 0.0, 9.0]]), ask, [True, False, True])
    found = teacher_of(total_of(one, two), ask, temperature=1.0)[0]
    np.testing.assert_allclose(found, [0, 0.5, 0.5], atol=1e-3)


# --- a round ----------------------------------------------------------------------------------


def test_sites_send_what_their_models_say_of_the_public_set(tmp_path: Path) -> None:
    """The oracle trains a model of each site's own, and asks it without the wire."""
    settings = tiny(tmp_path, "method=feded", "options.wire_dtype=float32", sites=2)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    modeller = modeller_of(state, load_encoder(state.encoder))
    public = modeller.encoded(examples_of(state))
    assert len(public) == 24
    for name in ("site-1", "site-2"):
        found = candidates(engine.site(name).train, rules_of(state)).examples
        model = modeller.initial(0)
        load(model, state.weights)
        report = fit_relations(
            model,
            modeller.encoded(found),
            epochs=1,
            batch_size=6,
            optimiser=optimiser_of(engine.asks[STEP, name]),
            seed=derive_seed(settings.seed, 1, name, STEP),
        )
        logits = relation_logits(model, public)
        reply = engine.replies[STEP, name]
        np.testing.assert_allclose(
            reply.predictions_SQ, logits[:, 1:] - logits[:, :1], rtol=1e-5, atol=1e-5
        )
        assert reply.loss == round(report.loss, 4)
        assert (reply.sentences, reply.sites, reply.public) == (18, 1, state.public)
    assert facts["sites"] == ["site-1", "site-2"]
    losses = [engine.replies[STEP, name].loss for name in ("site-1", "site-2")]
    assert facts["loss"] == pytest.approx(sum(losses) / 2)
    assert facts["clipped"] == 0
    assert after.version == state.version + 1


@pytest.mark.parametrize("overrides", [(), ("public.labelled=false",)], ids=["labels", "none"])
@pytest.mark.parametrize("student", [1.0, 2.0])
def test_the_student_steps_down_the_loss_of_equation_6(
    tmp_path: Path, overrides: tuple[str, ...], student: float
) -> None:
    """One batch of all public examples, one step of plain SGD, computed again by autograd."""
    own = ("training.optimiser=sgd", "training.momentum=0", "training.clip=1e9")
    own += ("options.distil_batch_size=24", "options.distil_learning_rate=0.5")
    own += (f"options.temper_student={str(student != 1.0).lower()}", "classifier.dropout=0")
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    own += (f"classifier.encoder={tiny_bert(tmp_path / 'still', initializer_range=0.1, **still)}",)
    settings = tiny(tmp_path, "method=feded", *own, *overrides, sites=2)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    assert len(state.labels) == (0 if overrides else 24)

    replies = [engine.replies[STEP, name] for name in ("site-1", "site-2")]
    teacher = teacher_of(total_of(*replies), engine.asks[STEP, "site-1"], temperature=2.0)
    modeller = modeller_of(state, load_encoder(state.encoder))
    encoded = modeller.encoded(examples_of(state, state.labels))
    model = modeller.initial(0)
    load(model, state.weights)
    q = torch.from_numpy(teacher)
    logits = model(relation_batch(encoded, np.arange(24)))
    p = torch.softmax(logits / student, -1)
    loss = (q * (q.log() - p.log())).sum(-1) * student**2
    if not overrides:
        wanted = torch.tensor([state.relations.index(label) for label in state.labels])
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
    settings = tiny(tmp_path, "method=feded", "public.labelled=false")
    states = []
    for public in ({}, {"public": plain}):
        method, federation, _ = started(tmp_path, settings, **public)
        states.append(method.round(method.start(federation), federation, 1)[0])
    assert encode(states[0]) == encode(states[1])


def test_int8_saturates_and_the_share_of_what_did_is_told(tmp_path: Path) -> None:
    settings = tiny(
        tmp_path, "method=feded", "options.wire_dtype=int8", "options.most=0.01", sites=2
    )
    method, federation, engine = started(tmp_path, settings)
    _, facts = method.round(method.start(federation), federation, 1)
    replies = [engine.replies[STEP, name] for name in ("site-1", "site-2")]
    codes = np.concatenate([reply.predictions_SQ for reply in replies])
    assert np.abs(codes.astype(int)).max() == 127
    assert codes.min() >= -127
    clipped = sum(reply.clipped for reply in replies)
    assert 0 < clipped <= (np.abs(codes.astype(int)) == 127).sum()
    assert facts["clipped"] == clipped / codes.size
    assert facts["clipped"] > 0.5


# --- the public set ---------------------------------------------------------------------------


def test_the_labels_of_the_public_set_are_not_sent(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, "method=feded"))
    state = method.start(federation)
    memory = engine.memory("site-1")
    assert memory.texts == state.texts
    assert len(state.labels) == len(state.texts) == 24
    assert {one.relation for one in examples_of(memory)} == {NO_RELATION}
    assert "labels" not in vars(memory)
    assert memory.weights == {}


def test_the_number_of_a_public_set_tells_sets_apart() -> None:
    form = RelationMemory(
        relations=[NO_RELATION, "causes"],
        types=[],
        known_types=[],
        pairs=[],
        direction="directed",
        max_sentences=0,
        max_tokens=-1,
        encoder="e",
        digest="d",
        blind=True,
        pool="sum",
        dropout=0.1,
        longest=32,
    )
    found = examples_of(
        PublicSet(
            **vars(form),
            texts=["aspirin eases pain", "no aspirin"],
            heads=[[(0, 7)], [(3, 10)]],
            tails=[[(14, 18)], [(0, 2)]],
            head_types=["Drug", "Drug"],
            tail_types=["Pain", "No"],
            public=0,
        )
    )
    number = public_of(form, found).public
    assert number == public_of(form, found).public
    assert 0 <= number < 2**32
    labelled = [replace(one, relation="causes", id="other") for one in found]
    assert public_of(form, labelled).public == number
    others = [
        [replace(found[0], text="aspirin eases gain"), found[1]],
        [replace(found[0], head=((0, 6),)), found[1]],
        [replace(found[0], tail=((14, 17),)), found[1]],
        [replace(found[0], head_type="Dose"), found[1]],
        [replace(found[0], tail_type="Dose"), found[1]],
        found[::-1],
        found[:1],
        [],
    ]
    numbers = {public_of(form, one).public for one in others}
    assert len(numbers | {number}) == len(others) + 1


def test_a_site_that_has_another_public_set_says_so(tmp_path: Path) -> None:
    method, federation, _ = started(tmp_path, tiny(tmp_path, "method=feded"))
    state = method.start(federation)
    with pytest.raises(QuorumError, match=r"site site-1.*another public set than the one"):
        method.round(replace(state, public=state.public ^ 1), federation, 1)


@pytest.mark.parametrize(("step", "round"), [("take_public_set", 0), (STEP, 1)])
def test_a_site_that_answers_about_another_public_set_is_named(
    tmp_path: Path, step: str, round: int
) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, "method=feded"))

    def change(at: str, site: str, turn: int, reply: Any) -> Any:
        hit = (at, site) == (step, "site-2")
        return replace(reply, public=reply.public ^ 1) if hit else reply

    engine.change = change
    with pytest.raises(QuorumError, match=r"site site-2.*the number of another public set") as err:
        method.round(method.start(federation), federation, 1)
    assert "site-1" not in str(err.value)
    assert f"round {round}" in str(err.value)


@pytest.mark.parametrize("public", [(), (Document("d", "Nothing is marked here."),)])
def test_there_has_to_be_a_public_set(tmp_path: Path, public: tuple[Document, ...]) -> None:
    settings = tiny(tmp_path, "method=feded")
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
KNOWS: Any = {"knows": {"site-1": ["causes"], "site-2": ["eases"]}}


@pytest.mark.parametrize("upload", ["logits", "probabilities"])
def test_sites_answer_for_the_relations_that_they_know(tmp_path: Path, upload: str) -> None:
    overrides = ("options.average=known", f"options.upload={upload}")
    settings = with_train(tmp_path, "feded", SPLIT, *overrides, **KNOWS)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    assert state.relations == [NO_RELATION, "causes", "eases"]
    method.round(state, federation, 1)
    one, two = (engine.replies[STEP, name] for name in ("site-1", "site-2"))
    assert (one.knows["R"].tolist(), two.knows["R"].tolist()) == ([1, 1, 0], [1, 0, 1])
    assert one.predictions_SQ[:, 0].all() and not one.predictions_SQ[:, 1].any()
    assert two.predictions_SQ[:, 1].all() and not two.predictions_SQ[:, 0].any()


def test_a_relation_that_no_site_knows_is_learnt_from_the_public_labels(tmp_path: Path) -> None:
    """Without the public set's labels, the model unlearns it altogether."""
    sites = [knowing("causes", site=f"site-{n}") for n in (1, 2)]
    knows: Any = {"knows": {"site-1": ["causes"], "site-2": ["causes"]}}
    overrides = ("options.average=known", "options.distil_epochs=30", "training.batch_size=4")
    settings = with_train(tmp_path, "feded", sites, *overrides, "classifier.dropout=0", **knows)
    method, federation, _ = started(tmp_path, settings)
    state = method.start(federation)
    assert state.relations == [NO_RELATION, "causes", "eases"]
    after, _ = method.round(state, federation, 1)
    modeller = modeller_of(state, load_encoder(state.encoder))
    eases = [one for one in examples_of(state, state.labels) if one.relation == "eases"]

    def likely(weights: Arrays) -> float:
        model = modeller.initial(0)
        load(model, weights)
        return float(softmax(relation_logits(model, modeller.encoded(eases)))[:, 2].mean())

    without, _ = method.round(replace(state, labels=[]), federation, 1)
    assert likely(without.weights) < 0.1 < 0.3 < likely(after.weights)


def test_a_relation_that_the_public_set_alone_has_is_a_class(tmp_path: Path) -> None:
    sites = [knowing("causes", site=f"site-{n}") for n in (1, 2)]
    method, federation, engine = started(tmp_path, with_train(tmp_path, "feded", sites))
    state = method.start(federation)
    assert state.relations == [NO_RELATION, "causes", "eases"]
    assert "eases" not in engine.replies["describe_relations", "site-1"].relations
    after, facts = method.round(state, federation, 1)
    assert math.isfinite(facts["distil_loss"])
    assert set(method.score(after, federation, part="test", round=1)) == {"site-1", "site-2"}


def test_a_site_that_has_a_relation_it_does_not_know_is_told(tmp_path: Path) -> None:
    sites = [documents("site-1", "train", 18), documents("site-2", "train", 18)]
    knows: Any = {"knows": {"site-2": ["causes"]}}
    method, federation, _ = started(tmp_path, with_train(tmp_path, "feded", sites, **knows))
    state = method.start(federation)
    with pytest.raises(QuorumError, match=r"site site-2.*its own `knows` does not name"):
        method.round(state, federation, 1)


def test_each_site_alone_may_have_other_relations(tmp_path: Path) -> None:
    """Their classifiers have another number of classes each, and one public set."""
    sites = [knowing("causes", site="site-1"), documents("site-2", "train", 18)]
    settings = with_train(tmp_path, "feded", sites, "public.labelled=false", "rounds=1")
    alone = settings.model_copy(update={"method": "alone", "base": "feded"})
    done = run(alone, out=tmp_path / "run")
    assert sorted(done.result["scores"]["sites"]) == ["site-1", "site-2"]
    only = settings.model_copy(update={"site": settings.site[1:]})
    one = run(only, out=tmp_path / "one").result
    assert one["scores"]["sites"]["site-2"] == done.result["scores"]["sites"]["site-2"]


# --- only differences go down ---------------------------------------------------------------------

DIFFERENCE = ("method=feded", "options.download=difference")


def test_sites_keep_the_central_model_bit_for_bit(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, *DIFFERENCE))
    state = method.start(federation)
    assert state.behind == []
    for number in (1, 2, 3):
        before = state
        state, _ = method.round(state, federation, number)
        for site in federation.sites:
            kept, ask = engine.memory(site), engine.asks["take_model", site]
            assert kept.version == state.version == number + 1
            assert kept.weights.keys() == state.weights.keys()
            for name, array in state.weights.items():
                assert np.array_equal(kept.weights[name], array)
            assert not ask.weights
            assert not engine.asks[STEP, site].weights
        assert any((before.weights[n] != state.weights[n]).any() for n in state.weights)
    small, large = len(encode(ask)), sum(array.nbytes for array in state.weights.values())
    assert small < 0.4 * large
    method.score(state, federation, part="test", round=3)
    assert not engine.asks["score_model", "site-1"].weights


def test_the_difference_is_near_what_the_server_learnt(tmp_path: Path) -> None:
    """No number is off by more than half a step of its row, and the next round begins there."""
    states = []
    for download in ("whole", "difference"):
        settings = tiny(tmp_path, "method=feded", f"options.download={download}")
        method, federation, _ = started(tmp_path / download, settings)
        states.append(method.start(federation))
        states.append(method.round(states[-1], federation, 1)[0])
    start, whole, same, near = states
    assert all(np.array_equal(start.weights[name], same.weights[name]) for name in start.weights)
    for name, array in whole.weights.items():
        moved = np.abs(array - start.weights[name]).reshape(-1, array.shape[-1])
        off = np.abs(array - near.weights[name]).reshape(moved.shape)
        assert (off.max(1) <= moved.max(1) / 250 + 1e-6).all()


def test_a_site_that_missed_a_difference_gets_the_whole_model(tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, *DIFFERENCE), at_least=2)
    lost = {("take_model", "site-2", 1)}

    def change(step: str, site: str, turn: int, reply: Any) -> Any:
        return b"lost" if (step, site, turn) in lost else reply

    engine.change = change
    state, _ = method.round(method.start(federation), federation, 1)
    assert state.behind == ["site-2"]
    state = decode(FedED.State, encode(state))
    state, _ = method.round(state, federation, 2)
    assert engine.asks["take_model", "site-2"].weights
    assert not engine.asks["take_model", "site-1"].weights
    assert state.behind == []
    kept = engine.memory("site-2")
    assert all(np.array_equal(kept.weights[name], state.weights[name]) for name in kept.weights)
    state, _ = method.round(state, federation, 3)
    assert not engine.asks["take_model", "site-2"].weights
    assert engine.memory("site-2").version == state.version


def test_a_site_without_the_model_does_not_train_on_another(tmp_path: Path) -> None:
    method, federation, _ = started(tmp_path, tiny(tmp_path, *DIFFERENCE))
    state = method.start(federation)
    with pytest.raises(QuorumError, match=r"site-1.*does not have the model"):
        method.round(replace(state, version=state.version + 1), federation, 1)
    whole, other, _ = started(tmp_path / "whole", tiny(tmp_path, "method=feded"))
    state = whole.start(other)
    with pytest.raises(QuorumError, match=r"site-1.*does not have the model"):
        started(tmp_path, tiny(tmp_path, *DIFFERENCE))[0].round(state, other, 1)


# --- interruptions ------------------------------------------------------------------------------


@pytest.mark.parametrize("download", ["whole", "difference"])
def test_a_run_that_ends_before_the_distillation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: str
) -> None:
    settings = tiny(tmp_path, "method=feded", f"options.download={download}", sites=2)
    straight = run(settings, out=tmp_path / "straight").folder
    real, calls = feded._Student.learn, []

    def dying(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *arguments, **named)

    monkeypatch.setattr(feded._Student, "learn", dying)
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run")
    run(settings, out=tmp_path / "run", resume=True)
    assert len(calls) == 3
    same_run(straight, tmp_path / "run")


# --- what a reply weighs and may be -----------------------------------------------------------------


def reply(S: int, Q: int, wire_dtype: Any) -> Predicted:
    """One of the sizes of a real run."""
    draw = np.random.default_rng(S).normal(scale=4, size=(S, Q))
    codes = fixed(draw, wire_dtype, most=16.0)
    return Predicted(codes, {}, 4_294_967_295, 1, round(0.123456, 4), sentences=2 * 82, clipped=0)


@pytest.mark.parametrize(
    ("public", "classes", "wire_dtype", "most"),
    [
        (64, 2, "int8", 323),  # EU-ADR: 20 % of 320; Sui et al. 2020, Table 7
        (64, 2, "float16", 376),
        (959, 2, "int8", 1_300),  # GAD: 20 % of 4,797
        (959, 2, "float16", 5_000),
        (2046, 9, "int8", 42_000),  # i2b2: 20 % of 10,231
        (2046, 9, "float16", 42_000),
    ],
)
def test_a_reply_weighs_what_its_numbers_do(
    public: int, classes: int, wire_dtype: str, most: int
) -> None:
    message = reply(public, classes - 1, wire_dtype)
    encoded = encode(message)
    assert len(encoded) <= most
    assert len(encoded) - message.predictions_SQ.nbytes <= 256


GOOD = Predicted(np.zeros((4, 2), np.float16), {}, 77, 1, 0.5, 8, 0)
KNOWN = replace(GOOD, knows={"R": np.array([1, 0, 1], np.float32)})


@pytest.mark.parametrize(
    "changes",
    [
        {"public": 78},
        {"sites": 2},
        {"sites": 0},
        {"sentences": 0},
        {"clipped": -1},
        {"loss": math.inf},
        {"predictions_SQ": np.zeros((4, 3), np.float16)},
        {"predictions_SQ": np.zeros((3, 2), np.float16)},
        {"predictions_SQ": np.zeros((4, 2), np.float32)},
        {"predictions_SQ": np.zeros((4, 2), np.int8)},
        {"predictions_SQ": np.full((4, 2), np.nan, np.float16)},
        {"predictions_SQ": np.full((4, 2), 16.1, np.float16)},
        {"predictions_SQ": np.full((4, 2), -np.inf, np.float16)},
        {"knows": {"R": np.ones(3, np.float32)}},
    ],
    ids=str,
)
def test_a_reply_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    check_reply(TRAIN_AND_PREDICT, asked(), GOOD)
    check_reply(
        TRAIN_AND_PREDICT, asked(), replace(GOOD, predictions_SQ=np.full((4, 2), -16, np.float16))
    )
    with pytest.raises(GuardError):
        check_reply(TRAIN_AND_PREDICT, asked(), replace(GOOD, **changes))


@pytest.mark.parametrize(
    "knows",
    [
        {},
        {"R": np.ones(2, np.float32)},
        {"Q": np.ones(3, np.float32)},
        {"R": np.array([1, 0.5, 1], np.float32)},
        {"R": np.array([1, -1, 1], np.float32)},
        {"R": np.array([1, 9, 1], np.float32)},
        {"R": np.array([1, np.nan, 1], np.float32)},
        {"R": np.ones(3, np.float32), "odd": np.ones(3, np.float32)},
    ],
    ids=str,
)
def test_what_a_site_knows_is_yes_or_no(knows: Arrays) -> None:
    ask = asked(average="known")
    check_reply(TRAIN_AND_PREDICT, ask, KNOWN)
    with pytest.raises(GuardError):
        check_reply(TRAIN_AND_PREDICT, ask, replace(KNOWN, knows=knows))


@pytest.mark.parametrize("code", [-128, 127, -127])
def test_codes_of_int8_are_symmetric(code: int) -> None:
    ask = asked(wire_dtype="int8")
    found = replace(GOOD, predictions_SQ=np.full((4, 2), code, np.int8))
    if code == -128:
        with pytest.raises(GuardError, match="larger than the largest"):
            check_reply(TRAIN_AND_PREDICT, ask, found)
    else:
        check_reply(TRAIN_AND_PREDICT, ask, found)


@pytest.mark.parametrize("wire_dtype", NEAR)
@pytest.mark.parametrize("most", [0.5, 3.0, 1e6])
def test_a_site_says_no_more_than_its_guard_lets_it(wire_dtype: Any, most: float) -> None:
    """The norm of all logits together, whatever type of number they travel in."""
    ask = asked(wire_dtype=wire_dtype)
    logits = np.random.default_rng(1).normal(scale=4, size=(4, 3))
    whole = reply_of(logits, ask)
    found = bounded_predicted(ask, whole, most)
    check_reply(TRAIN_AND_PREDICT, ask, found)
    said = feded.unfixed(found.predictions_SQ, wire_dtype, most=16.0)
    norm = float(np.linalg.norm(said))
    if most > 1e5:
        assert found.predictions_SQ is whole.predictions_SQ
    else:
        assert norm <= most * 1.001
        if wire_dtype != "int8":
            assert norm == pytest.approx(most, rel=1e-2)
        full = feded.unfixed(whole.predictions_SQ, wire_dtype, most=16.0)
        np.testing.assert_allclose(said, full * most / np.linalg.norm(full), atol=0.13)


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown key 'temprature'.*did you mean 'temperature"):
        FedED(tiny(tmp_path, "method=feded", "options.temprature=3"))
    for odd in ("wire_dtype=int4", "temperature=0", "most=0", "distil_epochs=0", "average=some"):
        with pytest.raises(SettingsError, match=f"{odd.partition('=')[0]} is wrong"):
            FedED(tiny(tmp_path, "method=feded", f"options.{odd}"))
