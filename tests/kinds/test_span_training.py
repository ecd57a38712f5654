"""A classifier of spans: entities in and across one another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.errors import DataError
from confide.kinds.pieces import predict_token_batches
from confide.kinds.spans import SpanSpec, SpanTrainer, annotated_spans, gold_of, inside_spans
from confide.text.document import Document, Entity
from confide.training.batches import Example, examples_from, nested_spans
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser
from training.encoders import tiny_bert

TEXT = "signs of liver cancer or kidney cyst"
WORDS = TEXT.split()
SPANS = [(0, 4, "Finding"), (2, 3, "Site"), (2, 4, "Disease"), (2, 4, "Finding"), (5, 6, "Site")]
TYPES = ("Disease", "Finding", "Site")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> SpanTrainer:
    folder: Path = tiny_bert(
        tmp_path_factory.mktemp("span") / "bert", words=WORDS, initializer_range=0.1
    )
    form = SpanSpec(TYPES, width=4, dropout=0, longest=32)
    return SpanTrainer(load_encoder(str(folder)), form)


def encoded(trainer, source=TYPES, open=0.0):
    text = trainer.prepared([Example(0, 0, tuple(WORDS))])
    return text, trainer.annotated(text, [SPANS], source=set(source))


def test_it_learns_spans_that_share_words_and_types_that_share_a_span(trainer):
    text, own = encoded(trainer)
    model = trainer.initial(1)
    trainer.fit(
        model,
        own,
        weights_S=None,
        epochs=150,
        batch_size=1,
        optimiser=Optimiser("adamw", learning_rate=0.005),
        seed=1,
    )
    (found,) = trainer.find(model, text)
    assert sorted(span[:3] for span in found) == sorted(SPANS)
    assert all(span.confidence > 0.5 for span in found)
    (some,) = trainer.find(model, text, wanted=["Site", "Finding"])
    assert some == [one for one in found if one[2] != "Disease"] != []


def test_the_loss_is_that_of_every_span_by_itself(trainer):
    """Brute force: a sigmoid for each type of each run of at most four words."""
    text, own = encoded(trainer, source=("Site", "Disease"))
    model = trainer.initial(3)
    (batch,) = predict_token_batches(text)
    with torch.no_grad():
        logits = model(batch)
        states = model.encoder(input_ids=batch.ids_BP, attention_mask=None).last_hidden_state[0]
        words = states[batch.firsts_BL[0]]
        source, target = trainer.losses(model, own, batch, output=logits)
        expected = {True: 0.0, False: 0.0}
        for first in range(len(WORDS)):
            for last in range(first, min(first + 4, len(WORDS))):
                mixed = model.first(words[first]) + model.last(words[last])
                out = model.span(functional.gelu(mixed + model.wide.weight[last - first]))
                for type, name in enumerate(TYPES):
                    gold = torch.tensor(float((first, last + 1, name) in SPANS))
                    loss = functional.binary_cross_entropy_with_logits(out[type], gold)
                    expected[name != "Finding"] += float(loss)
    assert float(source) == pytest.approx(expected[True], rel=1e-4)
    assert float(target) == pytest.approx(expected[False], rel=1e-4)


def test_open_leaves_out_what_the_site_did_not_look_for(trainer):
    text, _ = encoded(trainer, source=("Site",))
    closed = trainer.initial(3)
    (batch,) = predict_token_batches(text)
    logits = closed(batch).detach()
    open_one = SpanTrainer(trainer.encoder, trainer.form, open=1.0)
    none = open_one.annotated(text, [[s for s in SPANS if s[2] == "Site"]], source={"Site"})
    source, target = open_one.losses(closed, none, batch, output=logits)
    assert float(target) == 0.0
    assert float(source) > 0.0
    assert float(trainer.losses(closed, none, batch, output=logits)[1]) > 0.0


def test_slopes_are_the_gradients_of_the_last_layer(trainer):
    text, own = encoded(trainer, source=("Site",))
    model = trainer.initial(2)
    found = trainer.row_gradients(model, own)
    (batch,) = predict_token_batches(text)
    for loss, slopes in zip(
        trainer.losses(model, own, batch, output=model(batch)),
        (found.source_SG, found.target_SG),
        strict=True,
    ):
        (expected,) = torch.autograd.grad(loss.sum(), model.span.weight, retain_graph=True)
        np.testing.assert_allclose(slopes[0], expected.flatten().numpy(), rtol=1e-3, atol=1e-5)


def test_spans_that_reach_into_the_padding_are_none():
    mask = inside_spans(torch.tensor([2, 1]), words=2, width=2)
    assert mask.tolist() == [[True, True, True, False], [True, False, False, False]]


def test_a_span_that_is_too_long_is_counted_and_not_learnt(trainer):
    text = trainer.prepared([Example(0, 0, tuple(WORDS))])
    own = annotated_spans(
        text, [[(0, 5, "Site"), (0, 4, "Site")]], types=TYPES, source=set(), width=4
    )
    assert gold_of(own, np.array([0]), words=7).sum() == 1
    with pytest.raises(DataError, match="outside"):
        annotated_spans(text, [[(0, 99, "Site")]], types=TYPES, source=set(), width=4)


def test_nested_spans_of_documents():
    marks = (("A", ((0, 21),)), ("B", ((9, 14),)), ("B", ((9, 14),)), ("C", ((0, 5), (9, 14))))
    document = Document("d", TEXT, tuple(Entity(f"T{n}", *m) for n, m in enumerate(marks)))
    assert nested_spans([document]) == [[(0, 4, "A"), (2, 3, "B")]]
    assert len(examples_from([document])[0][0].spans) == 1
