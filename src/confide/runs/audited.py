"""audit.json: what `confide audit` measured of a run, and how people are told. Numbers, no text.

docs/audit.md describes it. On one machine the file covers all sites; a real site's own run folder
holds the numbers of that site alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from confide.runs.folder import RunFolder
from confide.runs.result import read_record

AUDIT = "audit.json"
AUDIT_SCHEMA = 1
CHANCE = 1.0
"""Members that an attacker finds in a hundred by chance, at one false accusation in a hundred."""

Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
_DAMAGED = "this file does not hold an audit"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Interval(_Record):
    """A share and its 95 % interval."""

    value: Share
    low: Share
    high: Share

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def in_a_hundred(self) -> str:
        """How many of a hundred, with the interval."""
        value, low, high = (f"{100 * one:.0f}" for one in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


class Membership(_Record):
    """How well an attacker tells a site's training text from its other text.

    `units` says what is told apart, and `members` and `others` how many there were. `found` is the
    share of members found if one other in a hundred is accused falsely. `references`: models that
    the attacker trained on text like the site's, to know what is hard for any model; 0: none.
    """

    units: str
    members: Whole
    others: Whole
    auc: Interval
    found: Interval
    references: Whole = 0


class Canaried(_Record):
    """What guesses of canaries show: the ε that they refute at 95 %, of one document.

    `exposure` is the median of those let in, in bits: 1 by chance, at most `most`. `auc`: how often
    one that was let in looks likelier than one that was left out; nothing but the coins tells them
    apart.
    """

    canaries: Whole
    guesses: Whole
    right: Whole
    epsilon: Annotated[float, Field(ge=0)]
    delta: Annotated[float, Field(ge=0, le=1)]
    auc: Interval
    exposure: float
    most: float


class SiteAudit(_Record):
    """One site's part: by losses alone, by losses beside those of references, by canaries."""

    membership: Membership
    referenced: Membership | None = None
    canaries: Canaried | None = None

    @property
    def strongest(self) -> Membership:
        """The attack that finds most; an attacker may choose."""
        every = [one for one in (self.membership, self.referenced) if one is not None]
        return max(every, key=lambda one: one.found.value)


class Crossed(_Record):
    """What the ledger says. `smallest`: the fewest sites in any sum of arrays that the server read.

    It is 1 where the server could look at single replies, and None where no array left a site.
    `digests` counts keyed digests of words or characters, `asks` what was asked of sites.
    """

    digests: Whole
    asks: Whole
    masked: bool
    smallest: Whole | None


class Promised(_Record):
    """What the settings promise of one unit of text.

    `simulated`: keys came from the seed, so it is what keys of the sites' own would promise.
    """

    unit: str
    epsilon: float
    delta: float
    simulated: bool = False


class Audit(_Record):
    """An audit of a run; `rounds` are those of the models that were measured, as in result.json."""

    schema_: Annotated[int, Field(alias="schema", ge=1, le=AUDIT_SCHEMA)] = AUDIT_SCHEMA
    rounds: Mapping[str, int]
    sites: Mapping[str, SiteAudit]
    crossed: Crossed
    promised: Promised | None = None

    @property
    def measured(self) -> Canaried | None:
        """The canaries of the site that shows the largest ε; None without any."""
        found = [one.canaries for one in self.sites.values() if one.canaries is not None]
        return max(found, key=lambda one: one.epsilon, default=None)

    @property
    def broken(self) -> bool:
        """Whether the canaries refute what was promised."""
        if self.promised is None or self.measured is None or self.promised.unit == "sentence":
            return False  # a document may have many sentences
        return self.measured.epsilon > self.promised.epsilon

    def write(self, folder: RunFolder) -> None:
        """Write audit.json, completely or not at all. Raises RunError."""
        folder.write(AUDIT, self.model_dump_json(by_alias=True, indent=1) + "\n")


def audited(folder: RunFolder) -> Audit | None:
    """The audit of the model that a run has now; None if there is none.

    Raises RunError if the file is damaged.
    """
    path = folder.path / AUDIT
    if not path.is_file():
        return None
    fix = "audit the run again with `confide audit`, or delete the file"
    found = read_record(path, Audit.model_validate_json, _DAMAGED, fix=fix)
    return found if dict(found.rounds) == dict(folder.result().best_rounds) else None


# --- in words ---------------------------------------------------------------------------------


def told_of(one: SiteAudit) -> str:
    """What an attacker finds at a site, as a sentence."""
    best = one.strongest
    return (
        f"of 100 {best.units} of ours an attacker allowed one false accusation in a hundred finds"
        f" {best.found.in_a_hundred}; by chance it would be 1"
    )


def _shown(own: Canaried) -> str:
    guesses = f"{own.right} right guesses of {own.guesses}"
    if own.epsilon < 0.005:
        return f"none above 0 could be shown ({guesses}, {own.canaries} canaries)"
    sure = f"(δ = {_small(own.delta)}, 95 % sure)"
    return f"at least {own.epsilon:.2f} for one document {sure}, from {guesses}"


def _small(number: float) -> str:
    """A small number as people write it: 1e-5, not 1e-05."""
    return f"{number:g}".replace("e-0", "e-")


def told_epsilon(found: Audit) -> str:
    """ε promised beside ε measured."""
    promised, measured = "none", "not measured, for want of canaries"
    if found.promised is not None:
        own = found.promised
        promised = f"{own.epsilon:.2f} for one {own.unit} (δ = {_small(own.delta)})"
        promised += ", if keys were not from the seed" if own.simulated else ""
    if found.measured is not None:
        measured = _shown(found.measured)
    said = f"ε promised: {promised}; ε measured: {measured}"
    return f"{said}. The promise was broken" if found.broken else said


def told_smallest(crossed: Crossed) -> str:
    """The fewest sites in any sum that the server could read."""
    few = crossed.smallest
    what = "The smallest number of sites in any sum that the server could read"
    if few is None:
        return f"{what}: none, no weights left a site"
    how = " (it could read single replies)" if few == 1 else ""
    return f"{what}: {few}{how}"


def told(found: Audit) -> Iterator[str]:
    """The audit in sentences: the three numbers, and what they rest on."""
    for name, one in found.sites.items():
        yield f"{name}: {told_of(one)}"
        for by, kind in (("losses", one.membership), ("references", one.referenced)):
            if kind is not None:
                yield (
                    f"  by {by}: AUC {kind.auc}; {kind.found.in_a_hundred} in a hundred;"
                    f" {kind.members} {kind.units} of training text, {kind.others} others"
                )
        if one.canaries is not None:
            own = one.canaries
            yield (
                f"  by {own.canaries} canaries: AUC {own.auc}; ε at least {own.epsilon:.2f}; median"
                f" exposure {own.exposure:.1f} bits (chance 1.0, at most {own.most:.1f})"
            )
    yield told_epsilon(found)
    yield told_smallest(found.crossed)
