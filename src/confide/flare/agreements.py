"""A site's agreements on its disk, and the runs that count against them.

Both lie in the kit, beside the site's own file: `consent.toml`, and `consent-runs.jsonl` with one
line for each agreement made and one for each run begun under it. Deleting the site's memory deletes
neither. An agreement without its line allows no run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from confide.errors import ConfideError, RunError, SettingsError, os_errors_as
from confide.federation.failures import Refusal
from confide.files import MOST_JSON, Tree, bytes_of, for_the_owner, write_of_run
from confide.settings import Settings, SiteFile, dump, nearest, parse
from confide.settings.reading import explained, parse_assignment
from confide.settings.sitefile import (
    ANYONE,
    BOUNDS,
    Agreement,
    ConsentFile,
    dump_consent,
    load_consent,
)
from confide.settings.tables import OF_SITES

# --- Limits of a site's agreement
#
# A run is checked against them. Nothing here reads files.


ALONE = "alone"
DAYS = 365
"""Days that an agreement is valid if its end is not named."""


@dataclass(frozen=True)
class Asked:
    """A run that a site is asked to join, to be checked against its agreement."""

    settings: Settings
    sites: tuple[str, ...]
    lead: str
    run: str

    @property
    def key(self) -> str:
        """A key that stays the same if a run is resumed, and differs if its settings differ."""
        digest = hashlib.sha256(dump(self.settings).encode()).hexdigest()[:16]
        return f"{self.run} {digest}"


@dataclass(frozen=True)
class Line:
    """A line of an agreement: its name and meaning, what is agreed, what is asked.

    `outside`: more is asked than was agreed.
    """

    name: str
    says: str
    agreed: object
    asked: object
    outside: bool


def fewest(settings: Settings, sites: Sequence[str]) -> int:
    """The fewest sites that a sum of this run may cover; under `alone` it is one.

    Fewer than half of the drawn sites can be too far off to be in a sum (`max_norm_ratio`). Of
    fixed groups the server sees the sum of each.
    """
    from confide.federation.combining import fewest_left
    from confide.federation.federation import round_half_up  # torch, which takes its time

    if settings.method == ALONE:
        return 1
    count = len(set(sites))
    drawn = max(1, round_half_up(settings.federation.fraction * count))
    left = fewest_left(drawn, (drawn - 1) // 2 if math.isfinite(settings.federation.limit) else 0)
    own = settings.federation
    return min(drawn, own.at_least or left, own.groups or drawn)


def combine_of(settings: Settings) -> str:
    """The name of the rule by which the server combines what sites send."""
    return settings.federation.combine


def limit_of(settings: Settings) -> float:
    """The limit of an update in multiples of the usual size; 0 where none can be compared."""
    own = settings.federation
    return 0.0 if own.sums == "masked" and not own.groups else own.limit


def steps_of(settings: Settings) -> int:
    """The steps of a site in a round, if the method counts them."""
    steps = settings.options.get("local_steps", 1)
    return steps if isinstance(steps, int) else sys.maxsize


def rows_of(settings: Settings) -> str:
    """Whose rows of a table are averaged: those of all sites, or of those that have the word."""
    return str(settings.options.get("rows", "all"))


def outside(
    agreement: Agreement,
    settings: Settings,
    *,
    sites: Sequence[str],
    lead: str,
    runs: int,
    today: date,
) -> list[str]:
    """The fields of a run that are outside an agreement; empty if the run is within it.

    Args:
        agreement: the site's agreement to the method.
        settings: those of the run.
        sites: the names of all sites that take part.
        lead: the name of the lead who started the run.
        runs: the number of runs under this agreement, including this one.
        today: the day at the site.
    """
    named, known = set(sites), set(agreement.sites)
    strangers = () if agreement.others else named - known
    is_outside = {
        "rounds": settings.rounds > agreement.rounds,
        "training.local_epochs": settings.training.local_epochs > agreement.local_epochs,
        "options.local_steps": steps_of(settings) > agreement.local_steps,
        "training.batch_size": settings.training.batch_size < agreement.batch_size,
        "federation.fraction": settings.federation.fraction < agreement.fraction,
        "federation.at_least": fewest(settings, sites) < agreement.at_least,
        "federation.combine": combine_of(settings) not in agreement.combine,
        "federation.max_norm_ratio": limit_of(settings) > agreement.max_norm_ratio,
        "options.rows": rows_of(settings) not in agreement.rows,
        "vocabulary.min_sites": settings.vocabulary.min_sites < agreement.word_sites,
        "lead": ANYONE not in agreement.lead and lead not in agreement.lead,
        "sites": bool(known - named or strangers),
        "runs": runs > agreement.runs,
        "until": today > agreement.until,
    }
    return [field for field, it_is in is_outside.items() if it_is]


def beyond(agreed: Agreement, asked: Agreement) -> list[str]:
    """The lines in which the agreement `asked` allows more than `agreed` does."""
    leads = ANYONE not in agreed.lead and set(asked.lead) - set(agreed.lead)
    strangers = asked.others or set(asked.sites) - set(agreed.sites)
    is_beyond = {
        "rounds": asked.rounds > agreed.rounds,
        "local_epochs": asked.local_epochs > agreed.local_epochs,
        "local_steps": asked.local_steps > agreed.local_steps,
        "batch_size": asked.batch_size < agreed.batch_size,
        "fraction": asked.fraction < agreed.fraction,
        "at_least": asked.at_least < agreed.at_least,
        "combine": bool(set(asked.combine) - set(agreed.combine)),
        "max_norm_ratio": asked.max_norm_ratio > agreed.max_norm_ratio,
        "rows": bool(set(asked.rows) - set(agreed.rows)),
        "word_sites": asked.word_sites < agreed.word_sites,
        "lead": bool(leads),
        "sites": bool(set(agreed.sites) - set(asked.sites)),
        "others": bool(not agreed.others and strangers),
        "runs": asked.runs > agreed.runs,
        "until": asked.until > agreed.until,
    }
    return [name for name, it_is in is_beyond.items() if it_is]


def lines(agreed: Agreement | None, asked: Agreement) -> list[Line]:
    """An agreement line by line, beside the one that is asked for."""
    wrong = beyond(agreed, asked) if agreed else ()
    return [
        Line(name, says, agreed and getattr(agreed, name), getattr(asked, name), name in wrong)
        for name, says in BOUNDS.items()
    ]


def usual(
    method: str, wire: str, *, at_least: int, now: datetime, steps: Sequence[str] = ()
) -> Agreement:
    """An agreement with the usual bounds: `method` with its default settings, for a year.

    It allows any lead and any sites, sums of `at_least` sites, ten runs, and twice the method's
    usual rounds or a hundred, whichever is more.
    """
    rounds = parse({"method": method.rpartition("-")[0] or method}).rounds
    return Agreement(
        wire=wire,
        steps=tuple(steps),
        rounds=max(100, 2 * rounds),
        local_epochs=10,
        local_steps=10,
        batch_size=4,
        fraction=0.1,
        at_least=at_least,
        combine=("mean", "clipped"),
        max_norm_ratio=OF_SITES,
        rows=("all", "seen"),
        word_sites=1,
        lead=(ANYONE,),
        sites=(),
        others=True,
        runs=10,
        until=now.date() + timedelta(days=DAYS),
        agreed=now,
    )


def proposed(settings: Settings, base: Agreement) -> Agreement:
    """The agreement `base`, changed to what a run with these settings needs.

    Raises SettingsError.
    """
    known = base.sites or settings.method == ALONE
    at_least = settings.federation.at_least or base.at_least
    return _valid(
        base.model_dump()
        | {
            "rounds": settings.rounds,
            "local_epochs": settings.training.local_epochs,
            "local_steps": steps_of(settings),
            "batch_size": settings.training.batch_size,
            "fraction": settings.federation.fraction,
            "at_least": fewest(settings, base.sites) if known else at_least,
            "combine": (combine_of(settings),),
            "max_norm_ratio": limit_of(settings) or base.max_norm_ratio,
            "rows": (rows_of(settings),),
            "word_sites": settings.vocabulary.min_sites,
        }
    )


def with_bounds(agreement: Agreement, bounds: Sequence[str]) -> Agreement:
    """The agreement with other bounds: texts like `runs=3`, `until=2027-01-31`, `lead=["ada"]`.

    If sites are named, others are excluded unless `others` is given too. Raises SettingsError.
    """
    plain = agreement.model_dump()
    given = [parse_assignment(text) for text in bounds]
    for key, value in given:
        name = ".".join(key)
        if name not in BOUNDS:
            raise SettingsError(f"an agreement has no line {name!r}", fix=nearest(name, [*BOUNDS]))
        plain[name] = value
    said = {key[0] for key, _ in given}
    if "sites" in said and "others" not in said:
        plain["others"] = not plain["sites"]
    return _valid(plain)


def _valid(plain: Tree) -> Agreement:
    try:
        return Agreement.model_validate(plain)
    except ValidationError as error:
        raise explained(error, Agreement, tables={}) from error


SITE_FILE = "site.toml"
"""The site's own file, in the `local` folder of its kit."""
CONSENT_FILE = "consent.toml"
COUNT_FILE = "consent-runs.jsonl"
OUTSIDE = "outside-consent"

Held = TypeVar("Held")


@dataclass(frozen=True)
class HeldAgreement:
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
    """The present agreements of the site whose own file is `path`.

    `today` gives the day at the site; it is called for every run.
    """

    def __init__(self, path: Path, *, today: Callable[[], date] = date.today) -> None:
        self._path = path
        self._consent = Reread(path.with_name(CONSENT_FILE), load_consent)
        self._count = Reread(path.with_name(COUNT_FILE), _read_count)
        self._today = today

    def of(self, site: SiteFile) -> dict[str, HeldAgreement]:
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
        return self.old(site) | {method: HeldAgreement(agreement) for method, agreement in named}

    def agreed(self, site: SiteFile, method: str, wire: str | None) -> HeldAgreement:
        """The site's agreement to a method, whose wire table has the digest `wire`, if given.

        Raises Refusal if the site did not agree to everything that the method sends.
        """
        from confide.flare.joining import wire_digest, wire_of  # methods, which take their time

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

    def hold(self, found: HeldAgreement, asked: Asked) -> None:
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

    def runs(self, found: HeldAgreement, method: str) -> frozenset[str] | None:
        """The runs that count against an agreement; None if its count is lost.

        A line that cannot be read counts as a run under every agreement made before it.
        """
        counted = self._count.now() or {}
        mark = _mark(method, found)
        if found.old:
            return frozenset(counted.get(mark, set()) | counted.get("", set()))
        return frozenset(counted[mark]) if mark in counted else None

    def count(self, found: HeldAgreement, asked: Asked) -> None:
        """Note once that a run began. Raises RunError if it cannot be written."""
        method = asked.settings.trained_by
        if asked.key not in (self.runs(found, method) or ()):
            _add(self._path.parent, _mark(method, found), asked.key, self._today())

    def old(self, site: SiteFile) -> dict[str, HeldAgreement]:
        """The agreements in the site's own file, valid for a year from when it was written."""
        if not site.consent:
            return {}
        written = int(self._path.stat().st_mtime)
        return {
            method: HeldAgreement(_with_usual_bounds(site, method, written), old=True)
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
            mark = _mark(method, HeldAgreement(agreement))
            if mark not in count:
                _add(folder, mark, "", agreement.agreed.date())
        write_of_run(folder / CONSENT_FILE, dump_consent(held).encode())


def _mark(method: str, found: HeldAgreement) -> str:
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
