"""LightNER: a frozen BART that writes entities, steered by trained prompts.

Chen et al., "LightNER: A Lightweight Tuning Paradigm for Low-resource NER via Pluggable Prompting",
COLING 2022, as used by Wang et al., Findings of ACL 2023, 3.1 and Appendix B:

    [Φ_K ; Φ_V] of layer l = W2_l tanh(W1_l q)         one q for all layers       (Eq. 15)
    written: start, end, type, start, end, type, ..., stop                        (Eq. 2)

One softmax runs over symbols: the types, stop, and the words of the text. With h the decoder's
state, a type's score is h · (mean of the token rows of the label's name); that of stop is h · (row
of the stop token); that of a word is h · (state + token row) / 2 of its first piece, where `state`
is the encoder's. The last is BARTNER's (Yan et al. 2021) with α = 1/2 and without its MLP, since
only the prompts are trained. As input, a word is the token row of its first piece, and a type the
vector of its label. An entity's end is its last word.

Symbols are numbered: first the types, then stop, then the words of the text from left to right.

Shapes: B texts, P pieces, L words, T symbols to write, Y types, V = Y + 1 + L symbols, K pieces of
a label, Q prompts, D numbers of a state.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from confide.errors import DataError, MissingDataError, SettingsError
from confide.kinds.encoder import parted
from confide.kinds.pieces import PieceBatch, Pieces, TokenText, token_batch, token_text
from confide.seeds import seeded
from confide.training import batches, encoder
from confide.training.devices import at_home, beside, home, most_read, placed, predicting, widen
from confide.training.encoder import plain
from confide.training.optimisers import Optimiser
from confide.training.tagger import longest_first
from confide.training.trainer import (
    EntityTrainer,
    FoundSpan,
    LastLayerGradients,
    Parts,
    join_windows,
    only_rows,
)
from confide.training.weights import still

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import BartConfig, EncoderDecoderCache


# --- BART with prompts
#
# Transformers' encoder and decoder, whose self-attention sees prompts as well.
#
# Lewis et al., "BART: Denoising Sequence-to-Sequence Pre-training", ACL 2020. A prompt is extra
# keys Φ_K and values Φ_V of a self-attention (Wang et al., Findings of ACL 2023, Eq. 14):
#
#     output = softmax(Q [Φ_K ; K]ᵀ / √E) [Φ_V ; V]
#
# Every place attends to every prompt, whatever is padded or lies ahead; prompts themselves attend
# to nothing. They reach the attention as an argument of the encoder and the decoder, since
# transformers hands what it does not know on to the attention function.
#
# Shapes: B texts, P pieces, T places of what is written, D numbers of a state, H heads, E = D / H,
# Q prompts, S places that are attended to.


Prompt = tuple[Tensor, Tensor]
"""Keys and values of one layer: QD for all texts, or BQD for each text its own."""

ATTENTION = "confide prompts"
"""The name in transformers of the attention that is given prompts."""


class DecoderInput(NamedTuple):
    """A decoder's view of a text. The mask is added to scores; None without padding."""

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

    def reading(self, states_BPD: Tensor, mask_BP: Tensor | None) -> DecoderInput:
        """Prepare a decoder's view of texts with these states of the encoder."""
        return DecoderInput(states_BPD, _added(mask_BP))

    def write(
        self,
        tokens_BTD: Tensor,
        reading: DecoderInput,
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


def bart_with(config: BartConfig, weights: Mapping[str, Tensor], *, dropout: float = 0.0) -> Bart:
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


NOTHING = -1
"""Padding of `symbols_BT`."""

_NEVER = -1e9  # the score of a symbol that does not exist


@dataclass(frozen=True)
class Names:
    """Token ids: those of each type's label, of the start of writing, and of its stop."""

    labels: tuple[tuple[int, ...], ...]
    start: int
    stop: int


class Projection(nn.Module):
    """One layer's prompt: W2 tanh(W1 q), without biases (Eq. 15 has none)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, hidden, bias=False)
        self.outer = nn.Linear(hidden, 2 * dim, bias=False)

    def forward(self, q: Tensor) -> Tensor:
        """Keys and values side by side, one row for each row of q."""
        made: Tensor = self.outer(torch.tanh(self.inner(q)))
        return made


class Prompts(nn.Module):
    """`q_QD` and its projection for each layer; the encoder may have none."""

    def __init__(self, bart: Bart, form: Any) -> None:
        super().__init__()
        dim, own = bart.config.d_model, bart.config
        reading = own.encoder_layers if form.where == "both" else 0
        self.q_QD = nn.Parameter(torch.randn(form.prompts, dim))
        self.encoder = nn.ModuleList(Projection(dim, form.hidden) for _ in range(reading))
        self.decoder = nn.ModuleList(
            Projection(dim, form.hidden) for _ in range(own.decoder_layers)
        )

    def forward(self, layers: nn.ModuleList, q: Tensor | None = None) -> list[Prompt]:
        """The prompts of these layers; `q` (QD or BQD) replaces the module's own."""
        q = self.q_QD if q is None else q
        parts = [layer(q).chunk(2, -1) for layer in layers]
        return [(keys, values) for keys, values in parts]


class Text(NamedTuple):
    """The model's view of a batch before it writes.

    `given_BVD` are the symbols' vectors as input, `sought_BVD` those that states are compared with;
    `known_BV` is false at padding.
    """

    reading: DecoderInput
    given_BVD: Tensor
    sought_BVD: Tensor
    known_BV: Tensor


class Trace(NamedTuple):
    """The log probabilities of all symbols, and the states that they come from."""

    log_probs_BTV: Tensor
    encoder_layers: list[Tensor]
    decoder_BTD: Tensor


class Lightner(nn.Module):
    """A BART with prompts that writes symbols."""

    def __init__(self, bart: Bart, names: Names, form: Any) -> None:
        super().__init__()
        self.form = form
        self.types = len(names.labels)
        self.bart = bart
        self.prompts = Prompts(bart, form) if form.prompts else None
        labels_YK, shares_YK = _labels(names.labels)
        self.register_buffer("labels_YK", labels_YK, persistent=False)
        self.register_buffer("shares_YK", shares_YK, persistent=False)
        self.register_buffer("ends_2", torch.tensor([names.start, names.stop]), persistent=False)

    @property
    def stop(self) -> int:
        """The number of the stop symbol; the text's words follow it."""
        return self.types

    def encoded(self, batch: PointerBatch, *, q: Tensor | None = None) -> Tensor:
        """states_BPD of the encoder."""
        return self.bart.read(batch.ids_BP, mask_BP=batch.mask_BP, prompts=self.reads(q=q))

    def reads(self, *, q: Tensor | None = None) -> list[Prompt] | None:
        """The encoder's prompts."""
        return self.prompts(self.prompts.encoder, q) or None if self.prompts is not None else None

    def wrote(self, *, q: Tensor | None = None) -> list[Prompt] | None:
        """The decoder's prompts."""
        return None if self.prompts is None else self.prompts(self.prompts.decoder, q)

    def started(self) -> Tensor:
        """start_D: the first input."""
        start_D: Tensor = self.bart.shared(self.get_buffer("ends_2")[0])
        return start_D

    def known(self, batch: PointerBatch, *, q: Tensor | None = None) -> Text:
        """Prepare a batch for writing; the encoder runs unless its states are in the batch."""
        read_BPD = batch.states_BPD
        return self.text(batch, self.encoded(batch, q=q) if read_BPD is None else read_BPD)

    def text(self, batch: PointerBatch, states_BPD: Tensor) -> Text:
        """Prepare a batch for writing, given the encoder's states."""
        rows_B1 = torch.arange(len(states_BPD), device=states_BPD.device)[:, None]
        words_BLD = self.bart.shared(batch.ids_BP[rows_B1, batch.firsts_BL])
        pointed_BLD = (states_BPD[rows_B1, batch.firsts_BL] + words_BLD) / 2
        rows_YKD = self.bart.shared(self.get_buffer("labels_YK"))
        labels_YD = (rows_YKD * self.get_buffer("shares_YK")[:, :, None]).sum(1)
        stop_1D = self.bart.shared(self.get_buffer("ends_2")[1:])
        named_BVD = torch.cat((labels_YD, stop_1D)).expand(len(states_BPD), -1, -1)
        known_BL = (
            torch.arange(words_BLD.shape[1], device=batch.lengths_B.device)
            < batch.lengths_B[:, None]
        )
        return Text(
            reading=self.bart.reading(states_BPD, batch.mask_BP),
            given_BVD=torch.cat((named_BVD, words_BLD), 1),
            sought_BVD=torch.cat((named_BVD, pointed_BLD), 1),
            known_BV=functional.pad(known_BL, (self.types + 1, 0), value=True),
        )

    def written(
        self, batch: PointerBatch, text: Text, *, prompts: Sequence[Prompt] | None
    ) -> Tensor:
        """states_BTD of the decoder, given all symbols but the last (teacher forcing)."""
        before_BT = batch.symbols_BT[:, :-1].clamp(min=0)
        given_BTD = text.given_BVD[
            torch.arange(len(before_BT), device=before_BT.device)[:, None], before_BT
        ]
        first_B1D = self.started().expand(len(before_BT), 1, -1)
        tokens_BTD = torch.cat((first_B1D, given_BTD), 1) * self.bart.scale
        return self.bart.write(tokens_BTD, text.reading, prompts=prompts)

    def forward(self, batch: PointerBatch, q: Tensor | None = None) -> Tensor:
        """logits_BTV of each symbol to write, given those before it.

        `q` (QD, or BQD with one for each text) replaces the model's own.
        """
        text = self.known(batch, q=q)
        return logits(self.written(batch, text, prompts=self.wrote(q=q)), text)


def logits(states_BTD: Tensor, text: Text) -> Tensor:
    """logits_BTV; those of padding are so low that their probability is 0."""
    logits_BTV = states_BTD @ text.sought_BVD.transpose(1, 2)
    return logits_BTV.masked_fill(~text.known_BV[:, None], _NEVER)


def trace(model: Lightner, batch: PointerBatch) -> Trace:
    """One pass with all that an adversary sees; the encoder runs even if its states are known.

    Gradients flow through the states as well.
    """
    layers = model.bart.read_by_layer(batch.ids_BP, mask_BP=batch.mask_BP, prompts=model.reads())
    text = model.text(batch, layers[-1])
    states_BTD = model.written(batch, text, prompts=model.wrote())
    return Trace(functional.log_softmax(logits(states_BTD, text), 2), layers, states_BTD)


def symbol_losses(log_probs_BTV: Tensor, symbols_BT: Tensor) -> Tensor:
    """losses_BT: each symbol's negative log probability; 0 at padding."""
    losses_BT = -log_probs_BTV.gather(2, symbols_BT.clamp(min=0)[:, :, None])[:, :, 0]
    return losses_BT.masked_fill(symbols_BT == NOTHING, 0.0)


def split_writing_loss(
    model: Lightner, batch: PointerBatch, *, q: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """source_B and target_B: each text's loss of its own entities, and of another model's.

    Both are sums over symbols, as in Eq. 3; stop counts as source.
    """
    return split_losses(model(batch, q), batch)


def split_losses(logits_BTV: Tensor, batch: PointerBatch) -> tuple[Tensor, Tensor]:
    """Compute both losses from logits."""
    log_probs_BTV = functional.log_softmax(logits_BTV, 2)
    return parted(symbol_losses(log_probs_BTV, batch.symbols_BT), batch.source_BT)


def choose_trained(model: Lightner) -> None:
    """Require gradients for exactly what `form.tune` says; updates of low rank are peft's."""
    model.requires_grad_(model.form.tune == "all")
    if model.prompts is not None:
        model.prompts.requires_grad_(True)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.requires_grad_(True)


def _labels(labels: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """labels_YK and shares_YK: the pieces of each label, and the weight of each in the mean."""
    most = max((len(label) for label in labels), default=1)
    pieces = [[*label, *[label[0]] * (most - len(label))] for label in labels]
    counted = [[1 / len(label)] * len(label) + [0.0] * (most - len(label)) for label in labels]
    return (
        torch.tensor(pieces, dtype=torch.int64).view(-1, most),
        torch.tensor(counted, dtype=torch.float32).view(-1, most),
    )


# --- Greedy decoding
#
# Entities are written as start, end, type, and so on, until stop (Wang et al. 2023, Eq. 4).
#
# With constraints, a step chooses among the symbols that the grammar allows:
#
#     entities  →  stop  |  start  end  type  entities
#
# with an end not before its start, and a start after the end of the previous entity. So entities
# come in order, complete and without overlaps. Without constraints, as in the paper, any symbol
# may come at any step, at most three for each word.
#
# Where only some types are wanted, the model writes as ever, with all of its types: what it reads
# of its own writing is what it was trained on. An entity's label is then the likeliest wanted
# one. If that is not the likeliest of all, it must be likelier, with its start and end, than that
# no entity starts there, or else the entity keeps its unwanted type. Its probability is given
# that no unwanted type was possible: P(start) P(end) P(type) / (1 - P(start) P(end) P(unwanted
# types)).
#
# All texts of a batch advance together. Those that have stopped leave the batch once they are a
# quarter of it, since leaving copies all keys and values.
#
# Shapes: B texts, V symbols, T steps, L words; see `kinds.lightner.model`.


_LEAVE = 0.75  # no row leaves while more than this share of them still writes


class Written(NamedTuple):
    """symbols_BT, `NOTHING` after stop, and the log probability of each.

    Probabilities are among all symbols, whatever the grammar allows, but for wanted types.
    """

    symbols_BT: Tensor
    log_probs_BT: Tensor


def write_symbols(
    model: Lightner,
    batch: PointerBatch,
    *,
    constrained: bool = True,
    wanted_Y: Tensor | None = None,
) -> Written:
    """Write each text's targets, symbol by symbol. Call it without gradients, in evaluation mode.

    `wanted_Y` is true at the types that are wanted; None: all, and at least one must be. A text
    that fills all of the decoder's places ends without a stop.
    """
    text = model.known(batch)
    rows_B = _steps(len(batch.lengths_B), batch.lengths_B)
    cache, prompts = model.bart.cache(), model.wrote()
    writing = _Writing(model.types, batch.lengths_B, wanted_Y=wanted_Y)
    given_BD = model.started().expand(len(rows_B), -1)
    most = model.bart.config.max_position_embeddings // 3 * 3
    for step in range(min(most, 3 * int(batch.lengths_B.max()) + 1)):
        states_B1D = model.bart.write(
            given_BD[:, None] * model.bart.scale, text.reading, prompts=prompts, cache=cache
        )
        log_probs_BV = functional.log_softmax(logits(states_B1D, text)[:, 0], 1)
        allowed_BV = text.known_BV
        if constrained:
            allowed_BV = allowed_BV & writing.allowed(step, text.known_BV.shape[1])
        chosen_B = log_probs_BV.masked_fill(~allowed_BV, -torch.inf).argmax(1)
        writing.add(rows_B, chosen_B, log_probs_BV=log_probs_BV)
        going_B = ~writing.finished_B[rows_B]
        left = int(going_B.sum())
        if not left:
            break
        given_BD = text.given_BVD[_steps(len(rows_B), rows_B), chosen_B]
        if left <= _LEAVE * len(rows_B):
            kept_K = going_B.nonzero()[:, 0]
            rows_B, given_BD = rows_B[kept_K], given_BD[kept_K]
            text = _only(text, kept_K)
            cache.batch_select_indices(kept_K)
            writing.keep(kept_K)
    return writing.result()


def _only(text: Text, rows_K: Tensor) -> Text:
    states_BPD, mask_B11P = text.reading
    return Text(
        reading=DecoderInput(states_BPD[rows_K], None if mask_B11P is None else mask_B11P[rows_K]),
        given_BVD=text.given_BVD[rows_K],
        sought_BVD=text.sought_BVD[rows_K],
        known_BV=text.known_BV[rows_K],
    )


class _Writing:
    """The symbols so far, and what the grammar says of the next one."""

    def __init__(self, types: int, lengths_B: Tensor, *, wanted_Y: Tensor | None) -> None:
        rows = len(lengths_B)
        self.types = types
        self.lengths_B = lengths_B
        self.wanted_Y = wanted_Y
        self.finished_B = lengths_B.new_zeros(rows, dtype=torch.bool)
        # the first allowed word, as a symbol
        self.least_B = lengths_B.new_full((rows,), types + 1)
        self.symbols: list[Tensor] = []
        self.log_probs: list[Tensor] = []

    def allowed(self, step: int, symbols: int) -> Tensor:
        """allowed_BV, for the remaining texts."""
        numbers_V = _steps(symbols, self.least_B)
        place = step % 3
        if place == 2:
            return (numbers_V < self.types).expand(len(self.least_B), -1)
        words_BV = numbers_V >= self.least_B[:, None]
        return words_BV if place else words_BV | (numbers_V == self.types)

    def add(self, rows_B: Tensor, chosen_B: Tensor, *, log_probs_BV: Tensor) -> None:
        """Record a step: a start or an end bounds the next word from the left."""
        step = len(self.symbols)
        if step % 3 == 0:
            self.least_B = chosen_B
        elif step % 3 == 1:
            self.least_B = chosen_B + 1
        going_B = ~self.finished_B[rows_B]
        self.finished_B[rows_B] |= chosen_B == self.types
        log_prob_B = log_probs_BV.gather(1, chosen_B[:, None])[:, 0]
        if self.wanted_Y is not None and step >= 2:
            chosen_B, log_prob_B = self._wanted(rows_B, chosen_B, log_prob_B, log_probs_BV)
        symbols_B = chosen_B.new_full((len(self.finished_B),), NOTHING)
        symbols_B[rows_B] = chosen_B.masked_fill(~going_B, NOTHING)
        found_B = log_probs_BV.new_zeros(len(self.finished_B))
        found_B[rows_B] = log_prob_B
        self.symbols.append(symbols_B)
        self.log_probs.append(found_B.masked_fill(symbols_B == NOTHING, 0.0))
        self.finished_B |= step + 1 > 3 * self.lengths_B

    def _wanted(
        self, rows_B: Tensor, chosen_B: Tensor, log_prob_B: Tensor, log_probs_BV: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The symbols with wanted labels where these win, and their log probabilities."""
        assert self.wanted_Y is not None
        types_BY = log_probs_BV[:, : self.types]
        label_B = types_BY.masked_fill(~self.wanted_Y, -torch.inf).max(1)
        unwanted_B = types_BY.masked_fill(self.wanted_Y, -torch.inf).logsumexp(1).exp()
        start_B = self.log_probs[-2][rows_B]
        ends_B = (start_B + self.log_probs[-1][rows_B]).exp()
        wins_B = (label_B.indices == chosen_B) | (
            ends_B * label_B.values.exp() > 1.0 - start_B.exp()
        )
        given_B = label_B.values - torch.log1p(-ends_B * unwanted_B)
        wins_B = wins_B & (chosen_B < self.types)
        return (
            torch.where(wins_B, label_B.indices, chosen_B),
            torch.where(wins_B, given_B, log_prob_B),
        )

    def keep(self, rows_K: Tensor) -> None:
        """Keep only these texts."""
        self.least_B = self.least_B[rows_K]

    def result(self) -> Written:
        """All that was written."""
        return Written(torch.stack(self.symbols, 1), torch.stack(self.log_probs, 1))


def _steps(count: int, beside: Tensor) -> Tensor:
    return torch.arange(count, device=beside.device)


# --- Entities as targets of a pointing decoder
#
# Start, end, type of each, then stop.
#
# Symbols are numbered: the types first, then stop, then the words of a window from left to right.
# An entity's end is its last word. Entities are written in the order of their start (Wang et al.,
# Findings of ACL 2023, Eq. 2). The text itself comes from `kinds.pieces`: windows of long
# sentences, the place of each word's first piece, the unknown piece for a word without one.
#
# Annotation comes later and never changes a piece.
#
# Shapes: N symbols of all windows, S windows, B windows of a batch, P pieces, L words, T symbols,
# D numbers of an encoder's state.


@dataclass(frozen=True, eq=False)
class Pointers:
    """The targets of each window: `symbols_N[from_S1[s]:from_S1[s + 1]]`, stop included.

    `source_N` is false at the symbols of entities that another model found.
    """

    symbols_N: batches.Ints
    source_N: batches.Bools
    from_S1: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.from_S1) - 1


@dataclass(frozen=True, eq=False)
class PointerBatch(PieceBatch):
    """A batch for a pointing decoder. `lengths_B` counts words.

    `symbols_BT` is `NOTHING` in its padding, and empty without annotation. `states_BPD` are the
    encoder's, where they are known already.
    """

    firsts_BL: Tensor
    lengths_B: Tensor
    symbols_BT: Tensor
    source_BT: Tensor
    states_BPD: Tensor | None = None


def pointers(
    text: TokenText,
    spans: Sequence[Sequence[batches.TypedSpan]],
    *,
    types: Sequence[str],
    source: Set[str],
    most: int,
) -> Pointers:
    """Make the targets of each window, with these spans of each example.

    `spans` has the spans of each example, in tokens, without overlap, in any order. `source` are
    the types that the site annotated itself; stop counts as source. If an entity crosses a window's
    border, the part inside is an entity. `most` is how many symbols a decoder can write; a window's
    last entities are left out if it cannot write them all. Raises DataError if a type
    is not in `types`, a span lies outside its example, or the number of examples differs.
    """
    batches.check_spans(spans, text.windows, examples=text.examples)
    _check_types(spans, types)
    numbers = {name: number for number, name in enumerate(types)}
    symbols: list[int] = []
    own: list[bool] = []
    lengths: list[int] = []
    for window in text.windows:
        inside = sorted(
            (max(start, window.start) - window.start, min(end, window.end) - window.start, name)
            for start, end, name in spans[window.example]
            if start < window.end and end > window.start
        )
        room = (most - 1) // 3
        for start, end, name in inside[:room]:
            symbols += [len(types) + 1 + start, len(types) + end, numbers[name]]
            own += [name in source] * 3
        symbols.append(len(types))
        own.append(True)
        lengths.append(3 * min(len(inside), room) + 1)
    return Pointers(
        symbols_N=np.array(symbols, np.int32),
        source_N=np.array(own, np.bool_),
        from_S1=batches.offsets(lengths),
    )


def _check_types(spans: Sequence[Sequence[batches.TypedSpan]], types: Sequence[str]) -> None:
    for found in spans:
        for _, _, name in found:
            if name not in types:
                raise DataError(
                    "an entity has a type outside the declared set",
                    expected=", ".join(types) or "no type at all",
                    got=name,
                    fix="add the type, or map it in the site's `tags`",
                )


def spelled(
    symbols: Sequence[int], log_probs: Sequence[float], *, types: Sequence[str]
) -> tuple[list[tuple[batches.TypedSpan, float]], int]:
    """The spans that a row of symbols states, by start, with the probability of their symbols.

    Also how many irregular pieces were dropped: a type that does not follow exactly two words, an
    end before its start, words without a type, an entity that overlaps an earlier one.
    """
    found: list[tuple[batches.TypedSpan, float]] = []
    irregular, stop = 0, len(types)
    words: list[int] = []
    chance = 0.0
    for symbol, log_prob in zip(symbols, log_probs, strict=True):
        if symbol in (stop, NOTHING):
            break
        chance += log_prob
        if symbol > stop:
            words.append(symbol - stop - 1)
            continue
        if len(words) == 2 and words[0] <= words[1]:
            found.append(((words[0], words[1] + 1, types[symbol]), math.exp(chance)))
        else:
            irregular += 1
        words, chance = [], 0.0
    irregular += bool(words)
    kept: list[tuple[batches.TypedSpan, float]] = []
    for span, sure in found:
        if any(span[0] < other[1] and other[0] < span[1] for other, _ in kept):
            irregular += 1
        else:
            kept.append((span, sure))
    return sorted(kept), irregular


def pointer_batches(
    text: TokenText, *, written: Pointers | None = None, pieces_per_batch: int = 2048
) -> Iterator[PointerBatch]:
    """Every window once, longest first, at most `pieces_per_batch` padded pieces in a batch."""
    for rows in longest_first(text.lengths_S, pieces_per_batch):
        yield pointer_batch(text, rows, written=written)


def pointer_batch(
    text: TokenText, rows_B: batches.Rows, *, written: Pointers | None = None
) -> PointerBatch:
    """These windows as one batch, in this order."""
    read = token_batch(text, rows_B)
    symbols_BT = np.zeros((len(rows_B), 0), np.int64)
    source_BT = np.zeros((len(rows_B), 0), np.bool_)
    if written is not None:
        places_BT, inside_BT = batches.padded(written.from_S1, rows_B)
        symbols_BT = np.where(inside_BT, written.symbols_N[places_BT], NOTHING).astype(np.int64)
        source_BT = written.source_N[places_BT] | ~inside_BT
    return PointerBatch(
        rows_B=rows_B,
        ids_BP=read.ids_BP,
        mask_BP=read.mask_BP,
        firsts_BL=read.firsts_BL,
        lengths_B=read.lengths_B,
        symbols_BT=torch.from_numpy(symbols_BT),
        source_BT=torch.from_numpy(source_BT),
    )


# --- A pre-trained BART from a folder or the hub
#
# Its configuration, weights and tokenizer.
#
# Files are read as data: JSON and safetensors, never a pickle or code.


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
        """Return the form of pieces, `longest` at once. Raises SettingsError if too many."""
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
        return encoder.by_word(encoder.FastCutter(self.tokenizer), sentences)


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
        loaded = _assembled(model, encoder.tokenizer_of(self.folder), config, folder=self.folder)
        if encoder.digest_of_files(self.folder, _HOW) != self.digest:
            raise DataError("the model's files changed while it was in use", where=str(self.folder))
        return loaded


def load_bart(name: str) -> PretrainedBart:
    """The BART of this name: a folder, or else a model of the Hugging Face hub.

    Its files are checked and hashed; the model is loaded when it is first needed. Raises
    MissingDataError if the BART or a part of it is missing, SettingsError if it is not a BART, and
    DataError if a file is damaged.
    """
    folder = encoder.find_folder(name)
    _config(folder)
    encoder.check_files(folder)
    return PretrainedBart(name, folder, encoder.digest_of_files(folder, _HOW))


def _config(folder: Path) -> encoder.Config:
    path = folder / "config.json"
    if not path.is_file():
        raise MissingDataError(
            "this folder is not a BART: it has no config.json",
            expected="config.json, model.safetensors and a tokenizer, as `save_pretrained` writes",
            where=str(folder),
        )
    config = encoder.read_json(path)
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


def _model(folder: Path, config: encoder.Config) -> Bart:
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
    whole, lacking = encoder.read_pretrained(BartForConditionalGeneration, folder, what="BART")
    encoder.check_whole(lacking, folder, apart=("lm_head.", "final_logits_bias"))
    found = whole.model
    found.config.layer_norm_eps = epsilon
    state = {name: one for name, one in found.state_dict().items() if "embed_tokens" not in name}
    return bart_with(found.config, state).requires_grad_(False)


def _assembled(model: Bart, tokenizer: Any, config: encoder.Config, *, folder: Path) -> LoadedBart:
    rows = model.config.vocab_size
    frame = encoder.around(tokenizer, rows)
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


# --- Labels
#
# A model writes the names of types: the pieces of each name.


_BETWEEN = re.compile(r"[-_/\s]+")  # the words of a type's name


def labels_of(bart: PretrainedBart, types: Sequence[str]) -> list[tuple[int, ...]]:
    """The pieces of each type's name."""
    words = [[word for word in _BETWEEN.split(name) if word] for name in types]
    return [tuple(chain.from_iterable(pieces)) for pieces in bart.loaded.cut(words)]


def label_parts(label: Sequence[int]) -> frozenset[tuple[int, Fraction]]:
    """All that the model knows of a label: each piece, and its share."""
    return frozenset((piece, Fraction(n, len(label))) for piece, n in Counter(label).items())


def check_labels(types: Sequence[str], labels: Sequence[tuple[int, ...]]) -> None:
    """Raise SettingsError unless every label has pieces, different from all others."""
    seen: dict[frozenset[tuple[int, Fraction]], str] = {}
    for name, label in zip(types, labels, strict=True):
        if not label:
            raise SettingsError(
                "the name of an entity type has no word",
                got=repr(name),
                fix="map it to a name in words",
            )
        if (parts := label_parts(label)) in seen:
            raise SettingsError(
                "two entity types have names of the same pieces, so the model cannot tell"
                " them apart",
                got=f"{seen[parts]!r} and {name!r}",
                fix="map one of them to another name",
            )
        seen[parts] = name


# --- The trainer of LightNER
#
# Makes it from a BART's files, trains it, finds spans and gradients.
#
# BART itself is frozen; q and its projections are trained and travel (Wang et al., Findings of
# ACL 2023, 3.1). The gradients for the instance weights are those by q (3.3, Eq. 11).
#
# If the encoder has no prompts and nothing of it is trained, its states of a text never change:
# they are computed once, and kept with the text (4 bytes a number; 1 GB for 350,000 pieces of a
# BART-base).
#
# Shapes: S rows (sentences, or windows of long ones), B rows of a batch, N pieces of all rows, P
# pieces, D numbers of a state, Q prompts, G = Q · D.


_PER_BATCH = 4096  # most padded pieces of a batch
_PER_SLOPES = 512  # the same if the graph is kept for two backward passes


@dataclass(frozen=True, eq=False)
class LightnerText(TokenText):
    """Sentences as word pieces; `kept` has states_ND of all pieces, once known to never change."""

    kept: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class EncodedLightner:
    """A text and the symbols to write."""

    text: LightnerText
    written: Pointers

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class LightnerTrainer(EntityTrainer):
    """Makes and trains models of one form from one BART."""

    per_batch: ClassVar[int] = _PER_SLOPES

    bart: PretrainedBart
    form: Any

    @property
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""
        return tuple(self.form.types)

    @cached_property
    def pieces(self) -> Pieces:
        """The form of pieces. Raises SettingsError if BART reads fewer than `longest`."""
        return self.bart.loaded.pieces(self.form.longest)

    @cached_property
    def names(self) -> Names:
        """The tokens of the labels, of the start and of the stop.

        Raises SettingsError if a type's name has no word, or two names have the same pieces.
        """
        loaded, labels = self.bart.loaded, labels_of(self.bart, self.types)
        check_labels(self.types, labels)
        return Names(tuple(labels), start=loaded.start, stop=loaded.stop)

    @property
    def keeps_states(self) -> bool:
        """True if the encoder's states of a text never change."""
        return bool(self.form.where == "decoder" and self.form.tune != "all")

    def initial(self, seed: int) -> Lightner:
        """The BART with prompts drawn by the seed; only trained parameters require a gradient.

        All models made from one BART share its frozen weights in memory.
        """
        loaded = self.bart.loaded.model
        own = self.form.tune == "all"
        weights = {name: p.clone() if own else p for name, p in loaded.state_dict().items()}
        body = bart_with(loaded.config, weights, dropout=self.form.dropout)
        with seeded(seed):
            if self.form.tune == "lora":
                side = body if self.form.where == "both" else body.decoder
                rank = self.form.rank  # alpha is the rank: the learning rate does the same
                encoder.add_low_rank(side, ["q_proj", "v_proj"], rank=rank, alpha=rank)
            model = Lightner(body, self.names, self.form)
        choose_trained(model)
        widen(model)
        return placed(model.eval())

    def prepared(self, examples: Sequence[batches.Example]) -> LightnerText:
        """Sentences as word pieces, without their spans."""
        text = token_text(examples, pieces=self.pieces, cut=self.bart.loaded.cut)
        return LightnerText(**vars(text))

    def annotated(
        self, text: LightnerText, spans: Sequence[Sequence[batches.TypedSpan]], *, source: Set[str]
    ) -> EncodedLightner:
        """The text with these spans of each example; types in `source` are the site's own.

        Raises DataError as `pointers` does.
        """
        most = self.bart.loaded.model.config.max_position_embeddings
        written = pointers(text, spans, types=self.types, source=source, most=most)
        return EncodedLightner(text, written)

    def find(
        self, model: Lightner, text: LightnerText, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example, in order of start, as the model writes them greedily.

        A span's confidence is the product of the probabilities of its start, end and type, each
        among all symbols, given what was written before; `wanted` as `write` takes it.
        """
        types = self.types if wanted is None else wanted
        if not {*types} & {*self.types}:
            return [[] for _ in range(text.examples)]
        chosen_Y = torch.tensor([one in types for one in self.types])
        wanted_Y = None if wanted is None else beside(chosen_Y, model)
        by_window: list[list[FoundSpan]] = [[] for _ in range(len(text))]
        with still(model):
            self._keep(model, text)
            with predicting(model):
                for plain in pointer_batches(text, pieces_per_batch=most_read(model, _PER_BATCH)):
                    batch = beside(self._with_states(plain, text), model)
                    how = self.form.constrained
                    found = write_symbols(model, batch, constrained=how, wanted_Y=wanted_Y)
                    rows = zip(*(home(part).tolist() for part in found), strict=True)
                    for row, (symbols, log_probs) in zip(batch.rows_B.tolist(), rows, strict=True):
                        spans, _ = spelled(symbols, log_probs, types=self.types)
                        by_window[row] = [
                            FoundSpan(*span, chance) for span, chance in spans if span[2] in types
                        ]
        return join_windows(by_window, text.windows, examples=text.examples)

    def batch(
        self, model: Any, text: LightnerText, rows_B: batches.Rows, *, own: Any = None
    ) -> PointerBatch:
        """These rows, in this order, with the encoder's states if these never change."""
        self._keep(model, text)
        written = None if own is None else own.written
        return self._with_states(pointer_batch(text, rows_B, written=written), text)

    def losses(
        self, model: nn.Module, own: EncodedLightner, batch: PointerBatch, *, output: Tensor
    ) -> Parts:
        """The loss of each row's source symbols, and of its target symbols (Eq. 7 and 10)."""
        return split_losses(output, batch)

    def reduced(
        self, model: Lightner, own: EncodedLightner, optimiser: Optimiser
    ) -> AbstractContextManager[None]:
        """Reduce a trained token table to the rows that this text needs."""
        if self.form.tune != "all" or not optimiser.keeps_still:
            return nullcontext()
        text, names = own.text, self.names
        others = [text.padding, names.start, names.stop, *(n for one in names.labels for n in one)]
        return only_rows(model, model.bart.shared, np.append(text.ids_N, others))

    def row_gradients(self, model: Lightner, encoded: EncodedLightner) -> LastLayerGradients:
        """The gradients of each row's two losses by q, without dropout; the model is unchanged.

        Each row of a batch has its own copy of q, so one pass gives all gradients. Raises
        SettingsError if there are no prompts.
        """
        if model.prompts is None:
            raise SettingsError(
                "without prompts there is no q to take gradients by", expected="prompts > 0"
            )
        shape = (len(encoded), model.prompts.q_QD.numel())
        found = LastLayerGradients(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        text = encoded.text
        with still(model), _frozen(model):
            self._keep(model, text)
            q_QD = model.prompts.q_QD.detach()
            for rows_B, both in _slope_rows(encoded):
                plain = pointer_batch(text, rows_B, written=encoded.written)
                q_BQD = q_QD.repeat(len(plain), 1, 1).requires_grad_()
                batch = beside(self._with_states(plain, text), model)
                losses = split_writing_loss(model, batch, q=q_BQD)
                (slope,) = torch.autograd.grad(losses[0].sum(), q_BQD, retain_graph=both)
                found.source_SG[rows_B] = at_home(slope.flatten(1))
                if both:
                    (slope,) = torch.autograd.grad(losses[1].sum(), q_BQD)
                    found.target_SG[rows_B] = at_home(slope.flatten(1))
        return found

    def _keep(self, model: Lightner, text: LightnerText) -> None:
        """Compute the encoder's states of the text if they never change and are not known yet."""
        if not self.keeps_states or text.kept:
            return
        states_ND = torch.zeros(len(text.ids_N), model.bart.config.d_model)
        with predicting(model):
            for batch in pointer_batches(text, pieces_per_batch=most_read(model, _PER_BATCH)):
                read_BPD = home(model.encoded(beside(batch, model)))
                for row, state_PD in zip(batch.rows_B.tolist(), read_BPD, strict=True):
                    begin, end = text.from_S1[row : row + 2].tolist()
                    states_ND[begin:end] = state_PD[: end - begin]
        text.kept.append(states_ND)

    def _with_states(self, batch: PointerBatch, text: LightnerText) -> PointerBatch:
        if not text.kept:
            return batch
        (states_ND,) = text.kept
        steps_P = torch.arange(batch.ids_BP.shape[1])
        from_B1 = torch.from_numpy(text.from_S1[batch.rows_B])[:, None]
        places_BP = (from_B1 + steps_P).clamp(max=len(states_ND) - 1)
        return replace(batch, states_BPD=states_ND[places_BP])


def _slope_rows(encoded: EncodedLightner) -> Iterator[tuple[batches.Rows, bool]]:
    """The rows of each batch, and whether they have a target loss, which needs a second pass."""
    written = encoded.written
    has_S = np.add.reduceat(~written.source_N, written.from_S1[:-1]) > 0 if len(written) else ()
    for both in (True, False):
        rows = np.flatnonzero(np.asarray(has_S, np.bool_) == both)
        for places in longest_first(encoded.text.lengths_S[rows], _PER_SLOPES):
            yield rows[places], both


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Nothing of the model requires a gradient for the duration."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
