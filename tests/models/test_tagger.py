"""The tagger as a whole: its parts by name, and what its output may not depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from confide.data.batches import batch_of
from confide.data.encoding import Encoded, TagSet, encode
from confide.data.examples import Example
from confide.data.vocabulary import count_characters, count_words, numbered
from confide.models import tagger
from confide.models.tagger import Tagger, TaggerSizes

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
    return encode(
        examples,
        words=numbered(count_words(tokens, "lower")),
        characters=numbered(count_characters(tokens), kind="character"),
        tags=TAGS,
        how="lower",
    )


def build(**changes: Any) -> Tagger:
    torch.manual_seed(1)
    return Tagger(replace(SIZES, **changes))


@pytest.mark.parametrize("character", ["cnn", "bilstm", "none"])
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
    emissions, losses = model(together), tagger.loss(model, together)
    for row in range(3):
        alone = batch_of(encoded, np.array([row]))
        length = int(alone.lengths_B[0])
        torch.testing.assert_close(emissions[row, :length], model(alone)[0])
        torch.testing.assert_close(losses[row], tagger.loss(model, alone)[0])


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
        tags, rows, found = tagger.decode_with_posterior(model, batch)
        assert not tags.any() and not len(rows) and found is None
        model.crf.linear.bias.copy_(torch.tensor([0.0, 0, 0, 0, 50.0]))
        tags, rows, found = tagger.decode_with_posterior(model, batch)
    assert rows.tolist() == [0, 1, 2] and found is not None
    assert torch.equal(tags, tagger.decode(model, batch))
    assert found.marginals_BLY[:, 0, 4].min() > 0.99
