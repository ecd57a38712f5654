"""FedED of entities: sites predict each token of a public set, the server learns from the mean."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.errors import GuardError, QuorumError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.guards import check_reply
from confide.federation.messages import encode, forms_of
from confide.federation.steps import Turn
from confide.kinds.public import PublicSentences
from confide.methods import METHODS
from confide.methods.feded import TRAIN_AND_PREDICT, TakePublic, take_public_set, teacher_of
from confide.runs.run import run
from confide.runs.sites import gather
from confide.seeds import derive_seed
from confide.text.document import Document
from confide.training.batches import examples_from
from contract.corpus import reader, sentences, tiny, write_conll
from methods.relation_runs import asked, reply_of, started
from methods.test_feded import softmax, total_of

STEP = "train_and_predict"
PAIRS = ("feded-tagger", "feded-encoder", "feded-spans")
CLASSES = {"feded-tagger": 9, "feded-encoder": 9, "feded-spans": 3}
TAGS = {"O", "S-Drug", "B-Effect"}
LABELS = {"feded-tagger": TAGS, "feded-encoder": TAGS, "feded-spans": {"O", "Drug", "Effect"}}
every_pair = pytest.mark.parametrize(
    "pair", [pytest.param(one, marks=[pytest.mark.slow] * (one in PAIRS[1:])) for one in PAIRS]
)


TURN = Turn(round=0, site="site-1", step="take_public_set", seed=1)


def without(path: Path, *types: str) -> Path:
    """The training text of a site that does not annotate these types."""
    tagged = [
        [(word, "O" if tag[2:] in types else tag) for word, tag in one]
        for one in sentences(path.parent.name, "train", 18)
    ]
    return write_conll(path, tagged)


# --- a round --------------------------------------------------------------------------------------


@every_pair
def test_sites_send_what_their_models_say_of_each_public_token(pair: str, tmp_path: Path) -> None:
    """The oracle trains a model of each site's own, and asks it without the wire."""
    settings = tiny(tmp_path, f"method={pair}", "options.wire_dtype=float32", sites=2)
    settings = settings.model_copy(update={"options": {**settings.options, "max_logit": 1000.0}})
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    rows, classes = state.public.rows, CLASSES[pair]
    words = sum(len(words) for words in state.public.sentences)
    assert rows == words if pair != "feded-spans" else rows > 2 * words
    assert len(state.public.sentences) == 24
    teachers = []
    for name in ("site-1", "site-2"):
        config = engine.asks[STEP, name].config
        extractor = state.form.extractor(state.weights, key=None)
        trainer, model = state.form.trained_by(extractor.trainer, config), extractor.model
        found, _ = examples_from(engine.site(name).train)
        encoded = trainer.annotated(
            trainer.prepared(found), [one.spans for one in found], source={"Drug", "Effect"}
        )
        trainer.fit(
            model,
            encoded,
            weights_S=None,
            epochs=config.epochs,
            batch_size=config.batch_size,
            optimiser=config.steps,
            seed=derive_seed(settings.seed, 1, name, STEP),
        )
        said = trainer.row_logits(model, trainer.prepared(state.public.examples()))
        teachers.append(said)
        reply = engine.replies[STEP, name]
        assert reply.said_SQ.shape == (rows, state.form.classes - 1) == (rows, classes - 1)
        np.testing.assert_allclose(reply.said_SQ, said[:, 1:] - said[:, :1], rtol=1e-4, atol=1e-4)
        assert (reply.sites, reply.knows) == (1, {})
    ask = engine.asks[STEP, "site-1"]
    total = total_of(*(engine.replies[STEP, name] for name in ("site-1", "site-2")))
    mean = softmax(np.mean(teachers, 0, dtype=np.float64), 2.0)
    np.testing.assert_allclose(teacher_of(total, ask, temperature=2.0), mean, atol=1e-5)
    assert math.isfinite(facts["distil_loss"])
    assert any((after.weights[name] != state.weights[name]).any() for name in state.weights)


@every_pair
def test_the_server_learns_from_the_teacher_and_the_labels(pair: str, tmp_path: Path) -> None:
    """What its student is given, and that it makes a difference; the loss has tests of its own."""
    settings = tiny(tmp_path, f"method={pair}", sites=2)
    method, federation, _ = started(tmp_path, settings)
    state = method.start(federation)
    assert len(state.labels) == state.public.rows
    assert LABELS[pair] <= set(state.labels)
    given: list[dict[str, Any]] = []
    real = method._student.learn

    def learn(*arguments: Any, **named: Any) -> Any:
        given.append(named)
        return real(*arguments, **named)

    method._student.learn = learn
    labelled, _ = method.round(state, federation, 1)
    alone, _ = method.round(replace(state, labels=[]), federation, 1)
    again, _ = method.round(state, federation, 1)
    teacher = given[0]["soft_target"].teacher_TY
    np.testing.assert_allclose(teacher.sum(1), 1, rtol=1e-5)
    assert teacher.shape == (state.public.rows, state.form.classes)
    assert np.array_equal(teacher, given[1]["soft_target"].teacher_TY)
    assert (given[0]["labels"], given[1]["labels"]) == (state.labels, [])
    assert encode(again) == encode(labelled) != encode(alone)


@every_pair
def test_a_public_set_without_labels_is_not_looked_at(pair: str, tmp_path: Path) -> None:
    """What is annotated in it makes no difference to any number."""
    settings = tiny(tmp_path, f"method={pair}", "public.labelled=false")
    told = gather(tiny(tmp_path, f"method={pair}"), tmp_path / "sites", key_file=None).public
    assert any(one.entities for one in told)
    states = []
    for public in (told, tuple(replace(one, entities=()) for one in told)):
        method, federation, _ = started(tmp_path, settings, public=public)
        states.append(method.round(method.start(federation), federation, 1)[0])
    assert states[0].labels == []
    assert encode(states[0]) == encode(states[1])


@every_pair
def test_labels_do_not_leave_the_server(pair: str, tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, f"method={pair}"))
    state = method.start(federation)
    memory = engine.memory("site-1")
    assert memory.public == state.public
    assert set(forms_of(type(memory.public))) - {"width"} == {"sentences"}
    assert not any("label" in name or "tags" in name for name in forms_of(METHODS[pair].Memory))


# --- words ----------------------------------------------------------------------------------------


def test_a_tagger_knows_the_public_words_and_no_site_tells_its_own(tmp_path: Path) -> None:
    pair = METHODS["feded-tagger"]
    assert [step.name for step in pair.steps][:2] == ["describe", "take_public_set"]
    assert not pair.keyed
    method, federation, engine = started(tmp_path, tiny(tmp_path, "method=feded-tagger"))
    state = method.start(federation)
    public = {word.lower() for one in state.public.sentences for word in one}
    own = {word.lower() for one in engine.site("site-1").train for word in one.text.split()}
    assert "warda" in own - public
    assert {word.lower() for word in state.form.words} == public
    assert set(state.form.characters) == {c for one in state.public.sentences for c in "".join(one)}


def test_the_tagger_needs_no_key_anywhere(tmp_path: Path) -> None:
    """Not at a site either: there is no file of it, and a model can be used without."""
    settings = tiny(tmp_path, "method=feded-tagger")
    Path(settings.key or "").unlink()
    method, federation, _ = started(tmp_path, settings.model_copy(update={"key": None}))
    state, _ = method.round(method.start(federation), federation, 1)
    extract = method.pair.extractor(state, None, key=None)
    assert extract([Document("d", "The patient took aspirin .")])[0].sentences
    with pytest.raises(SettingsError, match=r"word vectors are useless.*vectors of \[model\]"):
        started(tmp_path, tiny(tmp_path, "method=feded-tagger", "model.vectors=v.txt"))


def test_a_frozen_encoder_is_read_by_the_student_too(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=feded-tagger", f"model.context={reader('encoder')}", sites=2)
    method, federation, _ = started(tmp_path, settings)
    state = method.start(federation)
    assert state.form.sizes["context_dim"] == 16
    after, facts = method.round(state, federation, 1)
    assert math.isfinite(facts["distil_loss"])
    # the states are read: without them the student's first loss is another one
    _, extractor, text, _ = method._student._made
    blind = replace(text, context_TX=text.context_TX * 0)
    said = [extractor.trainer.row_logits(extractor.model, one) for one in (text, blind)]
    assert np.abs(said[0] - said[1]).max() > 1e-3
    assert after.form.extractor(after.weights, key=None)([Document("d", "aspirin .")])


# --- sites that annotate different types ----------------------------------------------------------


@every_pair
@pytest.mark.parametrize("upload", ["logits", "probabilities"])
def test_sites_answer_for_the_types_that_they_annotate(
    pair: str, upload: str, tmp_path: Path
) -> None:
    overrides = (f"method={pair}", "options.average=known", f"options.upload={upload}")
    usual = tiny(tmp_path, *overrides, sites=2)
    for table, other in zip(usual.site, ("Effect", "Drug"), strict=True):
        without(Path(table.train[0]), other)
    tables = [
        {**table.model_dump(exclude_none=True), "annotates": [own]}
        for table, own in zip(usual.site, ("Drug", "Effect"), strict=True)
    ]
    method, federation, engine = started(tmp_path, tiny(tmp_path, *overrides, site=tables))
    state = method.start(federation)
    assert state.form.types == ["Drug", "Effect"]
    _, facts = method.round(state, federation, 1)
    one, two = (engine.replies[STEP, name] for name in ("site-1", "site-2"))
    each = (CLASSES[pair] - 1) // 2
    assert one.knows[""].tolist() == [1] * each + [0] * each
    assert two.knows[""].tolist() == [0] * each + [1] * each
    assert one.said_SQ[:, :each].any() and not one.said_SQ[:, each:].any()
    assert two.said_SQ[:, each:].any() and not two.said_SQ[:, :each].any()
    assert math.isfinite(facts["distil_loss"])
    ask = replace(engine.asks[STEP, "site-1"], weights={})
    total = total_of(one, two)
    found = teacher_of(total, ask, temperature=1.0)
    if upload == "logits":  # each type against outside, from the site that annotates it
        both = np.concatenate((one.said_SQ[:, :each], two.said_SQ[:, each:]), 1).astype(np.float64)
        both = np.concatenate((np.zeros((len(both), 1)), both), 1)
        np.testing.assert_allclose(found, softmax(both), atol=1e-5)


def test_a_type_that_the_public_set_alone_has_is_learnt(tmp_path: Path) -> None:
    usual = tiny(tmp_path, "method=feded-encoder", sites=2)
    for table in usual.site:
        without(Path(table.train[0]), "Effect")
    for labelled, types in (("true", ["Drug", "Effect"]), ("false", ["Drug"])):
        own = (f"public.labelled={labelled}", "method=feded-encoder")
        tables = [table.model_dump(exclude_none=True) for table in usual.site]
        method, federation, _ = started(tmp_path, tiny(tmp_path, *own, site=tables))
        assert method.start(federation).form.types == types


# --- what another place might send ----------------------------------------------------------------


@every_pair
def test_a_site_takes_no_public_set_that_is_none(pair: str, tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, f"method={pair}"))
    state = method.start(federation)
    million = [["a"] * 1000] * 1000
    site = engine.site("site-1")
    for each, code in ((million, "bad-ask"), ([[]], "bad-ask"), ([], "bad-ask")):
        public = PublicSentences(each)
        with pytest.raises(Refusal) as caught:
            take_public_set(site, None, TakePublic(state.form, public), TURN)
        assert caught.value.code == code


@every_pair
@pytest.mark.parametrize("odd", [{"examples": 1}, {"examples": 10**12}, {"classes": 10**12}])
def test_a_site_predicts_the_rows_and_classes_that_there_are(
    pair: str, odd: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a server asks for, before anything of that size is made."""
    method, federation, _ = started(tmp_path, tiny(tmp_path, f"method={pair}", sites=2))
    state = method.start(federation)

    honest = federation.sum
    monkeypatch.setattr(
        federation, "sum", lambda step, ask, **named: honest(step, replace(ask, **odd), **named)
    )
    with pytest.raises(QuorumError, match=r"site-1.*a public set other than the one"):
        method.round(state, federation, 1)


def test_a_reply_is_about_all_rows_and_the_class_that_all_know() -> None:
    """A site with other windows, with NaN, or that says it does not know what is outside."""
    ask = asked(S=6, R=5, average="known")
    logits = np.random.default_rng(1).normal(size=(6, 5))
    good = reply_of(logits, ask, [True, True, False, False, True])
    check_reply(TRAIN_AND_PREDICT, ask, good)
    outside = good.knows[""].copy()
    outside[0] = 0
    hidden = good.said_SQ.copy()
    hidden[0, 0] = np.nan
    for changes in (
        {"said_SQ": good.said_SQ[:-1]},
        {"said_SQ": np.concatenate((good.said_SQ, good.said_SQ))},
        {"said_SQ": good.said_SQ[:, :-1]},
        {"said_SQ": hidden},
        {"knows": {"": outside}},
    ):
        with pytest.raises(GuardError):
            check_reply(TRAIN_AND_PREDICT, ask, replace(good, **changes))


# --- a run ----------------------------------------------------------------------------------------


@every_pair
def test_references_of_a_public_set_run(pair: str, tmp_path: Path) -> None:
    for reference in ("public-only", "pooled", "alone"):
        settings = tiny(tmp_path, f"method={reference}", f"base={pair}", "rounds=1", sites=2)
        done = run(settings, out=tmp_path / reference).result
        assert done.scores.overall["strict"]["support"] > 0
        assert done.data.public.entities["Drug"] == 24
