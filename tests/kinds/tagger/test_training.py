"""The tagger as a kind of model: its loss split by token, its gradients, its weights."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cases import each
from confide.errors import DataError
from confide.kinds.tagger import model as tagger
from confide.kinds.tagger.model import EncodedSplit, TaggerTrainer
from confide.training.batches import Example, TagScheme
from confide.training.crf import negative_log_likelihood
from confide.training.optimisers import Optimiser
from confide.training.tagger import Tagger, TaggerSizes, batch_of
from confide.training.weights import arrays
from training.corpora import Tiny, fit, predict_spans, tagging_loss, tiny

ADAM = Optimiser("adam", learning_rate=0.01)
BOTH = {"Drug", "Effect"}


def made_of(corpus: Tiny, **changes: Any) -> TaggerTrainer:
    sizes = TaggerSizes(
        words=len(corpus.words),
        characters=len(corpus.characters),
        tags=len(corpus.tags),
        word_dim=16,
        character_dim=8,
        character_filters=8,
        bilstm_hidden=16,
        dropout=0.2,
    )
    return TaggerTrainer(sizes, corpus.tags, corpus.words, corpus.characters, "lower", **changes)


def ready(scheme: TagScheme = "iobes", **changes: Any) -> tuple[Tiny, TaggerTrainer, EncodedSplit]:
    corpus = tiny(60, scheme)
    made = made_of(corpus, **changes)
    text = made.prepared(corpus.examples)
    spans = [example.spans for example in corpus.examples]
    return corpus, made, made.annotated(text, spans, source={"Drug"})


def run(
    made: TaggerTrainer,
    model: Tagger,
    encoded: EncodedSplit,
    *,
    weights: Any = None,
    **changes: Any,
) -> Any:
    settings = {"epochs": 2, "batch_size": 8, "optimiser": ADAM, "seed": 1} | changes
    return made.fit(model, encoded, weights_S=weights, **settings)


@pytest.mark.parametrize("scheme", ["iobes", "iob2"])
def test_it_learns_and_finds_as_a_tagger_does(scheme: TagScheme) -> None:
    corpus, made, encoded = ready(scheme)
    assert made.types == ("Drug", "Effect")
    model = made.initial(1)
    weights = np.full(60, 0.7, np.float32)
    run(made, model, encoded, weights=weights, epochs=10)
    found = made.find(model, made.prepared(corpus.examples))
    right = sum(
        [span[:3] for span in spans] == list(example.spans)
        for spans, example in zip(found, corpus.examples, strict=True)
    )
    assert right > 55
    assert found == predict_spans(model, corpus.encode())


def test_annotation_replaces_tags_alone() -> None:
    corpus, made, encoded = ready()
    text = made.prepared(corpus.examples)
    assert not text.tags_N.any()
    again = made.annotated(text, [e.spans for e in corpus.examples], source=BOTH)
    assert np.array_equal(again.text.tags_N, corpus.encode().tags_N)
    assert again.text.forms_N is text.forms_N
    assert again.text.characters_M is text.characters_M
    assert again.source_N.all()
    assert not encoded.source_N.all()
    assert len(again) == 60


def test_an_annotation_outside_of_the_tag_set_is_no_matter_before_it_is_laid_over() -> None:
    _, made, _ = ready()
    other = Example(0, 0, ("took", "aspirin"), ((1, 2, "Dose"),))
    text = made.prepared([other])
    with pytest.raises(DataError, match="outside the declared set"):
        made.annotated(text, [other.spans], source=set())


def test_weights_of_one_are_the_plain_training_to_the_bit() -> None:
    _, made, encoded = ready()
    plain, none, ones = (made.initial(1) for _ in range(3))
    report = fit(plain, encoded.text, epochs=2, batch_size=8, optimiser=ADAM, seed=1)
    assert run(made, none, encoded).loss == report.loss
    assert run(made, ones, encoded, weights=np.ones(60, np.float32)).loss == report.loss
    wanted = arrays(plain)
    for model in (none, ones):
        assert all(np.array_equal(wanted[name], value) for name, value in arrays(model).items())


def test_weights_near_one_are_nearly_the_plain_training() -> None:
    """The loss by token and the loss by sentence go the same way."""
    _, made, encoded = ready()
    plain, near = made.initial(1), made.initial(1)
    report = run(made, plain, encoded)
    weights = np.full(60, 1.0 + 1e-6, np.float32)
    assert run(made, near, encoded, weights=weights).loss == pytest.approx(report.loss, rel=1e-3)
    for name, value in arrays(near).items():
        np.testing.assert_allclose(value, arrays(plain)[name], atol=5e-3)


def test_the_two_losses_add_up_to_the_taggers() -> None:
    _, made, encoded = ready()
    model = made.initial(3).eval()
    batch = batch_of(encoded.text, np.arange(20))
    with torch.no_grad():
        source, target = made.losses(model, encoded, batch, output=model(batch))
        whole = tagging_loss(model, batch)
    torch.testing.assert_close(source + target, whole, rtol=1e-5, atol=1e-4)
    assert (source > 0).all()
    assert (target > 0).all()


def test_open_tokens_are_learnt_as_outside_or_of_a_type_that_the_site_lacks() -> None:
    """The loss is that of all tag paths that agree with the site's own entities, by enumeration."""
    _, made, encoded = ready()
    opened = replace(made, open=0.25)
    model = made.initial(3).eval()
    for row in range(len(encoded)):
        if encoded.text.lengths_S[row] > 3:
            continue
        batch = batch_of(encoded.text, np.array([row]))
        with torch.no_grad():
            emissions, scores = model(batch), model.crf.scores()
            parts = opened.losses(model, encoded, batch, output=emissions)
        here = slice(*encoded.text.tokens_from_S1[row : row + 2])
        tags, own = encoded.text.tags_N[here].tolist(), encoded.source_N[here].tolist()
        lengths = batch.lengths_B
        everything = [range(len(made.tags))] * len(tags)
        opening = np.flatnonzero(encoded.open_Y).tolist()
        of_own = [[tag] if tag and mine else opening for tag, mine in zip(tags, own, strict=True)]
        of_both = [[tag] if tag else opening for tag in tags]
        sums = [
            torch.stack(
                [
                    (tokens is not everything)
                    * np.log(0.25)
                    * sum(tag in opening[1:] for tag in path)
                    - negative_log_likelihood(
                        emissions, scores, tags_BL=torch.tensor([path]), lengths_B=lengths
                    )[0]
                    for path in itertools.product(*tokens)
                ]
            ).logsumexp(0)
            for tokens in (everything, of_own, of_both)
        ]
        wanted = (sums[0] - sums[1], sums[1] - sums[2])
        for part, value in zip(parts, wanted, strict=True):
            torch.testing.assert_close(part[0], value, rtol=1e-4, atol=1e-4)
        whole = opened._loss(model, batch, encoded)
        torch.testing.assert_close(whole, parts[0] + parts[1], rtol=1e-4, atol=1e-4)


def test_a_site_that_annotates_all_types_learns_the_same_whether_open_or_closed() -> None:
    _, made, encoded = ready()
    everything = replace(encoded, open_Y=np.arange(len(made.tags)) == 0)
    closed, opened = made.initial(1), made.initial(1)
    report = run(made, closed, everything)
    assert run(replace(made, open=1.0), opened, everything).loss == report.loss
    for name, value in arrays(opened).items():
        assert np.array_equal(value, arrays(closed)[name])
    other = made.initial(1)
    assert run(replace(made, open=1.0), other, encoded).loss < report.loss


def test_weights_find_their_rows() -> None:
    """A step over all rows moves the weights along the gradient of the weighted loss."""
    _, made, encoded = ready(word_dropout=0.0)
    model = made.initial(1)
    for module in model.modules():
        for name in ("p", "rate"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    weights = np.linspace(-1.0, 2.0, 60, dtype=np.float32)
    slopes = made.row_gradients(model, encoded)
    wanted = (slopes.source_SG * weights[:, None] + slopes.target_SG).mean(0)
    before = model.crf.linear.weight.detach().clone()
    still = Optimiser("sgd", learning_rate=1.0, momentum=0.0, clip=0.0)
    run(made, model, encoded, weights=weights, epochs=1, batch_size=60, optimiser=still)
    moved = (before - model.crf.linear.weight.detach()).flatten().numpy()
    np.testing.assert_allclose(moved, wanted, atol=1e-4)


def test_slopes_equal_a_loop_over_rows() -> None:
    _, made, encoded = ready()
    model = made.initial(2)
    run(made, model, encoded, epochs=1)
    model.train()
    found = made.row_gradients(model, encoded)
    assert model.training
    model.eval()
    for row in range(0, 60, 3):
        batch = batch_of(encoded.text, np.array([row]))
        for part, have in zip(
            made.losses(model, encoded, batch, output=model(batch)), found, strict=True
        ):
            weight = model.crf.linear.weight
            (wanted,) = torch.autograd.grad(part.sum(), weight, retain_graph=True)
            np.testing.assert_allclose(have[row], wanted.flatten().numpy(), atol=1e-5)
    own = made.annotated(encoded.text, [[(3, 4, "Drug")]] * 60, source=BOTH)
    only = made.row_gradients(model, own)
    assert not only.target_SG.any()
    one = batch_of(own.text, np.array([5]))
    whole, _ = made.losses(model, own, one, output=model(one))
    nll = tagging_loss(model, one)
    torch.testing.assert_close(whole, nll, rtol=1e-5, atol=1e-4)


def test_windows_of_long_sentences() -> None:
    corpus, made, _ = ready(max_tokens=16)
    tokens: tuple[str, ...] = ()
    spans: list[tuple[int, int, str]] = []
    for example in corpus.examples[:5]:
        spans += [(a + len(tokens), b + len(tokens), name) for a, b, name in example.spans]
        tokens += example.tokens
    text = made.prepared([Example(0, 0, tokens)])
    encoded = made.annotated(text, [spans], source={"Drug"})
    assert len(encoded) == len(text.windows) > 2
    straight = corpus.encode([Example(0, 0, tokens, tuple(spans))], max_tokens=16)
    assert np.array_equal(encoded.text.tags_N, straight.tags_N)
    assert made.row_gradients(made.initial(1), encoded).target_SG.shape[0] == len(encoded)


@each("how", [Optimiser("sgd", 0.1, clip=0.0), Optimiser("adam", 0.01), Optimiser("adagrad", 0.1)])
def test_words_that_the_text_does_not_have_change_nothing_and_are_not_stepped(
    how: Optimiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tiny(60)
    large = replace(made_of(corpus), sizes=replace(made_of(corpus).sizes, words=5000))
    encoded = ready()[2]
    few, every = large.initial(1), large.initial(1)
    stepped = set[int]()
    with few.word.register_forward_hook(lambda table, *_: stepped.add(len(table.weight))):
        run(large, few, encoded, optimiser=how)
    monkeypatch.setattr(tagger, "only_rows", lambda *_: nullcontext())
    run(large, every, encoded, optimiser=how)
    assert max(stepped) <= len(corpus.words) and len(few.word.weight) == 5000
    for name, weights in arrays(few).items():
        assert np.array_equal(weights, arrays(every)[name]), name


def test_words_that_weight_decay_moves_are_all_stepped() -> None:
    _, made, encoded = ready()
    large = replace(made, sizes=replace(made.sizes, words=5000))
    model = large.initial(1)
    before = arrays(model)["word.weight"].copy()
    run(large, model, encoded, optimiser=replace(ADAM, weight_decay=0.1))
    assert (arrays(model)["word.weight"][4999] != before[4999]).all()


def test_nothing_to_train_on() -> None:
    _, made, _ = ready()
    empty = made.annotated(made.prepared([]), [], source=set())
    with pytest.raises(DataError, match="no sentence"):
        run(made, made.initial(1), empty, weights=np.zeros(0, np.float32))
    assert made.find(made.initial(1), made.prepared([])) == []
