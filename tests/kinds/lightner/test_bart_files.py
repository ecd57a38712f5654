"""BARTs out of folders: whole, with other names, damaged, or of another kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.errors import DataError, MissingDataError, SettingsError
from confide.kinds.lightner.model import Bart, load_bart
from training.barts import PLACES, SIZES, bart_folder
from training.encoders import tiny_bart, tiny_bert

WORDS = [["the", "headache", "took"], ["\ufeff", "pains", "]"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return bart_folder(tmp_path / "bart")


def changed(folder: Path, **keys: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))
    return folder


def states(model: Bart) -> torch.Tensor:
    with torch.no_grad():
        read = model.read(torch.tensor([[2, 7, 9, 3]]), mask_BP=None)
        return model.write(model.tokens(torch.tensor([[2, 8, 5]])), model.reading(read, None))


def test_it_computes_what_transformers_does(tmp_path: Path) -> None:
    import transformers

    folder = tiny_bart(tmp_path / "bart")
    loaded = load_bart(str(folder)).loaded
    assert not any(p.requires_grad for p in loaded.model.parameters())
    theirs = transformers.BartModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor([[2, 7, 9, 3]]), decoder_input_ids=torch.tensor([[2, 8, 5]])
        ).last_hidden_state
    torch.testing.assert_close(states(loaded.model), expected, atol=1e-5, rtol=1e-5)


def test_words_are_cut_into_pieces(folder: Path) -> None:
    found = load_bart(str(folder))
    loaded = found.loaded
    assert loaded.model.config.d_model == SIZES["d_model"]
    assert (loaded.before, loaded.after, loaded.start, loaded.stop) == ((2,), (3,), 2, 3)
    assert (loaded.unknown, loaded.padding) == (1, 0)
    names = loaded.tokenizer.id_to_token
    cut = [[[names(piece) for piece in word] for word in words] for words in loaded.cut(WORDS)]
    assert cut == [[["the"], ["head", "##ache"], ["took"]], [[], ["pain", "##s"], ["]"]]]
    assert 3 not in loaded.cut([["[SEP]"]])[0][0]  # text like any other
    assert loaded.pieces(PLACES).longest == PLACES
    with pytest.raises(SettingsError, match="that many pieces"):
        loaded.pieces(PLACES + 1)


def test_bytes_for_pieces(tmp_path: Path) -> None:
    loaded = load_bart(str(bart_folder(tmp_path / "bart", bytes=True))).loaded
    assert (loaded.before, loaded.after, loaded.start, loaded.stop) == ((0,), (2,), 2, 2)
    assert (loaded.unknown, loaded.padding) == (3, 1)
    one, other = loaded.cut([["the"], ["a", "the"]])
    assert one[0] == other[1]  # a space before each word, the first one too
    assert all(piece > 4 for word in loaded.cut(WORDS)[1] for piece in word)


def test_names_of_a_model_with_a_head(folder: Path, tmp_path: Path) -> None:
    headed = bart_folder(tmp_path / "headed", prefix="model.")
    weights = load_file(headed / "model.safetensors")
    table = weights.pop("model.shared.weight")
    weights |= {"lm_head.weight": table, "final_logits_bias": torch.zeros(1, len(table))}
    save_file(weights, headed / "model.safetensors")
    one, other = (load_bart(str(path)) for path in (folder, headed))
    assert torch.equal(states(one.loaded.model), states(other.loaded.model))
    assert one.digest != other.digest
    assert load_bart(str(folder)).digest == one.digest


def test_half_precision_and_several_files(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = {"a.safetensors": list(weights)[::2], "b.safetensors": list(weights)[1::2]}
    for file, names in halves.items():
        save_file({name: weights[name].half() for name in names}, folder / file)
    places = {name: file for file, names in halves.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )
    state = load_bart(str(folder)).loaded.model.state_dict()
    for name, tensor in weights.items():
        assert torch.equal(state[name], tensor.half().float())


def test_the_epsilon_of_normalisation_is_read(folder: Path) -> None:
    before = states(load_bart(str(folder)).loaded.model)
    other = load_bart(str(changed(folder, layer_norm_eps=0.1)))
    assert not torch.allclose(before, states(other.loaded.model), atol=1e-3)


def test_what_is_no_bart(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"not a BART.*type bart.*type bert"):
        load_bart(str(tiny_bert(tmp_path / "bert")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingDataError, match=r"no config\.json"):
        load_bart(str(tmp_path / "empty"))
    with pytest.raises(MissingDataError, match="no such folder"):
        load_bart(str(tmp_path / "nowhere"))
    with pytest.raises(SettingsError, match="this kind of BART is not supported: normalize_before"):
        load_bart(str(changed(folder, normalize_before=True)))


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"d_model": None}, "could not be loaded"),
        ({"decoder_attention_heads": 3}, "could not be loaded"),
        ({"layer_norm_eps": "none"}, "no usable layer_norm_eps"),
        ({"d_model": 64}, r"do not match config\.json"),
        ({"decoder_layers": 3}, r"do not match config\.json; expected \S*decoder\.layers\.2\."),
        ({"max_position_embeddings": 30}, "embed_positions"),
        ({"decoder_start_token_id": 5000}, "no usable decoder_start_token_id"),
        ({"eos_token_id": None}, "no usable eos_token_id"),
    ],
)
def test_weights_of_another_configuration(folder: Path, keys: Any, what: str) -> None:
    found = load_bart(str(changed(folder, **keys)))
    with pytest.raises(DataError, match=what):
        _ = found.loaded


def test_damage(folder: Path) -> None:
    found = load_bart(str(folder))
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cut short"):
        load_bart(str(folder))
    with pytest.raises(DataError, match="could not be loaded"):
        _ = found.loaded
    file.write_bytes(whole)
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json is damaged"):
        load_bart(str(folder))


def test_files_that_change_while_they_are_in_use(folder: Path) -> None:
    found = load_bart(str(folder))
    changed(folder, layer_norm_eps=0.1)
    with pytest.raises(DataError, match="changed while"):
        _ = found.loaded
