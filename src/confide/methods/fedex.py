"""FedEx-LoRA: FedAvg of updates of low rank, exact because the weights below are corrected.

Singhal, Ponkshe & Vepakomma, "FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning
of Foundation Models", ACL 2025 (arXiv 2410.09432): sites train both factors of W + s B A. The mean
of products is not the product of means, so the server adds the difference to W:

    W ← W + s (Σ_k w_k B_k A_k - B̄ Ā),   A ← Ā = Σ_k w_k A_k,   B ← B̄ = Σ_k w_k B_k.

What leaves a site: its kind's description of the text at the start; the change of its factors and
of the layer behind the encoder, which the server sees one by one; counts of right, predicted and
gold answers.
What never leaves: text, words, predictions, the key.
What changes may still reveal: as under FedAvg, and each site's is seen alone.

Where we differ from the paper: the corrected W travels down with the factors, whole, where the
paper sends the difference as factors of a rank that grows with the sites; a site that misses a
round needs no memory of it. Sites never send W.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from confide.errors import SettingsError
from confide.federation.federation import Federation
from confide.federation.messages import Arrays, Learnt, Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds import protocol
from confide.methods.fedavg import Train, Weighting, train_ask, train_fields, weighed
from confide.methods.method import Carried, Facts, Method, OptionsTable
from confide.settings import Settings as RunSettings
from confide.training.encoder import CORRECTED, Tuning

_DOWN, _UP = ".lora_A.default.weight", ".lora_B.default.weight"


class FedExSettings(OptionsTable):
    """The table `[options]`. The default of `weighting` is the kind's, as under FedAvg."""

    weighting: Weighting | None = None

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError unless updates of low rank are trained."""
        if run.encoder.tune != "lora" or run.encoder.factors != "exact":
            raise SettingsError(
                "fedex averages updates of low rank",
                expected='encoder.tune = "lora" and encoder.factors = "exact", its defaults',
                got=f"encoder.tune = {run.encoder.tune!r}, factors = {run.encoder.factors!r}",
                fix="leave them out, or use fedavg",
            )


@dataclass(frozen=True)
class Factors:
    """The change of a site's training, for a server that sees it alone."""

    change: dict[str, NDArray[np.float32]] = carries(
        "change of the factors and of what lies behind the encoder",
        value=Learnt(
            change=True,
            shape=lambda ask: {
                name: array.shape for name, array in ask.weights.items() if not below(name)
            },
        ),
    )
    weight: float = carries("the site's weight in the mean")
    loss: float = carries("mean training loss per example, times the weight")
    examples: int = carries("examples trained on, over all epochs", value=Value(least=1))


def below(name: str) -> bool:
    """Return whether this is a weight below an update of low rank: only the server changes it."""
    return name.endswith(CORRECTED)


def train_factors(
    site: Site, memory: protocol.Kept[Any] | None, ask: Train, turn: Turn
) -> tuple[Factors, protocol.Kept[Any]]:
    """Train the factors on the site's own text for some epochs."""
    fitted, memory = ask.fit(site, memory, turn)
    update = weighed(memory.form.at(site), ask, fitted)
    change = {
        name: array - ask.weights[name] for name, array in fitted.weights.items() if not below(name)
    }
    return Factors(change, update.weight, update.loss, update.examples), memory


TRAIN_FACTORS = Step.of(train_factors)


class FedEx(Method):
    """The method: `round` averages the factors, and corrects the weights below them."""

    name: ClassVar[str] = "fedex"
    kinds: ClassVar[tuple[str, ...]] = ("encoder", "relations")
    steps: ClassVar[tuple[Step, ...]] = (protocol.TAKE, TRAIN_FACTORS, protocol.SCORE)
    Settings: ClassVar[type[OptionsTable]] = FedExSettings

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Sites train from the common weights; the mean of their updates is the next state."""
        sites, facts = self.drawn(state, federation, n)
        if not sites:
            return state, facts
        ask = train_ask(self, state, n)
        replies = list(federation.ask(TRAIN_FACTORS, ask, round=n, sites=sites).values())
        weight = sum(reply.weight for reply in replies)
        facts |= {
            "loss": sum(reply.loss for reply in replies) / weight,
            "sentences": sum(reply.examples for reply in replies),
        }
        tuning = Tuning.of(state.form.tuning)
        weights = exact_mean(
            state.weights,
            [reply.change for reply in replies],
            shares=[reply.weight / weight for reply in replies],
            scale=tuning.alpha / tuning.rank,
        )
        return replace(state, weights=weights), facts

    def fields(self, n: int) -> dict[str, object]:
        """The weight of a site."""
        return train_fields(self, weighting=self.options.weighting)


def exact_mean(
    start: Arrays, changes: list[Arrays], *, shares: list[float], scale: float
) -> Arrays:
    """The common weights after a round: means, and below each update what its mean leaves out."""
    sites = [
        {name: start[name].astype(np.float64) + one for name, one in change.items()}
        for change in changes
    ]

    def mean(parts: list[np.ndarray]) -> Any:
        return sum(w * part for w, part in zip(shares, parts, strict=True))

    found = {name: mean([one[name] for one in sites]) for name in changes[0]}
    for name in filter(below, start):
        down, up = (name.removesuffix(CORRECTED) + end for end in (_DOWN, _UP))
        products = mean([one[up] @ one[down] for one in sites])
        found[name] = start[name] + scale * (products - found[up] @ found[down])
    return {name: found[name].astype(np.float32) for name in start}
