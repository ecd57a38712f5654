"""FedProx: FedAvg whose sites are held to the weights that they start from.

Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, Algorithm 2: a site minimises its loss plus μ/2 ‖w - w₀‖², where w₀ are the common
weights. The further its text is from the others', the more the term keeps it from drifting away
while it trains; with μ = 0 it is FedAvg.

What leaves a site: the same as under FedAvg. What never leaves: text, words, predictions, the key.

Where we differ from the paper: a site trains for a number of passes, as under FedAvg, and not until
it is γ-inexact; sites are drawn alike, and their weights count as under FedAvg.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from confide.methods.fedavg import FedAvg, Weighting, train_fields
from confide.methods.method import OptionsTable, ServerTable


class FedProxSettings(ServerTable):
    """The table `[options]`: `mu` is the strength of the term; others are as under FedAvg."""

    mu: Annotated[float, Field(ge=0)] = 0.01
    weighting: Weighting | None = None
    rows: Literal["all", "seen"] = "all"


class FedProx(FedAvg):
    """The method: FedAvg, with the proximal term in every site's loss."""

    name: ClassVar[str] = "fedprox"
    Settings: ClassVar[type[OptionsTable]] = FedProxSettings

    def fields(self, n: int) -> dict[str, object]:
        """The weight of a site, and the strength of the term."""
        own = self.options
        return train_fields(self, weighting=own.weighting, rows=own.rows, proximal=own.mu)
