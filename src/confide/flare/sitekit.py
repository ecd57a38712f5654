"""A site's own file in its kit: put there and checked, and what the site consents to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from confide.errors import KitError, SettingsError
from confide.federation.files import for_the_owner, write_of_run
from confide.federation.keys import read_key
from confide.federation.wire import WireRow
from confide.flare.home import SITE_FILE, check_home
from confide.flare.joining import steps_of, wire_digest, wire_of
from confide.flare.kits import Kit
from confide.flare.peers import place_of
from confide.gathering import Gathered
from confide.settings import ConsentTable, SiteFile, dump_site, load_site, nearest


@dataclass(frozen=True)
class Consent:
    """What a method would let leave a site, and whether the site agreed to exactly that."""

    method: str
    rows: tuple[WireRow, ...]
    wire: str
    agreed: Literal["yes", "no", "to another table"]
    steps: tuple[str, ...] = ()


def site_file(kit: Kit) -> Path:
    """Where a site's own file lies in its kit."""
    return kit.path / "local" / SITE_FILE


def setup(kit: Kit, settings: Path) -> tuple[SiteFile, Gathered]:
    """Check a site's own file, read its text as a run would, and put the file into the kit.

    The site's memory folder is made, and closed to others. What was agreed to before stays agreed
    to. Raises KitError where the file is another site's, and SettingsError, MissingDataError,
    FormatError, DataError, KeyFileError.
    """
    site = load_site(settings)
    if site.name != kit.name:
        raise KitError(
            "the file is not of the site that the kit is for",
            where=str(settings),
            expected=f"name = {kit.name!r}",
            got=repr(site.name),
        )
    read_key(Path(site.key))
    gathered = check_home(site)
    before = load_site(site_file(kit)).consent if site_file(kit).exists() else {}
    site = site.model_copy(update={"consent": {**before, **site.consent}})
    place_of(kit, make=True)
    _write(kit, site)
    return site, gathered


def consent(kit: Kit, method: str) -> Consent:
    """What a method would let leave this site. Raises SettingsError, KitError."""
    rows = tuple(wire_of(method))
    wire = wire_digest(rows)
    agreed = _site(kit).consent.get(method)
    if agreed is None:
        return Consent(method, rows, wire, "no")
    return Consent(
        method, rows, wire, "yes" if agreed.wire == wire else "to another table", agreed.steps
    )


def agree(kit: Kit, method: str, *, steps: Sequence[str] = ()) -> Consent:
    """Consent to a method, or to some of its steps only. Raises SettingsError, KitError."""
    known = [step.name for step in steps_of(method)]
    for step in steps:
        if step not in known:
            raise SettingsError(f"{method} has no step {step!r}", fix=nearest(step, known))
    table = ConsentTable(wire=wire_digest(wire_of(method)), steps=tuple(steps))
    _keep(kit, {**_site(kit).consent, method: table})
    return consent(kit, method)


def withdraw(kit: Kit, method: str) -> Consent:
    """Take a consent back; a run that goes on is refused at its next ask. Raises KitError."""
    left = {name: table for name, table in _site(kit).consent.items() if name != method}
    _keep(kit, left)
    return consent(kit, method)


def _site(kit: Kit) -> SiteFile:
    if not site_file(kit).exists():
        raise KitError(
            "the kit does not know the site's text yet",
            where=str(kit.path),
            fix="write a site.toml, and `confide site setup KIT --settings site.toml`",
        )
    return load_site(site_file(kit))


def _keep(kit: Kit, agreed: dict[str, ConsentTable]) -> None:
    _write(kit, _site(kit).model_copy(update={"consent": agreed}))


def _write(kit: Kit, site: SiteFile) -> None:
    with for_the_owner():
        write_of_run(site_file(kit), dump_site(site).encode())
