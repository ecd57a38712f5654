"""A pre-trained BART from a folder or the hub: its configuration, weights and tokenizer.

The weights are read name by name into our own BART (`models.bart`); of transformers, only the
tokenizer is used. Files are read as data: JSON and safetensors, never a pickle or code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from confide.data.batches.token_pieces import Pieces
from confide.errors import DataError, MissingDataError, SettingsError
from confide.learning.cutting import FastCutter, around, by_word, plain, tokenizer_of
from confide.learning.encoder_files import (
    Config,
    check_files,
    digest_of,
    find_folder,
    first_line,
    parts_of,
    read_json,
)
from confide.models.bart import Bart, BartSizes, bart_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_HOW = {"version": 1, "kind": "bart"}
_TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
_SIZES = {
    "vocabulary": "vocab_size",
    "dim": "d_model",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "encoder_heads": "encoder_attention_heads",
    "decoder_heads": "decoder_attention_heads",
    "encoder_inner": "encoder_ffn_dim",
    "decoder_inner": "decoder_ffn_dim",
    "positions": "max_position_embeddings",
}
_OURS = {  # the architecture computed here, as a configuration may state it
    "activation_function": "gelu",
    "normalize_before": False,
    "normalize_embedding": True,
    "add_final_layer_norm": False,
    "static_position_embeddings": False,
}


class LoadedBart(NamedTuple):
    """The model, frozen, its tokenizer, and its special tokens.

    `before` and `after` are the special pieces around a text; `unknown` stands for a word without a
    piece; writing begins with `start` and ends with `stop`.
    """

    model: Bart
    tokenizer: Tokenizer
    before: tuple[int, ...]
    after: tuple[int, ...]
    unknown: int
    padding: int
    start: int
    stop: int

    def pieces(self, longest: int) -> Pieces:
        """How texts are read, `longest` pieces at once. Raises SettingsError if too many."""
        if longest > self.model.sizes.positions:
            raise SettingsError(
                "the model cannot read that many pieces at once",
                expected=f"at most {self.model.sizes.positions}",
                got=str(longest),
            )
        return Pieces(self.before, self.after, self.unknown, self.padding, longest)

    def cut(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The ids of the pieces of each word of each sentence, without special ones."""
        return by_word(FastCutter(self.tokenizer), sentences)


@dataclass(frozen=True)
class PretrainedBart:
    """A BART that has been found but not yet loaded.

    `digest` is a SHA-256 of the content of its files: equal digests compute the same.
    """

    name: str
    folder: Path
    sizes: BartSizes
    digest: str

    @cached_property
    def loaded(self) -> LoadedBart:
        """The model and its tokenizer, read once.

        Raises DataError if files are damaged or the weights or the tokenizer do not match
        config.json.
        """
        config = _config(self.folder)
        model = filled(self.sizes, _stored(self.folder), where=self.folder).requires_grad_(False)
        loaded = _assembled(model, tokenizer_of(self.folder), config, folder=self.folder)
        if digest_of(self.folder, _HOW) != self.digest:
            raise DataError("the model's files changed while it was in use", where=str(self.folder))
        return loaded


def load_bart(name: str) -> PretrainedBart:
    """The BART of this name: a folder, or else a model of the Hugging Face hub.

    Its files are checked and hashed; the model is loaded when it is first needed. Raises
    MissingDataError if the BART or a part of it is missing, SettingsError if it is not a BART, and
    DataError if a file is damaged.
    """
    folder = find_folder(name)
    sizes = sizes_of(_config(folder), folder)
    check_files(folder)
    return PretrainedBart(name, folder, sizes, digest_of(folder, _HOW))


# --- configuration --------------------------------------------------------------------------


def _config(folder: Path) -> Config:
    path = folder / "config.json"
    if not path.is_file():
        raise MissingDataError(
            "this folder is not a BART: it has no config.json",
            expected="config.json, model.safetensors and a tokenizer, as `save_pretrained` writes",
            where=str(folder),
        )
    config = read_json(path)
    if config.get("model_type") != "bart":
        raise SettingsError(
            "this is not a BART",
            expected="a model of type bart, such as facebook/bart-base",
            got=f"type {config.get('model_type')}",
            where=str(folder),
        )
    for key, value in _OURS.items():
        if config.get(key, value) != value:
            raise SettingsError(
                f"this kind of BART is not supported: {key} differs",
                expected=str(value),
                got=str(config[key]),
                where=str(folder),
            )
    return config


def sizes_of(config: Config, folder: Path) -> BartSizes:
    """The sizes that a BART's `config.json` states. Raises DataError if one is unusable."""
    numbers = {name: config.get(key) for name, key in _SIZES.items()}
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise DataError(
                f"config.json has no usable {_SIZES[name]}",
                expected="a whole number above 0",
                got=str(number),
                where=str(folder),
            )
    epsilon = config.get("layer_norm_eps", 1e-5)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise DataError(
            "config.json has no usable layer_norm_eps",
            expected="a number between 0 and 1",
            got=str(epsilon)[:40],
            where=str(folder),
        )
    sizes = BartSizes(
        **{name: int(number) for name, number in numbers.items() if number is not None},
        scaled=bool(config.get("scale_embedding", False)),
        epsilon=float(epsilon),
    )
    for heads in (sizes.encoder_heads, sizes.decoder_heads):
        if sizes.dim % heads:
            raise DataError(
                "config.json is damaged: a state cannot be split into that many heads",
                expected=f"d_model a multiple of {heads}",
                got=str(sizes.dim),
                where=str(folder),
            )
    return sizes


# --- weights --------------------------------------------------------------------------------


def filled(sizes: BartSizes, stored: dict[str, Tensor], *, where: Path) -> Bart:
    """A BART with these weights in float32; the prefix that models with a head add is left out.

    Raises DataError if a weight is missing or has another shape.
    """
    stored = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    if "shared.weight" not in stored:
        tables = [stored[name] for name in _TABLES if name in stored]
        stored |= {"shared.weight": tables[0]} if tables else {}
    with torch.device("meta"):
        expected = Bart(sizes).state_dict()
    weights: dict[str, Tensor] = {}
    for name, like in expected.items():
        found = stored.get(name)
        if found is None or found.shape != like.shape:
            raise DataError(
                "the weights do not match config.json",
                expected=f"{name} of {tuple(like.shape)}",
                got="nothing" if found is None else str(tuple(found.shape)),
                where=str(where),
                fix="take config.json and the weights from the same model",
            )
        weights[name] = found.to(torch.float32)
    return bart_of(sizes, weights)


def _stored(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder's files."""
    files = [folder / "model.safetensors"]
    if not files[0].is_file():
        files = parts_of(folder / "model.safetensors.index.json")
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    found[name] = tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"{file.name} is damaged or cut short", got=first_line(error), where=str(folder)
            ) from error
    return found


# --- special pieces -------------------------------------------------------------------------


def _assembled(model: Bart, tokenizer: Any, config: Config, *, folder: Path) -> LoadedBart:
    rows = model.sizes.vocabulary
    frame = around(tokenizer, rows)
    if frame is None:
        raise DataError("the tokenizer does not belong to the model", where=str(folder))
    padding = tokenizer.pad_token_id
    stop = config.get("eos_token_id", 2)  # BART's defaults
    start = config.get("decoder_start_token_id", 2)
    for name, token in (("eos_token_id", stop), ("decoder_start_token_id", start)):
        if not isinstance(token, int) or not 0 <= token < rows:
            raise DataError(
                f"config.json has no usable {name}",
                expected=f"a token below {rows}",
                got=str(token),
                where=str(folder),
            )
    return LoadedBart(
        model=model,
        tokenizer=plain(tokenizer),
        before=tuple(frame[0]),
        after=tuple(frame[1]),
        unknown=int(stop if tokenizer.unk_token_id is None else tokenizer.unk_token_id),
        padding=int(config.get("pad_token_id") or 0) if padding is None else int(padding),
        start=start,
        stop=stop,
    )
