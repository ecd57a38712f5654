"""Tiny LightNERs with large random weights, and batches for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from confide.kinds.lightner.model import NOTHING, Lightner, Names, choose_trained
from confide.kinds.lightner.site import LightnerSpec
from confide.training.encoder import add_low_rank
from kinds.lightner.barts import config_of, drawn

VOCABULARY, DIM, POSITIONS = 41, 16, 40
BART = {
    "vocab_size": VOCABULARY,
    "d_model": DIM,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": POSITIONS,
    "scale_embedding": True,
}
NAMES = Names(labels=((7,), (8, 9, 8), (9, 10)), start=2, stop=3)
TYPES = len(NAMES.labels)
STOP = TYPES


@dataclass
class Batch:
    """What a LightNER reads and writes."""

    ids_BP: Tensor
    mask_BP: Tensor | None
    firsts_BL: Tensor
    lengths_B: Tensor
    symbols_BT: Tensor
    source_BT: Tensor
    states_BPD: Tensor | None = None


def word(place: int) -> int:
    """The symbol of a word."""
    return TYPES + 1 + place


def lightner(*, seed: int = 1, spread: float = 0.3, **sizes: Any) -> Lightner:
    torch.manual_seed(seed)
    bart = drawn(config_of(**BART), spread=spread, dropout=0.1)
    made = LightnerSpec([], **{"prompts": 3, "hidden": 5, **sizes})
    if made.tune == "lora":
        add_low_rank(bart, ["q_proj", "v_proj"], rank=made.rank, alpha=made.rank)
    model = Lightner(bart, NAMES, made)
    if model.prompts is not None:
        for layer in model.prompts.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.5)
    choose_trained(model)
    return model.eval()


def batch(
    words: Sequence[int], symbols: Sequence[Sequence[int]] | None = None, *, seed: int = 0
) -> Batch:
    """Texts of so many words, of one to three pieces each, between two special pieces."""
    generator = torch.Generator().manual_seed(seed)
    ids, firsts = [], []
    for count in words:
        row, starts = [2], []
        for _ in range(count):
            starts.append(len(row))
            size = int(torch.randint(1, 4, (1,), generator=generator))
            row += torch.randint(4, VOCABULARY, (size,), generator=generator).tolist()
        ids.append([*row, 3])
        firsts.append(starts)
    written = symbols or [[STOP]] * len(words)
    lengths_B = torch.tensor([len(row) for row in ids])
    ids_BP = _padded(ids, 1)
    mask_BP = torch.arange(ids_BP.shape[1]) < lengths_B[:, None]
    return Batch(
        ids_BP=ids_BP,
        mask_BP=mask_BP.long(),
        firsts_BL=_padded(firsts, 0),
        lengths_B=torch.tensor(list(words)),
        symbols_BT=_padded(written, NOTHING),
        source_BT=torch.ones(len(words), max(map(len, written)), dtype=torch.bool),
    )


def only(given: Batch, row: int, symbols: Sequence[int] | None = None) -> Batch:
    """One text without any padding, and what is to be written of it."""
    assert given.mask_BP is not None
    pieces, words = int(given.mask_BP[row].sum()), int(given.lengths_B[row])
    wanted = given.symbols_BT[row] if symbols is None else torch.tensor(symbols)
    wanted = wanted[wanted != NOTHING]
    return Batch(
        ids_BP=given.ids_BP[row : row + 1, :pieces],
        mask_BP=None,
        firsts_BL=given.firsts_BL[row : row + 1, :words],
        lengths_B=given.lengths_B[row : row + 1],
        symbols_BT=wanted[None],
        source_BT=given.source_BT[row : row + 1, : len(wanted)],
    )


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    most = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (most - len(row))] for row in rows])
