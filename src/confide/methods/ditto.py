"""Ditto: a model of its own for every site, held to the common one.

Li, Hu, Beirami & Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
2021, Algorithm 1: sites train the common model as under FedAvg. Beside it each site trains a model
of its own on its loss plus λ/2 ‖v - w‖², where w is the common model of the round. The larger λ,
the more the two are alike; with λ = 0 the site's is trained alone.

What leaves a site: the same as under FedAvg; nothing of it depends on the site's own model.
What never leaves: text, words, predictions, the key, the site's own model.

Where we differ from the paper: a site's own model is trained as long as the common one, with an
optimiser of the same settings, and begins with the weights of its first round; a site that is not
drawn does not train; every site ends with its model of the last round that it took part in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import F
from confide.methods import fedavg
from confide.methods.method import Carried, Facts, OptionsTable, Trait
from confide.seeds import derive_seed
from confide.training.optimisers import Term


class DittoSettings(fedavg.FedAvgSettings):
    """The table `[options]`: `pull` is λ; others are as under FedAvg."""

    pull: Annotated[float, Field(ge=0)] = 0.1


@dataclass(frozen=True)
class TrainBoth(fedavg.Train):
    """Train from these weights, and your own model towards them."""

    pull: float = carries("how strongly a site's own model is held to the common one")


def train_both(
    site: Site, memory: fedavg.Personal[F] | None, ask: TrainBoth, turn: Turn
) -> tuple[fedavg.Update, fedavg.Personal[F]]:
    """Train the common model, and the site's own towards it; give the common one."""
    memory = known(memory)
    fitted, memory = ask.fit(site, memory, turn)
    site_model = memory.form.at(site)
    update = fedavg.weighed(site_model, ask, fitted)
    config = ask.config.with_term(Term(ask.pull, ask.weights))
    own = site_model.fit(memory.own or ask.weights, config, seed=derive_seed(turn.seed, "own"))
    return update, replace(memory, own=own.weights)


TAKE, _, SCORE = fedavg.FedAvg.steps
TRAIN_BOTH = Step.of(train_both, summed=True)


class Ditto(fedavg.FedAvg):
    """The method: FedAvg, beside which each site trains a model of its own."""

    name: ClassVar[str] = "ditto"
    steps: ClassVar[tuple[Step, ...]] = (TAKE, TRAIN_BOTH, SCORE)
    Settings: ClassVar[type[OptionsTable]] = DittoSettings
    traits: ClassVar[frozenset[Trait]] = frozenset({"personal"})

    def fields(self, n: int) -> dict[str, object]:
        """Add to FedAvg's fields how strongly a site's own model is held."""
        return super().fields(n) | {"pull": self.options.pull}

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Sites train both models; the server takes the mean of the common one."""
        ask = TrainBoth(**vars(fedavg.train_ask(self, state, n)), pull=self.options.pull)
        return self.averaged(state, federation, n, step=TRAIN_BOTH, ask=ask)
