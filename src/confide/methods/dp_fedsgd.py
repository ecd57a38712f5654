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
takes a step. docs/noise.md has the account.

What leaves a site: that it has training text; its part of the noisy sum. With `privacy.held_out =
"open"` also counts of right, predicted and gold answers on held-out text, which the account does
not cover.
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

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.flat import Rows
from confide.errors import GuardError, SettingsError
from confide.federation.digests import digest, number
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries, encode
from confide.federation.site import Site
from confide.federation.steps import Shapes, Step, Turn
from confide.kinds.protocol import SCORE, TAKE, F, Kept
from confide.kinds.trained import fingerprint
from confide.kinds.units import UnitDesk, clipped_sum, units_of
from confide.learning.server_steps import Server, stepped
from confide.methods.fedavg import Carried, Facts, FedAvg, ServerTable
from confide.privacy.account import Mechanism
from confide.privacy.clipping import Whole
from confide.privacy.keys import draw_key, drawn, noise_key
from confide.privacy.noise import WIDEST, skellam_of
from confide.privacy.solving import Budget, solved
from confide.privacy.spending import Charge, SpentError
from confide.settings import Settings as RunSettings
from confide.tasks import TASKS, Counts
from confide.text.document import Document


class DpFedSGDSettings(ServerTable):
    """The table `[options]`: the server's step along the noisy mean of clipped gradients.

    "mean" and "momentum" step at `training.learning_rate`, times `server_rate`.
    """

    server: Server = "adam"


@dataclass(frozen=True)
class Noisy:
    """Add up the clipped gradients of units that you draw, and your part of the noise."""

    weights: Arrays = carries("the common weights")
    unit: str = carries("whose gradient is clipped: of a document, a sentence or a patient")
    patients: str = carries("a document's name up to these characters is its patient; empty: whole")
    clip: float = carries("largest norm of a unit's gradient")
    grid: int = carries("that norm in whole numbers")
    variance: int = carries("variance of the noise that honest sites add together, at least")
    rate: float = carries("the probability that a unit is drawn")


@dataclass(frozen=True)
class NoisySum:
    """Clipped gradients and noise."""

    noisy: dict[str, NDArray[np.int32]] = carries(
        "the sum of the drawn units' clipped gradients in whole numbers, with the site's noise",
        legend="X",
    )


def add_noisily(
    site: Site, memory: Kept[F] | None, ask: Noisy, turn: Turn
) -> tuple[NoisySum, Kept[F]]:
    """Draw units, add up their clipped gradients and the noise, and charge the site's account.

    Nothing is sent before it is charged, and the same ask gets the same answer. Raises Refusal.
    """
    memory = known(memory)
    if site.purse is None or site.member is None:
        raise Refusal("only-masked")
    check_noisy(ask)
    share = math.ceil(ask.variance / site.member.honest)
    honest = Mechanism(ask.grid, share * site.member.honest, ask.rate)
    text = text_of(site)
    try:
        key = site.purse.key(site.run, text=text)
    except GuardError as error:
        raise Refusal("other-text") from error
    desk = cast(UnitDesk, memory.form.at(site))
    units = units_at(site, desk, ask)
    context = digest(site.run, number(turn.round), encode(ask))
    took_U = drawn(draw_key(key, context, text=text), len(units), rate=ask.rate)
    chosen = [rows for rows, took in zip(units, took_U, strict=True) if took]
    total = clipped_sum(
        desk.unit_gradients(ask.weights, chosen), like=ask.weights, clip=ask.clip, grid=ask.grid
    )
    secret = noise_key(key, context, text=text, clean=total)
    size = sum(array.size for array in total.values())
    charge = Charge(
        site.run.hex(), turn.round, context.hex(), digest(b"noise", secret).hex(), honest, size
    )
    try:
        site.purse.spend(charge)
    except SpentError as error:
        raise Refusal("spent") from error
    return NoisySum(with_noise(total, secret, variance=share)), memory


def units_at(site: Site, desk: UnitDesk, ask: Noisy) -> list[Rows]:
    """The rows of each of the site's units, found once."""
    place = ("units", ask.unit, ask.patients)
    if place not in site.cache:
        site.cache[place] = units_of(desk.places, site.train, unit=ask.unit, patients=ask.patients)
    found: list[Rows] = site.cache[place]
    return found


def text_of(site: Site) -> bytes:
    """A digest of the site's training text, made once."""
    if "fingerprint" not in site.cache:
        site.cache["fingerprint"] = fingerprint(site.train, relations=True).encode()
    found: bytes = site.cache["fingerprint"]
    return found


def with_noise(total: Whole, key: bytes, *, variance: int) -> dict[str, NDArray[np.int32]]:
    """The sum with Skellam noise of this variance on every number, modulo 2^32."""
    size = sum(array.size for array in total.values())
    noise, start, found = skellam_of(variance).draw(key, size), 0, {}
    for name, array in sorted(total.items()):
        own = noise[start : start + array.size].reshape(array.shape)
        start += array.size
        found[name] = (array + own).astype(np.int32)
    return found


def check_noisy(ask: Noisy) -> None:
    """Raise Refusal if the ask is of no known form, or cannot be answered."""
    fits = (
        ask.unit in ("document", "sentence", "patient")
        and len(ask.patients) <= 10
        and 0 < ask.clip < math.inf
        and 1 <= ask.grid <= WIDEST
        and 1 <= ask.variance <= WIDEST**2
        and 0 < ask.rate <= 1
    )
    if not fits:
        raise Refusal("bad-ask")


def shapes_of_noisy(ask: Noisy) -> Shapes:
    """The shapes of the sum: those of the weights."""
    return {"noisy": {name: array.shape for name, array in ask.weights.items()}}


def bounded_noisy(ask: Noisy, reply: NoisySum, most: float) -> NoisySum:
    """The reply itself: each unit is clipped, and noise that is shortened hides nothing."""
    return reply


ADD_NOISILY = replace(
    Step.of(add_noisily, summed=True, bound=bounded_noisy, shapes=shapes_of_noisy), wraps=True
)


class DpFedSGD(FedAvg):
    """The method: `round` takes a step along the noisy sum of clipped gradients."""

    method: ClassVar[str] = "dp-fedsgd"
    own_steps: ClassVar[tuple[Step, ...]] = (TAKE, ADD_NOISILY, SCORE)
    Settings: ClassVar[type] = DpFedSGDSettings
    private: ClassVar[bool] = True

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        super().__init__(settings, public)
        self._budget = budget_of(settings)
        _check(settings, self._budget)

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Take a step along the sum of the drawn units' clipped gradients, with its noise."""
        own, budget = self._run.privacy, self._budget
        assert own is not None and own.units is not None, "the settings were checked"
        one = budget.mechanism
        sites = [site for site in federation.sites if site not in state.idle]
        ask = Noisy(
            state.weights, own.unit, own.patients, own.clip, one.clip, one.variance, budget.rate
        )
        total = federation.sum(self._step(ADD_NOISILY), ask, round=n, sites=sites)
        step, training = self._own.step(n), self._run.training
        rate = 1.0 if step.adaptive else training.learning_rate * training.decay ** (n - 1)
        factor = rate * own.clip / (one.clip * budget.rate * own.units)
        moved = {
            name: (start - factor * total.noisy[name]).astype(np.float32)
            for name, start in state.weights.items()
        }
        weights, moments, squares = stepped(
            state.weights,
            moved,
            how=step,
            moments=state.moments,
            squares=state.squares,
        )
        facts: Facts = {
            "loss": None,
            "learning_rate": rate * step.rate,
            "sites": sites,
            "sentences": 0,
            "epsilon": budget.epsilon_after(n),
        }
        return replace(state, weights=weights, moments=moments, squares=squares), facts

    def score(
        self, state: Any, federation: Federation, *, part: str, round: int
    ) -> dict[str, Counts]:
        """Every site's counts, if held-out text is open; nothing otherwise."""
        if self._run.privacy is not None and self._run.privacy.held_out == "closed":
            return {}
        return super().score(state, federation, part=part, round=round)


def budget_of(settings: RunSettings) -> Budget:
    """What a run spends, with what `[privacy]` leaves open worked out. Raises SettingsError."""
    own = settings.privacy
    if own is None:
        raise SettingsError(
            "the settings have no [privacy]",
            fix="add the table, with a unit and all but one of epsilon, noise, rate and rounds",
        )
    return solved(
        epsilon=own.epsilon, noise=own.noise, rate=own.rate, rounds=own.rounds, delta=own.delta
    )


def _check(settings: RunSettings, budget: Budget) -> None:
    """Raise SettingsError if the promise could not be kept, or would not be what it seems."""
    own = settings.privacy
    assert own is not None, "budget_of has checked it"
    if own.units is None:
        raise SettingsError(
            "privacy.units is missing: the sum is divided by it, and nothing may be counted",
            expected="about how many units all sites have together",
        )
    if settings.rounds > budget.rounds:
        raise SettingsError(
            "the run has more rounds than [privacy] pays for",
            expected=f"rounds of at most {budget.rounds}",
            got=str(settings.rounds),
        )
    if not math.isfinite(budget.epsilon_after(settings.rounds)):
        raise SettingsError(
            "with so little noise no bound is known, so nothing would be promised",
            fix="set more noise, fewer rounds or a lower rate: `confide privacy plan` shows ε",
        )
    learns = TASKS[settings.task].learns
    if learns == "relations" and own.unit == "sentence":
        raise SettingsError(
            "a pair of entities has no sentence of its own",
            expected='privacy.unit = "document" or "patient"',
            got=repr(own.unit),
        )
    named: dict[str, object] = {"data.types": settings.data.types}
    if learns == "relations":
        named |= {"data.relations": settings.data.relations, "pairs.types": settings.pairs.types}
    missing = [name for name, value in named.items() if not value]
    if missing:
        raise SettingsError(
            f"under noise the settings name everything, and {missing[0]} is empty",
            fix=f"set {', '.join(missing)}: no site may tell what occurs in its text",
        )
    if settings.federation.groups or settings.federation.combine != "mean":
        raise SettingsError(
            "the noise is that of the sum over all sites, so no part of it may be looked at",
            fix="leave out federation.groups and federation.combine",
        )
    if settings.training.outside:
        raise SettingsError(
            "what a site lacks depends on its text",
            expected="training.outside = 0",
            got=str(settings.training.outside),
        )
