"""Relation classifiers out of encoder files: drawn by a seed, trained, asked for logits."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import DataError, SettingsError
from confide.kinds.relations.batches import RelationExample
from confide.kinds.relations.model import LabelledPairs, RelationClassifier, RelationTrainer
from confide.kinds.relations.site import RelationSpec
from confide.training import trainer as training
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser
from confide.training.weights import arrays, load_weights
from training.encoders import LIMIT, tiny_bert, tiny_roberta

FORM = RelationSpec(relations=("none", "causes"), longest=LIMIT)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert") / "encoder", initializer_range=0.1)


def example(number: int, *, causes: bool) -> RelationExample:
    """The word before the tail decides."""
    verb = "took" if causes else "the"
    text = f"{'pain ' * (number % 5)}ab {verb} cd ."
    head, tail = text.index("ab"), text.index("cd")
    return RelationExample(
        id=str(number),
        text=text,
        head=((head, head + 2),),
        tail=((tail, tail + 2),),
        head_type="head",
        tail_type="pain",
        relation="causes" if causes else "none",
    )


EXAMPLES = [example(number, causes=number % 3 == 0) for number in range(40)]


def trainer(folder: Path, **changes: Any) -> RelationTrainer:
    return RelationTrainer(load_encoder(str(folder)), RelationSpec(**{**vars(FORM), **changes}))


def test_the_seed_draws_what_is_new_and_the_encoder_stays_as_it_is(bert: Path) -> None:
    made = trainer(bert)
    one, same, other = (arrays(made.initial(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert [name for name in one if not np.array_equal(one[name], other[name])] == [
        "encoder.embeddings.word_embeddings.weight",
        "relation.weight",
        "relation.bias",
    ]
    own = made.encoder.loaded.model.get_input_embeddings()
    table = one["encoder.embeddings.word_embeddings.weight"]
    assert len(table) == own.num_embeddings + 4 == made.marking.first + 4
    assert np.array_equal(table[:-4], own.weight.numpy())
    assert not any(name.startswith("encoder.pooler") for name in one)
    assert not any(p.requires_grad for p in made.encoder.loaded.model.parameters())


@each(("kind", "changes"), [(tiny_bert, {}), (tiny_roberta, {"pool": "start", "blind": False})])
def test_a_rule_is_learnt(kind: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    made = trainer(kind(tmp_path / "encoder"), **changes)
    model, encoded = made.initial(1), made.prepared(EXAMPLES)
    report = made.fit(
        model,
        made.annotated(encoded),
        epochs=25,
        batch_size=4,
        optimiser=Optimiser("adamw", learning_rate=5e-3),
        seed=1,
    )
    assert report.sentences == 25 * 40
    assert report.steps == 250
    predicted = made.row_logits(model, encoded).argmax(1)
    assert (predicted == encoded.relations_S).mean() > 0.95


def test_types_with_marks_of_their_own(bert: Path) -> None:
    made = trainer(bert, types=("head", "pain"))
    assert made.marking.count == 8
    assert made.row_logits(made.initial(1), made.prepared(EXAMPLES)).shape == (40, 2)


def test_logits_are_in_order_whatever_the_batches(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(bert)
    model, encoded = made.initial(1), made.prepared(EXAMPLES)
    model.train()
    logits = made.row_logits(model, encoded)
    assert model.training
    monkeypatch.setattr(RelationTrainer, "per_batch", 1)
    one_by_one = made.row_logits(model, encoded)
    np.testing.assert_allclose(logits, one_by_one, atol=1e-5)
    alone = made.row_logits(model, made.prepared(EXAMPLES[7:8]))
    np.testing.assert_allclose(logits[7:8], alone, atol=1e-5)
    assert len(made.row_logits(model, made.prepared([]))) == 0


def test_the_same_seed_trains_the_same_bits(bert: Path) -> None:
    made = trainer(bert)
    encoded, found = made.prepared(EXAMPLES[:12]), []
    for seed in (1, 1, 2):
        model = made.initial(1)
        made.fit(
            model,
            made.annotated(encoded),
            epochs=1,
            batch_size=4,
            optimiser=Optimiser("adamw", learning_rate=1e-3),
            seed=seed,
        )
        found.append(arrays(model))
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])
    assert any(not np.array_equal(found[0][name], found[2][name]) for name in found[0])
    fresh = made.initial(9)
    load_weights(fresh, found[0])
    logits = [made.row_logits(one, encoded) for one in (fresh, model)]
    assert not torch.allclose(*map(torch.from_numpy, logits))


@each("kind", [tiny_bert, tiny_roberta])
@each("weight_decay", [0.0, 0.1])
def test_only_rows_that_are_read_are_trained_and_nobody_sees_it(
    kind: Any, weight_decay: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(kind(tmp_path / "encoder"))
    encoded, found, sizes = made.prepared(EXAMPLES[:12]), [], []
    settings = Optimiser("adamw", learning_rate=1e-3, weight_decay=weight_decay, clip=0.5)

    def seen(made: Any, model: Any, *given: Any, **output: Any) -> torch.Tensor:
        sizes.append(len(table_of(model).weight))
        return loss(made, model, *given, **output)

    loss = RelationTrainer.loss
    monkeypatch.setattr(RelationTrainer, "loss", seen)
    for _ in range(2):
        model = made.initial(1)
        weight = table_of(model).weight
        made.fit(model, made.annotated(encoded), epochs=2, batch_size=4, optimiser=settings, seed=1)
        assert table_of(model).weight is weight
        found.append(arrays(model))
        monkeypatch.setattr(training, "pieces_read", lambda *_, **__: nullcontext())
    assert list(found[0]) == list(found[1])
    assert all(found[0][n].tobytes() == found[1][n].tobytes() for n in found[0])
    rows = len(set(encoded.ids_N.tolist()) | {encoded.padding})
    assert sizes == [rows if weight_decay == 0.0 else len(weight)] * 6 + [len(weight)] * 6


KNOWN_R = np.array([True, True, False])


def loss_of(made: RelationTrainer, model: Any, pairs: LabelledPairs, rows_B: Any) -> Any:
    """loss_B of these pairs."""
    batch = made.batch(model, pairs.text, rows_B)
    return made.loss(model, pairs, batch, output=model(batch))


def table_of(model: RelationClassifier) -> torch.nn.Embedding:
    body: Any = model.encoder
    table: torch.nn.Embedding = body.get_input_embeddings()
    return table


def test_what_cannot_be_is_refused(bert: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read that many pieces"):
        trainer(bert, longest=LIMIT + 1).prepared(EXAMPLES)
    with pytest.raises(DataError, match="outside the declared set"):
        trainer(bert, relations=("none",)).prepared(EXAMPLES)
    made = trainer(bert)
    with pytest.raises(DataError, match="no sentence to train on"):
        made.fit(
            made.initial(1),
            made.annotated(made.prepared([])),
            epochs=1,
            batch_size=4,
            optimiser=Optimiser(),
            seed=1,
        )


@each("pool", ["sum", "start", "max"])
def test_slopes_equal_a_loop_over_examples(
    bert: Path, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is autograd, of one example at a time."""
    made = trainer(bert, relations=("none", "causes", "eases"), pool=pool, dropout=0.5)
    encoded, model = made.prepared(EXAMPLES[:9]), made.initial(3)
    model.train()
    source_S = np.arange(9) % 4 != 1
    pairs = LabelledPairs(encoded, source_S, np.arange(9) % 2 == 1, KNOWN_R)
    monkeypatch.setattr(RelationTrainer, "per_batch", 30)
    found, target_G, rows = made.pulls(model, pairs)
    assert rows == 9 - source_S.sum()
    assert model.training
    assert model.relation.weight.grad is None
    model.eval()
    slopes = []
    for row in range(9):
        loss_B = loss_of(made, model, pairs, np.array([row]))
        (slope,) = torch.autograd.grad(loss_B.sum(), model.relation.weight)
        slopes.append(slope.flatten().numpy())
    wanted_SG = np.array(slopes)
    written_SG = np.einsum("sy,sd->syd", found.errors_SY, found.inputs_SD).reshape(9, -1)
    np.testing.assert_allclose(written_SG, wanted_SG * source_S[:, None], atol=1e-5)
    np.testing.assert_allclose(target_G, wanted_SG[~source_S].sum(0), atol=1e-5)
    assert target_G.dtype == np.float32


def test_of_no_example_there_is_no_slope(bert: Path) -> None:
    made = trainer(bert)
    found, target_G, rows = made.pulls(made.initial(1), made.annotated(made.prepared([])))
    assert (len(found), target_G.any(), rows) == (0, False, 0)


def test_a_loss_among_some_classes_is_that_of_a_smaller_classifier(bert: Path) -> None:
    """The oracle drops the columns; each example has its own classes."""
    made = trainer(bert, relations=("none", "causes", "eases"))
    encoded, model = made.prepared(EXAMPLES[:6]), made.initial(1)
    every_S = np.ones(6, bool)
    pairs = LabelledPairs(encoded, every_S, np.arange(6) >= 3, KNOWN_R)
    for batch in made.reads(model, encoded):
        found_B = made.loss(model, pairs, batch, output=model(batch))
        for place, row in enumerate(batch.rows_B):
            logits_R = model(batch)[place, : 2 if row < 3 else 3]
            want = -logits_R.log_softmax(0)[batch.relations_B[place]]
            torch.testing.assert_close(found_B[place], want)


@each("outside", [1.0, 0.25])
def test_a_pair_without_a_relation_may_have_one_that_nobody_looked_for(
    bert: Path, outside: float
) -> None:
    """By hand: the probabilities of the labels that are allowed, added up; all classes compete."""
    made = replace(trainer(bert, relations=("none", "causes", "eases")), open=outside)
    encoded, model = made.prepared(EXAMPLES[:6]), made.initial(1)
    pairs = LabelledPairs(encoded, np.ones(6, bool), np.arange(6) >= 4, KNOWN_R)
    seen = set()
    for batch in made.reads(model, encoded):
        found_B = made.loss(model, pairs, batch, output=model(batch))
        for place, row in enumerate(batch.rows_B):
            likely_R = model(batch)[place].softmax(0)
            label = int(batch.relations_B[place])
            allowed = likely_R[label]
            if row < 4 and label == 0:
                allowed = allowed + outside * likely_R[2]
            seen.add((bool(row < 4), label))
            torch.testing.assert_close(found_B[place], -allowed.log())
    assert {(True, 0), (False, 0), (True, 1)} <= seen


def test_slopes_of_open_pairs_are_those_of_their_loss(bert: Path) -> None:
    made = replace(trainer(bert, relations=("none", "causes", "eases")), open=0.5)
    encoded, model = made.prepared(EXAMPLES), made.initial(1)
    some_S = np.arange(len(encoded)) % 2 == 0
    pairs = LabelledPairs(encoded, np.ones(len(encoded), bool), ~some_S, KNOWN_R)
    found, target_G, _ = made.pulls(model, pairs)
    total = np.zeros_like(target_G)
    model.eval()
    for batch in made.reads(model, encoded):
        model.zero_grad()
        loss_of(made, model, pairs, batch.rows_B).sum().backward()  # type: ignore[no-untyped-call]
        slope = model.relation.weight.grad
        assert slope is not None
        total += slope.numpy().ravel()
    added = np.einsum("sr,sf->rf", found.errors_SY, found.inputs_SD).ravel()
    np.testing.assert_allclose(added, total, atol=1e-4)
    assert not target_G.any()
