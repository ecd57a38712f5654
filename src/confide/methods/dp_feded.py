"""DP-FedED: FedED whose sites train under noise, so that their predictions say little of any unit.

Sui et al. 2020 (`confide.methods.feded`); a site trains by DP-SGD (Abadi et al., "Deep Learning
with Differential Privacy", CCS 2016, Algorithm 1) with the sums of `confide.methods.noise`.
Whatever is computed from a model that was trained so, predictions among it, tells no more than the
model (post-processing).

In a round a site takes `privacy.steps` steps from the central model. For each it draws units,
clips and adds up their gradients, adds **all** of the noise by itself, as it alone sees the sum,
and takes a step of Adam, with fresh moments in each round. Then it predicts the public set.

What leaves a site: its predictions of the public set. With `privacy.holdout_scores = "sent"` also
counts on held-out text, which the account does not cover. What never leaves: text, words, names of
types, a number of sentences, a loss, weights, gradients, who was drawn.

Where this differs from `feded`: no vocabulary, type, loss or number of examples is told; the sums
are divided by a constant, the site's even part of `privacy.units`; a site's optimiser is Adam at
`options.noisy_rate`; `average = "known"` is refused, because what a site knows depends on its text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import SCORE, F, P
from confide.methods import feded
from confide.methods.method import Facts, OptionsTable
from confide.methods.noise import Noise, NoisySite, mean_gradient
from confide.training.optimisers import AdamMoments, adam

MOST_STEPS = 10_000


class DpFedEDSettings(feded.FedEDSettings):
    """The table `[options]`. `noisy_rate` is the learning rate of a site's steps under noise."""

    average: Literal["all"] = "all"
    noisy_rate: Annotated[float, Field(gt=0, le=1)] = 0.01


@dataclass(frozen=True)
class PredictNoisily(feded.TrainAndPredict):
    """Train the central model on your own examples under noise, and predict the public set."""

    noise: Noise = carries("how each step's sum is made noisy")
    steps: int = carries("steps under noise")
    rate: float = carries("learning rate of a step")
    drawn: float = carries("what a step's sum is divided by: units that a site draws, about")


def predict_noisily(
    site: Site, memory: feded.PublicKept[F, P] | None, ask: PredictNoisily, turn: Turn
) -> tuple[feded.Predicted, feded.PublicKept[F, P]]:
    """Train under noise, each step charged to the account, and predict the public set.

    Raises Refusal.
    """
    memory = known(memory)
    site_model = feded.desk_for(site.without_text(), memory, ask)
    fits = 1 <= ask.steps <= MOST_STEPS and 0 < ask.rate <= 1 and 0 < ask.drawn < math.inf
    if not fits or ask.average != "all":
        raise Refusal("bad-ask")
    sums = NoisySite.of(site, memory.form, ask=ask, turn=turn, shared=False)
    weights, moments = ask.weights, AdamMoments(0, {}, {})
    for step in range(ask.steps):
        total = sums.total(weights, like=weights, step=step)
        slope = mean_gradient(total, ask.noise, drawn=ask.drawn)
        weights, moments = adam(weights, slope, moments=moments, learning_rate=ask.rate)
    return feded.predicted(site_model, memory.public, ask=ask, weights=weights), memory


PREDICT_NOISILY = Step.of(predict_noisily, summed=True, noisy=True)


class DpFedED(feded.FedED):
    """The method: in a round all sites train under noise; the server learns as under FedED."""

    name: ClassVar[str] = "dp-feded"
    steps: ClassVar[tuple[Step, ...]] = (feded.TAKE_PUBLIC_SET, PREDICT_NOISILY, SCORE)
    Settings: ClassVar[type[OptionsTable]] = DpFedEDSettings

    def fields(self, n: int) -> dict[str, object]:
        """Add to FedED's fields how a site steps under noise."""
        own = self.run.privacy
        assert own is not None, "the settings were checked"
        noisy = {"steps": own.steps, "rate": self.options.noisy_rate}
        return super().fields(n) | self.plan.fields() | noisy

    def _said(
        self, state: feded.Central, federation: Federation, n: int
    ) -> tuple[feded.Predicted | None, feded.TrainAndPredict, Facts]:
        sites, facts = self.drawn(state, federation, n)
        own = self.run.privacy
        assert own is not None, "the settings were checked"
        plain: dict[str, Any] = vars(self._asked_of(state, n))
        ask = PredictNoisily(
            **plain,
            noise=self.plan.noise,
            steps=own.steps,
            rate=self.options.noisy_rate,
            drawn=self.plan.units / len(federation.sites),
        )
        total: feded.Predicted = federation.sum(PREDICT_NOISILY, ask, round=n, sites=sites)
        facts |= {
            "learning_rate": self.options.noisy_rate,
            "saturated": feded.saturated(total, ask),
            "epsilon": self.plan.budget.epsilon_after(n),
        }
        return total, ask, facts
