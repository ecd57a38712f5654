"""A site's agreements on its disk, and the runs that count against them.

Both lie in the kit, beside the site's own file: `consent.toml`, and `consent-runs.jsonl` with one
line for each agreement made and one for each run begun under it. Deleting the site's memory deletes
neither. An agreement without its line allows no run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Generic, TypeVar

from confide.errors import ConfideError, RunError, SettingsError, os_errors_as
from confide.federation.failures import Refusal
from confide.federation.files import for_the_owner, write_of_run
from confide.flare.run.consenting import Asked, outside, usual
from confide.settings import SiteFile
from confide.settings.consentfile import Agreement, ConsentFile, dump_consent, load_consent
from confide.userfiles import MOST_JSON, bytes_of

SITE_FILE = "site.toml"
"""The site's own file, in the `local` folder of its kit."""
CONSENT_FILE = "consent.toml"
COUNT_FILE = "consent-runs.jsonl"
OUTSIDE = "outside-consent"

Held = TypeVar("Held")


@dataclass(frozen=True)
class Agreed:
    """An agreement. `old`: it is from a site's own file, from before agreements had bounds."""

    agreement: Agreement
    old: bool = False


class Reread(Generic[Held]):
    """The content of a file, read again whenever the file changed."""

    def __init__(self, path: Path, read: Callable[[Path], Held]) -> None:
        self._path = path
        self._read = read
        self._stamp: tuple[int, ...] = ()
        self._held: Held | None = None

    def now(self) -> Held | None:
        """The content; None if there is no such file. Raises what `read` raises."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._stamp = ()
            return None
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp:
            self._held = self._read(self._path)
            self._stamp = stamp
        return self._held


class Agreements:
    """What the site whose own file is `path` has agreed to, as of now.

    `today` gives the day at the site; it is called for every run.
    """

    def __init__(self, path: Path, *, today: Callable[[], date] = date.today) -> None:
        self._path = path
        self._consent = Reread(path.with_name(CONSENT_FILE), load_consent)
        self._count = Reread(path.with_name(COUNT_FILE), _read_count)
        self._today = today

    def of(self, site: SiteFile) -> dict[str, Agreed]:
        """All agreements of a site, by method. Raises SettingsError: damaged, or another site's."""
        held = self._consent.now()
        if held is not None and held.site != site.name:
            raise SettingsError(
                "these agreements belong to another site",
                expected=site.name,
                got=held.site,
                where=str(self._path.with_name(CONSENT_FILE)),
            )
        named = (held.method if held else {}).items()
        return self.old(site) | {method: Agreed(agreement) for method, agreement in named}

    def agreed(self, site: SiteFile, method: str, wire: str | None) -> Agreed:
        """The site's agreement to a method, whose wire table has the digest `wire`, if given.

        Raises Refusal if the site did not agree to everything that the method sends.
        """
        from confide.flare.run.joining import wire_digest, wire_of  # methods, which take their time

        try:
            found = self.of(site).get(method)
        except (ConfideError, OSError) as error:
            raise Refusal("site-file") from error
        if found is None:
            raise Refusal("no-consent", method)
        ours = wire_digest(wire_of(method))
        if found.agreement.wire != ours or wire not in (ours, None):
            raise Refusal("other-wire", method)
        return found

    def hold(self, found: Agreed, asked: Asked) -> None:
        """Raise Refusal, with the names of the fields, if a run is outside an agreement."""
        method = asked.settings.trained_by
        runs = self.runs(found, method)
        fields = outside(
            found.agreement,
            asked.settings,
            sites=asked.sites,
            lead=asked.lead,
            runs=found.agreement.runs + 1 if runs is None else len(runs | {asked.key}),
            today=self._today(),
        )
        if fields:
            raise Refusal(OUTSIDE, ", ".join(fields))

    def runs(self, found: Agreed, method: str) -> frozenset[str] | None:
        """The runs that count against an agreement; None if its count is lost.

        A line that cannot be read counts as a run under every agreement made before it.
        """
        counted = self._count.now() or {}
        mark = _mark(method, found)
        if found.old:
            return frozenset(counted.get(mark, set()) | counted.get("", set()))
        return frozenset(counted[mark]) if mark in counted else None

    def count(self, found: Agreed, asked: Asked) -> None:
        """Note once that a run began. Raises RunError if it cannot be written."""
        method = asked.settings.trained_by
        if asked.key not in (self.runs(found, method) or ()):
            _add(self._path.parent, _mark(method, found), asked.key, self._today())

    def old(self, site: SiteFile) -> dict[str, Agreed]:
        """The agreements in the site's own file, valid for a year from when it was written."""
        if not site.consent:
            return {}
        written = int(self._path.stat().st_mtime)
        return {
            method: Agreed(_with_usual_bounds(site, method, written), old=True)
            for method in site.consent
        }


def _with_usual_bounds(site: SiteFile, method: str, written: int) -> Agreement:
    table = site.consent[method]
    now = datetime.fromtimestamp(written, UTC)
    return usual(method, table.wire, at_least=site.guards.min_sites, now=now, steps=table.steps)


def write_agreements(folder: Path, held: ConsentFile) -> None:
    """Write a site's agreements, and start a count of runs for the new ones.

    Raises RunError if they cannot be written.
    """
    with for_the_owner():
        count = _read_count(folder / COUNT_FILE) if (folder / COUNT_FILE).exists() else {}
        for method, agreement in held.method.items():
            mark = _mark(method, Agreed(agreement))
            if mark not in count:
                _add(folder, mark, "", agreement.agreed.date())
        write_of_run(folder / CONSENT_FILE, dump_consent(held).encode())


def _mark(method: str, found: Agreed) -> str:
    """The name of an agreement in the count; editing its bounds by hand does not change it."""
    return f"{method} {'' if found.old else found.agreement.agreed.astimezone(UTC).isoformat()}"


def _add(folder: Path, agreement: str, run: str, day: date) -> None:
    line = json.dumps({"agreement": agreement, "run": run, "day": day.isoformat()})
    path = folder / COUNT_FILE
    with os_errors_as(
        RunError,
        "the count of runs could not be written",
        where=path,
        fix="free some disk space, and see that the file belongs to the user that runs the site",
    ):
        before = bytes_of(path, MOST_JSON) if path.exists() else b""
        torn = b"\n" if before and not before.endswith(b"\n") else b""
        with for_the_owner(), open(path, "ab") as file:
            file.write(torn + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _read_count(path: Path) -> dict[str, set[str]]:
    """The runs by agreement; unreadable lines are under "" and under every agreement before."""
    found: dict[str, set[str]] = {"": set()}
    for number, line in enumerate(bytes_of(path, MOST_JSON).splitlines()):
        try:
            held = json.loads(line)
            mark, run = held["agreement"], held["run"]
            if not (isinstance(mark, str) and mark and isinstance(run, str)):
                raise ValueError("an agreement and a run are names")
        except (ValueError, TypeError, KeyError, RecursionError):
            for runs in found.values():
                runs.add(f"line {number}")
        else:
            found.setdefault(mark, set()).update([run] if run else [])
    return found
