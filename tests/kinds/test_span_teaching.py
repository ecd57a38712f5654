"""Distillation span by span: rows, losses and students, against the formulas written out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.kinds.pieces import token_batch
from confide.kinds.spans import SpanSpec, SpanTrainer
from confide.training.batches import Example, Window
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser
from confide.training.trainer import NEVER, Cells, DistillationTarget, cells_from
from confide.training.weights import arrays, load_weights
from training.encoders import tiny_bert

WORDS = ["signs", "of", "liver", "cancer", "or", "kidney", "cyst", "in", "two", "old", "men"]
EXAMPLES = [Example(0, 0, tuple(WORDS)), Example(1, 0, ("cyst",)), Example(2, 0, tuple(WORDS[3:8]))]
TYPES = ("Disease", "Site")
WIDTH = 3
SGD = Optimiser("sgd", learning_rate=0.1, momentum=0.0, clip=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    place = tmp_path_factory.mktemp("span") / "bert"
    return tiny_bert(place, words=WORDS, initializer_range=0.3, **still)


def made(folder: Path, longest: int = 32) -> SpanTrainer:
    return SpanTrainer(
        load_encoder(str(folder)), SpanSpec(TYPES, width=WIDTH, dropout=0.0, longest=longest)
    )


def spans_of(words: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(words) for j in range(i, min(i + WIDTH, words))]


def test_cells_are_counted_by_first_word_and_width() -> None:
    for words in range(6):
        counted = [sum(first < word for first, _ in spans_of(words)) for word in range(words + 1)]
        assert cells_from(words, WIDTH).tolist() == counted


def test_each_span_has_one_row_and_one_owner() -> None:
    """A sentence of five words in two windows, between two of one and of two words."""
    windows = [
        Window(0, 0, 1, 0, 1), Window(1, 0, 4, 0, 3), Window(1, 2, 5, 3, 5), Window(2, 0, 2, 0, 2),
    ]  # fmt: skip
    cells = Cells.of(windows, WIDTH)
    lengths, expected = [1, 5, 2], []
    for number, words in enumerate(lengths):
        expected += [(number, *span) for span in spans_of(words)]
    for owned in (False, True):
        found = cells.rows_of(np.arange(4), words=4, owned=owned).reshape(4, 4, WIDTH)
        for row, window in enumerate(windows):
            for word in range(4):
                for wide in range(WIDTH):
                    first, last = window.start + word, window.start + word + wide
                    own = window.own_start <= first < window.own_end or not owned
                    there = last < window.end and own
                    place = expected.index((window.example, first, last)) if there else -1
                    assert found[row, word, wide] == place
    taken = found[found >= 0].tolist()
    assert len(taken) == len(set(taken))
    left = {expected[row][1:] for row in set(range(len(expected))) - set(taken)}
    assert left == {(2, 4)}  # it begins in the first window and ends in the second


def test_a_model_says_its_own_logits_and_no_entity_is_zero(folder: Path) -> None:
    trainer = made(folder)
    model, text = trainer.initial(2), trainer.prepared(EXAMPLES)
    said = trainer.row_logits(model, text)
    assert said.shape == (sum(len(spans_of(len(one.tokens))) for one in EXAMPLES), 3)
    assert not said[:, 0].any() and said.dtype == np.float32
    start = 0
    for number, one in enumerate(EXAMPLES):
        with torch.no_grad():
            logits = model(token_batch(text, np.array([number])))[0].reshape(-1, WIDTH, 2)
        for first, last in spans_of(len(one.tokens)):
            expected = logits[first, last - first]
            np.testing.assert_allclose(said[start, 1:], expected, atol=1e-5)
            start += 1
    short = made(folder, longest=10)
    cut = short.row_logits(model, short.prepared(EXAMPLES))
    assert cut.shape == said.shape
    lost = (cut[:, 1:] == NEVER).all(1)
    assert 0 < lost.sum() < 20  # spans across the ends of windows


@each("labelled", [True, False])
@each("temperature", [1.0, 2.0])
def test_a_step_goes_down_the_loss_of_the_formula(
    temperature: float, labelled: bool, folder: Path
) -> None:
    """One batch, one step of plain SGD; the loss span by span, with one that nobody teaches."""
    trainer = made(folder)
    text = trainer.prepared(EXAMPLES)
    own = [[(2, 4, "Disease"), (2, 3, "Site")], [(0, 1, "Disease")], []]
    encoded = trainer.annotated(text, own, source=set(TYPES))
    rows = [(n, *span) for n, one in enumerate(EXAMPLES) for span in spans_of(len(one.tokens))]
    drawn = np.random.default_rng(3).gamma(1.0, size=(len(rows), 3)).astype(np.float32)
    taught = drawn / drawn.sum(1, keepdims=True)
    taught[4] = 0
    each = labelled * np.array([0.5, 0.0, 2.0], np.float32)
    model = trainer.initial(1)
    before = arrays(model)
    soft_target = DistillationTarget(taught, temperature, each[[number for number, _, _ in rows]])
    report = trainer.distil(
        model, encoded, soft_target=soft_target, epochs=1, batch_size=3, optimiser=SGD, seed=1
    )
    after = arrays(model)

    load_weights(model, before)
    model.train()
    batch = token_batch(text, np.arange(3))
    logits = model(batch).reshape(3, len(WORDS), WIDTH, 2)
    total = torch.zeros(())
    for place, (number, first, last) in enumerate(rows):
        if place != 4:
            two = logits[number, first, last - first]
            p = torch.cat((torch.zeros(1), two)).div(temperature).softmax(0)
            q = torch.from_numpy(taught[place])
            total = total + temperature**2 * (q * (q / p).log()).sum()
        for type, name in enumerate(TYPES):
            gold = torch.tensor(float((first, last + 1, name) in own[number]))
            at = logits[number, first, last - first, type]
            ordinary = functional.binary_cross_entropy_with_logits(at, gold)
            total = total + float(each[number]) * ordinary
    loss = total / 3
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    assert report.loss == pytest.approx(loss.item(), rel=1e-4)
    moved = 0.0
    for name, parameter in model.named_parameters():
        slope = np.zeros(1) if parameter.grad is None else parameter.grad.numpy()
        np.testing.assert_allclose(after[name], before[name] - 0.1 * slope, rtol=1e-3, atol=1e-4)
        moved = max(moved, float(np.abs(slope).max()))
    assert moved > 0.01


@pytest.mark.parametrize("longest", [pytest.param(32, marks=pytest.mark.slow), 10])
def test_a_student_comes_to_say_its_teacher_s_sigmoids(longest: int, folder: Path) -> None:
    """The softmax with a class for none has its least loss where the logits are the teacher's."""
    trainer = made(folder, longest)
    text = trainer.prepared(EXAMPLES)
    teacher = trainer.row_logits(trainer.initial(5), text).astype(np.float64)
    teacher[:, 1:] += 4.0
    powers = np.exp(teacher)
    taught = (powers / powers.sum(1, keepdims=True)).astype(np.float32)
    encoded = trainer.annotated(text, [()] * len(EXAMPLES), source=set())
    model = trainer.initial(1)
    trainer.distil(
        model,
        encoded,
        soft_target=DistillationTarget(taught, 1.0, np.zeros(len(taught), np.float32)),
        epochs=150,
        batch_size=3,
        optimiser=replace(SGD, name="adam", learning_rate=0.01),
        seed=1,
    )
    said = trainer.row_logits(model, text)
    held = (said[:, 1:] != NEVER).all(1)
    assert held.mean() > 0.5
    assert np.abs(said - teacher)[held].mean() < 0.3
