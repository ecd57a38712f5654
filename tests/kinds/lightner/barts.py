"""BARTs with large random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from confide.kinds.lightner.model import Bart, bart_with

if TYPE_CHECKING:
    from transformers import BartConfig


def config_of(*, epsilon: float = 1e-5, **sizes: Any) -> BartConfig:
    """A configuration as the files of a BART give it."""
    from transformers import BartConfig

    return BartConfig(**{"pad_token_id": None, "layer_norm_eps": epsilon, **sizes})


def drawn(config: BartConfig, *, spread: float, dropout: float = 0.0) -> Bart:
    """A BART with weights drawn by torch's generator: normal, with this deviation; zero biases."""
    with torch.device("meta"):
        empty = Bart(config)
    layers: dict[str, nn.Linear | nn.Embedding] = {}
    for name, one in empty.named_modules():
        if isinstance(one, nn.Linear):
            layers[name] = nn.Linear(one.in_features, one.out_features)
        elif isinstance(one, nn.Embedding):
            layers[name] = nn.Embedding(one.num_embeddings, one.embedding_dim)
    weights: dict[str, Tensor] = {}
    for name, layer in layers.items():
        weights[f"{name}.weight"] = nn.init.normal_(layer.weight, std=spread).detach()
    for name, like in empty.state_dict().items():
        if name not in weights:
            part = torch.zeros if name.endswith("bias") else torch.ones
            weights[name] = part(like.shape)
    model = bart_with(config, weights, dropout=dropout)
    return model
