"""SCAFFOLD: control variates take the drift of a site's own text out of its steps.

Karimireddy, Kale, Mohri, Reddi, Stich & Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, Algorithm 1, option II: the server keeps c, and each site c_i, an
estimate of its own gradient. A site steps along its gradient - c_i + c, then moves c_i to c_i - c +
(x - y) / (K η), where x are the common weights, and y its own after K steps at the rate η. The
server takes the mean of the weights, and of the changes of c_i over all sites.

What leaves a site: the same as under FedAvg, and the change of its control variate, which is a mean
gradient of its text: of both the server keeps only the sums.
What never leaves: text, words, predictions, the key, a control variate itself.

Where we differ from the paper or decide what it leaves open: sites step by plain SGD, whatever
`training.optimiser` says, at `rate`; a gradient is clipped with its correction; the server's rate
is 1; all sites count alike, as in the paper; a site's control variate stays 0 in a first round in
which it fills in word vectors from a file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic

import numpy as np
from pydantic import Field

from confide.errors import GuardError
from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, Learnt, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import SCORE, TAKE, F, Kept, State
from confide.methods.fedavg import Train, Update, mean_of, train_ask, train_fields, weighed
from confide.methods.method import Carried, Facts, Method, OptionsTable
from confide.training.optimisers import Term


class ScaffoldSettings(OptionsTable):
    """The table `[options]`: `rate` is a site's; by default SGD's `training.learning_rate`."""

    rate: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True)
class TrainControlled(Train):
    """Train from these weights, with your steps corrected."""

    control: Arrays = carries("c: the server's control variate")


@dataclass(frozen=True)
class ShiftControl:
    """Give the change of your control variate in this round."""

    control: Arrays = carries("c: the server's control variate")


@dataclass(frozen=True)
class Shifted:
    """The change of a site's control variate."""

    shift: Arrays = carries(
        "change of the site's control variate", value=Learnt(like="control", change=True)
    )


@dataclass(frozen=True)
class Controlled(Kept[F], Generic[F]):
    """A site's memory: the form, its control variate, and that variate's last change."""

    control: Arrays = carries("c_i: the site's control variate: never sent", start=dict)
    shift: Arrays = carries("its change in that round", start=dict)
    shifted: int = carries("the round of its last change", start=int)


@dataclass(frozen=True)
class ScaffoldState(State[F], Generic[F]):
    """The server's state from round to round."""

    control: Arrays = carries("c: the server's control variate", start=dict)


def train_controlled(
    site: Site, memory: Controlled[F] | None, ask: TrainControlled, turn: Turn
) -> tuple[Update, Controlled[F]]:
    """Train with corrected steps, and move the site's control variate (option II)."""
    memory = known(memory)
    common, zero = ask.control, np.float32(0)
    own = {name: memory.control.get(name, zero * array) for name, array in common.items()}
    apart = {name: array - own[name] for name, array in common.items()}
    fitted, memory = ask.fit(site, memory, turn, term=Term(linear=apart))
    shift = {name: zero * array for name, array in common.items()}
    if not (ask.config.vectors and site.vectors):
        times = np.float32(1 / (fitted.steps * ask.config.learning_rate))
        for name, array in fitted.weights.items():
            shift[name] = times * (ask.weights[name] - array) - common[name]
    control = {name: own[name] + array for name, array in shift.items()}
    memory = replace(memory, control=control, shift=shift, shifted=turn.round)
    return weighed(memory.form.at(site), ask, fitted), memory


def shift_control(
    site: Site, memory: Controlled[F] | None, ask: ShiftControl, turn: Turn
) -> tuple[Shifted, Controlled[F]]:
    """Give the change of this round. Raises GuardError if there was none."""
    memory = known(memory)
    if memory.shifted != turn.round:
        raise GuardError("the control variate did not change in this round")
    return Shifted(memory.shift), memory


TRAIN_CONTROLLED = Step.of(train_controlled, summed=True)
SHIFT_CONTROL = Step.of(shift_control, summed=True)


class Scaffold(Method):
    """The method: `round` is one round of Algorithm 1."""

    name: ClassVar[str] = "scaffold"
    steps: ClassVar[tuple[Step, ...]] = (TAKE, TRAIN_CONTROLLED, SHIFT_CONTROL, SCORE)
    Settings: ClassVar[type[OptionsTable]] = ScaffoldSettings
    State: ClassVar[type] = ScaffoldState

    def fields(self, n: int) -> dict[str, object]:
        """Plain SGD at the sites, which all count alike."""
        own = self.run.training
        rate = self.options.rate or (own.learning_rate if own.optimiser == "sgd" else 0.1)
        rate *= own.decay ** (n - 1)
        plain = {"config.optimiser": "sgd", "config.momentum": 0.0, "config.learning_rate": rate}
        return train_fields(self) | plain

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Sites train with corrected steps; the server averages weights and control variates."""
        sites, facts = self.drawn(state, federation, n)
        if not sites:
            return state, facts
        control = state.control or {n: np.zeros_like(w) for n, w in state.weights.items()}
        ask = TrainControlled(**vars(train_ask(self, state, n)), control=control)
        total = federation.sum(TRAIN_CONTROLLED, ask, round=n, sites=sites)
        facts |= {"loss": total.loss / total.weight, "sentences": total.examples}
        there = federation.answered(sites, TRAIN_CONTROLLED, round=n)
        shifts = federation.sum(SHIFT_CONTROL, ShiftControl(control), round=n, sites=there).shift
        for name, array in control.items():
            moved = array + shifts[name] / len(federation.sites)
            control = {**control, name: moved.astype(np.float32)}
        return replace(state, weights=mean_of(total, state.weights), control=control), facts
