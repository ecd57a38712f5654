"""Folders of encoders that attack their reader: refused with an error of ours, and at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from confide.errors import ConfideError, DataError
from confide.learning.encoder_files import check_files, digest_of, parts_of, read_json, width


def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 8}')
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "vocab.txt"])
def test_what_is_no_file_is_never_opened(tmp_path: Path, name: str) -> None:
    place = folder(tmp_path) / name
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    with pytest.raises(DataError, match=f"a named pipe, not a file.*got {name}"):
        check_files(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        digest_of(tmp_path, {})
    place.unlink()
    place.symlink_to("/dev/zero")
    with pytest.raises(DataError, match="a device, not a file"):
        check_files(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "{", '{"a": ' * 100 + "1" + "}" * 100])
def test_a_configuration_that_is_none(tmp_path: Path, text: str) -> None:
    """Nesting ended in a RecursionError."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match=r"config\.json is damaged"):
        width(tmp_path)


def test_a_configuration_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"config\.json is damaged \(a device, not a file\)"):
        read_json(tmp_path / "config.json")
    with pytest.raises(ConfideError):
        width(tmp_path)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "..", "", "a/b", "a\x1b[2J"])
def test_an_index_that_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    """Any file of the machine was opened."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(DataError, match="names a file that is not beside it") as caught:
        parts_of(index)
    assert str(caught.value).isprintable()
    with pytest.raises(DataError, match="names a file that is not beside it"):
        check_files(folder(tmp_path))
