"""FedED: which rounds the teacher remembers, and which public rows the server holds out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import SettingsError
from confide.federation.messages import encode
from confide.kinds.pieces import relation_batch
from confide.kinds.public import PublicSentences, Student
from confide.kinds.relations.model import RelationTrainer
from confide.methods.feded import held_out, teacher_of, with_past
from confide.runs.run import run
from confide.training.encoder import load_encoder
from confide.training.trainer import DistillationTarget
from confide.training.weights import load_weights
from contract.corpus import tiny
from contract.runs import same_run
from methods.relation_runs import asked, reply_of, started
from methods.test_feded import NEAR, STEP, softmax, total_of
from training.encoders import tiny_bert

PAIRS = ("feded-relations", "feded-tagger", "feded-encoder", "feded-spans")
every_pair = pytest.mark.parametrize(
    "pair", [pytest.param(one, marks=[pytest.mark.slow] * (one in PAIRS[2:])) for one in PAIRS]
)

REMEDIES = (
    "options.temper_student=true",
    "options.past_weight=0.5",
    "options.holdout_share=0.2",
    "options.distil_epochs=3",
)


# --- the teacher of several rounds ----------------------------------------------------------------

LOGITS = np.random.default_rng(2).normal(scale=3, size=(6, 4, 3)).astype(np.float32)
ROUNDS = ([0, 1, 2], [3], [4, 5])
"""The sites of each round: the mean is over sites, not over the means of rounds."""


@each("wire_dtype", NEAR)
@each("upload", ["logits", "probabilities"])
@each("factor", [0.5, 1.0])
def test_a_site_counts_less_with_every_round_that_has_passed(
    wire_dtype: str, upload: str, factor: float
) -> None:
    ask = asked(upload=upload, wire_dtype=wire_dtype, most=16.0 if upload == "logits" else 1.0)
    past: Any = {}
    for sites in ROUNDS:
        total = total_of(*(reply_of(LOGITS[site], ask) for site in sites))
        total, past = with_past(total, ask, past, factor=factor)
    counts = np.array([factor**2] * 3 + [factor] + [1, 1])
    said = LOGITS.astype(np.float64) if upload == "logits" else softmax(LOGITS.astype(np.float64))
    mean = np.tensordot(counts, said, 1) / counts.sum()
    expected = softmax(mean if upload == "logits" else np.log(mean), 2.0)
    found = teacher_of(total, ask, temperature=2.0)
    np.testing.assert_allclose(found, expected, atol=NEAR[wire_dtype])


def test_a_class_is_remembered_from_the_rounds_whose_sites_know_it() -> None:
    ask = asked(S=1, R=3, average="known", wire_dtype="float32")
    one = total_of(reply_of(np.array([[0.0, 4.0, 9.0]]), ask, [True, True, False]))
    two = total_of(reply_of(np.array([[0.0, 9.0, 2.0]]), ask, [True, False, True]))
    _, past = with_past(one, ask, {}, factor=0.5)
    found = teacher_of(with_past(two, ask, past, factor=0.5)[0], ask, temperature=1.0)
    np.testing.assert_allclose(found, softmax(np.array([[0.0, 4.0, 2.0]])), rtol=1e-5)
    assert teacher_of(two, ask, temperature=1.0)[0, 1] == 0  # nobody says anything of it


@every_pair
def test_the_server_remembers_what_the_sites_said(pair: str, tmp_path: Path) -> None:
    settings = tiny(tmp_path, f"method={pair}", "options.past_weight=0.5", sites=2)
    method, federation, engine = started(tmp_path, settings)
    state, totals = method.start(federation), []
    assert state.past == {}
    for number in (1, 2):
        state, _ = method.round(state, federation, number)
        totals.append(sum(engine.replies[STEP, f"site-{n}"].said_SQ.astype(float) for n in (1, 2)))
    np.testing.assert_allclose(state.past["said_SQ"], totals[1] + 0.5 * totals[0], rtol=1e-6)
    assert (state.past["sites_R"] == 3).all()


# --- the parts of the public set ------------------------------------------------------------------

PUBLIC = PublicSentences([["a"] * (1 + n % 5) for n in range(40)])


@each("share", [0.1, 0.5])
def test_what_is_held_out_is_drawn_sentence_by_sentence(share: float) -> None:
    held_S = held_out(PUBLIC, share, seed=3)
    numbers = PUBLIC.row_sentences
    of_sentence = [set(held_S[numbers == n].tolist()) for n in range(40)]
    assert all(len(found) == 1 for found in of_sentence)
    assert sum(found.pop() for found in of_sentence) == 40 * share
    assert np.array_equal(held_S, held_out(PUBLIC, share, seed=3))
    assert not np.array_equal(held_S, held_out(PUBLIC, share, seed=4))


@every_pair
def test_a_part_is_a_public_set_of_its_sentences(pair: str, tmp_path: Path) -> None:
    """What a model says of a part is what it says of these rows in the whole."""
    method, federation, _ = started(tmp_path, tiny(tmp_path, f"method={pair}", sites=2))
    state = method.start(federation)
    public, form = state.public, state.form
    kept_S = held_out(public, 0.5, seed=1)
    part = public.part(kept_S)
    part.check()
    assert part.digest != public.digest
    assert part.rows == kept_S.sum()
    student = Student()
    whole_SR, part_SR = (student.said(form, one, state.weights) for one in (public, part))
    np.testing.assert_allclose(part_SR, whole_SR[kept_S], atol=1e-4)
    assert set(state.labels) <= set(form.class_names)
    assert len(form.class_names) == form.classes


def test_pairs_of_one_sentence_stay_together(tmp_path: Path) -> None:
    method, federation, _ = started(tmp_path, tiny(tmp_path, "method=feded-relations"))
    public = method.start(federation).public
    twice = replace(public, texts=public.texts[:20] + public.texts[:4])
    numbers = twice.row_sentences
    same = np.array(twice.texts)[:, None] == np.array(twice.texts)
    assert np.array_equal(numbers[:, None] == numbers, same)
    assert sorted(set(numbers.tolist())) == list(range(numbers.max() + 1))


# --- what the student learns ----------------------------------------------------------------------


def test_labels_and_predictions_are_learnt_of_all_that_is_public(tmp_path: Path) -> None:
    """One batch of all public examples in round 3, one step of SGD, computed by autograd."""
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    settings = tiny(
        tmp_path,
        "method=feded-relations",
        "training.optimiser=sgd",
        "training.momentum=0",
        "training.clip=1e9",
        "options.distil_batch_size=24",
        "options.distil_learning_rate=0.5",
        "options.temper_student=false",
        "classifier.dropout=0",
        f"classifier.encoder={tiny_bert(tmp_path / 'still', initializer_range=0.1, **still)}",
        sites=2,
    )
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 3)

    replies = [engine.replies[STEP, name] for name in ("site-1", "site-2")]
    q = torch.from_numpy(teacher_of(total_of(*replies), engine.asks[STEP, "site-1"], temperature=2))
    trainer = RelationTrainer(load_encoder(state.form.encoder), state.form)
    encoded = trainer.prepared(state.public.examples(state.labels))
    model = trainer.initial(0)
    load_weights(model, state.weights)
    p = model(relation_batch(encoded, np.arange(24))).softmax(-1)
    loss = torch.zeros(())
    for row, label in enumerate(state.labels):
        loss = loss + (q[row] * (q[row] / p[row]).log()).sum() / 24
        loss = loss - p[row, state.form.relations.index(label)].log() / 24
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        slope = np.zeros(1) if parameter.grad is None else parameter.grad.numpy()
        expected = state.weights[name] - 0.5 * slope
        np.testing.assert_allclose(after.weights[name], expected, rtol=1e-4, atol=1e-4)
    assert facts["distil_loss"] == pytest.approx(loss.item(), rel=1e-4)


@every_pair
def test_every_kind_is_given_the_same_soft_target(pair: str, tmp_path: Path) -> None:
    settings = tiny(tmp_path, f"method={pair}", "options.past_weight=0.5", sites=2)
    method, federation, _ = started(tmp_path, settings)
    state = method.start(federation)
    given: list[Any] = []
    real = method._student.learn

    def learn(*arguments: Any, **own: Any) -> Any:
        given.append(own["soft_target"])
        return real(*arguments, **own)

    method._student.learn = learn
    for number in (1, 2):
        method.round(state, federation, number)
    assert len(given) == 2
    for soft_target in given:
        assert (soft_target.labels_T == 1).all() and len(soft_target.labels_T) == state.public.rows
        assert soft_target.temperature == 2
        np.testing.assert_allclose(soft_target.teacher_TY.sum(1), 1, rtol=1e-5)


@every_pair
def test_a_student_learns_the_labels_also_after_it_read_the_set_without_them(
    pair: str, tmp_path: Path
) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, f"method={pair}", sites=2))
    state = method.start(federation)
    method.round(state, federation, 1)
    rows = state.public.rows
    teacher_TY = np.full((rows, state.form.classes), 1 / state.form.classes, np.float32)
    ways = {
        "weights": state.weights,
        "soft_target": DistillationTarget(teacher_TY, 1.0, np.ones(rows, np.float32)),
        "config": engine.asks[STEP, "site-1"].config,
        "seed": 1,
    }
    fresh, used = Student(), Student()
    used.said(state.form, state.public, state.weights)
    found = [
        one.learn(state.form, state.public, labels=state.labels, **ways) for one in (fresh, used)
    ]
    assert found[0][1] == found[1][1]
    assert all(np.array_equal(found[0][0][name], one) for name, one in found[1][0].items())
    other = used.learn(state.form, state.public, labels=state.labels[::-1], **ways)
    assert other[1] != found[0][1]


# --- sentences that are held out ------------------------------------------------------------------


@every_pair
@pytest.mark.parametrize("labelled", ["true", "false"])
def test_the_best_pass_on_held_out_sentences_is_kept(
    pair: str, labelled: str, tmp_path: Path
) -> None:
    """Of the passes until the loss no longer falls; the loss is computed again here."""
    settings = tiny(
        tmp_path,
        f"method={pair}",
        f"public.labelled={labelled}",
        "options.holdout_share=0.25",
        "options.distil_epochs=8",
        "options.distil_learning_rate=0.03",
        sites=2,
    )
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    models, seen = [state.weights], []
    real = method._student.learn

    def learn(form: Any, public: Any, **own: Any) -> Any:
        assert all(np.array_equal(own["weights"][k], models[-1][k]) for k in models[-1])
        found = real(form, public, **own)
        models.append(found[0])
        seen.append((public, own))
        return found

    method._student.learn = learn
    after, facts = method.round(state, federation, 1)
    held_S = method._held(state, federation.seed)
    for public, own in seen:
        assert public.digest == state.public.part(~held_S).digest
        assert own["config"].epochs == 1
        assert (
            len(own["soft_target"].teacher_TY)
            == len(own["soft_target"].labels_T)
            == (~held_S).sum()
        )
        assert own["labels"] == [x for x, kept in zip(state.labels, ~held_S, strict=False) if kept]
    replies = [engine.replies[STEP, name] for name in ("site-1", "site-2")]
    q = teacher_of(total_of(*replies), engine.asks[STEP, "site-1"], temperature=2.0)
    for _, own in seen:
        np.testing.assert_allclose(own["soft_target"].teacher_TY, q[~held_S], atol=1e-6)
    if state.labels:
        names = list(state.form.class_names)
        q = np.array([[name == label for name in names] for label in state.labels])
    student = Student()
    losses = []
    for weights in models:
        p = softmax(student.said(state.form, state.public, weights).astype(np.float64))[held_S]
        losses.append(-(q[held_S] * np.log(p)).sum(1).mean())
    assert losses[:-1] == sorted(losses[:-1], reverse=True)  # it went on while the loss fell
    best = int(np.argmin(losses))
    assert best == len(models) - (1 if losses[-1] < losses[-2] else 2)
    assert len(models) == 9 or best == len(models) - 2
    for name, array in after.weights.items():
        assert np.array_equal(array, models[best][name])
    assert facts["held_out_loss"] == pytest.approx(losses[best], rel=1e-3)


# --- runs -----------------------------------------------------------------------------------------


@every_pair
def test_no_site_is_asked_anything_else(pair: str, tmp_path: Path) -> None:
    asks, starts = [], []
    for folder, overrides in (("plain", ()), ("remedies", REMEDIES)):
        settings = tiny(tmp_path, f"method={pair}", *overrides, sites=2)
        method, federation, engine = started(tmp_path / folder, settings)
        state = method.start(federation)
        method.round(state, federation, 1)
        asks.append({place: encode(ask) for place, ask in engine.asks.items()})
        starts.append(encode(state))
    assert asks[0] == asks[1]
    assert starts[0] == starts[1]


@every_pair
def test_a_run_with_all_remedies_is_resumed(pair: str, tmp_path: Path) -> None:
    settings = tiny(tmp_path, f"method={pair}", *REMEDIES, sites=2)
    straight = run(settings, out=tmp_path / "straight").folder
    run(settings.model_copy(update={"rounds": 1}), out=tmp_path / "run")
    resumed = run(settings, out=tmp_path / "run", resume=True).folder
    same_run(straight, resumed)


def test_bad_values_are_told(tmp_path: Path) -> None:
    for odd in ("past_weight=1.1", "holdout_share=0.6"):
        with pytest.raises(SettingsError, match=f"{odd.partition('=')[0]} is wrong"):
            started(tmp_path, tiny(tmp_path, "method=feded-relations", f"options.{odd}"))


def test_a_public_set_that_is_too_small_for_its_parts_is_told(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=feded-relations", "options.holdout_share=0.01")
    method, federation, engine = started(tmp_path, settings)
    with pytest.raises(SettingsError, match=r"too few sentences.*24 sentences"):
        method.start(federation)
    assert (STEP, "site-1") not in engine.asks


def test_parts_of_sentences_are_named_by_their_content() -> None:
    public = PublicSentences([["a", "b"], ["c"], ["d"]])
    part = public.part(np.array([True, True, False, True]))
    assert part.sentences == [["a", "b"], ["d"]]
    assert part.digest == PublicSentences([["a", "b"], ["d"]]).digest != public.digest
