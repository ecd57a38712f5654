"""FedAtt: FedAvg that attends, layer by layer, more to sites that moved further.

Ji, Pan, Long, Li, Jiang & Huang, "Learning Private Neural Language Modeling with Attentive
Aggregation", IJCNN 2019: in each layer the central weights move by ε times the attended difference,

    w ← w - ε Σ_k α_k (w - w_k),   α = softmax over the sites of ‖w - w_k‖   (Algorithm 2).

What leaves a site: the same as under FedAvg; but the server must see how far each site moved, so it
sees trained weights one by one. Where it may see only sums, a round has two of them: first of
exp ‖w - w_k‖ by layer, which are the softmax's denominators; then of α_k (w_k - w), since each site
works out its own α_k from its norm and the denominator. Neither weights nor norms are seen singly.
What never leaves: text, words, predictions, the key.
What the two sums still tell: if in a layer one site moves much further than all others, then nearly
all attention is its own, the first sum tells its norm and the second its change of that layer.

What we decide: a layer is one named array of the model; all participating sites count alike. In
sums, a norm above 150 counts as 150; and the attention of a site that is lost between the two moves
nothing, since to share it out anew the server would have to learn that site's norms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from confide.errors import GuardError
from confide.federation.combining import norm_of
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import clipped
from confide.federation.memory import known
from confide.federation.messages import Arrays, Learnt, Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import SCORE, TAKE, F, Kept, ModelSpec
from confide.methods.fedavg import FedAvgState, Train, Update, train, train_ask, train_fields
from confide.methods.method import Facts, Method, OptionsTable

FARTHEST = 150.0
"""Norms above count as this, so that exp of a norm fits its digits."""
DIGITS, BITS = 8, 32
"""exp of a norm, times 2^32, travels as 8 digits of 32 bits, the lowest first."""


class FedAttSettings(OptionsTable):
    """The table `[options]`: `epsilon` is how far the central weights move."""

    epsilon: Annotated[float, Field(gt=0)] = 1.2


@dataclass(frozen=True)
class Measured:
    """A site's distance from the common weights, which only makes sense as a sum over sites."""

    powers_LP: NDArray[np.int64] = carries(
        "exp of the norm of each layer's change, in digits",
        rule="clipped",
        value=Value(least=0, largest=2**BITS - 1, shape=lambda ask: (len(ask.weights), DIGITS)),
    )
    loss: float = carries("mean training loss per example")
    examples: int = carries("examples trained on, over all epochs", value=Value(least=1))
    sites: int = carries("1: the site itself", value=Value(least=1, largest=1))


@dataclass(frozen=True)
class Attend:
    """Weigh your change by its share of all attention."""

    totals_L: NDArray[np.float64] = carries(
        "the sum over sites of exp of each layer's norm, in the order of the layers' names"
    )
    shapes: dict[str, NDArray[np.int64]] = carries("the shape of each layer", legend="A")


@dataclass(frozen=True)
class Attended:
    """The site's update, times its attention."""

    change: dict[str, NDArray[np.float32]] = carries(
        "change of the weights, each layer's times the site's attention",
        legend="X",
        value=Learnt(
            shape=lambda ask: {name: tuple(one.tolist()) for name, one in ask.shapes.items()},
            combined=False,
            shared=True,
        ),
    )


@dataclass(frozen=True)
class Attending(Kept[F], Generic[F]):
    """A site's memory: the form and, from the first sum of a round to the second, its change."""

    moved_round: int = carries(
        "the round of its last measured change; -1 before the first", start=lambda: -1
    )
    change: Arrays = carries("that change, until it has been attended to: never sent", start=dict)


def train_alone(
    site: Site, memory: Kept[Any] | None, ask: Train, turn: Turn
) -> tuple[Update, Kept[Any]]:
    """Train as under FedAvg, for a server that sees each site's weights."""
    return train(site, memory, ask, turn)


def measure(
    site: Site, memory: Attending[F] | None, ask: Train, turn: Turn
) -> tuple[Measured, Attending[F]]:
    """Train as under FedAvg, keep the change, and say how far each layer moved."""
    if site.guards.private:
        raise Refusal("private-part")
    trained, kept = train(site, known(memory), ask, turn)
    trained = clipped(TRAIN_ALONE, ask, trained, most=site.guards.max_norm)
    change = {name: trained.weights[name] - ask.weights[name] for name in sorted(ask.weights)}
    powers = [digits_of(norm_of([one])) for one in change.values()]
    reply = Measured(np.array(powers, np.int64), trained.loss, trained.examples, 1)
    after = cast(Attending[F], kept)
    return reply, replace(after, moved_round=turn.round, change=change)


def attend(
    site: Site, memory: Attending[F] | None, ask: Attend, turn: Turn
) -> tuple[Attended, Attending[F]]:
    """The site's change, each layer's times its share of the attention.

    Raises Refusal for an ask that no sum of exponentials can be, GuardError if the site has
    measured nothing in this round: that depends on its text.
    """
    memory = known(memory)
    if not (np.isfinite(ask.totals_L) & (ask.totals_L > 0)).all():
        raise Refusal("bad-ask")
    if memory.moved_round != turn.round or memory.change.keys() != ask.shapes.keys():
        raise GuardError("this round's change was not measured")
    found = {}
    for (name, change), total in zip(
        sorted(memory.change.items()), ask.totals_L.tolist(), strict=True
    ):
        attention = min(1.0, math.exp(min(norm_of([change]), FARTHEST)) / total)
        found[name] = (attention * change).astype(np.float32)
    return Attended(found), replace(memory, change={})


def digits_of(norm: float) -> list[int]:
    """exp(norm) · 2^32 in whole digits, the lowest first. Raises GuardError if it is not finite.

    >>> digits_of(0.0)
    [0, 1, 0, 0, 0, 0, 0, 0]
    """
    if not math.isfinite(norm):
        raise GuardError("a layer's change is not finite")
    whole = int(math.ldexp(math.exp(min(norm, FARTHEST)), BITS))
    return [whole >> (BITS * place) & (2**BITS - 1) for place in range(DIGITS)]


def totals_of(powers_LP: NDArray[np.int64]) -> NDArray[np.float64]:
    """Decode sums of digits, by layer.

    >>> totals_of(np.array([[0, 3, 0], [2**31, 0, 1]])).tolist()
    [3.0, 4294967296.5]
    """
    rows = powers_LP.astype(np.int64).tolist()
    wholes = [sum(digit << (BITS * place) for place, digit in enumerate(row)) for row in rows]
    return np.array([whole / 2**BITS for whole in wholes])


TRAIN_ALONE = Step.of(train_alone)
MEASURE = replace(Step.of(measure, summed=True), drawn="train_alone", once=True)
ATTEND = replace(Step.of(attend, summed=True), once=True, after=MEASURE.name)


class FedAtt(Method):
    """The method: `round` moves the central weights towards the sites', by attention."""

    name: ClassVar[str] = "fedatt"
    steps: ClassVar[tuple[Step, ...]] = (TAKE, TRAIN_ALONE, MEASURE, ATTEND, SCORE)
    Settings: ClassVar[type[OptionsTable]] = FedAttSettings
    State: ClassVar[type] = FedAvgState

    def round(
        self, state: FedAvgState[ModelSpec], federation: Federation, n: int
    ) -> tuple[FedAvgState[ModelSpec], Facts]:
        """Sites train from the common weights, which then move towards the sites' (Algorithm 2)."""
        sites, facts = self.drawn(state, federation, n)
        if not sites:
            return state, facts
        ask = train_ask(self, state, n)
        if federation.summing is not None:
            return self._unseen(state, federation, ask, n=n, sites=sites, facts=facts)
        replies = list(federation.ask(TRAIN_ALONE, ask, round=n, sites=sites).values())
        facts |= {
            "loss": sum(reply.loss for reply in replies) / len(replies),
            "sentences": sum(reply.examples for reply in replies),
        }
        trained = [reply.weights for reply in replies]
        moved = attended(state.weights, trained, epsilon=self.options.epsilon)
        return replace(state, weights=moved), facts

    def fields(self, n: int) -> dict[str, object]:
        """All sites count alike."""
        return train_fields(self)

    def _unseen(
        self,
        state: FedAvgState[ModelSpec],
        federation: Federation,
        ask: Train,
        *,
        n: int,
        sites: Sequence[str],
        facts: Facts,
    ) -> tuple[FedAvgState[ModelSpec], Facts]:
        """Take the step from two sums: of what attention is divided by, and of attended changes."""
        assert federation.summing is not None, "asked only where replies are summed unseen"
        first = federation.sum(MEASURE, ask, round=n, sites=sites)
        shapes = {name: np.array(one.shape, np.int64) for name, one in ask.weights.items()}
        second = Attend(totals_of(first.powers_LP), shapes)
        there = federation.summing.newest
        total = federation.sum(ATTEND, second, round=n, sites=there)
        moved = {
            name: (start + self.options.epsilon * total.change[name]).astype(np.float32)
            for name, start in state.weights.items()
        }
        facts |= {"loss": first.loss / first.sites, "sentences": first.examples}
        return replace(state, weights=moved), facts


def attended(
    before: Mapping[str, np.ndarray], trained: Sequence[Arrays], *, epsilon: float
) -> Arrays:
    """The central weights, moved towards the sites' (Ji et al. 2019, Eq. 4 to 6)."""
    moved = {}
    for name, start in before.items():
        away = [start - weights[name] for weights in trained]
        norms_K = np.array([norm_of([one]) for one in away])
        attention_K = np.exp(norms_K - norms_K.max())
        attention_K /= attention_K.sum()
        step = sum(float(a) * one for a, one in zip(attention_K, away, strict=True))
        moved[name] = (start - epsilon * step).astype(np.float32)
    return moved
