"""Tiny BARTs with random weights, as folders, written name by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from confide.seeds import seeded
from kinds.lightner.barts import config_of, drawn
from training.encoders import bert_tokenizer, byte_tokenizer

PLACES = 64  # pieces that a tiny BART reads and symbols that it writes
SIZES = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": PLACES,
}


def bart_folder(
    folder: Path,
    *,
    bytes: bool = False,
    prefix: str = "",
    spread: float = 0.15,
    words: Sequence[str] = (),
    **other: Any,
) -> Path:
    """A BART with a vocabulary of BERT's kind, or one of bytes; `other` goes into config.json."""
    folder.mkdir(parents=True)
    size = byte_tokenizer(folder, "BartTokenizer") if bytes else bert_tokenizer(folder, words)
    with seeded(0):
        model = drawn(config_of(vocab_size=size, **SIZES), spread=spread)
    weights: dict[str, Tensor] = {
        prefix + name: tensor.contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors")
    tokens = (0, 1, 2, 2) if bytes else (2, 0, 3, 2)
    config = {
        "model_type": "bart",
        "architectures": ["BartForConditionalGeneration" if prefix else "BartModel"],
        "vocab_size": size,
        **SIZES,
        **dict(
            zip(
                ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"),
                tokens,
                strict=True,
            )
        ),
    }
    (folder / "config.json").write_text(json.dumps(config | other))
    return folder
