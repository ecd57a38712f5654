"""The tagger as a whole: its parts by name, and what its output may not depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cases import each
from confide.errors import DataError
from confide.training import tagger
from confide.training.batches import Encoded, Example, TagSet, encode_examples, with_context
from confide.training.crf import viterbi
from confide.training.tagger import PARTS, Tagger, TaggerSizes, batch_of
from confide.training.vocabulary import count_characters, count_words, numbered
from training.corpora import tagging_loss

SENTENCES = ["the old fever came back", "no pain", "pain and fever and pain again today"]
TAGS = TagSet(("Symptom",))
SIZES = TaggerSizes(
    words=20, characters=30, tags=len(TAGS), word_dim=8, character_dim=5, bilstm_hidden=6
)


@pytest.fixture
def encoded() -> Encoded:
    examples = [
        Example(0, number, tuple(sentence.split()), ((0, 1, "Symptom"),))
        for number, sentence in enumerate(SENTENCES)
    ]
    tokens = [token for example in examples for token in example.tokens]
    return encode_examples(
        examples,
        words=numbered(count_words(tokens, "lower")),
        characters=numbered(count_characters(tokens), kind="character"),
        tags=TAGS,
        how="lower",
    )


def build(**changes: Any) -> Tagger:
    torch.manual_seed(1)
    return Tagger(replace(SIZES, **changes))


@each("character", ["cnn", "bilstm", "none"])
def test_parts_have_the_names_that_methods_share_by(character: str) -> None:
    names = {name.split(".")[0] for name, _ in build(character=character).named_parameters()}
    expected = {"word", "bilstm", "crf"} | ({"character"} if character != "none" else set())
    assert names == expected


@pytest.mark.parametrize("character", ["cnn", "bilstm", "none"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_sentence_does_not_depend_on_its_batch(
    encoded: Encoded, character: str, layers: int
) -> None:
    model = build(character=character, bilstm_layers=layers).eval()
    together = batch_of(encoded, np.array([0, 1, 2]))
    emissions, losses = model(together), tagging_loss(model, together)
    for row in range(3):
        alone = batch_of(encoded, np.array([row]))
        length = int(alone.lengths_B[0])
        torch.testing.assert_close(emissions[row, :length], model(alone)[0])
        torch.testing.assert_close(losses[row], tagging_loss(model, alone)[0])


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"character": "none", "cnn_filters": 4, "bilstm_layers": 0}, {"word", "cnn", "crf"}),
        (
            {"cnn_filters": 4, "cnn_widths": (1, 3, 5), "bilstm_layers": 0},
            {"word", "character", "cnn", "crf"},
        ),
        ({"cnn_filters": 4, "context_dim": 7}, {"word", "character", "cnn", "bilstm", "crf"}),
        ({"context_dim": 7, "bilstm_layers": 0}, {"word", "character", "crf"}),
    ],
)
def test_parts_can_be_switched(encoded: Encoded, changes: Any, parts: set[str]) -> None:
    """Each has its parameters, learns, and gives a sentence what it gives it alone."""
    if "context_dim" in changes:
        states = np.random.default_rng(0).normal(size=(15, 7)).astype(np.float16)
        encoded = with_context(encoded, states, np.array([0, 5, 7]))
    model = build(**changes).eval()
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == parts <= set(PARTS)
    together = batch_of(encoded, np.array([0, 1, 2]))
    emissions = model(together)
    for row in range(3):
        alone = batch_of(encoded, np.array([row]))
        torch.testing.assert_close(emissions[row, : int(alone.lengths_B[0])], model(alone)[0])
    tagging_loss(model, together).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.crf.parameters())


def test_contextual_features_are_read_at_their_own_tokens(encoded: Encoded) -> None:
    """The row of the features says which token it is of; the batch must hold just these."""
    states = np.arange(15, dtype=np.float16)[:, None] * np.ones((1, 2), np.float16)
    batch = batch_of(with_context(encoded, states, np.array([0, 5, 7])), np.array([2, 0]))
    assert batch.context_BLX is not None
    assert batch.context_BLX[0, :, 0].tolist() == [7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0]
    assert batch.context_BLX[1, :, 1].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0]
    with pytest.raises(DataError, match="do not belong to these sentences"):
        with_context(encoded, states[:13], np.array([0, 5, 7]))


def test_only_the_crf_depends_on_the_tags() -> None:
    few, many = build(), build(tags=17)
    shapes = {name: p.shape for name, p in few.named_parameters()}
    for name, parameter in many.named_parameters():
        assert (parameter.shape == shapes[name]) == (not name.startswith("crf.")), name


def test_training_draws_dropout_and_prediction_does_not(encoded: Encoded) -> None:
    model = build()
    batch = batch_of(encoded, np.array([0, 1, 2]))
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_the_posterior_is_of_the_rows_with_an_entity(encoded: Encoded) -> None:
    model = build().eval()
    batch = batch_of(encoded, np.array([0, 1, 2]))
    with torch.no_grad():
        model.crf.linear.bias.copy_(torch.tensor([50.0, 0, 0, 0, 0]))
        tags, rows, found = tagger.decode_with_posterior(
            model(batch), model.crf.scores(), lengths_B=batch.lengths_B
        )
        assert not tags.any() and not len(rows) and found is None
        model.crf.linear.bias.copy_(torch.tensor([0.0, 0, 0, 0, 50.0]))
        tags, rows, found = tagger.decode_with_posterior(
            model(batch), model.crf.scores(), lengths_B=batch.lengths_B
        )
    assert rows.tolist() == [0, 1, 2] and found is not None
    paths = viterbi(model(batch), model.crf.scores(), lengths_B=batch.lengths_B)
    assert torch.equal(tags, paths)
    assert found.marginals_BLY[:, 0, 4].min() > 0.99
