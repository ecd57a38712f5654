"""BART with prompts: transformers' encoder and decoder, whose self-attention sees prompts as well.

Lewis et al., "BART: Denoising Sequence-to-Sequence Pre-training", ACL 2020. A prompt is extra keys
Φ_K and values Φ_V of a self-attention (Wang et al., Findings of ACL 2023, Eq. 14):

    output = softmax(Q [Φ_K ; K]ᵀ / √E) [Φ_V ; V]

Every place attends to every prompt, whatever is padded or lies ahead; prompts themselves attend to
nothing. They reach the attention as an argument of the encoder and the decoder, since transformers
hands what it does not know on to the attention function.

Shapes: B texts, P pieces, T places of what is written, D numbers of a state, H heads, E = D / H,
Q prompts, S places that are attended to.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import BartConfig, EncoderDecoderCache

Prompt = tuple[Tensor, Tensor]
"""Keys and values of one layer: QD for all texts, or BQD for each text its own."""

ATTENTION = "confide prompts"
"""What transformers calls the attention that is given prompts."""


class Reading(NamedTuple):
    """What a decoder knows of a text. The mask is added to scores; None without padding."""

    states_BPD: Tensor
    mask_B11P: Tensor | None


class Bart(nn.Module):
    """The encoder, the decoder, and the one table of tokens that they share.

    Both are given vectors: rows of the table, times `scale`. Parameters are named as in
    transformers' `BartModel`.
    """

    def __init__(self, config: Any) -> None:
        from transformers.models.bart.modeling_bart import BartDecoder, BartEncoder

        super().__init__()
        self.config = config  # a BartConfig, whose sizes are optional to transformers
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder, self.decoder = cast(Any, BartEncoder(config)), cast(Any, BartDecoder(config))
        self.encoder.embed_tokens = self.decoder.embed_tokens = None
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = config.layer_norm_eps  # BartModel has always 1e-5

    def tokens(self, ids_BP: Tensor) -> Tensor:
        """tokens_BPD as the encoder and the decoder take them."""
        tokens_BPD: Tensor = self.shared(ids_BP) * self.scale
        return tokens_BPD

    def read(
        self, ids_BP: Tensor, *, mask_BP: Tensor | None, prompts: Sequence[Prompt] | None = None
    ) -> Tensor:
        """states_BPD; those of the padding, where `mask_BP` is false, are meaningless."""
        found = self.encoder(
            inputs_embeds=self.tokens(ids_BP), attention_mask=_added(mask_BP), prompts=prompts
        )
        states_BPD: Tensor = found.last_hidden_state
        return states_BPD

    def read_by_layer(
        self, ids_BP: Tensor, *, mask_BP: Tensor | None, prompts: Sequence[Prompt] | None = None
    ) -> list[Tensor]:
        """states_BPD of each layer of the encoder, the last one last."""
        found = self.encoder(
            inputs_embeds=self.tokens(ids_BP),
            attention_mask=_added(mask_BP),
            prompts=prompts,
            output_hidden_states=True,
        )
        return list(found.hidden_states[1:])

    def reading(self, states_BPD: Tensor, mask_BP: Tensor | None) -> Reading:
        """What the decoder knows of texts with these states of the encoder."""
        return Reading(states_BPD, _added(mask_BP))

    def write(
        self,
        tokens_BTD: Tensor,
        reading: Reading,
        *,
        prompts: Sequence[Prompt] | None = None,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """states_BTD of the decoder, each of which sees the places up to its own.

        With a cache they come after what was written with it; prompts are never in it.
        """
        ahead_11TS, steps = None, tokens_BTD.shape[1]
        if steps > 1:
            before = 0 if cache is None else cache.get_seq_length()
            ahead_11TS = tokens_BTD.new_full((1, 1, steps, before + steps), -math.inf)
            ahead_11TS = ahead_11TS.triu(before + 1)
        found = self.decoder(
            inputs_embeds=tokens_BTD,
            attention_mask=ahead_11TS,
            encoder_hidden_states=reading.states_BPD,
            encoder_attention_mask=reading.mask_B11P,
            past_key_values=cache,
            prompts=prompts,
        )
        states_BTD: Tensor = found.last_hidden_state
        return states_BTD

    def cache(self) -> EncoderDecoderCache:
        """An empty cache; `batch_select_indices` keeps only some texts."""
        from transformers import DynamicCache, EncoderDecoderCache

        return EncoderDecoderCache(DynamicCache(), DynamicCache())


def bart_of(config: BartConfig, weights: Mapping[str, Tensor], *, dropout: float = 0.0) -> Bart:
    """A BART with these very tensors, in evaluation mode; nothing is drawn.

    `dropout` acts on the embedded text and behind each sublayer, and nowhere else.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _prompted)  # it has no masks but those that are given
    config = copy.deepcopy(config)
    config._attn_implementation = ATTENTION
    config.use_cache = False
    config.dropout = dropout
    config.attention_dropout = config.activation_dropout = 0.0
    config.encoder_layerdrop = config.decoder_layerdrop = 0.0
    with torch.device("meta"):
        model = Bart(config)
    model.load_state_dict(weights, assign=True)
    return model.eval()


def _added(mask_BP: Tensor | None) -> Tensor | None:
    """mask_B11P to add to scores: minus infinity at padding, where `mask_BP` is false."""
    if mask_BP is None:
        return None
    nothing_BP = torch.zeros(mask_BP.shape, device=mask_BP.device)
    return nothing_BP.masked_fill(~mask_BP.bool(), -math.inf)[:, None, None]


def _prompted(
    attention: Any,
    asked_BHTE: Tensor,
    keys_BHSE: Tensor,
    values_BHSE: Tensor,
    mask_B1TS: Tensor | None,
    *,
    scaling: float,
    prompts: Sequence[Prompt] | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """mixed_BTHE of one layer. `mask_B1TS` is added to the scores."""
    reads_text = attention.is_decoder and not attention.is_causal
    if prompts is not None and not reads_text:
        keys_BHQE, values_BHQE = (
            part.expand(len(asked_BHTE), -1, -1)
            .unflatten(2, (attention.num_heads, -1))
            .transpose(1, 2)
            for part in prompts[attention.layer_idx]
        )
        keys_BHSE = torch.cat((keys_BHQE, keys_BHSE), 2)
        values_BHSE = torch.cat((values_BHQE, values_BHSE), 2)
        if mask_B1TS is not None:
            mask_B1TS = functional.pad(mask_B1TS, (keys_BHQE.shape[2], 0))
    mixed_BHTE = functional.scaled_dot_product_attention(
        asked_BHTE, keys_BHSE, values_BHSE, attn_mask=mask_B1TS, scale=scaling
    )
    return mixed_BHTE.transpose(1, 2), None
