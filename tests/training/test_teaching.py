"""What models say of tokens, and learn of what others say: each token once, however it is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.kinds.encoder import EncoderSpec, TokenTrainer, word_losses
from confide.kinds.pieces import token_batch
from confide.kinds.tagger.model import TaggerTrainer
from confide.training.batches import Example, Window
from confide.training.crf import LEAST, posterior
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser
from confide.training.tagger import TaggerSizes, batch_of
from confide.training.trainer import Cells, DistillationTarget
from confide.training.weights import arrays, load_weights
from training.corpora import tagging_loss, tiny
from training.encoders import LIMIT, tiny_bert

CORPUS = tiny(12)
LONG = Example(0, 12, tuple(word for one in CORPUS.examples[:6] for word in one.tokens))
EXAMPLES = [*CORPUS.examples, LONG]
SGD = Optimiser("sgd", learning_rate=0.1, momentum=0.0, clip=1e9)
KINDS = ("tagger", "encoder")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    place = tmp_path_factory.mktemp("bert") / "encoder"
    words = sorted({word.lower() for one in EXAMPLES for word in one.tokens})
    return tiny_bert(place, words=words, initializer_range=0.1, **still)


def made(kind: str, folder: Path, *, longest: int = LIMIT) -> Any:
    """A trainer without dropout; `longest`: what it reads at once."""
    if kind == "encoder":
        form = EncoderSpec(types=CORPUS.tags.types, dropout=0.0, longest=longest)
        return TokenTrainer(load_encoder(str(folder)), form)
    sizes = TaggerSizes(
        words=len(CORPUS.words),
        characters=len(CORPUS.characters),
        tags=len(CORPUS.tags),
        word_dim=8,
        character_dim=4,
        character_filters=4,
        bilstm_hidden=8,
        dropout=0.0,
    )
    own = {"max_tokens": longest, "word_dropout": 0.0}
    return TaggerTrainer(sizes, CORPUS.tags, CORPUS.words, CORPUS.characters, "lower", **own)


def teacher(rows: int, tags: int) -> np.ndarray:
    drawn = np.random.default_rng(3).gamma(1.0, size=(rows, tags)).astype(np.float32)
    return drawn / drawn.sum(1, keepdims=True)


def test_each_token_is_owned_by_one_window() -> None:
    windows = [Window(0, 0, 3, 0, 3), Window(2, 0, 4, 0, 3), Window(2, 2, 6, 3, 6)]
    cells = Cells.of(windows)
    found, every = cells.rows_of(np.arange(3), words=4), [0, 1, 2, -1, 3, 4, 5, 6, 5, 6, 7, 8]
    assert found.ravel().tolist() == every
    own = cells.rows_of(np.arange(3), words=4, owned=True)
    assert own[own >= 0].tolist() == list(range(9))
    said = [
        (np.array([2, 0]), torch.tensor([[2.0] * 4, [0.0] * 4])[:, :, None]),
        (np.array([1]), torch.tensor([[1.0] * 4])[:, :, None]),
    ]
    assert cells.said(iter(said), classes=1)[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert Cells.of([]).said([], classes=1).shape == (0, 1)


@each("kind", KINDS)
def test_there_is_a_row_for_each_token_however_long_the_windows(kind: str, folder: Path) -> None:
    tokens = sum(len(one.tokens) for one in EXAMPLES)
    whole = made(kind, folder)
    teachable = whole
    model = whole.initial(1)
    said = teachable.row_logits(model, whole.prepared(EXAMPLES))
    assert said.shape == (tokens, len(CORPUS.tags))
    assert said.dtype == np.float32
    short = made(kind, folder, longest=8 if kind == "tagger" else 14)
    text = short.prepared(EXAMPLES)
    each = Counter(window.example for window in text.windows)
    assert each[len(CORPUS.examples)] > 2
    again = short.row_logits(model, text)
    assert again.shape == said.shape
    fits = np.array([each[n] == 1 for n, one in enumerate(EXAMPLES) for _ in one.tokens])
    assert 0 < fits.sum() < tokens
    np.testing.assert_allclose(again[fits], said[fits], atol=1e-5)
    assert np.abs(again[~fits] - said[~fits]).max() > 1e-3  # less context, another answer
    backwards = whole.row_logits(model, whole.prepared(EXAMPLES[::-1]))
    last = len(LONG.tokens)
    np.testing.assert_allclose(backwards[:last], said[-last:], atol=1e-5)


def test_a_crf_says_the_logarithms_of_its_marginals(folder: Path) -> None:
    trainer = made("tagger", folder)
    model, text = trainer.initial(1), trainer.prepared(CORPUS.examples)
    said = trainer.row_logits(model, text)
    np.testing.assert_allclose(np.exp(said).sum(1), 1, rtol=1e-5)
    batch, start = batch_of(text, np.arange(len(text))), 0
    with torch.no_grad():
        found = posterior(model(batch), model.crf.scores(), lengths_B=batch.lengths_B)
    for row, length in enumerate(batch.lengths_B.tolist()):
        expected = found.marginals_BLY[row, :length].numpy()
        np.testing.assert_allclose(np.exp(said[start : start + length]), expected, atol=1e-6)
        start += length


Ways = dict[str, Callable[[Any, Any, Tensor], tuple[Tensor, Tensor]]]


def of_a_tagger(model: Any, encoded: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Marginals by the analytic posterior's own recipe, and the ordinary loss of each row."""
    batch = batch_of(encoded.text, rows.numpy())
    emissions = model(batch)
    scores = model.crf.scores()
    free = emissions.double()
    # d log Z / d emissions, which autograd can go through again
    prefix = scores.starts_Y.double() + free[:, 0]
    for t in range(1, free.shape[1]):
        step = (prefix[:, :, None] + scores.moves_YY.double()).logsumexp(1) + free[:, t]
        prefix = torch.where((t < batch.lengths_B)[:, None], step, prefix)
    log_z = (prefix + scores.ends_Y.double()).logsumexp(1).sum()
    (marginals,) = torch.autograd.grad(log_z, free, create_graph=True)
    return marginals, tagging_loss(model, batch)


def of_an_encoder(model: Any, encoded: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    batch = token_batch(encoded.text, rows.numpy(), annotated=encoded)
    logits = model(batch)
    return logits.softmax(2), word_losses(logits, batch).sum(1)


WAYS: Ways = {"tagger": of_a_tagger, "encoder": of_an_encoder}


@each("labelled", [True, False])
@each("temperature", [1.0, 2.0])
@each("kind", KINDS)
def test_a_step_goes_down_the_loss_of_the_formula(
    kind: str, temperature: float, labelled: bool, folder: Path
) -> None:
    """One batch of all sentences, one step of plain SGD; the loss written out, token by token.

    Labels count differently from sentence to sentence, and one sentence has no teacher.
    """
    trainer = made(kind, folder)
    examples = CORPUS.examples
    text = trainer.prepared(examples)
    encoded = trainer.annotated(text, [one.spans for one in examples], source={"Drug", "Effect"})
    taught = teacher(sum(len(one.tokens) for one in examples), len(CORPUS.tags))
    taught[: len(examples[0].tokens)] = 0
    each = labelled * np.arange(len(examples), dtype=np.float32) / 2
    counts = np.repeat(each, [len(one.tokens) for one in examples])
    model = trainer.initial(1)
    before = arrays(model)
    report = trainer.distil(
        model,
        encoded,
        soft_target=DistillationTarget(taught, temperature, counts),
        epochs=1,
        batch_size=len(examples),
        optimiser=SGD,
        seed=1,
    )
    after = arrays(model)

    load_weights(model, before)
    model.train()
    chances, ordinary = WAYS[kind](model, encoded, torch.arange(len(examples)))
    total, start = torch.zeros(()), 0
    for row, one in enumerate(examples):
        q = torch.from_numpy(taught[start : start + len(one.tokens)]).double()
        p = chances[row, : len(one.tokens)].double()
        p = p.clamp_min(math.exp(LEAST)) ** (1 / temperature)  # 0: forbidden at an edge
        p = p / p.sum(1, keepdim=True)
        if row:
            total = total + temperature**2 * (q * (q / p).log()).sum()
        total = total + float(each[row]) * ordinary[row]
        start += len(one.tokens)
    loss = total / len(examples)
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    assert report.loss == pytest.approx(loss.item(), rel=1e-4)
    moved = 0.0
    for name, parameter in model.named_parameters():
        slope = np.zeros(1) if parameter.grad is None else parameter.grad.numpy()
        np.testing.assert_allclose(after[name], before[name] - 0.1 * slope, rtol=1e-3, atol=1e-4)
        moved = max(moved, float(np.abs(slope).max()))
    assert moved > 0.01


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (k == "tagger")) for k in KINDS]
)
def test_a_student_comes_to_say_what_its_teacher_says(kind: str, folder: Path) -> None:
    """Of long sentences too, which it reads in windows."""
    trainer = made(kind, folder, longest=8 if kind == "tagger" else 14)
    other = trainer.initial(2)
    text = trainer.prepared(EXAMPLES)
    logits = trainer.row_logits(other, text).astype(np.float64)
    # sharper than a model that was just drawn
    powers = np.exp(4 * (logits - logits.max(1, keepdims=True)))
    taught = (powers / powers.sum(1, keepdims=True)).astype(np.float32)
    encoded = trainer.annotated(text, [()] * len(EXAMPLES), source=set())
    model = trainer.initial(1)
    learn = replace(SGD, name="adam", learning_rate=0.01)
    report = trainer.distil(
        model,
        encoded,
        soft_target=DistillationTarget(taught, 1.0, np.zeros(len(taught), np.float32)),
        epochs=60,
        batch_size=4,
        optimiser=learn,
        seed=1,
    )
    assert np.isfinite(report.loss)
    said = trainer.row_logits(model, text)
    apart = np.abs(np.exp(said - np.logaddexp.reduce(said, 1, keepdims=True)) - taught)
    start = trainer.row_logits(trainer.initial(1), text)
    far = np.abs(np.exp(start - np.logaddexp.reduce(start, 1, keepdims=True)) - taught)
    assert apart.mean() < 0.3 * far.mean()
