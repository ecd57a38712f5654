"""Training: the same bits for the same seed, and it learns."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from confide.errors import DataError
from confide.training.batches import Encoded
from confide.training.optimisers import Descent, Optimiser
from confide.training.trainer import FitReport
from confide.training.weights import Arrays, arrays
from training.corpora import Tiny, fit, predict_spans, tiny

CORPUS = tiny()
ADAM = Optimiser("adam", learning_rate=0.01)


def trained(
    encoded: Encoded, *, corpus: Tiny = CORPUS, optimiser: Optimiser = ADAM, seed: int = 1
) -> tuple[Arrays, FitReport]:
    model = corpus.model()
    report = fit(model, encoded, epochs=2, batch_size=8, optimiser=optimiser, seed=seed)
    return arrays(model), report


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    encoded = CORPUS.encode()
    torch.manual_seed(1)
    first, _ = trained(encoded, optimiser=Optimiser(name))
    torch.manual_seed(2)
    second, _ = trained(encoded, optimiser=Optimiser(name))
    other, _ = trained(encoded, optimiser=Optimiser(name), seed=2)
    assert all(np.array_equal(first[key], second[key]) for key in first)
    assert not np.array_equal(first["crf.linear.weight"], other["crf.linear.weight"])


@pytest.mark.parametrize("scheme", ["iobes", pytest.param("iob2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("character", ["cnn", "bilstm", "none"])
def test_a_tiny_corpus_is_learnt(scheme: str, character: str) -> None:
    corpus = tiny(80, scheme)  # type: ignore[arg-type]
    model = corpus.model(character=character)
    fit(model, corpus.encode(), epochs=8, batch_size=8, optimiser=ADAM, seed=1)
    held_out = tiny(40, scheme, seed=9).examples  # type: ignore[arg-type]
    bare = [replace(example, spans=()) for example in held_out]
    found = predict_spans(model, corpus.encode(bare))
    right = sum(
        [span[:3] for span in spans] == list(example.spans)
        for spans, example in zip(found, held_out, strict=True)
    )
    assert right >= 38


def test_the_report_counts_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[float] = []

    def listened(descent: Any, losses: Any) -> Any:
        loss = step_down(descent, losses)
        heard.append(float(loss))
        return loss

    step_down = Descent.step_down
    monkeypatch.setattr(Descent, "step_down", listened)
    report = fit(CORPUS.model(), CORPUS.encode(), epochs=3, batch_size=8, optimiser=ADAM, seed=1)
    assert (report.sentences, report.steps) == (180, 24)
    assert len(heard) == 24
    assert report.loss == pytest.approx(np.mean(heard[16:]), rel=0.2)
    assert heard[-1] < heard[0]


def test_the_gradient_is_clipped() -> None:
    encoded = CORPUS.encode()
    before = arrays(CORPUS.model())
    after, _ = trained(encoded, optimiser=Optimiser("sgd", 1.0, momentum=0.0, clip=1e-4))
    moved = sum(float(((after[key] - before[key]) ** 2).sum()) for key in before) ** 0.5
    assert 0 < moved <= 16 * 1e-4 * 1.01
    free, _ = trained(encoded, optimiser=Optimiser("sgd", 1.0, momentum=0.0, clip=0.0))
    assert not np.allclose(free["crf.linear.weight"], before["crf.linear.weight"], atol=1e-2)


def test_the_unknown_word_is_learnt_only_by_word_dropout() -> None:
    model = CORPUS.model()
    before = arrays(model)["word.weight"]
    kind = {"epochs": 1, "batch_size": 8, "optimiser": ADAM, "seed": 1}
    fit(model, CORPUS.encode(), word_dropout=0.0, **kind)  # type: ignore[arg-type]
    assert np.array_equal(arrays(model)["word.weight"][:2], before[:2])
    fit(model, CORPUS.encode(), word_dropout=0.2, **kind)  # type: ignore[arg-type]
    after = arrays(model)["word.weight"]
    assert np.array_equal(after[0], before[0]) and not np.array_equal(after[1], before[1])


def test_parts_that_do_not_learn_stay() -> None:
    model = CORPUS.model()
    for parameter in model.word.parameters():
        parameter.requires_grad_(False)
    before = arrays(model)
    fit(model, CORPUS.encode(), epochs=1, batch_size=8, optimiser=ADAM, seed=1)
    assert np.array_equal(arrays(model)["word.weight"], before["word.weight"])


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(DataError, match="no sentence"):
        trained(CORPUS.encode([]))


def test_one_sentence_and_no_entity_are_enough() -> None:
    alone = replace(CORPUS.examples[0], spans=())
    _, report = trained(CORPUS.encode([alone]))
    assert report.steps == 2 and np.isfinite(report.loss)


def test_training_says_nothing_of_the_text(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        trained(CORPUS.encode())
    assert not caplog.text and capfd.readouterr() == ("", "")


def test_training_ends_after_so_many_steps_or_epochs_whichever_comes_first() -> None:
    made = {
        most: trained(CORPUS.encode(), optimiser=replace(ADAM, most=most)) for most in (0, 3, 9, 99)
    }
    assert [made[most][1].steps for most in made] == [16, 3, 9, 16]
    assert [made[most][1].sentences for most in made] == [120, 24, 64, 120]
    assert made[99][1].loss == made[0][1].loss
    assert not np.array_equal(made[3][0]["crf.linear.weight"], made[9][0]["crf.linear.weight"])
