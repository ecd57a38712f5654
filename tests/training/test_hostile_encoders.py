"""Folders of encoders that attack their reader: refused with an error of ours, and at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cases import each
from confide.errors import ConfideError, DataError
from confide.training.encoder import check_files, digest_of_files, read_json, weight_files, width


def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 8}')
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


@each("name", ["tokenizer.json", "model.safetensors", "vocab.txt"])
def test_what_is_no_file_is_never_opened(tmp_path: Path, name: str) -> None:
    place = folder(tmp_path) / name
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    with pytest.raises(DataError, match=f"a named pipe, not a file.*got {name}"):
        check_files(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        digest_of_files(tmp_path, {})
    place.unlink()
    place.symlink_to("/dev/zero")
    with pytest.raises(DataError, match="a device, not a file"):
        check_files(tmp_path)


@each("text", ["[" * 100_000, "[1]", "{", '{"a": ' * 100 + "1" + "}" * 100])
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


@each("name", ["../x.safetensors", "/etc/passwd", "..", "", "a/b", "a\x1b[2J"])
def test_an_index_that_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    """Any file of the machine was opened."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(DataError, match="names a file that is not beside it") as caught:
        weight_files(index)
    assert str(caught.value).isprintable()
    with pytest.raises(DataError, match="names a file that is not beside it"):
        check_files(folder(tmp_path))


@each("kind", ["bert", "of-its-own"])
def test_code_in_a_folder_never_runs(tmp_path: Path, kind: str) -> None:
    """What the folder's configuration names as code of its own is not even imported."""
    pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
    from confide.training.encoder import load_encoder
    from training.encoders import tiny_bert

    place = tiny_bert(tmp_path / "encoder")
    (place / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: ...\n")
    config = json.loads((place / "config.json").read_text())
    names = {"AutoConfig": "own.Own", "AutoModel": "own.Own", "AutoTokenizer": ["own.Own", None]}
    config |= {"model_type": kind, "auto_map": names}
    (place / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((place / "tokenizer_config.json").read_text())
    tokenizer["auto_map"] = names
    (place / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if kind == "bert":
        assert load_encoder(str(place)).loaded.model is not None
    else:
        with pytest.raises(ConfideError):
            _ = load_encoder(str(place)).loaded
    assert not (tmp_path / "ran").exists()
