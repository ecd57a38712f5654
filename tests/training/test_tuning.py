"""How much of an encoder is trained: what moves, what travels, and what anyone's peft loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import SettingsError
from confide.kinds.bags.model import BagTrainer
from confide.kinds.bags.site import BagSpec
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import RelationSpec
from confide.training.batches import Example
from confide.training.encoder import (
    FrozenEncoder,
    MarkedEmbedding,
    Tuning,
    add_low_rank,
    layers_of,
    load_encoder,
    peft_library,
)
from confide.training.optimisers import Optimiser
from confide.training.weights import arrays, load_weights, trained
from training.encoders import LIMIT, tiny_bert
from training.families import tiny
from training.places import pairs

ADAM = Optimiser("adamw", learning_rate=1e-2, clip=1.0)
WAYS = ("all", "top 1", "lora 2 4", "lora 2 4 b", "bias", "frozen")
EXAMPLES = [Example(0, n, ("the", "patient", "took", "ab"), ((3, 4, "drug"),)) for n in range(6)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> FrozenEncoder:
    place = tmp_path_factory.mktemp("bert") / "encoder"
    return load_encoder(str(tiny_bert(place, initializer_range=0.1)))


def tokens(bert: FrozenEncoder, way: str) -> TokenTrainer:
    form = EncoderSpec(("drug", "effect"), longest=LIMIT, dropout=0.0, tuning=way)
    return TokenTrainer(bert, form)


def relations(bert: FrozenEncoder, way: str, **changes: Any) -> RelationTrainer:
    form = RelationSpec(("none", "causes"), longest=LIMIT, dropout=0.0, tuning=way, **changes)
    return RelationTrainer(bert, form)


def test_its_words() -> None:
    for way in WAYS:
        assert str(Tuning.of(way)) == way
    assert Tuning.of("") == Tuning() == Tuning("all")
    for odd in ("some", "top", "top 0", "lora 8", "lora 8 16 2", "lora 8 16 a", "all 2", "top 1 "):
        with pytest.raises(SettingsError, match="nobody knows what of the encoder"):
            Tuning.of(odd)


@each("way", WAYS)
def test_only_what_is_trained_moves_and_travels(bert: FrozenEncoder, way: str) -> None:
    if way.startswith("lora"):
        pytest.importorskip("peft", reason="needs the extra confide[lora]")
    made = tokens(bert, way)
    model = made.initial(1)
    before = arrays(model)
    text = made.featured(made.prepared(EXAMPLES), model, folder=None)
    encoded = made.annotated(text, [one.spans for one in EXAMPLES], source={"drug"})
    made.fit(model, encoded, epochs=2, batch_size=3, optimiser=ADAM, seed=1)
    learnt = trained(model)
    changed = {n for n, value in arrays(model).items() if not np.array_equal(value, before[n])}
    assert changed <= set(learnt)
    inside = {name for name in learnt if name.startswith("encoder.")}
    if way == "all":
        assert set(learnt) == set(before)
    elif way == "top 1":
        assert inside and all("layer.1." in name for name in inside) and changed > {"tag.weight"}
    elif way == "bias":
        assert inside and all(name.endswith("bias") for name in inside)
    elif way == "frozen":
        assert not inside
    else:
        assert inside and all(".lora_" in name for name in inside)
        assert {name.split(".")[-4] for name in inside} == {"query", "value"}
        assert way != "lora 2 4 b" or all(".lora_B." in name for name in inside)
    sizes = sum(value.size for value in learnt.values())
    assert way == "all" or sizes < 0.6 * sum(value.size for value in before.values())


def test_an_update_is_nothing_at_the_start_and_then_a_weight_of_low_rank() -> None:
    """As Hu et al. have it: W + (alpha / rank) B A, with B zero before training."""
    pytest.importorskip("peft", reason="needs the extra confide[lora]")
    torch.manual_seed(1)
    model = nn.ModuleDict({"q_proj": nn.Linear(7, 5), "k_proj": nn.Linear(7, 5)})
    plain, values = model["q_proj"], torch.randn(3, 4, 7)
    before = plain(values)
    add_low_rank(model, ["q_proj"], rank=2, alpha=6)
    assert type(model["k_proj"]) is nn.Linear
    updates = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert [name.split(".")[1] for name in updates] == ["lora_A", "lora_B"]
    torch.testing.assert_close(model["q_proj"](values), before)
    down_RD, up_HR = updates.values()
    assert down_RD.abs().min() > 0 and not up_HR.any()
    nn.init.normal_(up_HR)
    merged = plain.weight + 3 * up_HR @ down_RD
    expected = nn.functional.linear(values, merged, plain.bias)
    torch.testing.assert_close(model["q_proj"](values), expected, atol=1e-5, rtol=1e-5)


def test_with_factors_that_stay_the_mean_of_b_is_the_mean_of_updates(bert: FrozenEncoder) -> None:
    """Of three sites, to the last bits; with both factors it is not (Sun et al. 2024, 3)."""
    pytest.importorskip("peft", reason="needs the extra confide[lora]")
    for way, close in (("lora 2 4 b", True), ("lora 2 4", False)):
        made = tokens(bert, way)
        start = made.initial(1)
        text = made.annotated(
            made.prepared(EXAMPLES), [one.spans for one in EXAMPLES], source={"drug"}
        )
        sites = []
        for seed in range(3):
            model = made.initial(1)
            made.fit(model, text, epochs=1, batch_size=2, optimiser=ADAM, seed=seed)
            sites.append(arrays(model))
        mean = {name: np.mean([one[name] for one in sites], axis=0) for name in trained(start)}
        load_weights(start, mean)
        common = arrays(start)
        ups = [name for name in common if ".lora_B." in name]
        assert len(ups) == 4
        off = []
        for up in ups:
            down = up.replace("lora_B", "lora_A")
            products = np.mean([one[up] @ one[down] for one in sites], axis=0)
            off.append(np.abs(products - common[up] @ common[down]).max() / np.abs(products).max())
        assert (max(off) < 1e-5) == close, off


@each("way", WAYS)
def test_another_place_makes_the_same_model_of_what_travelled(
    bert: FrozenEncoder, way: str
) -> None:
    """Of relations and bags too, whose marks no public file has."""
    if way.startswith("lora"):
        pytest.importorskip("peft", reason="needs the extra confide[lora]")
    made = relations(bert, way)
    model, encoded = made.initial(1), made.prepared(pairs())
    made.fit(model, made.annotated(encoded), epochs=1, batch_size=6, optimiser=ADAM, seed=1)
    other = made.initial(99)
    load_weights(other, trained(model))
    assert np.array_equal(made.row_logits(other, encoded), made.row_logits(model, encoded))
    form = BagSpec(["none", "causes"], reader="encoder", longest=LIMIT, tuning=way)
    bags = BagTrainer(form, bert)
    one, two = bags.initial(1), bags.initial(2)
    load_weights(two, trained(one))
    assert all(np.array_equal(value, arrays(two)[n]) for n, value in arrays(one).items())


def test_rows_of_marks_are_read_beside_a_table_that_stays(bert: FrozenEncoder) -> None:
    """The same states as one long table gives."""
    whole, apart = relations(bert, "all").initial(1), relations(bert, "bias").initial(1)
    table = apart.encoder.get_input_embeddings()
    assert isinstance(table, MarkedEmbedding) and not table.weight.requires_grad
    assert table.marks_KD.requires_grad
    rows = whole.encoder.get_input_embeddings().weight
    with torch.no_grad():
        table.marks_KD.copy_(rows[len(table.weight) :])
        apart.relation.load_state_dict(whole.relation.state_dict())
    made = relations(bert, "all")
    encoded = made.prepared(pairs())
    assert np.allclose(made.row_logits(apart, encoded), made.row_logits(whole, encoded), atol=1e-6)


def test_features_of_a_frozen_encoder_are_made_once(bert: FrozenEncoder, tmp_path: Path) -> None:
    """The same numbers as without; later they come from the disk, and the encoder is not asked."""
    made = relations(bert, "frozen")
    model, plain = made.initial(1), made.prepared(pairs())
    kept = made.featured(plain, model, folder=tmp_path)
    assert kept.features_SF is not None and kept.features_SF.shape == (12, 48)
    assert np.allclose(made.row_logits(model, kept), made.row_logits(model, plain), atol=1e-6)
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    assert file.stat().st_mode & 0o077 == 0

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the encoder was asked again")

    model.encoder.forward = asked
    again = made.featured(plain, model, folder=tmp_path)
    assert np.array_equal(again.features_SF, kept.features_SF)
    assert file.stat().st_mtime_ns == written
    few = made.annotated(again.only(np.arange(6)))
    made.fit(model, few, epochs=2, batch_size=3, optimiser=ADAM, seed=1)
    other = relations(bert, "frozen", pool="start")
    fresh = other.featured(other.prepared(pairs()), other.initial(1), folder=tmp_path)
    assert not np.allclose(fresh.features_SF, kept.features_SF)


def test_words_of_a_frozen_encoder_are_kept_too(bert: FrozenEncoder, tmp_path: Path) -> None:
    made = tokens(bert, "frozen")
    model, plain = made.initial(1), made.prepared(EXAMPLES)
    kept = made.featured(plain, model, folder=tmp_path)
    assert kept.features_WD is not None and kept.features_WD.shape == (24, 16)
    assert made.find(model, kept) == made.find(model, plain)
    assert np.allclose(made.row_logits(model, kept), made.row_logits(model, plain), atol=1e-6)
    assert not len(made.featured(made.prepared(()), model, folder=tmp_path / "none"))


def test_a_frozen_encoder_draws_no_dropout(bert: FrozenEncoder) -> None:
    model = tokens(bert, "frozen").initial(1).train()
    text = tokens(bert, "frozen").prepared(EXAMPLES)
    from confide.kinds.pieces import token_batch

    batch = token_batch(text, np.arange(3))
    assert torch.equal(model.features(batch), model.features(batch)) and model.encoder.training
    other = tokens(bert, "all").initial(1).train()
    assert not torch.equal(other.features(batch), other.features(batch))


def test_what_cannot_be_tuned(bert: FrozenEncoder, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"fewer layers.*at most 2; got 3"):
        tokens(bert, "top 3").initial(1)
    modern = load_encoder(str(tiny("modernbert", tmp_path / "modern")))
    with pytest.raises(SettingsError, match=r"no biases to train; got ModernBertModel.*lora"):
        tokens(modern, "bias").initial(1)
    assert len(layers_of(modern.loaded.model)) == 2


def test_without_peft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(SettingsError, match=r"pip install 'confide\[lora\]'"):
        peft_library()
