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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.models.bart import Bart, Prompt, Reading
from confide.models.tokens import TokenInput, parted

Where = Literal["both", "decoder"]
Tune = Literal["prompts", "all", "lora"]

NOTHING = -1
"""Padding of `symbols_BT`."""

_NEVER = -1e9  # the score of a symbol that does not exist


class LightnerInput(TokenInput, Protocol):
    """A padded batch; `mask_BP` is None without padding, `states_BPD` are the encoder's, if known.

    `source_BT` is false at the symbols of entities that another model found.
    """

    @property
    def symbols_BT(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def source_BT(self) -> Tensor: ...  # noqa: D102, N802
    @property
    def states_BPD(self) -> Tensor | None: ...  # noqa: D102, N802


@dataclass(frozen=True)
class LightnerSizes:
    """`hidden` is the paper's h; `where` says which layers have prompts.

    `tune` says what is trained: only the "prompts"; also low-rank updates of this `rank` of every
    query and value ("lora"); or "all". With 0 prompts there is no q.
    """

    prompts: int = 10
    hidden: int = 400
    where: Where = "both"
    tune: Tune = "prompts"
    rank: int = 8


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

    def __init__(self, bart: Bart, sizes: LightnerSizes) -> None:
        super().__init__()
        dim, own = bart.config.d_model, bart.config
        reading = own.encoder_layers if sizes.where == "both" else 0
        self.q_QD = nn.Parameter(torch.randn(sizes.prompts, dim))
        self.encoder = nn.ModuleList(Projection(dim, sizes.hidden) for _ in range(reading))
        self.decoder = nn.ModuleList(
            Projection(dim, sizes.hidden) for _ in range(own.decoder_layers)
        )

    def forward(self, layers: nn.ModuleList, q: Tensor | None = None) -> list[Prompt]:
        """The prompts of these layers; `q` (QD or BQD) replaces the module's own."""
        q = self.q_QD if q is None else q
        parts = [layer(q).chunk(2, -1) for layer in layers]
        return [(keys, values) for keys, values in parts]


class Text(NamedTuple):
    """What the model knows of a batch before it writes.

    `given_BVD` are the symbols' vectors as input, `sought_BVD` those that states are compared with;
    `known_BV` is false at padding.
    """

    reading: Reading
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

    def __init__(self, bart: Bart, names: Names, sizes: LightnerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.types = len(names.labels)
        self.bart = bart
        self.prompts = Prompts(bart, sizes) if sizes.prompts else None
        labels_YK, shares_YK = _labels(names.labels)
        self.register_buffer("labels_YK", labels_YK, persistent=False)
        self.register_buffer("shares_YK", shares_YK, persistent=False)
        self.register_buffer("ends_2", torch.tensor([names.start, names.stop]), persistent=False)

    @property
    def stop(self) -> int:
        """The number of the stop symbol; the text's words follow it."""
        return self.types

    def encoded(self, batch: LightnerInput, *, q: Tensor | None = None) -> Tensor:
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

    def known(self, batch: LightnerInput, *, q: Tensor | None = None) -> Text:
        """What is known before writing; the encoder runs unless its states are in the batch."""
        read_BPD = batch.states_BPD
        return self.text(batch, self.encoded(batch, q=q) if read_BPD is None else read_BPD)

    def text(self, batch: LightnerInput, states_BPD: Tensor) -> Text:
        """What is known before writing, given the encoder's states."""
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
        self, batch: LightnerInput, text: Text, *, prompts: Sequence[Prompt] | None
    ) -> Tensor:
        """states_BTD of the decoder, given all symbols but the last (teacher forcing)."""
        before_BT = batch.symbols_BT[:, :-1].clamp(min=0)
        given_BTD = text.given_BVD[
            torch.arange(len(before_BT), device=before_BT.device)[:, None], before_BT
        ]
        first_B1D = self.started().expand(len(before_BT), 1, -1)
        tokens_BTD = torch.cat((first_B1D, given_BTD), 1) * self.bart.scale
        return self.bart.write(tokens_BTD, text.reading, prompts=prompts)

    def forward(self, batch: LightnerInput, q: Tensor | None = None) -> Tensor:
        """logits_BTV of each symbol to write, given those before it.

        `q` (QD, or BQD with one for each text) replaces the model's own.
        """
        text = self.known(batch, q=q)
        return logits(self.written(batch, text, prompts=self.wrote(q=q)), text)


def logits(states_BTD: Tensor, text: Text) -> Tensor:
    """logits_BTV; those of padding are so low that their probability is 0."""
    logits_BTV = states_BTD @ text.sought_BVD.transpose(1, 2)
    return logits_BTV.masked_fill(~text.known_BV[:, None], _NEVER)


def trace(model: Lightner, batch: LightnerInput) -> Trace:
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


def split_loss(
    model: Lightner, batch: LightnerInput, *, q: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """source_B and target_B: each text's loss of its own entities, and of another model's.

    Both are sums over symbols, as in Eq. 3; stop counts as source.
    """
    return split_losses(model(batch, q), batch)


def split_losses(logits_BTV: Tensor, batch: LightnerInput) -> tuple[Tensor, Tensor]:
    """The same of logits."""
    log_probs_BTV = functional.log_softmax(logits_BTV, 2)
    return parted(symbol_losses(log_probs_BTV, batch.symbols_BT), batch.source_BT)


def choose_trained(model: Lightner) -> None:
    """Require gradients for exactly what `sizes.tune` says; updates of low rank are peft's."""
    model.requires_grad_(model.sizes.tune == "all")
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
