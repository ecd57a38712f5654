"""A pre-trained BART from a folder or the hub: its configuration, weights and tokenizer.

Files are read as data: JSON and safetensors, never a pickle or code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confide.data.batches.token_pieces import Pieces
from confide.errors import DataError, MissingDataError, SettingsError
from confide.learning.cutting import FastCutter, around, by_word, plain, tokenizer_of
from confide.learning.encoder import check_whole, read_pretrained
from confide.learning.encoder_files import (
    Config,
    check_files,
    digest_of,
    find_folder,
    read_json,
)
from confide.models.bart import Bart, bart_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_HOW = {"version": 1, "kind": "bart"}
_USUAL = {  # what transformers computes, as a configuration may state it
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
        most = self.model.config.max_position_embeddings
        if longest > most:
            raise SettingsError(
                "the model cannot read that many pieces at once",
                expected=f"at most {most}",
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
    digest: str

    @cached_property
    def loaded(self) -> LoadedBart:
        """The model and its tokenizer, read once.

        Raises DataError if files are damaged or the weights or the tokenizer do not match
        config.json.
        """
        config = _config(self.folder)
        model = _model(self.folder, config)
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
    _config(folder)
    check_files(folder)
    return PretrainedBart(name, folder, digest_of(folder, _HOW))


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
    for key, value in _USUAL.items():
        if config.get(key, value) != value:
            raise SettingsError(
                f"this kind of BART is not supported: {key} differs",
                expected=str(value),
                got=str(config[key]),
                where=str(folder),
            )
    return config


def _model(folder: Path, config: Config) -> Bart:
    """The BART of a folder, frozen. Raises DataError if its files do not belong together."""
    from transformers import BartForConditionalGeneration

    epsilon = config.get("layer_norm_eps", 1e-5)
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise DataError(
            "config.json has no usable layer_norm_eps",
            expected="a number between 0 and 1",
            got=str(epsilon)[:40],
            where=str(folder),
        )
    whole, lacking = read_pretrained(BartForConditionalGeneration, folder, what="BART")
    check_whole(lacking, folder, apart=("lm_head.", "final_logits_bias"))
    found = whole.model
    found.config.layer_norm_eps = epsilon
    state = {name: one for name, one in found.state_dict().items() if "embed_tokens" not in name}
    return bart_of(found.config, state).requires_grad_(False)


def _assembled(model: Bart, tokenizer: Any, config: Config, *, folder: Path) -> LoadedBart:
    rows = model.config.vocab_size
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
