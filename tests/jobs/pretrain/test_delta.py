"""What a training changed, as a small file, and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from confide.data.batches.denoising import Batching, denoising_batch
from confide.data.batches.noise import Noise
from confide.data.batches.passages import Cutter, passages
from confide.errors import DataError, MissingDataError, SettingsError
from confide.jobs.pretrain import Budget, Pretraining, pretrain
from confide.jobs.pretrain.delta import export_delta, import_delta
from confide.learning.bart_making import make_bart
from confide.learning.denoising import Denoiser, Denoising
from confide.learning.encoder_files import find_folder
from confide.learning.text_pieces import load_pieces
from confide.text.formats import read
from jobs.pretrain.texts import tiny_plan, write_text
from learning.barts import ours
from learning.encoders import tiny_bert

KEPT = Path(__file__).parents[3] / "benchmarks" / "pretrain" / "delta"
NOTES = """The patient developed a severe rash two days after treatment with penicillin was started.
Renal failure was found in three of twelve patients who had been given cisplatin.
Both mutations were absent in the blood of his parents and in one hundred healthy controls.
She stopped taking the tablets because of headache, nausea and pain in her legs.
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Pretraining:
    return tiny_plan(tmp_path_factory.mktemp("base") / "bert")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, plan: Pretraining) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    text = write_text(folder / "train.conll", sentences=60, seed=1)
    pretrain([text], out=folder / "out", budget=Budget(steps=12), plan=plan)
    return folder / "out"


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    return export_delta(trained, out=tmp_path_factory.mktemp("delta") / "it").folder


def test_a_delta_holds_the_decoder_alone_in_half_the_bytes(trained: Path, delta: Path) -> None:
    whole, changed = (
        load_file(trained / "model.safetensors"), load_file(delta / "delta.safetensors")
    )  # fmt: skip
    assert changed and all(name.startswith("model.decoder.") for name in changed)
    assert {value.dtype for value in changed.values()} == {np.dtype(np.float16)}
    decoder = sum(value.size for name, value in whole.items() if ".decoder." in name)
    assert (delta / "delta.safetensors").stat().st_size < 2 * decoder + 10_000


def test_the_way_back_is_as_exact_as_float16(trained: Path, delta: Path, tmp_path: Path) -> None:
    folder = import_delta(delta, out=tmp_path / "back")
    back, whole = (load_file(one / "model.safetensors") for one in (folder, trained))
    assert back.keys() == whole.keys()
    moved = load_file(delta / "delta.safetensors")
    for name, value in whole.items():
        if name in moved:
            gap = np.abs(moved[name].astype(np.float32))
            assert (np.abs(back[name] - value) <= 1e-3 * gap + 1e-6).all(), name
        else:
            assert np.array_equal(back[name], value), name
    assert (folder / "config.json").read_bytes() == (trained / "config.json").read_bytes()
    again = export_delta(folder, out=tmp_path / "again")
    second = load_file(again.folder / "delta.safetensors")
    assert all(np.allclose(second[n], moved[n], rtol=2e-3, atol=1e-6) for n in moved)


def test_it_says_what_it_was_trained_on(delta: Path) -> None:
    told = json.loads((delta / "delta.json").read_text())
    assert told["texts"][0]["name"].endswith("train.conll") and told["steps"] == 12
    readme = (delta / "README.md").read_text()
    assert "train.conll" in readme and "12 steps" in readme and told["base_digest"] in readme


def test_a_delta_of_another_base(delta: Path, trained: Path, tmp_path: Path) -> None:
    other = tiny_bert(tmp_path / "other", seed=5)
    with pytest.raises(SettingsError, match="another base encoder"):
        import_delta(delta, out=tmp_path / "back", base=str(other))
    with pytest.raises(SettingsError, match="another base encoder"):
        export_delta(trained, out=tmp_path / "delta", base=str(other))
    assert not (tmp_path / "back").exists() and not (tmp_path / "delta").exists()


def copied(delta: Path, to: Path) -> Path:
    return Path(shutil.copytree(delta, to))


def test_folders_that_are_none_or_damaged(delta: Path, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no delta"):
        import_delta(tmp_path, out=tmp_path / "back")
    with pytest.raises(MissingDataError, match="no finished pretraining"):
        export_delta(tmp_path, out=tmp_path / "delta")
    cut = copied(delta, tmp_path / "cut")
    content = (cut / "delta.safetensors").read_bytes()
    (cut / "delta.safetensors").write_bytes(content[:-9])
    with pytest.raises(DataError, match="damaged"):
        import_delta(cut, out=tmp_path / "back")
    save_file({"model.decoder.x": np.zeros(3, np.float16)}, cut / "delta.safetensors")
    with pytest.raises(DataError, match="another base"):
        import_delta(cut, out=tmp_path / "back")
    (cut / "delta.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        import_delta(cut, out=tmp_path / "back")
    (cut / "delta.json").write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        import_delta(cut, out=tmp_path / "back")
    told = json.loads((delta / "delta.json").read_text())
    (cut / "delta.json").write_text(json.dumps(told | {"schema": 2}))
    with pytest.raises(DataError, match="another version"):
        import_delta(cut, out=tmp_path / "back")


def test_a_bart_of_other_weights(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained, tmp_path / "odd")
    weights = load_file(folder / "model.safetensors")
    name = "model.decoder.layers.0.fc1.bias"
    save_file(weights | {name: weights[name] * np.nan}, folder / "model.safetensors")
    with pytest.raises(DataError, match="not a number"):
        export_delta(folder, out=tmp_path / "delta")
    weights.pop(name)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(DataError, match="another base"):
        export_delta(folder, out=tmp_path / "delta")


def test_the_bart_that_comes_with_the_benchmarks_writes_text(tmp_path: Path) -> None:
    """Sentences of no corpus, noised: half of the pieces right, by a model that has seen text."""
    note = tmp_path / "note.txt"
    note.write_text(NOTES, encoding="utf-8")

    def right(folder: Path) -> float:
        pieces = load_pieces(folder)
        cutter = Cutter(pieces, pieces.continues_V, longest=126)
        texts = passages(cutter.cut(read(note).documents))
        how = Batching(pieces.specials, Noise())
        batches = [denoising_batch(texts, np.arange(len(texts)), how, seed=n) for n in range(8)]
        return Denoiser(ours(folder), Denoising()).measured(batches).right

    assert right(import_delta(KEPT, out=tmp_path / "bart")) > 0.4
    assert right(make_bart(find_folder("minilm"), tmp_path / "fresh", decoder_layers=3)) < 0.05
