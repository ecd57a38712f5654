"""The optimisers of local training, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from confide.errors import SettingsError

Parameters = Iterable[nn.Parameter]


@dataclass(frozen=True)
class Optimiser:
    """An optimiser and its numbers. `clip` bounds the norm of the whole gradient; 0: no bound.

    `momentum` is SGD's; Adam's and AdamW's betas are 0.9 and 0.999. The default is the paper's
    (Luboshnikov & Makarov 2020), after Ma & Hovy 2016, 3.2.
    """

    name: str = "sgd"
    learning_rate: float = 0.015
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float = 5.0

    @property
    def keeps_still(self) -> bool:
        """Whether a number whose gradient is always zero stays as it is, to the bit."""
        return self.weight_decay == 0.0


def build(parameters: Parameters, settings: Optimiser) -> torch.optim.Optimizer:
    """The torch optimiser; raises `SettingsError` for a name that is not in `OPTIMISERS`."""
    try:
        make = OPTIMISERS[settings.name]
    except KeyError:
        raise SettingsError(
            "unknown optimiser", expected=", ".join(OPTIMISERS), got=settings.name
        ) from None
    return make(parameters, settings)


def _sgd(parameters: Parameters, settings: Optimiser) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        parameters,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def _adam(parameters: Parameters, settings: Optimiser) -> torch.optim.Optimizer:
    return torch.optim.Adam(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )


def _adamw(parameters: Parameters, settings: Optimiser) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )


OPTIMISERS: dict[str, Callable[[Parameters, Optimiser], torch.optim.Optimizer]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
}
