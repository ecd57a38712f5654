"""Token classifiers out of encoder files: trained, asked for spans, their losses split by word."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import DataError, SettingsError
from confide.kinds.encoder import EncoderSpec, TokenTrainer, split_loss
from confide.kinds.pieces import token_batch
from confide.training import devices
from confide.training.batches import Example, TagScheme
from confide.training.crf import weights_outside
from confide.training.devices import WideLinear
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser
from confide.training.weights import arrays
from training.encoders import LIMIT, Reference, tiny_bert, tiny_roberta

FORM = EncoderSpec(types=("drug", "effect"), longest=LIMIT)
ADAM = Optimiser("adamw", learning_rate=5e-3)
BOTH = {"drug", "effect"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert") / "encoder", initializer_range=0.1)


def trainer(folder: Path, **changes: Any) -> TokenTrainer:
    return TokenTrainer(load_encoder(str(folder)), replace(FORM, **changes))


def sentence(number: int) -> Example:
    """A drug is "took"'s neighbour; an effect is "headache", or "head pain"."""
    before = ("the", "patient")[: number % 3]
    drug = "abc"[number % 3] * 2
    effect = ("headaches",) if number % 2 else ("head", "pain")
    tokens = (*before, "took", drug, *(".",) * (number % 4), *effect, ".")
    at, then = len(before) + 1, len(before) + 2 + number % 4
    spans = ((at, at + 1, "drug"), (then, then + len(effect), "effect"))
    return Example(0, number, tokens, spans)


EXAMPLES = [sentence(number) for number in range(40)]
SPANS = [example.spans for example in EXAMPLES]


def fitted(made: TokenTrainer, *, epochs: int, weights: Any = None, seed: int = 1) -> Any:
    model = made.initial(1)
    encoded = made.annotated(made.prepared(EXAMPLES), SPANS, source={"drug"})
    report = made.fit(
        model, encoded, weights_S=weights, epochs=epochs, batch_size=4, optimiser=ADAM, seed=seed
    )
    return model, encoded, report


_LEARNT: dict[str, Any] = {}


def learnt(made: TokenTrainer) -> Any:
    """One that has learnt the rule, trained once."""
    if made.form.tag_scheme not in _LEARNT:
        _LEARNT[made.form.tag_scheme] = fitted(made, epochs=10)
    return _LEARNT[made.form.tag_scheme]


def test_it_is_a_kind_of_model(bert: Path) -> None:
    made = trainer(bert)
    assert made.types == ("drug", "effect")
    model = made.initial(1)
    assert all(p.requires_grad for p in model.parameters())
    assert not model.training


@each("scheme", ["iobes", "iob2"])
def test_a_rule_is_learnt(scheme: TagScheme, bert: Path) -> None:
    made = trainer(bert, tag_scheme=scheme)
    model, encoded, report = learnt(made)
    assert (report.sentences, report.steps, len(encoded)) == (10 * 40, 100, 40)
    found = made.find(model, made.prepared([replace(e, spans=()) for e in EXAMPLES]))
    pairs = zip(found, SPANS, strict=True)
    right = sum([span[:3] for span in spans] == list(gold) for spans, gold in pairs)
    assert right >= 36
    sure = [span.confidence for spans in found for span in spans]
    assert 0.5 < np.mean(sure) < 1.0
    assert max(sure) <= 1.0


def test_int8_finds_what_float32_finds(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By this processor's products and by the usual ones."""
    monkeypatch.setattr(devices, "_LEAST", 1)
    for has in (torch.cpu.get_capabilities(), {}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has: has)
        made = trainer(bert)
        model, encoded, _ = learnt(made)
        narrow = devices.in_int8(model)
        batch = token_batch(encoded.text, np.arange(len(EXAMPLES)))
        with torch.no_grad():
            wide_BLY, away_BLY = model(batch), narrow(batch) - model(batch)
        assert 0 < away_BLY.norm() < 0.03 * wide_BLY.norm()
        pairs = zip(*(made.find(one, encoded.text) for one in (model, narrow)), strict=True)
        assert sum([s[:3] for s in a] == [s[:3] for s in b] for a, b in pairs) >= len(EXAMPLES) - 1


def test_the_seed_draws_the_last_layer_alone(bert: Path) -> None:
    made = trainer(bert)
    one, same, other = (arrays(made.initial(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    differ = [name for name in one if not np.array_equal(one[name], other[name])]
    assert differ == ["tag.weight", "tag.bias"]
    assert not any(name.startswith("encoder.pooler") for name in one)
    assert not any(p.requires_grad for p in made.encoder.loaded.model.parameters())


@each("kind", [tiny_bert, tiny_roberta])
def test_words_get_the_states_of_their_first_pieces(kind: Any, tmp_path: Path) -> None:
    folder = kind(tmp_path / "encoder")
    made = trainer(folder)
    model = made.initial(3)
    words = ["the", "headaches", "took", "ab", "."]
    text = made.prepared([Example(0, 0, tuple(words)), Example(0, 1, ("the",) * 9)])
    logits = model(token_batch(text, np.array([0, 1])))[0, :5]
    reference = Reference(folder)
    cut = reference.tokenizer(words, is_split_into_words=True)
    states = reference.run(cut["input_ids"])
    firsts = [cut.word_ids().index(word) for word in range(5)]
    wanted = torch.from_numpy(states[firsts]) @ model.tag.weight.T + model.tag.bias
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-5)


def test_a_word_without_a_piece_is_the_unknown_one(bert: Path) -> None:
    made = trainer(bert)
    text = made.prepared([Example(0, 0, ("the", "\u200b", "head"))])
    unknown = made.encoder.loaded.cutter.unknown
    assert made.pieces.unknown == unknown
    assert text.ids_N[text.firsts_W].tolist()[1] == unknown
    assert len(made.find(made.initial(1), text)) == 1


def test_confidences_are_products_of_softmaxes(bert: Path) -> None:
    for scheme in ("iobes", "iob2"):
        made = trainer(bert, tag_scheme=scheme)
        model, _, _ = learnt(made)
        example = Example(0, 0, ("took", "aa", "head", "pain", "head", "pain", "."))
        text = made.prepared([example])
        (found,) = made.find(model, text)
        assert found
        with torch.no_grad():
            likely = model(token_batch(text, np.array([0])))[0].double().softmax(1)
        for span in found:
            path = made.tags.path(span.type, span.end - span.start)
            chance = np.prod([float(likely[span.start + k, tag]) for k, tag in enumerate(path)])
            more = made.tags.continuation(span.type)
            if more is not None and span.end < 7:
                chance *= 1 - float(likely[span.end, more])
            assert span.confidence == pytest.approx(chance, rel=1e-5)


@each("scheme", ["iobes", "iob2"])
def test_wanted_types_are_found_as_by_a_model_that_has_no_others(
    scheme: TagScheme, bert: Path
) -> None:
    made = trainer(bert, tag_scheme=scheme)
    model, _, _ = learnt(made)
    few = trainer(bert, tag_scheme=scheme, types=("effect",))
    small = few.initial(1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for name in ("tag.weight", "tag.bias"):
        each = len(made.tags.prefixes)
        weights[name] = torch.cat((weights[name][:1], weights[name][1 + each :]))
    small.load_state_dict(weights)
    text = made.prepared(EXAMPLES)
    found = made.find(model, text, wanted=["effect"])
    expected = few.find(small, few.prepared(EXAMPLES))
    assert [[one[:3] for one in row] for row in found] == [
        [one[:3] for one in row] for row in expected
    ]
    sure, same = ([one[3] for row in side for one in row] for side in (found, expected))
    assert sure == pytest.approx(same, rel=1e-5) and len(sure) > 20
    every = made.find(model, text, wanted=made.types)
    assert every == made.find(model, text)


def test_long_sentences_are_found_across_windows(bert: Path) -> None:
    made = trainer(bert)
    model, _, _ = learnt(made)
    tokens: tuple[str, ...] = ()
    spans: list[tuple[int, int, str]] = []
    for example in EXAMPLES[:12]:
        spans += [(a + len(tokens), b + len(tokens), name) for a, b, name in example.spans]
        tokens += example.tokens
    text = made.prepared([Example(0, 0, tokens), EXAMPLES[0]])
    assert len(text) > 1
    assert len(text) > 4
    long, _ = made.find(model, text)
    assert [s.start for s in long] == sorted(s.start for s in long)
    assert all(a.end <= b.start for a, b in zip(long, long[1:], strict=False))
    right = {span[:3] for span in long} & set(spans)
    assert len(right) > 0.8 * len(spans)
    encoded = made.annotated(text, [spans, EXAMPLES[0].spans], source=BOTH)
    assert made.row_gradients(model, encoded).source_SG.shape[0] == len(text) == len(encoded)


def test_find_does_not_depend_on_the_batch_nor_on_annotation(bert: Path) -> None:
    made = trainer(bert)
    model, _, _ = learnt(made)
    model.train()
    together = made.find(model, made.prepared(EXAMPLES))
    assert model.training
    model.eval()
    for number in (0, 7, 33):
        (alone,) = made.find(model, made.prepared(EXAMPLES[number : number + 1]))
        assert [s[:3] for s in alone] == [s[:3] for s in together[number]]
        np.testing.assert_allclose(
            [s.confidence for s in alone], [s.confidence for s in together[number]], atol=1e-5
        )
    assert made.find(model, made.prepared([])) == []
    assert made.find(model, made.prepared([Example(0, 0, ())])) == [[]]


def test_the_two_losses_add_up_and_weights_of_one_change_nothing(bert: Path) -> None:
    made = trainer(bert, dropout=0.0)
    model, encoded, plain = fitted(made, epochs=1)
    again, _, ones = fitted(made, epochs=1, weights=np.ones(40, np.float32))
    assert plain.loss == ones.loss
    first, second = arrays(model), arrays(again)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    with torch.no_grad():
        batch = token_batch(encoded.text, np.arange(5), annotated=encoded)
        source, target = split_loss(model(batch), batch)
        everything = made.annotated(encoded.text, SPANS, source=BOTH)
        batch = token_batch(encoded.text, np.arange(5), annotated=everything)
        whole, nothing = split_loss(model(batch), batch)
    torch.testing.assert_close(source + target, whole)
    assert (target > 0).all()
    assert not nothing.any()


def test_open_words_may_be_of_a_type_that_the_site_lacks(bert: Path) -> None:
    made = trainer(bert, dropout=0.0)
    model, encoded, _ = fitted(made, epochs=1)
    batch = token_batch(encoded.text, np.arange(5), annotated=encoded)
    with torch.no_grad():
        logits = model(batch)
        source, target = split_loss(logits, batch, outside_Y=weights_outside(encoded.open_Y, 0.25))
    tags = made.tags.tags
    lacked = [n for n, name in enumerate(tags) if name == "O" or not name.endswith("drug")]
    assert encoded.open_Y.nonzero()[0].tolist() == lacked
    wanted = np.zeros((5, 2))
    chances = logits.softmax(2).double().numpy()
    for row, length in enumerate(batch.lengths_B.tolist()):
        for t in range(length):
            tag = int(batch.tags_BL[row, t])
            opened = chances[row, t, 0] + 0.25 * chances[row, t, lacked[1:]].sum()
            if not tag:
                wanted[row, 0] -= np.log(opened)
            elif batch.source_BL[row, t]:
                wanted[row, 0] -= np.log(chances[row, t, tag])
            else:
                wanted[row] -= [np.log(opened), np.log(0.25 * chances[row, t, tag] / opened)]
    np.testing.assert_allclose(source.numpy(), wanted[:, 0], rtol=1e-4)
    np.testing.assert_allclose(target.numpy(), wanted[:, 1], rtol=1e-4)
    closed, opened_report = (fitted(replace(made, open=way), epochs=1)[2] for way in (0.0, 1.0))
    assert opened_report.loss < closed.loss


def test_weights_find_their_rows(bert: Path) -> None:
    """A step over all rows moves the weights along the gradient of the weighted loss."""
    made = trainer(bert, dropout=0.0)
    weights = np.linspace(-1.0, 2.0, 40, dtype=np.float32)
    model = made.initial(1)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    encoded = made.annotated(made.prepared(EXAMPLES), SPANS, source={"drug"})
    slopes = made.row_gradients(model, encoded)
    wanted = (slopes.source_SG * weights[:, None] + slopes.target_SG).mean(0)
    before = model.tag.weight.detach().clone()
    made.fit(
        model,
        encoded,
        weights_S=weights,
        epochs=1,
        batch_size=40,
        optimiser=Optimiser("sgd", learning_rate=1.0, momentum=0.0, clip=0.0),
        seed=1,
    )
    moved = (before - model.tag.weight.detach()).flatten().numpy()
    np.testing.assert_allclose(moved, wanted, atol=1e-5)


def test_slopes_equal_a_loop_over_rows(bert: Path) -> None:
    made = trainer(bert)
    model, encoded, _ = fitted(made, epochs=1)
    model.train()
    found = made.row_gradients(model, encoded)
    assert model.training
    model.eval()
    for row in range(40):
        batch = token_batch(encoded.text, np.array([row]), annotated=encoded)
        for part, have in zip(split_loss(model(batch), batch), found, strict=True):
            (wanted,) = torch.autograd.grad(part.sum(), model.tag.weight, retain_graph=True)
            np.testing.assert_allclose(have[row], wanted.flatten().numpy(), atol=1e-5)
    assert found.source_SG.dtype == np.float32
    none = made.annotated(encoded.text, [[]] * 40, source=set())
    assert not made.row_gradients(model, none).target_SG.any()


def test_the_same_seed_trains_the_same_bits(bert: Path) -> None:
    made = trainer(bert)
    one, same, other = (arrays(fitted(made, epochs=1, seed=seed)[0]) for seed in (1, 1, 2))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


def test_only_the_rows_that_are_read_are_trained(bert: Path) -> None:
    made = trainer(bert)
    model, encoded, _ = fitted(made, epochs=1)
    before = made.initial(1)
    table = "encoder.embeddings.word_embeddings.weight"
    moved = (arrays(before)[table] != arrays(model)[table]).any(1)
    read = np.unique(encoded.text.ids_N)
    assert set(np.flatnonzero(moved)) <= set(read.tolist())
    assert moved.sum() > len(read) / 2


def test_large_layers_are_wide(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "encoder", intermediate_size=4096)
    made = trainer(folder)
    assert any(isinstance(module, WideLinear) for module in made.initial(1).modules())


def test_what_cannot_be_is_refused(bert: Path) -> None:
    with pytest.raises(SettingsError, match="that many pieces"):
        trainer(bert, longest=LIMIT + 1).prepared(EXAMPLES)
    made = trainer(bert)
    text = made.prepared(EXAMPLES[:1])
    with pytest.raises(DataError, match="outside the declared set"):
        made.annotated(text, [[(0, 1, "dose")]], source=set())
    with pytest.raises(DataError, match="no sentence"):
        made.fit(
            made.initial(1),
            made.annotated(made.prepared([]), [], source=set()),
            epochs=1,
            batch_size=4,
            optimiser=ADAM,
            seed=1,
        )


def test_a_large_encoder_is_handed_out_and_read_again(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not held beside the model that is made of it, and nothing is trained twice."""
    monkeypatch.setattr("confide.training.encoder._LARGE", 1)
    made = trainer(bert)
    read = made.encoder.loaded.model
    model = made.initial(1)
    assert model.encoder is read and made.encoder.loaded.held is None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    again, small = made.initial(1), trainer(bert)
    monkeypatch.undo()
    expected = arrays(small.initial(1))
    assert small.encoder.loaded.held is not None
    assert all(np.array_equal(array, expected[name]) for name, array in arrays(again).items())
    assert made.pieces == small.pieces


def test_a_large_encoder_whose_files_changed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("confide.training.encoder._LARGE", 1)
    made = trainer(tiny_bert(tmp_path / "encoder"))
    made.initial(1)
    other = tiny_bert(tmp_path / "other", initializer_range=0.2)
    shutil.copytree(other, tmp_path / "encoder", dirs_exist_ok=True)
    with pytest.raises(DataError, match="changed while it was in use"):
        made.initial(1)


def test_gradients_are_not_held_after_training(bert: Path) -> None:
    made = trainer(bert)
    model, _, _ = fitted(made, epochs=1)
    assert all(parameter.grad is None for parameter in model.parameters())
