"""Our tagger and the plain ones over the same sentences: made, trained, labelling, checked."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from corpus import Sentence
from plain import PlainTagger
from torch import nn

from confide.kinds.tagger.model import EncodedSplit, TaggerTrainer
from confide.text.tagging import spans_from_tags
from confide.training.batches import Encoded, Example, TagSet
from confide.training.optimisers import Optimiser
from confide.training.tagger import TaggerBatch, TaggerSizes, batch_of, predict_batches
from confide.training.vocabulary import count_characters, count_words, numbered

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from training.corpora import tagging_loss


def examples_of(sentences: Sequence[Sentence]) -> list[Example]:
    """The sentences as ours reads them."""
    return [
        Example(0, number, tuple(tokens), tuple(spans_from_tags(tags, "iob2")[0]))
        for number, (tokens, tags) in enumerate(sentences)
    ]


def prepared(train: Sequence[Sentence], vocabulary: int) -> tuple[TaggerTrainer, EncodedSplit]:
    """What trains a tagger with a table of at least `vocabulary` words, and its sentences."""
    examples = examples_of(train)
    tokens = [token for example in examples for token in example.tokens]
    words, characters = numbered(count_words(tokens, "lower")), numbered(count_characters(tokens))
    tags = TagSet(("Disease",))
    sizes = TaggerSizes(max(vocabulary, len(words)), len(characters), len(tags))
    ours = TaggerTrainer(sizes, tags, words, characters, "lower")
    spans = [example.spans for example in examples]
    return ours, ours.annotated(ours.prepared(examples), spans, source={"Disease"})


def shuffled(encoded: Encoded, batch_size: int, seed: int) -> Iterator[TaggerBatch]:
    order = np.random.default_rng(seed).permutation(len(encoded))
    for start in range(0, len(order), batch_size):
        yield batch_of(encoded, order[start : start + batch_size])


def train_plain(
    model: PlainTagger,
    batches: Iterable[TaggerBatch],
    settings: Optimiser,
    *,
    fused: bool | None = None,
) -> None:
    optimiser = {
        "sgd": lambda p: torch.optim.SGD(p, settings.learning_rate, settings.momentum, fused=fused),
        "adam": lambda p: torch.optim.Adam(p, settings.learning_rate, fused=fused),
    }[settings.name](model.parameters())
    model.train()
    for batch in batches:
        optimiser.zero_grad()
        model.loss(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()


def label_plain(model: PlainTagger, batches: Iterable[TaggerBatch], tags: TagSet) -> int:
    model.eval()
    with torch.inference_mode():
        paths = [path for batch in batches for path in model.decode(batch)]
    return sum(len(spans_from_tags([tags.tags[i] for i in path], "iobes")[0]) for path in paths)


def check_equal(ours: TaggerTrainer, own: EncodedSplit, plain: list[PlainTagger]) -> None:
    """Give all the same weights, and compare the losses of sentences without padding."""
    model = ours.initial(1).eval()
    for other in plain:
        other.copy_from(model)
        other.eval()
    with torch.no_grad():
        for row in range(10):
            batch = batch_of(own.text, np.array([row]))
            expected = tagging_loss(model, batch).mean()
            for other in plain:
                torch.testing.assert_close(expected, other.loss(batch), rtol=1e-4, atol=1e-4)
        batch = next(predict_batches(own.text))
        emissions_BLY = torch.randn(*batch.mask_BL.shape, len(ours.tags))
        found = plain[1].crf_loss(emissions_BLY, batch).sum()
        theirs = -plain[1].crf(emissions_BLY, batch.tags_BL, mask=batch.mask_BL)
        torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-3)
