"""Prediction: confidences, windows, and documents with entities."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from cases import each
from confide.kinds.tagger.model import TaggerTrainer
from confide.text.document import Document
from confide.training import crf
from confide.training.batches import Example
from confide.training.optimisers import Optimiser
from confide.training.tagger import Tagger, batch_of
from confide.training.trainer import FoundSpan, annotate_with, read_bare
from training.corpora import Tiny, fit, predict_spans, tiny

ADAM = Optimiser("adam", learning_rate=0.01)


@cache
def learnt(scheme: str = "iobes") -> tuple[Tiny, Tagger]:
    corpus = tiny(80, scheme)  # type: ignore[arg-type]
    model = corpus.model()
    fit(model, corpus.encode(), epochs=8, batch_size=8, optimiser=ADAM, seed=1)
    return corpus, model


def tokens_of(text: str) -> Example:
    return Example(0, 0, tuple(text.split()))


def check_confidences(corpus: Tiny, model: Tagger, text: str) -> list[FoundSpan]:
    """Against the loss: P(path) = exp(-loss), summed over every path with exactly this entity."""
    example = tokens_of(text)
    length = len(example.tokens)
    encoded = corpus.encode([example])
    (found,) = predict_spans(model, encoded)
    batch = batch_of(encoded, np.array([0]))
    tags = corpus.tags
    paths = torch.tensor(list(itertools.product(range(len(tags)), repeat=length)))
    with torch.no_grad():
        emissions = model.eval()(batch).double().expand(len(paths), -1, -1)
        losses = crf.negative_log_likelihood(
            emissions,
            model.crf.scores(),
            tags_BL=paths,
            lengths_B=torch.full((len(paths),), length),
        )
    chances = (-losses).exp()
    assert chances.sum().item() == pytest.approx(1.0, abs=1e-6)
    for span in found:
        same = [span[:3] in tags.spans(path.numpy()) for path in paths]
        assert span.confidence == pytest.approx(chances[torch.tensor(same)].sum().item(), abs=1e-5)
    return found


@pytest.mark.parametrize("scheme", ["iobes", "iob2"])
def test_the_confidence_is_the_sum_over_all_readings(scheme: str) -> None:
    found = check_confidences(*learnt(scheme), "took severe skin rash")
    assert [span.type for span in found] == ["Effect"]
    assert all(0.5 < span.confidence <= 1.0 for span in found)


def test_of_iob2_an_entity_that_could_go_on_is_not_counted_with_the_longer_one() -> None:
    """Of a model that knows little yet, the longer one is likely too."""
    corpus = tiny(80, "iob2")
    model = corpus.model()
    fit(model, corpus.encode(), epochs=3, batch_size=8, optimiser=ADAM, seed=1)
    (found,) = check_confidences(corpus, model, "took severe skin rash then")
    assert found.end == 4


@each("scheme", ["iobes", "iob2"])
@each("wanted", ["Drug", "Effect"])
def test_wanted_types_are_all_that_is_decided_between(scheme: str, wanted: str) -> None:
    """Against all paths without the other type: the best one, and its chances among these."""
    corpus, model = learnt(scheme)
    encoded = corpus.encode([tokens_of("took aspirin severe rash")])
    tags = corpus.tags
    (found,) = predict_spans(model, encoded, wanted=[wanted])
    paths = [
        path
        for path in itertools.product(range(len(tags)), repeat=4)
        if all(tags.tags[tag].removeprefix("O") in ("", f"{tags.tags[tag][0]}-{wanted}")
               for tag in path)
    ]  # fmt: skip
    with torch.no_grad():
        emissions = model.eval()(batch_of(encoded, np.array([0]))).double()
        losses = crf.negative_log_likelihood(
            emissions.expand(len(paths), -1, -1),
            model.crf.scores(),
            tags_BL=torch.tensor(paths),
            lengths_B=torch.full((len(paths),), 4),
        )
    spans = [tags.spans(np.array(path)) for path in paths]
    assert [span[:3] for span in found] == spans[int(losses.argmin())] != []
    chances = (-losses).softmax(0)
    for span in found:
        same = torch.tensor([span[:3] in some for some in spans])
        assert span.confidence == pytest.approx(chances[same].sum().item(), abs=1e-6)


def test_all_types_wanted_are_no_restriction_and_none_finds_nothing() -> None:
    corpus, model = learnt()
    encoded = corpus.encode()
    assert predict_spans(model, encoded, wanted=["Effect", "Drug"]) == predict_spans(model, encoded)
    assert not any(predict_spans(model, encoded, wanted=[]))


def test_prediction_does_not_depend_on_batches() -> None:
    corpus, model = learnt()
    encoded = corpus.encode()
    few, many = (predict_spans(model, encoded, tokens_per_batch=n) for n in (20, 4096))
    for mine, theirs in zip(few, many, strict=True):
        assert [span[:3] for span in mine] == [span[:3] for span in theirs]
        assert [s.confidence for s in mine] == pytest.approx([s.confidence for s in theirs])


def test_prediction_leaves_the_mode_of_the_model() -> None:
    corpus, model = learnt()
    for mode in (True, False):
        model.train(mode)
        predict_spans(model, corpus.encode())
        assert model.training is mode


def test_windows_are_put_together() -> None:
    corpus, model = learnt()
    long = Example(
        0, 0, tuple(token for example in corpus.examples[:30] for token in example.tokens)
    )
    (whole,) = predict_spans(model, corpus.encode([long]))
    (stitched,) = predict_spans(model, corpus.encode([long], max_tokens=32))
    assert len(whole) > 50
    assert [span[:3] for span in stitched] == [span[:3] for span in whole]
    assert all(a.end <= b.start for a, b in zip(stitched, stitched[1:], strict=False))


def test_fifty_thousand_tokens_are_one_sentence_like_any_other() -> None:
    corpus, model = learnt()
    example = corpus.examples[0]
    copies = 50_000 // len(example.tokens) + 1
    spans = tuple(
        (start + n * len(example.tokens), end + n * len(example.tokens), name)
        for n in range(copies)
        for start, end, name in example.spans
    )
    giant = Example(0, 0, example.tokens * copies, spans)
    encoded = corpus.encode([giant])
    assert encoded.examples == 1 and len(encoded) > 90
    assert encoded.lengths_S.max() <= 512
    fresh = corpus.model()
    fit(fresh, encoded, epochs=1, batch_size=32, optimiser=ADAM, seed=1)
    (found,) = predict_spans(model, encoded)
    assert len({span[:3] for span in found} & set(spans)) > 0.95 * len(spans)


def trainer_of(corpus: Tiny, model: Tagger) -> TaggerTrainer:
    words, characters = corpus.words, corpus.characters
    return TaggerTrainer(model.sizes, corpus.tags, words, characters, how="lower")


def test_documents_come_back_with_entities_of_their_text() -> None:
    corpus, model = learnt()
    text = "the patient took codeine and joint pain .\n\nthen heparin after nausea"
    documents = [Document("d1", text), Document("d2", ""), Document("d3", "and then")]
    trainer = trainer_of(corpus, model)
    first, second, third = annotate_with(trainer, model, read_bare(trainer, documents))
    found = [(entity.type, first.surface(entity)) for entity in first.entities]
    assert ("Drug", "codeine") in found and ("Effect", "joint pain") in found
    assert ("Drug", "heparin") in found
    assert first.sentences and first.text == text
    assert all(e.confidence is not None and 0 < e.confidence <= 1 for e in first.entities)
    assert [document.id for document in (first, second, third)] == ["d1", "d2", "d3"]
    assert second.entities == third.entities == ()


def test_gold_entities_play_no_part_in_prediction() -> None:
    corpus, model = learnt()
    trainer = trainer_of(corpus, model)
    bare = [Document("d", "the patient took codeine")]
    marked = annotate_with(trainer, model, read_bare(trainer, bare))
    alien = [replace(marked[0], entities=(replace(marked[0].entities[0], type="Alien"),))]
    assert annotate_with(trainer, model, read_bare(trainer, alien)) == marked
