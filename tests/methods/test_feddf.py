"""FedDF: the mean of the sites' weights learns what their models say together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import SettingsError
from confide.federation.quantising import restore_reply
from confide.kinds.pieces import relation_batch
from confide.kinds.relations.model import RelationTrainer
from confide.methods.fedatt import TRAIN_ALONE
from confide.training.encoder import load_encoder
from confide.training.weights import load_weights
from contract.corpus import tiny
from contract.relations import documents
from methods.relation_runs import started, with_train
from methods.test_feded import softmax
from training.encoders import tiny_bert

PAIRS = ("feddf-relations", "feddf-tagger", "feddf-encoder", "feddf-spans")
SITES = ("site-1", "site-2")
UNEQUAL = [documents("site-1", "train", 16), documents("site-2", "train", 8)]


def replies_of(engine: Any) -> list[Any]:
    """What the sites sent, whole."""
    places = [("train_alone", site) for site in SITES]
    return [restore_reply(TRAIN_ALONE, engine.asks[one], engine.replies[one]) for one in places]


def test_the_mean_steps_down_the_loss_against_the_ensemble(tmp_path: Path) -> None:
    """One batch of all public examples, one step of plain SGD, computed again by autograd."""
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    settings = with_train(
        tmp_path,
        "feddf-relations",
        UNEQUAL,
        "training.optimiser=sgd",
        "training.momentum=0",
        "training.clip=1e9",
        "options.distil_batch_size=24",
        "options.distil_learning_rate=0.5",
        "options.temperature=2",
        "classifier.dropout=0",
        f"classifier.encoder={tiny_bert(tmp_path / 'still', initializer_range=0.1, **still)}",
    )
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    replies = replies_of(engine)
    counts = [reply.weight for reply in replies]
    assert counts == [16, 8]
    models = [{k: a / reply.weight for k, a in reply.weights.items()} for reply in replies]

    trainer = RelationTrainer(load_encoder(state.form.encoder), state.form)
    public, _ = state.form.public(method.public)
    encoded = trainer.prepared(public.examples())
    said = []
    for weights in models:
        model = trainer.initial(0)
        load_weights(model, {name: array.astype(np.float32) for name, array in weights.items()})
        said.append(trainer.row_logits(model, encoded).astype(np.float64))
    q = torch.from_numpy(softmax(np.mean(said, 0), 2.0))
    mean = {name: (2 * models[0][name] + models[1][name]) / 3 for name in models[0]}
    model = trainer.initial(0)
    load_weights(model, {name: array.astype(np.float32) for name, array in mean.items()})
    p = torch.softmax(model(relation_batch(encoded, np.arange(24))).double() / 2, -1)
    loss = 4 * (q * (q.log() - p.log())).sum(-1).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        slope = np.zeros(1) if parameter.grad is None else parameter.grad.numpy()
        np.testing.assert_allclose(
            after.weights[name], mean[name] - 0.5 * slope, rtol=1e-4, atol=1e-4
        )
    assert facts["distil_loss"] == pytest.approx(loss.item(), rel=1e-3)
    assert facts["loss"] == pytest.approx(sum(one.loss for one in replies) / 24)


@each("pair", PAIRS)
def test_sites_never_see_the_public_set(pair: str, tmp_path: Path) -> None:
    method, federation, engine = started(tmp_path, tiny(tmp_path, f"method={pair}", sites=2))
    state = method.start(federation)
    after, _ = method.round(state, federation, 1)
    assert not any("public" in field for ask in engine.asks.values() for field in vars(ask))
    assert not any("public" in field for field in vars(engine.memory("site-1")))
    mean = {
        name: np.mean([reply.weights[name] / reply.weight for reply in replies_of(engine)], 0)
        for name in state.weights
    }
    assert any(np.abs(after.weights[name] - mean[name]).max() > 1e-4 for name in mean)


def test_there_has_to_be_a_public_set(tmp_path: Path) -> None:
    method, federation, _ = started(tmp_path, tiny(tmp_path, "method=feddf-relations"), public=())
    with pytest.raises(SettingsError, match="needs a public set"):
        method.start(federation)
    for odd in ("temperature=0", "distil_epochs=0", "weighting=some"):
        with pytest.raises(SettingsError, match=f"{odd.partition('=')[0]} is wrong"):
            started(tmp_path, tiny(tmp_path, "method=feddf-relations", f"options.{odd}"))
