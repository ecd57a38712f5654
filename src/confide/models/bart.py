"""BART: an encoder that reads a text and a decoder that writes, both with prompts.

Lewis et al., "BART: Denoising Sequence-to-Sequence Pre-training", ACL 2020; Vaswani et al. 2017
with normalisation behind each sublayer, GELU, and learned positions that begin at row 2. It is the
one BART of all kinds: LightNER writes entities with it, denoising trains it to restore text.
Parameters are named as in Hugging Face's `BartModel`, so its files can be read name by name.

A prompt is extra keys Φ_K and values Φ_V of a self-attention (Wang et al., Findings of ACL 2023,
Eq. 14):

    output = softmax(Q [Φ_K ; K]ᵀ / √E) [Φ_V ; V]

Every place attends to every prompt, whatever is padded or lies ahead; prompts themselves attend to
nothing. A softmax ignores the order of its keys, so they may come in any order.

A decoder writes step by step with a cache: keys and values of the text and of what is written are
computed once. Its states equal those of the whole sequence in one pass.

Shapes: B texts, P pieces, T places of what is written, D numbers of a state, H heads, E = D / H,
Q prompts, C places of a cache, S places that are attended to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

KeysValues = tuple[Tensor, Tensor]
"""keys_BHSE and values_BHSE."""

Prompt = tuple[Tensor, Tensor]
"""Keys and values of one layer: QD for all texts, or BQD for each text its own."""

_OFFSET = 2  # the row of the first learned position
_ROOM = 16  # places of a fresh cache


@dataclass(frozen=True)
class BartSizes:
    """`positions` is how many pieces can be read or written; `scaled` multiplies tokens by √dim.

    `dropout` acts on the embedded text and behind each sublayer, and nowhere else.
    """

    vocabulary: int
    dim: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    encoder_inner: int
    decoder_inner: int
    positions: int
    scaled: bool = False
    epsilon: float = 1e-5
    dropout: float = 0.1


class Reading(NamedTuple):
    """What a decoder knows of a text: each layer's keys and values, and the padding mask."""

    layers: list[KeysValues]
    mask_B11P: Tensor | None

    def keep(self, rows_K: Tensor) -> Reading:
        """Keep only these texts."""
        mask_K11P = None if self.mask_B11P is None else self.mask_B11P[rows_K]
        return Reading([(keys[rows_K], values[rows_K]) for keys, values in self.layers], mask_K11P)


class Cache:
    """Keys and values of what a decoder has written, in one tensor per layer with room to grow.

    Prompts fill the first places. `places` are filled, `written` of them without the prompts.
    """

    def __init__(self, layers: list[KeysValues], places: int) -> None:
        self.layers = layers
        self.places = places
        self.written = 0

    def extended(self, layer: int, fresh: KeysValues) -> KeysValues:
        """All keys and values of a layer, with fresh ones appended."""
        end = self.places + fresh[0].shape[2]
        kept = self.layers[layer]
        if end > kept[0].shape[2]:
            more = max(end, 2 * kept[0].shape[2]) - kept[0].shape[2]
            keys, values = (functional.pad(part, (0, 0, 0, more)) for part in kept)
            kept = self.layers[layer] = keys, values
        for part_BHCE, fresh_BHTE in zip(kept, fresh, strict=True):
            part_BHCE[:, :, self.places : end] = fresh_BHTE
        return kept[0][:, :, :end], kept[1][:, :, :end]

    def advance(self, steps: int) -> None:
        """Count this many places as filled in every layer."""
        self.places += steps
        self.written += steps

    def keep(self, rows_K: Tensor) -> None:
        """Keep only these texts."""
        self.layers = [(keys[rows_K], values[rows_K]) for keys, values in self.layers]


class Attention(nn.Module):
    """Multi-head attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.q_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def seen(self, states_BPD: Tensor) -> KeysValues:
        """The keys and values of these states."""
        return self.split(self.k_proj(states_BPD)), self.split(self.v_proj(states_BPD))

    def split(self, values_BPD: Tensor) -> Tensor:
        """values_BHPE."""
        rows, places, dim = values_BPD.shape
        return values_BPD.view(rows, places, self.heads, dim // self.heads).transpose(1, 2)

    def before(self, prompt: Prompt, rows: int) -> KeysValues:
        """A prompt's keys and values, for this many texts."""
        keys, values = (self.split(part.expand(rows, -1, -1)) for part in prompt)
        return keys, values

    def forward(
        self, states_BTD: Tensor, seen: KeysValues, *, mask: Tensor | None = None
    ) -> Tensor:
        """mixed_BTD. `mask`, added to the scores, broadcasts to BHTS."""
        asked_BHTE = self.split(self.q_proj(states_BTD))
        mixed_BHTE = functional.scaled_dot_product_attention(asked_BHTE, *seen, attn_mask=mask)
        mixed_BTD: Tensor = self.out_proj(mixed_BHTE.transpose(1, 2).flatten(2))
        return mixed_BTD


class EncoderLayer(nn.Module):
    """Self-attention and two linear layers."""

    may_be_narrow: ClassVar[bool] = True

    def __init__(self, sizes: BartSizes) -> None:
        super().__init__()
        self.self_attn = Attention(sizes.dim, sizes.encoder_heads)
        self.self_attn_layer_norm = nn.LayerNorm(sizes.dim, eps=sizes.epsilon)
        self.fc1 = nn.Linear(sizes.dim, sizes.encoder_inner)
        self.fc2 = nn.Linear(sizes.encoder_inner, sizes.dim)
        self.final_layer_norm = nn.LayerNorm(sizes.dim, eps=sizes.epsilon)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self, states_BPD: Tensor, *, prompt: Prompt | None, mask_B11S: Tensor | None
    ) -> Tensor:
        """states_BPD."""
        seen = _behind(self.self_attn, prompt, self.self_attn.seen(states_BPD))
        mixed_BPD = self.self_attn(states_BPD, seen, mask=mask_B11S)
        states_BPD = self.self_attn_layer_norm(states_BPD + self.dropout(mixed_BPD))
        made_BPD = self.fc2(functional.gelu(self.fc1(states_BPD)))
        states_BPD = self.final_layer_norm(states_BPD + self.dropout(made_BPD))
        return states_BPD


class DecoderLayer(nn.Module):
    """Self-attention, attention to the text, and two linear layers."""

    may_be_narrow: ClassVar[bool] = True

    def __init__(self, sizes: BartSizes) -> None:
        super().__init__()
        self.self_attn = Attention(sizes.dim, sizes.decoder_heads)
        self.self_attn_layer_norm = nn.LayerNorm(sizes.dim, eps=sizes.epsilon)
        self.encoder_attn = Attention(sizes.dim, sizes.decoder_heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(sizes.dim, eps=sizes.epsilon)
        self.fc1 = nn.Linear(sizes.dim, sizes.decoder_inner)
        self.fc2 = nn.Linear(sizes.decoder_inner, sizes.dim)
        self.final_layer_norm = nn.LayerNorm(sizes.dim, eps=sizes.epsilon)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, states_BTD: Tensor, seen: KeysValues, *, around: Around) -> Tensor:
        """states_BTD; `seen` are keys and values of what is written, prompts included."""
        mixed_BTD = self.self_attn(states_BTD, seen, mask=around.mask_TS)
        states_BTD = self.self_attn_layer_norm(states_BTD + self.dropout(mixed_BTD))
        mixed_BTD = self.encoder_attn(states_BTD, around.text, mask=around.mask_B11P)
        states_BTD = self.encoder_attn_layer_norm(states_BTD + self.dropout(mixed_BTD))
        made_BTD = self.fc2(functional.gelu(self.fc1(states_BTD)))
        states_BTD = self.final_layer_norm(states_BTD + self.dropout(made_BTD))
        return states_BTD


class Around(NamedTuple):
    """What a layer of the decoder attends to besides what is written."""

    text: KeysValues
    mask_B11P: Tensor | None
    mask_TS: Tensor | None


class Encoder(nn.Module):
    """Reads texts."""

    def __init__(self, sizes: BartSizes) -> None:
        super().__init__()
        self.embed_positions = nn.Embedding(sizes.positions + _OFFSET, sizes.dim)
        self.layers = nn.ModuleList(EncoderLayer(sizes) for _ in range(sizes.encoder_layers))
        self.layernorm_embedding = nn.LayerNorm(sizes.dim, eps=sizes.epsilon)
        self.dropout = nn.Dropout(sizes.dropout)

    def every_layer(
        self,
        tokens_BPD: Tensor,
        *,
        mask_BP: Tensor | None = None,
        prompts: Sequence[Prompt] | None = None,
    ) -> list[Tensor]:
        """states_BPD of each layer, the last one last."""
        places_PD = self.embed_positions.weight[_OFFSET : _OFFSET + tokens_BPD.shape[1]]
        states_BPD = self.dropout(self.layernorm_embedding(tokens_BPD + places_PD))
        mask_B11S = _added(mask_BP, tokens_BPD, prompts[0][0].shape[-2] if prompts else 0)
        found: list[Tensor] = []
        for layer, prompt in zip(self.layers, _each(prompts, self.layers), strict=True):
            states_BPD = layer(states_BPD, prompt=prompt, mask_B11S=mask_B11S)
            found.append(states_BPD)
        return found

    def forward(
        self,
        tokens_BPD: Tensor,
        *,
        mask_BP: Tensor | None = None,
        prompts: Sequence[Prompt] | None = None,
    ) -> Tensor:
        """states_BPD; those of the padding are meaningless."""
        return self.every_layer(tokens_BPD, mask_BP=mask_BP, prompts=prompts)[-1]


class Decoder(nn.Module):
    """Writes on from what it has written, attending to a text."""

    def __init__(self, sizes: BartSizes) -> None:
        super().__init__()
        self.embed_positions = nn.Embedding(sizes.positions + _OFFSET, sizes.dim)
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.decoder_layers))
        self.layernorm_embedding = nn.LayerNorm(sizes.dim, eps=sizes.epsilon)
        self.dropout = nn.Dropout(sizes.dropout)

    def read(self, states_BPD: Tensor, mask_BP: Tensor | None = None) -> Reading:
        """Every layer's keys and values of a text."""
        mask_B11P = _added(mask_BP, states_BPD, 0)
        texts = [layer.encoder_attn.seen(states_BPD) for layer in self.each()]
        return Reading(texts, mask_B11P)

    def each(self) -> list[DecoderLayer]:
        """The layers, typed."""
        return cast(list[DecoderLayer], list(self.layers))

    def cache(self, rows: int, *, prompts: Sequence[Prompt] | None = None) -> Cache:
        """An empty cache for this many texts, with the prompts in it."""
        table = self.embed_positions.weight
        places = prompts[0][0].shape[-2] if prompts else 0
        filled: list[KeysValues] = []
        for layer, prompt in zip(self.each(), _each(prompts, self.layers), strict=True):
            attention = layer.self_attn
            room = (rows, attention.heads, places + _ROOM, table.shape[1] // attention.heads)
            keys, values = table.new_zeros(room), table.new_zeros(room)
            if prompt is not None:
                before = attention.before(prompt, rows)
                keys[:, :, :places], values[:, :, :places] = before
            filled.append((keys, values))
        return Cache(filled, places)

    def forward(
        self,
        tokens_BTD: Tensor,
        reading: Reading,
        *,
        prompts: Sequence[Prompt] | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """states_BTD, each of which sees the places up to its own.

        With a cache (only without gradients), they come after what is written there, and the
        prompts are those the cache was made with.
        """
        first, steps = cache.written if cache else 0, tokens_BTD.shape[1]
        at = _OFFSET + first
        places_TD = self.embed_positions.weight[at : at + steps]
        states_BTD: Tensor = self.dropout(self.layernorm_embedding(tokens_BTD + places_TD))
        before = cache.places if cache else prompts[0][0].shape[-2] if prompts else 0
        mask_TS = _ahead(states_BTD, before)
        each = zip(self.each(), _each(prompts, self.layers), reading.layers, strict=True)
        for number, (layer, prompt, text) in enumerate(each):
            seen = layer.self_attn.seen(states_BTD)
            if cache is not None:
                seen = cache.extended(number, seen)
            else:
                seen = _behind(layer.self_attn, prompt, seen)
            states_BTD = layer(states_BTD, seen, around=Around(text, reading.mask_B11P, mask_TS))
        if cache is not None:
            cache.advance(steps)
        return states_BTD


class Bart(nn.Module):
    """Encoder, decoder, and the one table of tokens that they share."""

    def __init__(self, sizes: BartSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = nn.Embedding(sizes.vocabulary, sizes.dim)
        self.encoder = Encoder(sizes)
        self.decoder = Decoder(sizes)

    @property
    def scale(self) -> float:
        """The factor of a token's row before it is read."""
        return math.sqrt(self.sizes.dim) if self.sizes.scaled else 1.0

    def tokens(self, ids_BP: Tensor) -> Tensor:
        """tokens_BPD as the encoder and the decoder take them."""
        tokens_BPD: Tensor = self.shared(ids_BP) * self.scale
        return tokens_BPD

    def read(self, ids_BP: Tensor, mask_BP: Tensor | None = None) -> Reading:
        """What the decoder knows of texts. `mask_BP` is false at padding."""
        return self.decoder.read(self.encoder(self.tokens(ids_BP), mask_BP=mask_BP), mask_BP)

    def forward(
        self, ids_BP: Tensor, written_BT: Tensor, *, mask_BP: Tensor | None = None
    ) -> Tensor:
        """states_BTD of the decoder, without prompts. `mask_BP` is false at padding."""
        states_BTD: Tensor = self.decoder(self.tokens(written_BT), self.read(ids_BP, mask_BP))
        return states_BTD


class WritingBart(nn.Module):
    """A BART that writes pieces, by the products of its states with its own table.

    `model` is the BART, so parameters have the names of `BartForConditionalGeneration`.
    """

    def __init__(self, model: Bart) -> None:
        super().__init__()
        self.model = model


def bart_of(sizes: BartSizes, weights: Mapping[str, Tensor]) -> Bart:
    """A BART with these very tensors, in evaluation mode; nothing is drawn."""
    with torch.device("meta"):
        model = Bart(sizes)
    model.load_state_dict(weights, assign=True)
    return model.eval()


def draw(model: Bart, *, spread: float = 0.02) -> None:
    """Draw initial weights as BART does: normal with this standard deviation, zero biases."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=spread)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def _each(prompts: Sequence[Prompt] | None, layers: nn.ModuleList) -> Sequence[Prompt | None]:
    return [None] * len(layers) if prompts is None else prompts


def _behind(attention: Attention, prompt: Prompt | None, seen: KeysValues) -> KeysValues:
    """The prompt's keys and values, followed by these."""
    if prompt is None:
        return seen
    before = attention.before(prompt, len(seen[0]))
    keys, values = (torch.cat(parts, 2) for parts in zip(before, seen, strict=True))
    return keys, values


def _added(mask_BP: Tensor | None, like: Tensor, prompts: int) -> Tensor | None:
    """mask_B11S to add: minus infinity at padding, 0 at prompts; None without padding."""
    if mask_BP is None:
        return None
    mask_BS = functional.pad(mask_BP.bool(), (prompts, 0), value=True)
    nothing = like.new_zeros(mask_BS.shape)
    return nothing.masked_fill(~mask_BS, -math.inf)[:, None, None]


def _ahead(states_BTD: Tensor, before: int) -> Tensor | None:
    """mask_TS to add: minus infinity at places ahead; `before` places precede the first."""
    steps = states_BTD.shape[1]
    if steps == 1:
        return None
    ahead_TS = states_BTD.new_full((steps, before + steps), -math.inf)
    return torch.triu(ahead_TS, before + 1)
