"""DP-FedNER: FedNER under noise: shared parts by a noisy sum of all sites, private ones by each.

Ge et al. 2020 (`confide.methods.fedner`), with the sums of `confide.methods.noise`.

A unit's gradient by shared and private parts together is clipped to one norm. The numbers of the
shared parts leave in a secure sum with each site's part of the noise, as under `dp-fedsgd`. Those
of the private parts never leave; a site steps along them with **all** of the noise added by itself.
Without that noise the promise would not hold: the next gradients of the shared parts depend on the
private parts, and through them on every unit. So what is charged is one noisy sum of both.

What leaves a site: its part of the noisy sum of the shared parts. With
`privacy.holdout_scores = "sent"` also counts on held-out text, which the account does not cover.
What never leaves: text, words, names of types, numbers of sentences, a loss, private parts, a
gradient without noise, who was drawn.

Where this differs from `fedner`: every site has the types that the settings name (`types =
"common"`), and no vectors of its own; no batch is parted by the sites' sizes, and sums are divided
by a constant; both sides step by Adam at `options.noisy_rate`; unless held-out text is open, a site
has no round that was best and keeps the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import F, ModelSpec
from confide.methods.dp_fedsgd import NoisySum
from confide.methods.fedner import ENROL, SCORE_OWN, TEST_OWN, Enrolled, FedNER, FedNERState
from confide.methods.method import Facts, OptionsTable
from confide.methods.noise import Noise, NoisySite, mean_gradient, wrapped
from confide.settings import Settings as RunSettings
from confide.training.optimisers import AdamMoments, adam


class DpFedNERSettings(OptionsTable):
    """The table `[options]`. `private` are as under FedNER; `noisy_rate` is Adam's rate."""

    private: tuple[str, ...] | None = None
    types: Literal["common"] = "common"
    local_steps: Literal[1] = 1
    noisy_rate: Annotated[float, Field(gt=0, le=1)] = 0.01

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError if a site has word vectors."""
        named = ["[model]"] if run.model.vectors else []
        named += [site.name for site in run.site if site.vectors]
        if named:
            raise SettingsError(
                "under noise a site has no word vectors of its own",
                expected="no `vectors`",
                got=f"vectors of {', '.join(named)}",
            )


@dataclass(frozen=True)
class ImproveNoisily:
    """Step along your own units' gradients under noise, and add those of the shared parts up."""

    weights: Arrays = carries("weights of the shared parts")
    noise: Noise = carries("how the sum is made noisy")
    rate: float = carries("learning rate of a step of the private parts")
    drawn: float = carries("what their sum is divided by: units that a site draws, about")


def improve_noisily(
    site: Site, memory: Enrolled[F] | None, ask: ImproveNoisily, turn: Turn
) -> tuple[NoisySum, Enrolled[F]]:
    """Update the private parts here; give the noisy sum of the shared ones. Raises Refusal."""
    memory = known(memory)
    if ask.weights.keys() & memory.own.keys():
        raise Refusal("bad-ask")  # or the update of a private part would leave
    if not (0 < ask.rate <= 1 and 0 < ask.drawn < math.inf):
        raise Refusal("bad-ask")
    both = {**ask.weights, **memory.own}
    sums = NoisySite.of(site, memory.form, ask=ask, turn=turn)
    total = sums.total(both, like=both, alone=sorted(memory.own))
    own, moments = adam(
        memory.own,
        mean_gradient({name: total[name] for name in memory.own}, ask.noise, drawn=ask.drawn),
        moments=AdamMoments(memory.steps, memory.means, memory.squares),
        learning_rate=ask.rate,
    )
    reply = NoisySum(wrapped({name: total[name] for name in ask.weights}))
    return reply, replace(memory, own=own, **vars(moments))


IMPROVE_NOISILY = Step.of(improve_noisily, summed=True, noisy=True)


class DpFedNER(FedNER):
    """The method: `round` is one iteration of Algorithm 1 under noise."""

    name: ClassVar[str] = "dp-fedner"
    kinds: ClassVar[tuple[str, ...]] = ("tagger", "encoder", "spans", "relations")
    steps: ClassVar[tuple[Step, ...]] = (ENROL, IMPROVE_NOISILY, SCORE_OWN, TEST_OWN)
    Settings: ClassVar[type[OptionsTable]] = DpFedNERSettings

    def fields(self, n: int) -> dict[str, object]:
        """Add to FedNER's fields the noise, and the rate of a site's own steps."""
        rate: float = self.options.noisy_rate
        return {**super().fields(n), **self.plan.fields(), "rate": rate}

    def round(
        self, state: FedNERState[ModelSpec], federation: Federation, n: int
    ) -> tuple[FedNERState[ModelSpec], Facts]:
        """Sites step by themselves; the server steps along the noisy mean of shared gradients."""
        rate, plan = self.options.noisy_rate, self.plan
        sites, facts = self.drawn(state, federation, n)
        ask = ImproveNoisily(
            weights=state.weights,
            noise=plan.noise,
            rate=rate,
            drawn=plan.units / len(federation.sites),
        )
        total = federation.sum(IMPROVE_NOISILY, ask, round=n, sites=sites)
        weights, moments = adam(
            state.weights,
            mean_gradient(total.noisy, plan.noise, drawn=plan.units),
            moments=AdamMoments(state.steps, state.means, state.squares),
            learning_rate=rate,
        )
        facts |= {"learning_rate": rate, "epsilon": plan.budget.epsilon_after(n)}
        return replace(state, weights=weights, **vars(moments)), facts
