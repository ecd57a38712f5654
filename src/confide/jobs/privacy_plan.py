"""What noise a run needs: σ, ε by round, and what colluders and lost sites do to both.

What the settings leave open is proposed (`privacy_proposal`). Nothing is read but the settings. The
noise is made by the sites together: each adds Skellam noise
of variance (σ C)² / (t - c), so that t - c sites, the fewest honest ones in a secure sum, have all
of it that the account counts. Under a method whose sites step by themselves, each adds all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confide.errors import SettingsError, together
from confide.federation.secure.roster import colluders, threshold
from confide.jobs.privacy_proposal import Proposal, Proposed, Unsaid, proposal
from confide.methods import METHODS, method_of
from confide.methods.noised import budget_of
from confide.privacy.solving import Budget
from confide.recipes import settings_file
from confide.settings import Settings, overlaid, parse, read_tree
from confide.settings.tomlfile import located
from confide.tasks import TASKS
from confide.userfiles import Tree

_ROWS = 8


@dataclass(frozen=True)
class After:
    """ε after so many rounds."""

    rounds: int
    epsilon: float


@dataclass(frozen=True)
class Against:
    """ε against so many sites in league with the server, in sums over so many sites."""

    colluding: int
    sites: int
    epsilon: float


@dataclass(frozen=True)
class Elsewhere:
    """What noise cost on a published corpus (benchmarks/privacy): mean F1 on test text, in percent.

    Attributes:
        units: how many there were at all sites.
        without: the same model without noise.
        at_1, at_3, at_8: under ε = 1, 3 and 8, at δ = 1e-5.
    """

    corpus: str
    model: str
    units: int
    without: float
    at_1: float
    at_3: float
    at_8: float


MEASURED: dict[str, tuple[Elsewhere, ...]] = {
    "entities": (
        Elsewhere("NCBI-disease", "head", 5400, 54.1, 36.5, 45.2, 50.7),
        Elsewhere("NCBI-disease", "tagger", 5400, 82.0, 23.4, 55.8, 67.9),
        Elsewhere("BC5CDR", "head", 4600, 61.0, 45.7, 54.4, 58.7),
        Elsewhere("CrossNER", "head", 700, 44.7, 5.9, 13.7, 23.4),
        Elsewhere("CrossNER", "tagger", 700, 65.5, 1.8, 5.5, 15.8),
    ),
    "relations": (
        Elsewhere("GAD", "head", 4300, 66.5, 59.6, 63.8, 65.5),
        Elsewhere("ChemProt", "head", 4200, 56.0, 35.0, 44.0, 49.8),
    ),
}
"""By what is learnt."""


@dataclass(frozen=True)
class PrivacyPlan:
    """What a run would spend, and what it would add.

    Attributes:
        unit: what one ε is about: a document, a sentence or a patient.
        epsilon, delta: what is spent in all rounds.
        noise: σ in clips, as the account counts it: that of `honest` sites.
        rate, rounds, clip: as in the settings, or worked out.
        grid: whole numbers up to the clip.
        sites, least, colluding: n, t and c.
        honest: t - c.
        site_noise: the standard deviation that one site adds, in clips.
        whole_noise: that of the sum if nobody is lost, in clips.
        drawn: units that a round draws, on average; 0 if it is not known how many there are.
        per_number: the standard deviation of the noise on each number of the mean gradient; 0 if it
            is not known.
        rounds_spent: ε after some of the rounds.
        against: ε if fewer or more sites collude than was supposed.
        elsewhere: what noise cost on published corpora, the most like this one in size first.
        steps: sums that a site noises by itself in a round; 0: the noise is made together.
        method: what trains under it.
        proposed: what to add to the settings, or to change in them, and why.
        unsaid: what only people can say, for a run.
        blocked: why a run would still be refused.
    """

    unit: str
    epsilon: float
    delta: float
    noise: float
    rate: float
    rounds: int
    clip: float
    grid: int
    sites: int
    least: int
    colluding: int
    honest: int
    site_noise: float
    whole_noise: float
    drawn: float
    per_number: float
    rounds_spent: tuple[After, ...]
    against: tuple[Against, ...]
    elsewhere: tuple[Elsewhere, ...]
    steps: int = 0
    method: str = ""
    proposed: tuple[Proposed, ...] = ()
    unsaid: tuple[Unsaid, ...] = ()
    blocked: tuple[str, ...] = ()


def privacy_plan(
    settings: str | Path | Settings,
    *,
    overrides: Sequence[str] = (),
    units: int | None = None,
    epsilon: float | None = None,
) -> PrivacyPlan:
    """Work out what `[privacy]` leaves open, before anything runs; no text is read.

    Args:
        settings: a TOML file, the name of a recipe, or settings.
        overrides: `key=value` texts that replace the file's values.
        units: how many units all sites have together, about.
        epsilon: what may be spent. Whatever else a run under noise needs is then proposed, as it is
            where the settings leave open more than can be worked out.

    Raises SettingsError, which says everything that stands in the way: ε is nowhere said or cannot
    be kept, the sites are too few.
    """
    if isinstance(settings, Settings):
        return _planned(settings.model_dump(mode="json", by_alias=True, exclude_unset=True),
                        epsilon=epsilon, units=units)  # fmt: skip
    file = settings_file(settings)
    tree = read_tree(Path(file))
    try:
        return _planned(overlaid(tree, overrides), epsilon=epsilon, units=units)
    except SettingsError as error:
        raise located(error, str(file)) from error.__cause__


def _planned(tree: Tree, *, epsilon: float | None, units: int | None) -> PrivacyPlan:
    """The plan of plain settings; what they leave open is proposed."""
    faults = [] if units is None or units > 0 else [_too_few(units)]
    given = Proposal(tree)
    free = [one for one in ("epsilon", "noise", "rate", "rounds")
            if given.has(f"privacy.{one}") is None]  # fmt: skip
    if epsilon is None and {"epsilon", "noise"} <= set(free):
        what = "neither ε nor the noise is said" if given.has("privacy") else "the settings have no"
        raise together([*faults, SettingsError(
            what if given.has("privacy") else f"{what} [privacy]",
            expected="ε: 1 is a strong promise, 3 one against casual attacks, 8 a bound on paper"
            " (docs/noise.md)",
            fix="add --epsilon 8: it proposes all the rest, each with its reason",
        )])  # fmt: skip
    found = given
    if epsilon is not None or len(free) > 1 or given.has("privacy.unit") is None:
        found = proposal(tree, epsilon=epsilon, units=units)
    chosen = None
    try:
        chosen = parse(found.tree)
    except SettingsError as error:
        faults.append(error)
    budget = None
    if chosen is not None:
        faults += _too_few_sites(chosen)
        try:
            budget = budget_of(chosen)
        except SettingsError as error:
            faults.append(error)
    if faults or chosen is None or budget is None:
        raise together(faults)
    if found is not given and found.has("privacy.rounds") is None:  # these were worked out
        found.set("rounds", budget.rounds, "those that [privacy] pays for")
        chosen = parse(found.tree)
    plan = _plan(
        chosen, budget, chosen.privacy.units if units is None and chosen.privacy else units
    )
    if found is given:
        return plan
    blocked: tuple[str, ...] = ()
    try:
        whole = parse(found.whole())
        method_of(whole)(whole)
    except SettingsError as error:
        blocked = (str(error),)
    most = chosen.guards.max_epsilon
    if plan.epsilon > most:
        blocked += (
            f"sites let ε = {most:g} be spent, unless their own guard max_epsilon is raised",
        )
    return replace(
        plan, proposed=tuple(found.proposed), unsaid=tuple(found.unsaid), blocked=blocked
    )


def _too_few(units: int) -> SettingsError:
    return SettingsError("units must be at least 1", got=str(units))


def _too_few_sites(settings: Settings) -> list[SettingsError]:
    """What is wrong with the number of sites."""
    sites = _sites_of(settings)
    if not sites:
        fix = "add [[site]] tables, or a [split] with sites"
        return [SettingsError("the settings name no sites", fix=fix)]
    try:
        threshold(sites, settings.federation.colluding or colluders(sites))
    except SettingsError as error:
        return [error]
    return []


def _sites_of(settings: Settings) -> int:
    return len(settings.site) or (settings.split.sites if settings.split else 0)


def _plan(chosen: Settings, budget: Budget, units: int | None) -> PrivacyPlan:
    """The plan of settings that leave nothing open."""
    own, sites = chosen.privacy, _sites_of(chosen)
    assert own is not None, "budget_of has checked it"
    colluding = chosen.federation.colluding or colluders(sites)
    least = threshold(sites, colluding)
    honest = least - colluding
    pair = METHODS.get(chosen.trained_by)
    alone = pair is not None and pair.steps_alone
    whole = budget.noise * (1.0 if alone else math.sqrt(sites / honest))
    drawn = budget.rate * (units or 0) / (sites if alone else 1)
    return PrivacyPlan(
        unit=own.unit,
        epsilon=budget.epsilon,
        delta=own.delta,
        noise=budget.noise,
        rate=budget.rate,
        rounds=budget.rounds,
        clip=own.clip,
        grid=budget.mechanism.clip,
        sites=sites,
        least=least,
        colluding=colluding,
        honest=honest,
        site_noise=budget.noise / (1.0 if alone else math.sqrt(honest)),
        whole_noise=whole,
        drawn=drawn,
        per_number=own.clip * whole / drawn if drawn else 0.0,
        rounds_spent=tuple(_by_round(budget)),
        against=() if alone else tuple(_against(budget, sites, least=least, colluding=colluding)),
        elsewhere=() if alone else _elsewhere(TASKS[chosen.task].learns, units),
        steps=own.steps if alone else 0,
        method=chosen.method,
    )


def _elsewhere(learns: str, units: int | None) -> tuple[Elsewhere, ...]:
    """What was measured for such a task, by how near its number of units is to this one."""
    found = MEASURED.get(learns, ())
    if units is None:
        return found
    return tuple(sorted(found, key=lambda one: abs(math.log(one.units / units))))


def _by_round(budget: Budget) -> list[After]:
    """ε after some rounds, on a scale of logarithms, and after the last."""
    marks = {
        max(1, round(budget.rounds ** (part / (_ROWS - 1)))) for part in range(_ROWS)
    } | {budget.rounds}  # fmt: skip
    return [After(rounds, budget.epsilon_after(rounds)) for rounds in sorted(marks)]


def _against(budget: Budget, sites: int, *, least: int, colluding: int) -> list[Against]:
    """ε against 0, c and all that would still leave one honest site, in the least and whole sums.

    The noise of a colluding site is known to it, and hides nothing.
    """
    honest, found = least - colluding, []
    for bad in sorted({0, colluding, least - 1}):
        for summed in sorted({least, sites}):
            noise = budget.noise * math.sqrt((summed - bad) / honest)
            fewer = replace(budget, noise=noise)
            found.append(Against(bad, summed, _epsilon(fewer, budget)))
    return found


def _epsilon(other: Budget, budget: Budget) -> float:
    """ε of another noise on the same grid."""
    one = budget.mechanism
    mechanism = replace(one, variance=max(1, math.floor((other.noise * one.clip) ** 2)))
    return budget.spent_by(mechanism)
