"""FedDyn: sites whose losses are moved so that their optima agree.

Acar, Zhao, Matas Navarro, Mattina, Whatmough & Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021, Algorithm 1: a site minimises its loss minus ⟨g, w⟩ plus α/2 ‖w - w₀‖²,
where w₀ are the common weights and g is its gradient at the end of its last round; it then takes
α (w - w₀) off g. The server keeps h, the mean of all these, and the common weights become the mean
of the sites' minus h / α: where sites keep pulling one way, the common model goes further that way.

What leaves a site: the same as under FedAvg; the server works out the change of h from the mean.
What never leaves: text, words, predictions, the key, a site's gradient g.

Where we differ from the paper or decide what it leaves open: a site trains for a number of passes
with the settings' optimiser, and not to the optimum; all sites count alike, as in the paper; g and
h stay 0 in a first round in which sites fill in word vectors from a file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic

import numpy as np
from pydantic import Field

from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import SCORE, TAKE, F, Kept, State
from confide.methods.fedavg import Train, Update, mean_of, train_ask, train_fields, weighed
from confide.methods.method import Carried, Facts, Method, OptionsTable, has_vectors
from confide.training.optimisers import Term


class FedDynSettings(OptionsTable):
    """The table `[options]`: `alpha` is the strength of the regularisation."""

    alpha: Annotated[float, Field(gt=0)] = 0.1


@dataclass(frozen=True)
class TrainDynamic(Train):
    """Train from these weights, with your loss moved by your gradient."""

    alpha: float = carries("how strongly training is held to its start")


@dataclass(frozen=True)
class Moved(Kept[F], Generic[F]):
    """A site's memory: the form, and its gradient at the end of its last round."""

    gradient: Arrays = carries("the site's gradient: never sent", start=dict)


@dataclass(frozen=True)
class FedDynState(State[F], Generic[F]):
    """The server's state from round to round."""

    drift: Arrays = carries("h: -α times the mean over all sites of their changes", start=dict)


def train_dynamic(
    site: Site, memory: Moved[F] | None, ask: TrainDynamic, turn: Turn
) -> tuple[Update, Moved[F]]:
    """Train on the moved loss, and move the gradient by how far the weights went."""
    memory = known(memory)
    before = memory.gradient
    away = {name: -array for name, array in before.items()}
    fitted, memory = ask.fit(site, memory, turn, term=Term(ask.alpha, linear=away or None))
    if not (ask.config.vectors and site.vectors):
        alpha, start = np.float32(ask.alpha), ask.weights
        moved = {n: before.get(n, 0) - alpha * (w - start[n]) for n, w in fitted.weights.items()}
        memory = replace(memory, gradient=moved)
    return weighed(memory.form.at(site), ask, fitted), memory


TRAIN_DYNAMIC = Step.of(train_dynamic, summed=True)


class FedDyn(Method):
    """The method: `round` is one round of Algorithm 1."""

    name: ClassVar[str] = "feddyn"
    steps: ClassVar[tuple[Step, ...]] = (TAKE, TRAIN_DYNAMIC, SCORE)
    Settings: ClassVar[type[OptionsTable]] = FedDynSettings
    State: ClassVar[type] = FedDynState

    def fields(self, n: int) -> dict[str, object]:
        """All sites count alike."""
        return train_fields(self) | {"alpha": self.options.alpha}

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Sites train on their moved losses; the mean of their weights is moved on by h."""
        sites, facts = self.drawn(state, federation, n)
        if not sites:
            return state, facts
        ask = TrainDynamic(**vars(train_ask(self, state, n)), alpha=self.options.alpha)
        total = federation.sum(TRAIN_DYNAMIC, ask, round=n, sites=sites)
        facts |= {"loss": total.loss / total.weight, "sentences": total.examples}
        share, mean = total.weight / len(federation.sites), mean_of(total, state.weights)
        if ask.config.vectors and has_vectors(self.run):
            return replace(state, weights=mean), facts
        alpha, drift, weights = np.float32(ask.alpha), Arrays(), Arrays()
        for name, new in mean.items():
            change = np.float32(share) * (new - state.weights[name])
            drift[name] = state.drift.get(name, np.zeros_like(new)) - alpha * change
            weights[name] = new - drift[name] / alpha
        return replace(state, weights=weights, drift=drift), facts
