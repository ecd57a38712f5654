"""FedAtt: FedAvg that attends, layer by layer, more to sites that moved further.

Ji, Pan, Long, Li, Jiang & Huang, "Learning Private Neural Language Modeling with Attentive
Aggregation", IJCNN 2019: in each layer the central weights move by ε times the attended difference,

    w ← w - ε Σ_k α_k (w - w_k),   α = softmax over the sites of ‖w - w_k‖   (Algorithm 2).

What leaves a site: the same as under FedAvg; but the server must see how far each site moved, so it
sees trained weights one by one.
What never leaves: text, words, predictions, the key.

What we decide: a layer is one named array of the model; all participating sites count alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from confide.federation.federation import Federation
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import SCORE, TAKE, F, Form, Kept
from confide.methods.fedavg import UPLOAD, Facts, FedAvg, FedAvgState, Train, Trained, train
from confide.settings import Table


class FedAttSettings(Table):
    """The table `[options]`: `epsilon` is how far the central weights move."""

    epsilon: Annotated[float, Field(gt=0)] = 1.2


def train_alone(
    site: Site, memory: Kept[F] | None, ask: Train, turn: Turn
) -> tuple[Trained, Kept[F]]:
    """Train as under FedAvg, for a server that sees each site's weights."""
    return train(site, memory, ask, turn)


TRAIN_ALONE = Step.of(train_alone, **UPLOAD)


class FedAtt(FedAvg):
    """The method: `round` moves the central weights towards the sites', by attention."""

    method: ClassVar[str] = "fedatt"
    own_steps: ClassVar[tuple[Step, ...]] = (TAKE, TRAIN_ALONE, SCORE)
    Settings: ClassVar[type] = FedAttSettings

    def round(
        self, state: FedAvgState[Form], federation: Federation, n: int
    ) -> tuple[FedAvgState[Form], Facts]:
        """Sites train from the common weights, which then move towards the sites' (Algorithm 2)."""
        ask, sites, facts = self._drawn(state, federation, n)
        if not sites:
            return state, facts
        step = self._step(TRAIN_ALONE)
        replies = list(federation.ask(step, ask, round=n, sites=sites).values())
        facts |= {
            "loss": sum(reply.loss for reply in replies) / len(replies),
            "sentences": sum(reply.examples for reply in replies),
        }
        trained = [reply.weights for reply in replies]
        moved = attended(state.weights, trained, epsilon=self._own.epsilon)
        return replace(state, weights=moved), facts


def attended(
    before: Mapping[str, np.ndarray], trained: Sequence[Arrays], *, epsilon: float
) -> Arrays:
    """The central weights, moved towards the sites' (Ji et al. 2019, Eq. 4 to 6)."""
    moved = {}
    for name, start in before.items():
        away = [start - weights[name] for weights in trained]
        norms_K = np.array([np.sqrt(np.square(one, dtype=np.float64).sum()) for one in away])
        attention_K = np.exp(norms_K - norms_K.max())
        attention_K /= attention_K.sum()
        step = sum(float(a) * one for a, one in zip(attention_K, away, strict=True))
        moved[name] = (start - epsilon * step).astype(np.float32)
    return moved
