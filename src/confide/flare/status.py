"""The state of a site: its guards, its agreements, and what it keeps of its runs. Reads no text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

from confide.errors import KitError
from confide.federation.secure.site import SUMS, Sets
from confide.flare.agreements import SITE_FILE, Agreements, SiteAgreement
from confide.flare.kit import Kit
from confide.flare.peers import list_peers
from confide.privacy.accountant import PRIVACY, AccountStatus, Limit, PrivacyBudget
from confide.runs.folder import RUNS, AtHome, RunFolder, compared_at_home
from confide.settings import SiteFile, load_site

SOON = 14
"""The days before the end of an agreement in which it is said to end soon."""

GUARDS = {
    "min_sentences": "trains on no fewer sentences",
    "min_token_count": "keeps back words that occur less often here",
    "min_batch": "takes no gradient of fewer sentences, pairs or bags",
    "min_sites": "joins no run of fewer sites, and no smaller sum",
    "max_rounds": "answers no more rounds of a run",
    "max_norm": "scales its uploads down to a change of this norm",
    "private": "keeps these parts of the tagger to itself",
    "masked": "sends what is summed only under masks",
    "max_epsilon": "spends no more on sums under noise, over all runs, as ε",
    "delta": "the δ at which that ε holds",
    "unit": "the unit of text for which it holds",
    "patients": "a document's name up to one of these characters is its patient",
    "reply_every": "sends sums under noise only at multiples of this many seconds",
}
"""Each guard's effect at a site."""


@dataclass(frozen=True)
class AgreementStatus:
    """The state of an agreement. `used` is how many runs have begun, None if the count is lost."""

    method: str
    until: date
    days_left: int
    used: int | None
    runs: int
    lead: tuple[str, ...]
    warning: str


@dataclass(frozen=True)
class GuardValue:
    """A guard of a site: its value, whether the site's own file sets it, and what it does."""

    name: str
    value: object
    source: Literal["default", "own file"]
    says: str


def site_file(kit: Kit) -> Path:
    """The path of a site's own file in its kit."""
    return kit.path / "local" / SITE_FILE


def read_site_file(kit: Kit) -> SiteFile:
    """A site's own file, in its kit. Raises KitError if there is none; SettingsError."""
    if not site_file(kit).exists():
        raise KitError(
            "the kit has not been set up for the site's text yet",
            where=str(kit.path),
            fix="write a site.toml, then run `confide site setup KIT --settings site.toml`",
        )
    return load_site(site_file(kit))


def read_agreements(kit: Kit) -> dict[str, SiteAgreement]:
    """Read the site's agreements, by method. Raises KitError, SettingsError."""
    return Agreements(site_file(kit)).of(read_site_file(kit))


def agreement_status(kit: Kit, *, today: date | None = None) -> list[AgreementStatus]:
    """The state of the site's agreements, by method. Raises KitError, SettingsError."""
    day = today or date.today()
    agreements = Agreements(site_file(kit))
    found = []
    for method, held in sorted(read_agreements(kit).items()):
        agreement, runs = held.agreement, agreements.runs(held)
        left = (agreement.until - day).days
        warnings = []
        if left < 0:
            warnings.append("has ended: every run is refused")
        elif left <= SOON:
            warnings.append("ends soon")
        if runs is None:
            warnings.append("the count of its runs is lost, and every run is refused: agree again")
        elif len(runs) >= agreement.runs:
            warnings.append("no further run")
        if held.old:
            warnings.append("has no bounds of its own, so the usual ones apply: agree again")
        status = AgreementStatus(
            method=method,
            until=agreement.until,
            days_left=left,
            used=None if runs is None else len(runs),
            runs=agreement.runs,
            lead=agreement.lead,
            warning="; ".join(warnings),
        )
        found.append(status)
    return found


def guard_values(kit: Kit) -> list[GuardValue]:
    """The site's guards, and which of them its own file sets. Raises KitError, SettingsError."""
    held = read_site_file(kit).guards
    return [
        GuardValue(
            name,
            "any" if value is None else value,
            "own file" if name in held.model_fields_set else "default",
            GUARDS[name],
        )
        for name, value in held.model_dump().items()
    ]


def models_kept(kit: Kit) -> dict[str, AtHome]:
    """By run, the model that the site keeps, if it has compared. Raises KitError, RunError."""
    folders = sorted(Path(read_site_file(kit).memory).joinpath(RUNS).glob("*/"))
    found = {path.name: compared_at_home(RunFolder(path), kit.name) for path in folders}
    return {run: one for run, one in found.items() if one is not None}


@dataclass(frozen=True)
class SecureSumStatus:
    """The secure sums that a site has helped to open, and the peers that it knows.

    `fewest`: the sites in the smallest of them; 0 if there were none. `compared`: peers whose
    fingerprints people have compared.
    """

    sums: int
    fewest: int
    pinned: int
    compared: int


def secure_sum_status(kit: Kit) -> SecureSumStatus:
    """The site's secure sums so far. Raises KitError, SettingsError."""
    sizes = Sets(Path(read_site_file(kit).memory) / SUMS).sizes()
    peers = list_peers(kit).peers.values()
    return SecureSumStatus(
        len(sizes), min(sizes, default=0), len(peers), sum(peer.compared for peer in peers)
    )


def budget_status(kit: Kit) -> tuple[AccountStatus, Limit]:
    """The site's privacy account over all runs, and its limit.

    Raises KitError, SettingsError; GuardError if it is not sound.
    """
    site = read_site_file(kit)
    limit = Limit(site.guards.max_epsilon, site.guards.delta)
    return PrivacyBudget(Path(site.memory) / PRIVACY, limit).status(), limit
