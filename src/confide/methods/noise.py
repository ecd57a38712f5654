"""Noise for methods: a site's noisy sum of clipped gradients, and who may promise.

A site draws each of its units with the probability q, by a key of its own; clips each drawn unit's
gradient to the norm C, in whole numbers; adds them up and adds Skellam noise. Nothing that depends
on the sum goes anywhere before the site's account has been charged, and the same ask gets the same
sum. A site whose text cannot be used adds noise to zeros: the other sites' accounts count its part,
and a refusal would tell of the text. docs/differential-privacy.md has the account.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.guards import Within
from confide.federation.messages import Arrays, carries, encode
from confide.federation.seals import digest, int_bytes
from confide.federation.site import Site, note_traceback
from confide.federation.steps import Turn
from confide.kinds.entities import clipped_sum, units_of
from confide.kinds.protocol import fingerprint
from confide.privacy.account import Mechanism, NoisePlan, plan_noise
from confide.privacy.accountant import Charge, SpentError
from confide.privacy.noise import WIDEST, Whole, draw_key, draw_units, keyed, noise_key, skellam_of
from confide.settings import Settings as RunSettings
from confide.tasks import TASKS
from confide.training.batches import Rows


@dataclass(frozen=True)
class Noise:
    """Settings of a sum's noise."""

    unit: str = carries(
        "whose gradient is clipped: of a document, a sentence or a patient", rule="unit"
    )
    patients: str = carries(
        "a document's name up to these characters is its patient; empty: whole", rule="patients"
    )
    clip: float = carries("largest norm of a unit's gradient")
    grid: int = carries("that norm in whole numbers")
    variance: int = carries("variance of the noise that the account counts")
    rate: float = carries("the probability that a unit is drawn")

    def check(self) -> None:
        """Raise Refusal if it is of no known form, or cannot be drawn."""
        fits = (
            self.unit in ("document", "sentence", "patient")
            and len(self.patients) <= 10
            and 0 < self.clip < math.inf
            and 1 <= self.grid <= WIDEST
            and 1 <= self.variance <= WIDEST**2
            and 0 < self.rate <= 1
        )
        if not fits:
            raise Refusal("bad-ask")


# --- at a site --------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoisySite:
    """A site that adds up gradients under noise, for one ask.

    `honest` sites share the noise of numbers that leave in a secure sum; of what never leaves, and
    of what leaves by itself, a site adds all (`alone`).
    """

    site: Site
    form: Any
    noise: Noise
    context: bytes
    turn: Turn
    honest: int

    @classmethod
    def of(cls, site: Site, form: Any, *, ask: Any, turn: Turn, shared: bool = True) -> NoisySite:
        """For an ask with `noise`; unless `shared`, no other site's noise counts. Raises Refusal.

        Refused are an ask outside secure sums, and one that cannot be answered.
        """
        if site.budget is None or site.member is None:
            raise Refusal("only-masked")
        ask.noise.check()
        context = digest(site.run, int_bytes(turn.round), encode(ask))
        honest = site.member.honest if shared else 1
        return cls(site, form, ask.noise, context, turn, honest)

    def total(
        self, weights: Arrays, *, like: Arrays, alone: Sequence[str] = (), step: int = 0
    ) -> Whole:
        """The noisy sum of the drawn units' gradients, of the names and shapes of `like`; charged.

        `alone` are names of which the site adds all the noise by itself. `step` counts sums of one
        ask. If the text cannot be used, for whatever reason, it is a sum of none. Raises Refusal:
        other text than the run began with, or an account that is spent; OSError if nothing can be
        written down. Neither depends on what the text is.
        """
        site, noise, budget = self.site, self.noise, self.site.budget
        assert budget is not None, "`of` has checked it"
        if "fingerprint" not in site.cache:
            site.cache["fingerprint"] = fingerprint(site.train, relations=True).encode()
        text: bytes = site.cache["fingerprint"]
        try:
            key = budget.key(site.run, text=text)
        except GuardError as error:
            raise Refusal("other-text") from error
        context = digest(self.context, int_bytes(step)) if step else self.context
        share = math.ceil(noise.variance / self.honest)
        # numbers of which the site adds all the noise have no more than the account counts
        counted = noise.variance if alone else share * self.honest
        mechanism = Mechanism(noise.grid, counted, noise.rate)
        size = sum(array.size for array in like.values())

        def charged(clean: Whole) -> bytes:
            secret = noise_key(key, context, text=text, clean=clean)
            mark, at = digest(b"noise", secret).hex(), self.turn.round
            budget.spend(Charge(site.run.hex(), at, context.hex(), mark, mechanism, size))
            return secret

        nothing = {name: np.zeros(array.shape, np.int64) for name, array in like.items()}
        try:
            clean = self._clean(weights, like=like, key=draw_key(key, context, text=text))
        except Exception:
            if site.log is not None:
                note_traceback(site.log, self.turn.step, self.turn.round)
            clean = nothing
        try:
            secret = charged(clean)
        except SpentError:
            try:  # an ask that got a sum of none, since the text failed, gets the same again
                secret, clean = charged(nothing), nothing
            except SpentError as error:
                raise Refusal("spent") from error
        apart = {name: clean[name] for name in alone}
        together = {name: array for name, array in clean.items() if name not in apart}
        found = with_noise(together, secret, variance=share)
        own = keyed(secret, "alone")
        return found | with_noise(apart, own, variance=noise.variance) if apart else found

    def _clean(self, weights: Arrays, *, like: Arrays, key: bytes) -> Whole:
        """The sum without noise. All that is done with the text is done here."""
        noise = self.noise
        self.site.check_sentences()
        site_model = self.form.at(self.site)
        place, cache = ("units", noise.unit, noise.patients), self.site.cache
        if place not in cache:
            site_model.check()
            cache[place] = units_of(
                site_model.places, self.site.train, unit=noise.unit, patients=noise.patients
            )
        units: list[Rows] = cache[place]
        took_U = draw_units(key, len(units), rate=noise.rate)
        chosen = [rows for rows, took in zip(units, took_U, strict=True) if took]
        gradients = site_model.unit_gradients(weights, chosen) if chosen else ()
        return clipped_sum(gradients, like=like, clip=noise.clip, grid=noise.grid)


def with_noise(total: Whole, key: bytes, *, variance: int) -> Whole:
    """The sum with Skellam noise of this variance on every number."""
    size = sum(array.size for array in total.values())
    noise, start, found = skellam_of(variance).draw(key, size), 0, {}
    for name, array in sorted(total.items()):
        found[name] = array + noise[start : start + array.size].reshape(array.shape)
        start += array.size
    return found


def wrapped(total: Whole) -> dict[str, NDArray[np.int32]]:
    """The numbers modulo 2^32, as they are masked."""
    return {name: array.astype(np.int32) for name, array in total.items()}


def mean_gradient(
    total: Mapping[str, NDArray[np.integer]], noise: Noise, *, drawn: float
) -> dict[str, NDArray[np.float32]]:
    """A noisy sum as the mean gradient of `drawn` units, float32."""
    step = noise.clip / (noise.grid * drawn)
    return {name: (step * array).astype(np.float32) for name, array in total.items()}


# --- at the server ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RunNoise:
    """The noise of a run's sums, and what its budget says of it."""

    budget: NoisePlan
    noise: Noise
    units: float

    @classmethod
    def of(cls, settings: RunSettings) -> RunNoise:
        """The noise of settings without a fault (`faults_of`).

        `units` is the mean number of units of all sites in a sum, about: what sums are divided by.
        """
        own, budget = settings.privacy, budget_of(settings)
        assert own is not None and own.units is not None, "the settings were checked"
        one = budget.mechanism
        noise = Noise(own.unit, own.patients, own.clip, one.clip, one.variance, one.rate)
        return cls(budget, noise, budget.rate * own.units)

    def fields(self) -> dict[str, object]:
        """The fields of asks that say the noise; a site cannot know how many others take part."""
        noise = {f"noise.{name}": value for name, value in vars(self.noise).items()}
        return noise | {"drawn": Within(0, self.units)}


def faults_of(settings: RunSettings, *, alone: bool) -> list[SettingsError]:
    """All that is wrong with the settings of a run under noise.

    `alone`: sites take steps under noise by themselves.
    """
    try:
        budget = budget_of(settings)
    except SettingsError as error:
        found = [error]
    else:
        found = []
        if settings.rounds > budget.rounds:
            found.append(
                SettingsError(
                    "the run has more rounds than [privacy] pays for",
                    expected=f"rounds of at most {budget.rounds}",
                    got=str(settings.rounds),
                )
            )
        elif not math.isfinite(budget.epsilon_after(settings.rounds)):
            found.append(
                SettingsError(
                    "there is too little noise for any ε to be proven",
                    fix="set more noise, fewer rounds or a lower rate: `confide privacy plan`"
                    " shows ε",
                )
            )
    own = settings.privacy
    if own is None:
        return found
    if own.units is None:
        found.append(
            SettingsError(
                "privacy.units is missing: the sum is divided by it, and nothing may be counted",
                expected="about how many units all sites have together",
            )
        )
    named: dict[str, object] = {"data.types": settings.data.types}
    if TASKS[settings.task].learns == "relations":
        named |= {"data.relations": settings.data.relations, "pairs.types": settings.pairs.types}
        if own.unit == "sentence":
            found.append(
                SettingsError(
                    "a pair of entities has no sentence of its own",
                    expected='privacy.unit = "document" or "patient"',
                    got=repr(own.unit),
                )
            )
    missing = [name for name, value in named.items() if not value]
    if missing:
        found.append(
            SettingsError(
                f"under noise the settings name everything, and {missing[0]} is empty",
                fix=f"set {', '.join(missing)}: no site may tell what occurs in its text",
            )
        )
    for key, (neutral, why) in NEUTRAL.items():
        table, name = key.split(".")
        held = getattr(settings, table)
        if held is not None and getattr(held, name) != neutral:
            found.append(
                SettingsError(
                    why,
                    expected=f"{key} = {json.dumps(neutral)}, or left out",
                    got=repr(getattr(held, name)),
                )
            )
    if own.steps > 1 and not alone:
        found.append(
            SettingsError(
                f"under {settings.method} a site takes one step under noise in a round",
                expected="no privacy.steps",
                got=str(own.steps),
            )
        )
    return found


def budget_of(settings: RunSettings) -> NoisePlan:
    """Work out a run's budget, with what `[privacy]` leaves open. Raises SettingsError."""
    own = settings.privacy
    if own is None:
        raise SettingsError(
            "the settings have no [privacy]",
            fix="add the table, with a unit and all but one of epsilon, noise, rate and rounds",
        )
    return plan_noise(
        epsilon=own.epsilon,
        noise=own.noise,
        rate=own.rate,
        rounds=own.rounds,
        delta=own.delta,
        steps=own.steps,
    )


NEUTRAL: Mapping[str, tuple[object, str]] = {
    "federation.groups": (
        0,
        "the noise is that of the sum over all sites, so no part of it may be looked at",
    ),
    "federation.combine": (
        "mean",
        "the noise is that of the sum over all sites, so no part of it may be looked at",
    ),
    "training.unannotated_types": (0.0, "what a site lacks depends on its text"),
    "data.mask_common": (0.0, "what is hidden of one document depends on all others"),
    "split.disjoint_by": ("", "one held-out document would take others out of training"),
}
"""Settings that would break the promise, the only value that keeps it, and why."""
