"""FedBN for layer norms: FedAvg of all parts but the normalisation layers, which stay at the sites.

Li, Jiang, Zhang, Kamp & Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, Algorithm 1: sites train the whole model, and the server averages all but
the normalisation layers. These take up how a site's text differs from the others' (its hospital's
abbreviations, its notes' form), and the rest can be common.

What leaves a site: the same as under FedAvg, without the weights of its layer norms.
What never leaves: text, words, predictions, the key, the layer norms.

Where we differ from the paper: encoders have layer norms and no batch norms, so there are no
running means; every site ends with a model of its own, with the norms of its last round. Where no
norm is trained (`encoder.tune`), it is FedAvg.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import F
from confide.methods.fedavg import FedAvg, Personal, Train, Update, weighed
from confide.methods.method import Carried, Facts, Trait


def shared(weights: Arrays) -> Arrays:
    """The weights of all but the layer norms."""
    return {
        name: array
        for name, array in weights.items()
        if "layernorm" not in name.lower().replace("_", "")
    }


def train_with_norms(
    site: Site, memory: Personal[F] | None, ask: Train, turn: Turn
) -> tuple[Update, Personal[F]]:
    """Train the whole model on the site's own text, and keep the norms."""
    memory = known(memory)
    own = memory.own or memory.form.first(turn.seed, site=site)
    fitted, memory = replace(ask, weights={**own, **ask.weights}).fit(site, memory, turn)
    common = shared(fitted.weights)
    norms = {name: array for name, array in fitted.weights.items() if name not in common}
    update = weighed(memory.form.at(site), ask, fitted._replace(weights=common))
    return update, replace(memory, own=norms)


TAKE, _, SCORE = FedAvg.steps
TRAIN_WITH_NORMS = Step.of(train_with_norms, summed=True)


class FedBN(FedAvg):
    """The method: `round` averages all but the layer norms."""

    name: ClassVar[str] = "fedbn"
    kinds: ClassVar[tuple[str, ...]] = ("encoder", "lightner", "spans", "relations")
    steps: ClassVar[tuple[Step, ...]] = (TAKE, TRAIN_WITH_NORMS, SCORE)
    traits: ClassVar[frozenset[Trait]] = frozenset({"personal"})

    def start(self, federation: Federation) -> Any:
        """Agree on the model, and draw the first weights of all but the norms."""
        state = super().start(federation)
        return replace(state, weights=shared(state.weights))

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Sites train from the common weights and their norms; the server takes the mean."""
        return self.averaged(state, federation, n, step=TRAIN_WITH_NORMS)
