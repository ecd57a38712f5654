"""BERT's encoder by torch alone: MiniLM has read a small corpus before transformers is imported.

The states of transformers' `BertModel`, but for rounding, without dropout, gradients or a pooler.

Shapes: B texts, P pieces, D numbers of a state, H heads of S numbers each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional


class States(NamedTuple):
    """The answer, named as transformers names it."""

    last_hidden_state: Tensor


class Bert(nn.Module):
    """A BERT of `layers` layers and `heads` heads; `weights` as `BertModel` names them."""

    def __init__(self, weights: Mapping[str, Tensor], *, layers: int, heads: int) -> None:
        super().__init__()
        self._weights, self._layers, self._heads = weights, layers, heads

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> States:
        """states_BPD of the last layer; `attention_mask` is 0 at padding."""
        words, places, kinds = (
            self._weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        states_BPD = words[input_ids] + places[: input_ids.shape[1]] + kinds[0]
        states_BPD = self._norm("embeddings.LayerNorm", states_BPD)
        mask_B11P = None if attention_mask.all() else attention_mask[:, None, None].bool()
        for number in range(self._layers):
            layer = f"encoder.layer.{number}"
            query, key, value = (
                self._linear(f"{layer}.attention.self.{name}", states_BPD)
                .view(*input_ids.shape, self._heads, -1)
                .transpose(1, 2)
                for name in ("query", "key", "value")
            )
            found_BHPS = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask_B11P
            )
            found_BPD = found_BHPS.transpose(1, 2).flatten(2)
            found_BPD = self._linear(f"{layer}.attention.output.dense", found_BPD)
            states_BPD = self._norm(f"{layer}.attention.output.LayerNorm", states_BPD + found_BPD)
            inner = functional.gelu(self._linear(f"{layer}.intermediate.dense", states_BPD))
            found_BPD = self._linear(f"{layer}.output.dense", inner)
            states_BPD = self._norm(f"{layer}.output.LayerNorm", states_BPD + found_BPD)
        return States(states_BPD)

    def _linear(self, name: str, values: Tensor) -> Tensor:
        return functional.linear(
            values, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        )

    def _norm(self, name: str, values_BPD: Tensor) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.layer_norm(values_BPD, weight.shape, weight, bias, eps=1e-12)
