"""A BART made of a BERT: the same encoder, a decoder that begins from its layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from confide.errors import ConfideError, DataError, MissingDataError, SettingsError
from confide.learning.bart_making import (
    bart_arrays,
    bart_config,
    base_digest,
    make_bart,
    spread,
)
from confide.learning.texts import made_bart
from learning.barts import ours, theirs
from learning.encoders import tiny_bert, tiny_roberta


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert") / "it", num_hidden_layers=4)


@pytest.fixture(scope="module")
def made(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bart(bert, tmp_path_factory.mktemp("bart") / "it", decoder_layers=2)


def padded() -> dict[str, torch.Tensor]:
    ids = torch.tensor([[2, 7, 9, 30, 11, 3], [2, 20, 3, 0, 0, 0], [2, 5, 6, 8, 3, 0]])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def test_the_encoders_states_are_those_of_bert(bert: Path, made: Path) -> None:
    from transformers import AutoModel

    batch = padded()
    with torch.inference_mode():
        expected = AutoModel.from_pretrained(bert).eval()(**batch).last_hidden_state
        bart = ours(made).model
        states = bart.encoder(bart.tokens(batch["input_ids"]), mask_BP=batch["attention_mask"])
    real = batch["attention_mask"].bool()
    assert expected[real].abs().max() > 1
    torch.testing.assert_close(states[real], expected[real], atol=1e-5, rtol=0)


def test_transformers_own_epsilon_is_another(bert: Path, made: Path) -> None:
    """Why `config.json` has it: without it, states differ."""
    from transformers import AutoModel, BartModel

    batch = padded()
    batch["attention_mask"][:] = 1
    with torch.inference_mode():
        expected = AutoModel.from_pretrained(bert).eval()(**batch).last_hidden_state
        other = BartModel.from_pretrained(made).eval().encoder(**batch).last_hidden_state
    assert (other - expected).abs().max() > 1e-7
    assert json.loads((made / "config.json").read_text())["layer_norm_eps"] == 1e-12


def test_the_decoder_begins_from_layers_of_the_encoder(made: Path) -> None:
    model = theirs(made).model
    for place, layer in enumerate(spread(4, 2)):
        own, start = model.decoder.layers[place], model.encoder.layers[layer]
        for part, first in (
            (own.self_attn, start.self_attn), (own.encoder_attn, start.self_attn),
            (own.fc1, start.fc1), (own.fc2, start.fc2),
            (own.encoder_attn_layer_norm, start.self_attn_layer_norm),
            (own.final_layer_norm, start.final_layer_norm),
        ):  # fmt: skip
            for name, value in part.state_dict().items():
                assert torch.equal(value, first.state_dict()[name]), name
    assert model.decoder.embed_tokens.weight is model.encoder.embed_tokens.weight
    assert not model.encoder.embed_positions.weight[:2].any()


def test_our_names_are_those_of_transformers(made: Path) -> None:
    own, expected = ours(made), dict(theirs(made).named_parameters())
    assert [name for name, _ in own.named_parameters()] == list(expected)
    for name, value in own.named_parameters():
        assert torch.equal(value, expected[name]), name


def test_a_bart_in_memory_is_that_of_its_folder(bert: Path, made: Path) -> None:
    found = made_bart(bert, decoder_layers=2, dropout=0.25)
    written = ours(made)
    assert found.config == json.loads((made / "config.json").read_text())
    assert {module.p for module in found.model.modules() if isinstance(module, nn.Dropout)} == {
        0.25
    }
    state = found.model.state_dict()
    assert state.keys() == written.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in written.state_dict().items())
    assert all(value.data_ptr() % 64 == 0 for value in state.values())


def test_weights_of_other_sizes_are_refused(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"do not match config\.json.*fc1"):
        made_bart(edited(bert, tmp_path / "odd", intermediate_size=24), decoder_layers=2)


def test_special_pieces_are_named(made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    assert [config[name] for name in names] == [2, 3, 0, 2]


def test_its_tokenizer_is_that_of_bert(bert: Path, made: Path) -> None:
    from transformers import AutoTokenizer

    texts = ["the patient took headaches", "[SEP] a"]
    one, other = (AutoTokenizer.from_pretrained(folder)(texts) for folder in (bert, made))
    assert one["input_ids"] == other["input_ids"]


def test_a_model_with_a_head_gives_the_same(tmp_path: Path) -> None:
    plain = tiny_bert(tmp_path / "plain")
    headed = tiny_bert(tmp_path / "headed", model="BertForMaskedLM")
    one, other = (bart_arrays(folder, bart_config(folder, 1)) for folder in (plain, headed))
    assert set(one) == set(other)
    assert base_digest(plain) != base_digest(headed)


def test_the_same_folder_gives_the_same_bytes(bert: Path, made: Path, tmp_path: Path) -> None:
    again = make_bart(bert, tmp_path / "again", decoder_layers=2)
    for name in ("model.safetensors", "config.json"):
        assert (again / name).read_bytes() == (made / name).read_bytes()


def edited(bert: Path, folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    for file in bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"model_type": "albert"}, SettingsError, "like BERT.*model_type 'bert'.*'albert'"),
        ({"hidden_act": "relu"}, SettingsError, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, SettingsError, "position_embedding_type"),
        ({"vocab_size": 7}, DataError, "do not match config.json"),
        ({"num_hidden_layers": 9}, DataError, "encoder.layer.4"),
        ({"intermediate_size": "x"}, DataError, "damaged"),
    ],
    ids=["kind", "activation", "positions", "table", "layers", "damage"],
)
def test_what_is_no_bert_is_refused(
    bert: Path, tmp_path: Path, changes: dict[str, Any], error: type[ConfideError], match: str
) -> None:
    folder = edited(bert, tmp_path / "other", **changes)
    with pytest.raises(error, match=match):
        make_bart(folder, tmp_path / "out", decoder_layers=2)
    assert not (tmp_path / "out").exists()


def test_other_folders_are_refused(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="like BERT"):
        bart_config(tiny_roberta(tmp_path / "roberta"), 1)
    with pytest.raises(MissingDataError, match=r"config\.json"):
        bart_config(tmp_path, 1)
    for layers in (0, 5):
        with pytest.raises(SettingsError, match="1 to 4"):
            bart_config(bert, layers)
    folder = edited(bert, tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MissingDataError, match="tokenizer"):
        bart_config(folder, 1)
    (folder / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(SettingsError, match=r"\[CLS\]"):
        bart_config(folder, 1)


def test_minilm_is_exact(tmp_path: Path) -> None:
    """The real one, where the extra is installed."""
    from transformers import AutoModel

    from confide.learning.encoder_files import find_folder

    base = find_folder("minilm")
    made = make_bart(base, tmp_path / "made", decoder_layers=3)
    rng = np.random.default_rng(1)
    ids = torch.tensor(rng.integers(1000, 30000, (2, 24)))
    mask = torch.ones_like(ids)
    mask[1, 17:] = 0
    with torch.inference_mode():
        expected = AutoModel.from_pretrained(base).eval()(ids, attention_mask=mask)
        bart = ours(made).model
        states = bart.encoder(bart.tokens(ids), mask_BP=mask)
    gap = (expected.last_hidden_state - states)[mask.bool()]
    assert gap.abs().max() < 1e-5
