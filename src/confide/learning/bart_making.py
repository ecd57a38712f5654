"""Making a small BART from an encoder like BERT: a folder of `config.json`, weights and tokenizer.

    BERT's layers, by name      → the encoder, exactly: the same states for the same text
    some of them, evenly spread → the decoder's start; its cross-attention copies the same layer's
    BERT's table of pieces      → the tied table of both (Lewis et al. 2020, section 2.1)

BERT and BART order a layer's sums and norms alike but differ in four places. BART counts positions
from row 2 of its table; rows 0 and 1 are zeros. It has no token types, so row 0 of BERT's is added
to each position. Its norms use an epsilon of 1e-5, BERT's 1e-12; `config.json` states the latter as
`layer_norm_eps`, which our BART reads (`bart_files`) and transformers' does not. Its start, end and
padding pieces are [CLS] (which also starts the decoder), [SEP] and [PAD].

The decoder reads what it has written after [CLS], and must still be trained
(`confide.learning.denoising`). The weights are a function of the encoder's folder alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from confide.errors import DataError, MissingDataError, SettingsError
from confide.learning.encoder_files import Config, check_files, digest_of, read_json, width
from confide.learning.weights import Arrays
from confide.userfiles import MOST_JSON, bytes_of, json_of, text_of

OFFSET = 2
"""The row of BART's position table that holds the first position."""

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt",
)  # fmt: skip
_HOW = {"made": 1, "offset": OFFSET, "token type": 0}
_SPECIALS = {"bos_token_id": "[CLS]", "eos_token_id": "[SEP]", "pad_token_id": "[PAD]"}
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_ATTENTION = {
    "q_proj": "attention.self.query",
    "k_proj": "attention.self.key",
    "v_proj": "attention.self.value",
    "out_proj": "attention.output.dense",
}
_NORM = "attention.output.LayerNorm"
_REST = {
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}


def base_digest(folder: Path) -> str:
    """A SHA-256 of the encoder's files and of how a BART is made from them."""
    return digest_of(folder, _HOW)


def spread(layers: int, decoder_layers: int) -> list[int]:
    """The encoder's layers that the decoder's start from: evenly spread from first to last.

    >>> spread(6, 3), spread(6, 6), spread(12, 4), spread(6, 1)
    ([0, 2, 5], [0, 1, 2, 3, 4, 5], [0, 3, 7, 11], [5])
    """
    if decoder_layers == 1:
        return [layers - 1]
    return [i * (layers - 1) // (decoder_layers - 1) for i in range(decoder_layers)]


def bart_config(folder: Path, decoder_layers: int) -> Config:
    """The made BART's `config.json`.

    Raises SettingsError if the folder holds no encoder like BERT or one with fewer layers than the
    decoder, and MissingDataError or DataError if files are missing or damaged.
    """
    width(folder)
    bert = _checked(folder, read_json(folder / "config.json"))
    layers = int(bert["num_hidden_layers"])
    if not 1 <= decoder_layers <= layers:
        raise SettingsError(
            "the decoder starts from layers of the encoder and cannot have more of them",
            expected=f"1 to {layers}",
            got=str(decoder_layers),
            where=str(folder),
        )
    specials = _special_pieces(folder)
    heads, inner = int(bert["num_attention_heads"]), int(bert["intermediate_size"])
    return {
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
        "is_encoder_decoder": True,
        "vocab_size": int(bert["vocab_size"]),
        "max_position_embeddings": int(bert["max_position_embeddings"]),
        "d_model": int(bert["hidden_size"]),
        **{f"{side}_attention_heads": heads for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": inner for side in ("encoder", "decoder")},
        "encoder_layers": layers,
        "decoder_layers": decoder_layers,
        "activation_function": "gelu",
        "layer_norm_eps": float(bert.get("layer_norm_eps", 1e-12)),
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "init_std": float(bert.get("initializer_range", 0.02)),
        **specials,
        "decoder_start_token_id": specials["bos_token_id"],
        "forced_eos_token_id": specials["eos_token_id"],
    }


def bart_arrays(folder: Path, config: Config) -> Arrays:
    """The made BART's weights by Hugging Face's names, float32; `config` comes from `bart_config`.

    Raises MissingDataError or DataError if weights are missing, damaged or of the wrong size.
    """
    check_files(folder)
    bert = _bert_arrays(folder)
    words_VD, places_PD, kinds_TD = (
        _named(bert, f"embeddings.{name}.weight", folder) for name in _TABLES
    )
    shape = (config["vocab_size"], config["d_model"])
    if words_VD.shape != shape:
        raise DataError(
            "the weights do not match config.json",
            expected=f"a table of pieces of {shape}",
            got=str(words_VD.shape),
            where=str(folder),
        )
    unused_OD = np.zeros((OFFSET, places_PD.shape[1]), np.float32)
    positions = np.concatenate([unused_OD, places_PD + kinds_TD[0]])
    made: Arrays = {"model.shared.weight": words_VD}
    starts = {
        "encoder": list(range(config["encoder_layers"])),
        "decoder": spread(config["encoder_layers"], config["decoder_layers"]),
    }
    for side, chosen in starts.items():
        made[f"model.{side}.embed_positions.weight"] = positions.copy()
        for part in ("weight", "bias"):
            norm = _named(bert, f"embeddings.LayerNorm.{part}", folder)
            made[f"model.{side}.layernorm_embedding.{part}"] = norm
        for place, layer in enumerate(chosen):
            for bart, own in _layer_names(side):
                value = _named(bert, f"encoder.layer.{layer}.{own}", folder)
                made[f"model.{side}.layers.{place}.{bart}"] = value
    made["final_logits_bias"] = np.zeros((1, shape[0]), np.float32)
    return made


def make_bart(folder: Path, out: Path, *, decoder_layers: int) -> Path:
    """Write the BART made from the encoder in `folder` to `out`. Raises as its parts do."""
    config = bart_config(folder, decoder_layers)
    write_bart(out, bart_arrays(folder, config), config=config, tokenizer=folder)
    return out


def write_bart(
    out: Path,
    arrays: Mapping[str, NDArray[np.float32]],
    *,
    config: Mapping[str, object],
    tokenizer: Path,
) -> None:
    """Write a folder that transformers' `from_pretrained` reads, with the tokenizer's files.

    Each file is written under a temporary name and renamed. Raises DataError if that fails.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in TOKENIZER_FILES:
            if (tokenizer / name).is_file() and tokenizer.resolve() != out.resolve():
                shutil.copyfile(tokenizer / name, out / name)
        contents = {
            "model.safetensors": save(dict(arrays), metadata={"format": "pt"}),
            "config.json": (json.dumps(dict(config), indent=2) + "\n").encode(),
        }
        for name, content in contents.items():
            beside = out / f"{name}.tmp"
            beside.write_bytes(content)
            beside.replace(out / name)
    except OSError as error:
        raise DataError(f"cannot be written ({error.strerror})", where=str(out)) from error


# --- BERT's files -----------------------------------------------------------------------------


def _checked(folder: Path, bert: Config) -> Config:
    """The configuration, if a BART can compute exactly the same."""
    wanted = {
        "model_type": (bert.get("model_type"), "bert"),
        "hidden_act": (bert.get("hidden_act", "gelu"), "gelu"),
        "position_embedding_type": (bert.get("position_embedding_type", "absolute"), "absolute"),
    }
    for key, (got, expected) in wanted.items():
        if got != expected:
            raise SettingsError(
                "a BART is made from an encoder like BERT, which this is not",
                expected=f"{key} {expected!r} in its config.json",
                got=repr(got),
                where=str(folder),
            )
    sizes = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "vocab_size", "max_position_embeddings",
    )  # fmt: skip
    lacking = [key for key in sizes if not isinstance(bert.get(key), int)]
    if lacking:
        raise DataError("config.json is damaged", expected=lacking[0], where=str(folder))
    return bert


def _special_pieces(folder: Path) -> dict[str, int]:
    numbers = _vocabulary(folder)
    lacking = [piece for piece in (*_SPECIALS.values(), "[MASK]") if piece not in numbers]
    if lacking:
        raise SettingsError(
            "the encoder's vocabulary has no such piece",
            expected=", ".join(lacking),
            where=str(folder),
            fix="take an encoder with BERT's special pieces",
        )
    return {key: numbers[piece] for key, piece in _SPECIALS.items()}


def _vocabulary(folder: Path) -> dict[str, int]:
    """The id of each piece, from `tokenizer.json` or else `vocab.txt`."""
    try:
        if (folder / "tokenizer.json").is_file():
            tree = json_of(bytes_of(folder / "tokenizer.json", MOST_JSON))
            vocabulary = dict(tree["model"]["vocab"])
            return vocabulary | {one["content"]: one["id"] for one in tree.get("added_tokens", ())}
        lines = text_of(folder / "vocab.txt", MOST_JSON).splitlines()
        return {piece: number for number, piece in enumerate(lines)}
    except FileNotFoundError as error:
        raise MissingDataError(
            "the encoder has no tokenizer like BERT's",
            expected="tokenizer.json or vocab.txt",
            where=str(folder),
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError("the encoder's tokenizer is damaged", where=str(folder)) from error


def _bert_arrays(folder: Path) -> Arrays:
    """All weights, float32, without the prefix that models with a head add."""
    file = folder / "model.safetensors"
    if not file.is_file():
        raise SettingsError(
            "the encoder's weights are in several files", expected=file.name, where=str(folder)
        )
    return {
        name.removeprefix("bert."): value.astype(np.float32)
        for name, value in load_file(file).items()
        if value.dtype.kind == "f"
    }


def _layer_names(side: str) -> Iterator[tuple[str, str]]:
    """Pairs of names of a layer's weights: BART's and BERT's."""
    for part in ("weight", "bias"):
        for attention in ("self_attn", "encoder_attn") if side == "decoder" else ("self_attn",):
            for bart, bert in _ATTENTION.items():
                yield f"{attention}.{bart}.{part}", f"{bert}.{part}"
            yield f"{attention}_layer_norm.{part}", f"{_NORM}.{part}"
        for bart, bert in _REST.items():
            yield f"{bart}.{part}", f"{bert}.{part}"


def _named(bert: Arrays, name: str, folder: Path) -> NDArray[np.float32]:
    if name not in bert:
        raise DataError("the weights do not match config.json", expected=name, where=str(folder))
    return bert[name].copy()
