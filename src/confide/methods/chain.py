"""The chain: the drawn sites train one after another, each from where the last one stopped.

A baseline of Sui et al. 2021 (Lazy MIL, 4.1); cyclic weight transfer in Chang et al., JAMIA 2018.

What leaves a site: the same as under FedAvg; but its trained weights are the next site's start, so
the server sees them one by one.
What never leaves: text, words, predictions, the key.

What we decide:
- each round draws a new order; weights pass through the server, since sites do not talk to each
  other; a site that fails is skipped, one without training text is not asked;
- the first site of the first round fills in the rows of the word vector file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from confide.federation.federation import Federation
from confide.federation.guards import Within
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import SCORE, TAKE, F, Kept, ModelSpec
from confide.methods.fedavg import FedAvgState, Train, Update, train, train_ask, train_fields
from confide.methods.method import Facts, Method
from confide.seeds import derive_seed


def train_in_turn(
    site: Site, memory: Kept[F] | None, ask: Train, turn: Turn
) -> tuple[Update, Kept[F]]:
    """Train as under FedAvg, from where the previous site stopped."""
    return train(site, memory, ask, turn)


TRAIN_IN_TURN = Step.of(train_in_turn)


class Chain(Method):
    """The method: in a round the drawn sites train in turn, and no mean is taken."""

    name: ClassVar[str] = "chain"
    steps: ClassVar[tuple[Step, ...]] = (TAKE, TRAIN_IN_TURN, SCORE)
    State: ClassVar[type] = FedAvgState

    def round(
        self, state: FedAvgState[ModelSpec], federation: Federation, n: int
    ) -> tuple[FedAvgState[ModelSpec], Facts]:
        """The drawn sites train in a random order, each from where the last one stopped."""
        sites, facts = self.drawn(state, federation, n)
        order = np.random.default_rng(derive_seed(federation.seed, "chain", n)).permutation(sites)
        ask = train_ask(self, state, n)
        replies = federation.relay(
            TRAIN_IN_TURN, ask, round=n, sites=list(map(str, order)), then=_on_from
        )
        links = list(replies.values())
        facts |= {
            "loss": sum(link.loss for link in links) / len(links) if links else None,
            "order": list(replies),
            "sentences": sum(link.examples for link in links),
        }
        weights = links[-1].weights if links else state.weights
        return replace(state, weights=weights), facts

    def fields(self, n: int) -> dict[str, object]:
        """Only the first site of all fills in word vectors."""
        return train_fields(self) | {"config.vectors": Within(0, n == 1)}


def _on_from(ask: Train, reply: Update) -> Train:
    """The next site's ask: to train on from this reply, which has word vectors already."""
    return replace(ask, weights=reply.weights, config=ask.config.without_vectors())
