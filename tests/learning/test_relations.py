"""Relation classifiers out of encoder files: drawn by a seed, trained, asked for logits."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.data.batches.relation_pieces import RelationBatch
from confide.data.batches.relations import RelationExample
from confide.errors import DataError, SettingsError
from confide.learning import relations
from confide.learning.encoder import load_encoder
from confide.learning.optimisers import Optimiser
from confide.learning.relations import (
    Choices,
    RelationForm,
    RelationModeller,
    fit_relations,
    relation_logits,
    relation_slopes,
)
from confide.learning.weights import arrays, load
from confide.models.relation import RelationClassifier, loss
from learning.encoders import LIMIT, tiny_bert, tiny_roberta

FORM = RelationForm(relations=("none", "causes"), longest=LIMIT)


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


def modeller(folder: Path, **changes: Any) -> RelationModeller:
    return RelationModeller(load_encoder(str(folder)), RelationForm(**{**vars(FORM), **changes}))


def test_the_seed_draws_what_is_new_and_the_encoder_stays_as_it_is(bert: Path) -> None:
    made = modeller(bert)
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


@each("kind", [tiny_bert, tiny_roberta])
@each("changes", [{}, {"pool": "start", "blind": False}])
def test_a_rule_is_learnt(kind: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    made = modeller(kind(tmp_path / "encoder"), **changes)
    model, encoded = made.initial(1), made.encoded(EXAMPLES)
    report = fit_relations(
        model,
        encoded,
        epochs=25,
        batch_size=4,
        optimiser=Optimiser("adamw", learning_rate=5e-3),
        seed=1,
    )
    assert report.sentences == 25 * 40
    assert report.steps == 250
    predicted = relation_logits(model, encoded).argmax(1)
    assert (predicted == encoded.relations_S).mean() > 0.95


def test_types_with_marks_of_their_own(bert: Path) -> None:
    made = modeller(bert, types=("head", "pain"))
    assert made.marking.count == 8
    assert relation_logits(made.initial(1), made.encoded(EXAMPLES)).shape == (40, 2)


def test_logits_are_in_order_whatever_the_batches(bert: Path) -> None:
    made = modeller(bert)
    model, encoded = made.initial(1), made.encoded(EXAMPLES)
    model.train()
    logits = relation_logits(model, encoded)
    assert model.training
    one_by_one = relation_logits(model, encoded, pieces_per_batch=1)
    np.testing.assert_allclose(logits, one_by_one, atol=1e-5)
    alone = relation_logits(model, made.encoded(EXAMPLES[7:8]))
    np.testing.assert_allclose(logits[7:8], alone, atol=1e-5)
    assert len(relation_logits(model, made.encoded([]))) == 0


def test_the_same_seed_trains_the_same_bits(bert: Path) -> None:
    made = modeller(bert)
    encoded, found = made.encoded(EXAMPLES[:12]), []
    for seed in (1, 1, 2):
        model = made.initial(1)
        fit_relations(
            model,
            encoded,
            epochs=1,
            batch_size=4,
            optimiser=Optimiser("adamw", learning_rate=1e-3),
            seed=seed,
        )
        found.append(arrays(model))
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])
    assert any(not np.array_equal(found[0][name], found[2][name]) for name in found[0])
    fresh = made.initial(9)
    load(fresh, found[0])
    logits = [relation_logits(one, encoded) for one in (fresh, model)]
    assert not torch.allclose(*map(torch.from_numpy, logits))


def test_a_loss_of_ones_own_sees_which_examples_it_is_of(bert: Path) -> None:
    made = modeller(bert)
    model, encoded = made.initial(1), made.encoded(EXAMPLES)
    seen: list[int] = []

    def other(model: RelationClassifier, batch: RelationBatch) -> torch.Tensor:
        seen.extend(batch.rows_B.tolist())
        wanted_B = torch.ones_like(batch.relations_B)
        return functional.cross_entropy(model(batch), wanted_B, reduction="none")

    settings = Optimiser("adamw", learning_rate=5e-3)
    fit_relations(model, encoded, epochs=2, batch_size=4, optimiser=settings, seed=1, loss=other)
    assert sorted(seen) == sorted([*range(40), *range(40)])
    assert (relation_logits(model, encoded).argmax(1) == 1).all()


@each("kind", [tiny_bert, tiny_roberta])
@each("weight_decay", [0.0, 0.1])
def test_only_rows_that_are_read_are_trained_and_nobody_sees_it(
    kind: Any, weight_decay: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = modeller(kind(tmp_path / "encoder"))
    encoded, found, sizes = made.encoded(EXAMPLES[:12]), [], []
    settings = Optimiser("adamw", learning_rate=1e-3, weight_decay=weight_decay, clip=0.5)

    def seen(model: RelationClassifier, batch: RelationBatch) -> torch.Tensor:
        sizes.append(len(table_of(model).weight))
        return loss(model, batch)

    for _ in range(2):
        model = made.initial(1)
        weight = table_of(model).weight
        fit_relations(model, encoded, epochs=2, batch_size=4, optimiser=settings, seed=1, loss=seen)
        assert table_of(model).weight is weight
        found.append(arrays(model))
        monkeypatch.setattr(relations, "only_rows", lambda *_: nullcontext())
    assert list(found[0]) == list(found[1])
    assert all(found[0][n].tobytes() == found[1][n].tobytes() for n in found[0])
    rows = len(set(encoded.ids_N.tolist()) | {encoded.padding})
    assert sizes == [rows if weight_decay == 0.0 else len(weight)] * 6 + [len(weight)] * 6


def table_of(model: RelationClassifier) -> torch.nn.Embedding:
    body: Any = model.encoder
    table: torch.nn.Embedding = body.get_input_embeddings()
    return table


def test_what_cannot_be_is_refused(bert: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read that many pieces"):
        modeller(bert, longest=LIMIT + 1).encoded(EXAMPLES)
    with pytest.raises(DataError, match="outside the declared set"):
        modeller(bert, relations=("none",)).encoded(EXAMPLES)
    made = modeller(bert)
    with pytest.raises(DataError, match="no sentence to train on"):
        fit_relations(
            made.initial(1), made.encoded([]), epochs=1, batch_size=4, optimiser=Optimiser(), seed=1
        )


@pytest.mark.parametrize("pool", ["sum", "start", "max"])
def test_slopes_equal_a_loop_over_examples(bert: Path, pool: Any) -> None:
    """The oracle is autograd, of one example at a time."""
    made = modeller(bert, relations=("none", "causes", "eases"), pool=pool, dropout=0.5)
    encoded, model = made.encoded(EXAMPLES[:9]), made.initial(3)
    model.train()
    source_S = np.arange(9) % 4 != 1
    choices = Choices(np.array([True, True, False]), np.arange(9) % 2 == 0)
    found, target_G = relation_slopes(
        model, encoded, choices=choices, source_S=source_S, pieces_per_batch=30
    )
    assert model.training
    assert model.relation.weight.grad is None
    model.eval()
    rows = []
    for row in range(9):
        (batch,) = relations.predict_relation_batches(encoded.only(np.array([row])))
        one = Choices(choices.known_R, choices.some_S[[row]])
        (slope,) = torch.autograd.grad(one.loss(model, batch).sum(), model.relation.weight)
        rows.append(slope.flatten().numpy())
    wanted_SG = np.array(rows)
    written_SG = np.einsum("sy,sd->syd", found.errors_SY, found.inputs_SD).reshape(9, -1)
    np.testing.assert_allclose(written_SG, wanted_SG * source_S[:, None], atol=1e-5)
    np.testing.assert_allclose(target_G, wanted_SG[~source_S].sum(0), atol=1e-5)
    assert target_G.dtype == np.float32


def test_of_no_example_there_is_no_slope(bert: Path) -> None:
    made = modeller(bert)
    none = np.zeros(0, bool)
    choices = Choices(np.ones(2, bool), none)
    found, target_G = relation_slopes(
        made.initial(1), made.encoded([]), choices=choices, source_S=none
    )
    assert (len(found), target_G.any()) == (0, False)


def test_a_loss_among_some_classes_is_that_of_a_smaller_classifier(bert: Path) -> None:
    """The oracle drops the columns; each example has its own classes and its own weight."""
    made = modeller(bert, relations=("none", "causes", "eases"))
    encoded, model = made.encoded(EXAMPLES[:6]), made.initial(1)
    weights_S = np.array([0, 1, 2, 0.5, 3, 1], np.float32)
    choices = Choices(np.array([True, True, False]), np.arange(6) < 3, weights_S)
    for batch in relations.predict_relation_batches(encoded, pieces_per_batch=30):
        found_B = choices.loss(model, batch)
        for place, row in enumerate(batch.rows_B):
            logits_R = model(batch)[place, : 2 if row < 3 else 3]
            want = -logits_R.log_softmax(0)[batch.relations_B[place]] * weights_S[row]
            torch.testing.assert_close(found_B[place], want)


@pytest.mark.parametrize("outside", [1.0, 0.25])
def test_a_pair_without_a_relation_may_have_one_that_nobody_looked_for(
    bert: Path, outside: float
) -> None:
    """By hand: the probabilities of the labels that are allowed, added up; all classes compete."""
    made = modeller(bert, relations=("none", "causes", "eases"))
    encoded, model = made.encoded(EXAMPLES[:6]), made.initial(1)
    choices = Choices(np.array([True, True, False]), np.arange(6) < 4, outside=outside)
    seen = set()
    for batch in relations.predict_relation_batches(encoded, pieces_per_batch=30):
        found_B = choices.loss(model, batch)
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
    made = modeller(bert, relations=("none", "causes", "eases"))
    encoded, model = made.encoded(EXAMPLES), made.initial(1)
    some_S = np.arange(len(encoded)) % 2 == 0
    choices = Choices(np.array([True, True, False]), some_S, outside=0.5)
    every_S = np.ones(len(encoded), bool)
    found, target_G = relation_slopes(model, encoded, choices=choices, source_S=every_S)
    total = np.zeros_like(target_G)
    model.eval()
    for batch in relations.predict_relation_batches(encoded):
        model.zero_grad()
        choices.loss(model, batch).sum().backward()  # type: ignore[no-untyped-call]
        slope = model.relation.weight.grad
        assert slope is not None
        total += slope.numpy().ravel()
    added = np.einsum("sr,sf->rf", found.errors_SY, found.inputs_SD).ravel()
    np.testing.assert_allclose(added, total, atol=1e-4)
    assert not target_G.any()
