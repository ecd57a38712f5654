"""Tiny BARTs with random weights, as folders, written without transformers."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from confide.learning.bart_files import load_bart
from confide.models.bart import Bart, BartSizes, WritingBart, bart_of, draw
from confide.seeds import seeded
from learning.encoders import bert_tokenizer, byte_tokenizer

PLACES = 64  # pieces that a tiny BART reads and symbols that it writes
SIZES = BartSizes(
    vocabulary=0,
    dim=32,
    encoder_layers=1,
    decoder_layers=2,
    encoder_heads=2,
    decoder_heads=2,
    encoder_inner=48,
    decoder_inner=48,
    positions=PLACES,
)


def theirs(folder: Path) -> Any:
    """The folder's BART as transformers computes it, with the epsilon of its `config.json`."""
    from transformers import BartForConditionalGeneration

    model = BartForConditionalGeneration.from_pretrained(folder).eval()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = json.loads((folder / "config.json").read_text())["layer_norm_eps"]
    return model


def ours(folder: Path, *, dropout: float = 0.0) -> WritingBart:
    """The folder's BART, all of it free to learn."""
    loaded = load_bart(str(folder)).loaded.model
    body = bart_of(replace(loaded.sizes, dropout=dropout), loaded.state_dict())
    return WritingBart(copy.deepcopy(body))


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
        model = Bart(replace(SIZES, vocabulary=size))
        draw(model, spread=spread)
    weights: dict[str, Tensor] = {
        prefix + name: tensor.contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors")
    tokens = (0, 1, 2, 2) if bytes else (2, 0, 3, 2)
    config = {
        "model_type": "bart",
        "architectures": ["BartForConditionalGeneration" if prefix else "BartModel"],
        "vocab_size": size,
        "d_model": SIZES.dim,
        "encoder_layers": SIZES.encoder_layers,
        "decoder_layers": SIZES.decoder_layers,
        "encoder_attention_heads": SIZES.encoder_heads,
        "decoder_attention_heads": SIZES.decoder_heads,
        "encoder_ffn_dim": SIZES.encoder_inner,
        "decoder_ffn_dim": SIZES.decoder_inner,
        "max_position_embeddings": SIZES.positions,
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
