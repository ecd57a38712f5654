"""DP-FedSGD: a model that says no more of any one unit of text than ε allows.

McMahan, Ramage, Talwar & Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
2018 (arXiv 1710.06963), Algorithm 1 with one step a round (FedSGD), for units of text (Abadi et
al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1) instead of users; the noise
is made by the sites together, as whole numbers in a secure sum (Agarwal, Kairouz & Liu, "The
Skellam Mechanism for Differentially Private Federated Learning", NeurIPS 2021). A unit is a
document, a sentence or a patient.

In a round every site draws each of its units with the probability q, by a key of its own; clips
each drawn unit's gradient to the norm C; adds them up, and adds its part of the noise. The server
sees the sum over all sites, divides it by q times the number of units that the settings name, and
takes a step. docs/differential-privacy.md has the account.

What leaves a site: its part of the noisy sum. With `privacy.holdout_scores = "sent"` also counts of
right, predicted and gold answers on held-out text, which the account does not cover.
What never leaves: text, words, names of types, a number of sentences, a loss, a gradient without
noise, who was drawn.

Where we differ from the papers or decide what they leave open:
- a gradient is rounded to whole numbers before it is clipped, exactly;
- a unit's loss is the sum over its sentences (windows, pairs), without dropout, so the same ask
  gets the same answer;
- the sum is divided by a constant, never by how many units were drawn;
- names of types and relations come from the settings, and no vocabulary is counted;
- the server's step is Adam's by default: clipped and noisy gradients have no scale of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import SCORE, TAKE, F, Kept
from confide.methods.fedavg import FedAvgState
from confide.methods.method import Carried, Facts, Method, OptionsTable, ServerTable
from confide.methods.noise import Noise, NoisySite, mean_gradient, wrapped
from confide.training.optimisers import Server, stepped


class DpFedSGDSettings(ServerTable):
    """The table `[options]`: the server's step along the noisy mean of clipped gradients.

    "mean" and "momentum" step at `training.learning_rate`, times `server_rate`.
    """

    server: Server = "adam"


@dataclass(frozen=True)
class Noisy:
    """Add up the clipped gradients of units that you draw, and your part of the noise."""

    weights: Arrays = carries("the common weights")
    noise: Noise = carries("how the sum is made noisy")


@dataclass(frozen=True)
class NoisySum:
    """Clipped gradients and noise."""

    noisy: dict[str, NDArray[np.int32]] = carries(
        "the sum of the drawn units' clipped gradients in whole numbers, with the site's noise",
        rule="noise",
        value=Value(shape=lambda ask: {name: array.shape for name, array in ask.weights.items()}),
    )


def add_noisily(
    site: Site, memory: Kept[F] | None, ask: Noisy, turn: Turn
) -> tuple[NoisySum, Kept[F]]:
    """Draw units, add up their clipped gradients and the noise, and charge the site's account.

    Nothing is sent before it is charged, and the same ask gets the same answer. Raises Refusal.
    """
    memory = known(memory)
    sums = NoisySite.of(site, memory.form, ask=ask, turn=turn)
    return NoisySum(wrapped(sums.total(ask.weights, like=ask.weights))), memory


ADD_NOISILY = Step.of(add_noisily, summed=True, noisy=True)


class DpFedSGD(Method):
    """The method: `round` takes a step along the noisy sum of clipped gradients."""

    name: ClassVar[str] = "dp-fedsgd"
    kinds: ClassVar[tuple[str, ...]] = ("tagger", "encoder", "spans", "relations")
    steps: ClassVar[tuple[Step, ...]] = (TAKE, ADD_NOISILY, SCORE)
    Settings: ClassVar[type[OptionsTable]] = DpFedSGDSettings
    State: ClassVar[type] = FedAvgState

    def fields(self, n: int) -> dict[str, object]:
        """The noise."""
        return self.plan.fields()

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Take a step along the sum of the drawn units' clipped gradients, with its noise."""
        sites, facts = self.drawn(state, federation, n)
        ask = Noisy(state.weights, self.plan.noise)
        total = federation.sum(ADD_NOISILY, ask, round=n, sites=sites)
        step = self.options.step(n)
        rate = 1.0 if step.adaptive else self.config(n).learning_rate
        mean = mean_gradient(total.noisy, self.plan.noise, drawn=self.plan.units)
        moved = {
            name: start - np.float32(rate) * mean[name] for name, start in state.weights.items()
        }
        weights, moments, squares = stepped(
            state.weights, moved, how=step, moments=state.moments, squares=state.squares
        )
        facts |= {"learning_rate": rate * step.rate, "epsilon": self.plan.budget.epsilon_after(n)}
        return replace(state, weights=weights, moments=moments, squares=squares), facts
