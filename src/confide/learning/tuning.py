"""How much of an encoder is trained: all of it, its top layers, low-rank updates, biases, nothing.

One implementation for all kinds whose model has an encoder. What is not trained stays as the
encoder's public files have it, so it never travels: a model's weights are those parameters that
require a gradient, and whatever lies behind the encoder (the head) always does.

- `top`: the last `layers` layers (Howard & Ruder, ACL 2018, unfreeze in this order).
- `lora`: updates of low rank of the attention's queries and values (Hu et al., ICLR 2022, 4.2 and
  7.1), by the library peft: W + (alpha / rank) B A, with A drawn and B zero. A is averaged, and B:
  the mean of products is not the product of means, as all federated averaging of LoRA has it (Zhang
  et al., "FedPETuning", Findings of ACL 2023, 3.2).
- `bias`: the biases alone (Ben Zaken et al., "BitFit", ACL 2022).
- `frozen`: nothing. Features are computed once and kept (`learning.frozen`).

The rows of marks around entities, which no public file has, are trained unless the encoder is
frozen; then they are drawn from a fixed seed, the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from confide.errors import SettingsError
from confide.seeds import derive_seed

Tune = Literal["all", "top", "lora", "bias", "frozen"]

MARKS = derive_seed("marks of a frozen encoder")
"""The seed of the rows of marks that nobody trains."""

_UPDATED = re.compile(
    r"(query|value|query_proj|value_proj|q_lin|v_lin|q_proj|v_proj|Wqkv|in_proj|q|v)$"
)
"""What transformers' families call the linear layers of queries and values."""


@dataclass(frozen=True)
class Tuning:
    """What of an encoder is trained.

    As text, its `str`, it stands in a form: "all", "top 2", "lora 8 16", "bias", "frozen".
    """

    tune: Tune = "all"
    layers: int = 2
    rank: int = 8
    alpha: int = 16

    def __str__(self) -> str:
        numbers = {"top": f" {self.layers}", "lora": f" {self.rank} {self.alpha}"}
        return self.tune + numbers.get(self.tune, "")

    @classmethod
    def of(cls, text: str) -> Tuning:
        """The tuning of this text; the empty text of older forms is "all". Raises SettingsError."""
        found = re.fullmatch(
            r"(all|bias|frozen|)|top ([1-9]\d{0,3})|lora ([1-9]\d{0,3}) ([1-9]\d{0,3})", text
        )
        if found is None:
            raise SettingsError("nobody knows what of the encoder is trained", got=repr(text[:40]))
        plain, layers, rank, alpha = found.groups()
        if layers:
            return cls("top", layers=int(layers))
        if rank:
            return cls("lora", rank=int(rank), alpha=int(alpha))
        return cls(plain or "all")  # type: ignore[arg-type]

    @property
    def frozen(self) -> bool:
        """Whether the encoder never changes."""
        return self.tune == "frozen"

    @property
    def whole(self) -> bool:
        """Whether all of the encoder is trained."""
        return self.tune == "all"


WHOLE = Tuning()
"""All of the encoder is trained."""


def tune(model: nn.Module, body: Any, tuning: Tuning) -> None:
    """Choose what is trained of a model whose encoder is `body`; the rest requires no gradient.

    Updates of low rank are drawn by torch's generator. Raises SettingsError if the encoder has no
    such part, or peft is missing.
    """
    model.requires_grad_(True)
    if tuning.whole:
        return
    body.requires_grad_(False)
    _CHOOSE[tuning.tune](body, tuning)
    for name, parameter in body.named_parameters():
        if name.rpartition(".")[2] == "marks_KD":
            parameter.requires_grad_(not tuning.frozen)


def _top(body: Any, tuning: Tuning) -> None:
    layers = layers_of(body)
    if tuning.layers > len(layers):
        raise SettingsError(
            "the encoder has fewer layers than are to be trained",
            expected=f"encoder.layers of at most {len(layers)}",
            got=str(tuning.layers),
        )
    for layer in list(layers)[len(layers) - tuning.layers :]:
        layer.requires_grad_(True)


def layers_of(body: Any) -> nn.ModuleList:
    """The layers of a transformer, from bottom to top. Raises SettingsError if it has none."""
    count = getattr(body.config, "num_hidden_layers", None)
    lists = [one for one in body.modules() if isinstance(one, nn.ModuleList) and len(one) == count]
    if not lists:
        raise SettingsError("the encoder has no stack of layers", got=type(body).__name__)
    return lists[0]


def _bias(body: Any, tuning: Tuning) -> None:
    found = [p for name, p in body.named_parameters() if name.rpartition(".")[2] == "bias"]
    if not found:
        raise SettingsError(
            "this encoder has no biases to train",
            got=type(body).__name__,
            fix='set encoder.tune = "lora", "top" or "all"',
        )
    for parameter in found:
        parameter.requires_grad_(True)


def _lora(body: Any, tuning: Tuning) -> None:
    add_low_rank(body, updated(body), rank=tuning.rank, alpha=tuning.alpha)


def add_low_rank(body: nn.Module, layers: list[str], *, rank: int, alpha: int) -> None:
    """Give the linear layers of these names an update, drawn by torch's generator; only it trains.

    A name may also be the last part of a layer's. Raises SettingsError if peft is not installed.
    """
    peft = peft_library()
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=layers, bias="none"
    )
    peft.inject_adapter_in_model(config, body)


def updated(body: Any) -> list[str]:
    """The names of the linear layers that get an update. Raises SettingsError if there are none."""
    inside = {id(module) for module in layers_of(body).modules()}
    found = [
        name
        for name, module in body.named_modules()
        if isinstance(module, nn.Linear)
        and id(module) in inside
        and _UPDATED.fullmatch(name.rpartition(".")[2])
    ]
    if not found:
        raise SettingsError(
            "the encoder's queries and values are not where any known family has them",
            got=type(body).__name__,
            fix='set encoder.tune = "top", "bias" or "all"',
        )
    return found


def peft_library() -> Any:
    """The library peft. Raises SettingsError if it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise SettingsError(
            "updates of low rank need the library peft", fix="pip install 'confide[lora]'"
        ) from error
    return peft


def _frozen(body: Any, tuning: Tuning) -> None:
    body.never_trained = True


_CHOOSE: dict[str, Callable[[Any, Tuning], None]] = {
    "top": _top,
    "bias": _bias,
    "lora": _lora,
    "frozen": _frozen,
}


class MarkedEmbedding(nn.Embedding):
    """A table of pieces with rows for marks behind it, which are parameters of their own.

    `marks_KD` has the rows of ids from `num_embeddings` on, so the table may stay frozen.
    """

    def __init__(self, table: nn.Embedding, marks_KD: torch.Tensor) -> None:
        super().__init__(
            table.num_embeddings,
            table.embedding_dim,
            padding_idx=table.padding_idx,
            _weight=table.weight.detach(),
        )
        self.marks_KD = nn.Parameter(marks_KD)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """values_BPD."""
        first = self.num_embeddings
        plain_BPD = super().forward(input.clamp(max=first - 1))
        marks_BPD = self.marks_KD[(input - first).clamp(min=0)]
        return torch.where((input >= first)[..., None], marks_BPD, plain_BPD)
