"""A site's own file in its kit, checked and put there, and what the site consents to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

from confide.errors import ConfideError, KitError, SettingsError, os_errors_as
from confide.federation.failures import Refusal
from confide.federation.guards import Guards
from confide.federation.keys import read_key
from confide.federation.steps import WireRow
from confide.files import for_the_owner, private_folder, write_of_run
from confide.flare import agreements
from confide.flare.joining import check_guards, read_for_sites, run_steps, wire_digest, wire_of
from confide.flare.kit import Kit
from confide.flare.peers import open_signer
from confide.flare.proxies import credentials
from confide.flare.site import as_site_table
from confide.flare.status import read_agreements, read_site_file, site_file
from confide.methods import method_named
from confide.runs.sites import Gathered, gather
from confide.settings import REFERENCES, Settings, SiteFile, nearest, parse
from confide.settings.sitefile import Agreement, dump_site, load_site, parse_consent


@dataclass(frozen=True)
class Consent:
    """A site's consent to a method: what would be sent, how far it may go, and whether it agreed.

    `lines` are those of the proposed agreement, beside those of the present one; `beyond` names the
    lines in which more is asked than was agreed. `until` is the last day of the present agreement;
    `old` says that it is from before agreements had bounds. `refused`: why a guard of the site
    refuses the run that is asked for, whatever it agrees to.
    """

    method: str
    rows: tuple[WireRow, ...]
    wire: str
    agreed: Literal["yes", "no", "to another table"]
    steps: tuple[str, ...] = ()
    lines: tuple[agreements.AgreementLine, ...] = ()
    beyond: tuple[str, ...] = ()
    until: date | None = None
    old: bool = False
    refused: str = ""


def setup_site(kit: Kit, settings: Path) -> tuple[SiteFile, Gathered]:
    """Check a site's own file, read its text as a run would, and put the file into the kit.

    Makes the site's memory folder, closed to others. Earlier agreements stay valid; those in an
    older site file become agreements with the usual bounds. Raises KitError if the file is another
    site's, and SettingsError, MissingDataError, FormatError, DataError, KeyFileError.
    """
    site = load_site(settings)
    if site.name != kit.name:
        raise KitError(
            "the file and the kit belong to different sites",
            where=str(settings),
            expected=f"name = {kit.name!r}",
            got=repr(site.name),
        )
    read_key(Path(site.key))
    if site.way_out is not None:
        credentials(site.way_out)
    with os_errors_as(
        ConfideError,
        "the site's memory folder cannot be made or closed to others",
        where=site.memory,
        fix="name a folder that belongs to the user that runs the site",
    ):
        private_folder(Path(site.memory))
    alone = parse({"site": [as_site_table(site).model_dump(exclude_none=True)]})
    gathered = gather(alone, Path(site.memory), key_file=None)
    open_signer(kit, make=True)
    before = agreements.Agreements(settings).old(site) | (
        read_agreements(kit) if site_file(kit).exists() else {}
    )
    _keep(kit, site, before)
    return site, gathered


def propose_consent(
    kit: Kit, method: str, *, asked: Settings | None = None, bounds: Sequence[str] = ()
) -> Consent:
    """Describe what a method would send from this site, and how far an agreement to it would go.

    The proposal is what a run with the settings `asked` needs, changed by `bounds`. Without
    settings it is the present agreement, or one with the usual bounds. Raises SettingsError,
    KitError.
    """
    site, held, method = read_site_file(kit), read_agreements(kit), method_named(method).name
    found = held.get(method)
    rows = tuple(wire_of(method))
    wire = wire_digest(rows)
    known = found.agreement if found else None
    proposal = _proposal(site, method, known, asked=asked, bounds=bounds)
    return Consent(
        method,
        rows,
        wire,
        "no" if known is None else "yes" if known.wire == wire else "to another table",
        known.steps if known else (),
        tuple(agreements.agreement_lines(known, proposal)),
        tuple(agreements.lines_beyond(known, proposal)) if known else (),
        known.until if known else None,
        bool(found and found.old),
        _refused(site, asked),
    )


def agree_to(
    kit: Kit,
    method: str,
    *,
    steps: Sequence[str] = (),
    asked: Settings | None = None,
    bounds: Sequence[str] = (),
) -> Consent:
    """Agree to what `consent` proposes, or only to some of the method's steps.

    The count of runs starts again. Raises SettingsError, KitError, RunError.
    """
    method = method_named(method).name
    known = [step.name for step in run_steps(method)]
    for step in steps:
        if step not in known:
            raise SettingsError(f"{method} has no step {step!r}", fix=nearest(step, known))
    site, held = read_site_file(kit), read_agreements(kit)
    before = held[method].agreement if method in held else None
    proposal = _proposal(site, method, before, asked=asked, bounds=bounds)
    if proposal.until < _now().date():
        raise SettingsError(
            "the last day of the agreement has passed",
            expected="today or a later day",
            got=f"until = {proposal.until}",
            fix="give a later day, such as --bound until=2027-12-31",
        )
    update = {"wire": wire_digest(wire_of(method)), "steps": tuple(steps), "agreed": _now()}
    agreed = agreements.SiteAgreement(method, proposal.model_copy(update=update))
    _keep(kit, site, held | {method: agreed})
    return replace(propose_consent(kit, method), refused=_refused(site, asked))


def withdraw_from(kit: Kit, method: str) -> Consent:
    """Take a consent back; a run under way is refused at its next ask. Raises KitError."""
    method = method_named(method).name
    held = read_agreements(kit)
    held.pop(method, None)
    _keep(kit, read_site_file(kit), held)
    return propose_consent(kit, method)


def settings_asked(file: str | Path, method: str | None = None) -> Settings:
    """The settings in a lead's file, with another `method` if one is given.

    Raises SettingsError.
    """
    chosen, _ = read_for_sites(file, ())
    if method not in (None, chosen.method, chosen.trained_by):
        named = method if method in REFERENCES else method_named(method).method
        chosen, _ = read_for_sites(file, (f"method={named}",))
    return chosen


def _refused(site: SiteFile, asked: Settings | None) -> str:
    try:
        if asked is not None:
            check_guards(asked, Guards(**site.guards.model_dump()))
    except Refusal as error:
        return str(error)
    return ""


def _proposal(
    site: SiteFile,
    method: str,
    known: Agreement | None,
    *,
    asked: Settings | None,
    bounds: Sequence[str],
) -> Agreement:
    wire, now = wire_digest(wire_of(method)), _now()
    fresh = agreements.usual_agreement(method, wire, at_least=site.guards.min_sites, now=now)
    base = known or fresh
    if base.until < now.date():
        base = base.model_copy(update={"until": fresh.until})
    base = agreements.with_bounds(base, bounds)
    if asked is None:
        return base
    if method_named(asked.trained_by).name != method:
        raise SettingsError(
            "the settings do not run this method",
            expected=method,
            got=asked.trained_by,
            fix="leave the method out, or name the one in the settings",
        )
    return agreements.with_bounds(agreements.proposed_agreement(asked, base), bounds)


def _keep(kit: Kit, site: SiteFile, agreed: dict[str, agreements.SiteAgreement]) -> None:
    """Write the agreements, and the site's own file without those of its old form.

    Raises SettingsError if an agreement is not valid.
    """
    if agreed or site_file(kit).with_name(agreements.CONSENT_FILE).exists():
        held = {method: one.agreement.model_dump() for method, one in agreed.items()}
        agreements.write_agreements(
            site_file(kit).parent, parse_consent({"site": site.name, "method": held})
        )
    with for_the_owner():
        text = dump_site(site.model_copy(update={"consent": {}}))
        write_of_run(site_file(kit), text.encode())


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
