"""A site's agreements on its disk, and the runs that count against them.

Both lie in the kit, beside the site's own file: `consent.toml`, and `consent-runs.jsonl` with one
line for each agreement made and one for each run begun under it. Deleting the site's memory deletes
neither. An agreement without its line allows no run.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pydantic import ValidationError

from confide import files
from confide.errors import ConfideError, RunError, SettingsError, os_errors_as
from confide.federation.failures import Refusal
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
class RunTerms:
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
class AgreementLine:
    """A line of an agreement: its name and meaning, what is agreed, what is asked.

    `outside`: more is asked than was agreed.
    """

    name: str
    says: str
    agreed: object
    asked: object
    outside: bool


def fewest_in_sum(settings: Settings, sites: Sequence[str]) -> int:
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


_SETTINGS = {
    "local_epochs": "training.local_epochs",
    "local_steps": "options.local_steps",
    "batch_size": "training.batch_size",
    "fraction": "federation.fraction",
    "at_least": "federation.at_least",
    "combine": "federation.combine",
    "max_norm_ratio": "federation.max_norm_ratio",
    "rows": "options.rows",
    "word_sites": "vocabulary.min_sites",
    "others": "sites",
}
"""The settings of a run that lines of an agreement bound; other lines have the setting's name."""


def _needs(settings: Settings) -> files.Tree:
    """The bounds that a run with these settings needs, whoever takes part.

    `local_steps` counts where the method counts steps. `max_norm_ratio` is 0 where updates cannot
    be compared.
    """
    own, steps = settings.federation, settings.options.get("local_steps", 1)
    masked = own.sums == "masked" and not own.groups
    return {
        "rounds": settings.rounds,
        "local_epochs": settings.training.local_epochs,
        "local_steps": steps if isinstance(steps, int) else sys.maxsize,
        "batch_size": settings.training.batch_size,
        "fraction": own.fraction,
        "combine": (own.combine,),
        "max_norm_ratio": 0.0 if masked else own.limit,
        "rows": (str(settings.options.get("rows", "all")),),
        "word_sites": settings.vocabulary.min_sites,
    }


def fields_outside(agreement: Agreement, terms: RunTerms, *, runs: int, today: date) -> list[str]:
    """The fields of a run that are outside an agreement; empty if the run is within it.

    `runs` is the number of runs under this agreement, including this one; `today` is the day at the
    site.
    """
    asked = _needs(terms.settings) | {
        "at_least": fewest_in_sum(terms.settings, terms.sites),
        "lead": (terms.lead,),
        "sites": terms.sites,
        "others": False,
        "runs": runs,
        "until": today,
    }
    wrong = lines_beyond(agreement, agreement.model_copy(update=asked))
    return list(dict.fromkeys(_SETTINGS.get(name, name) for name in wrong))


_AT_MOST = ("rounds", "local_epochs", "local_steps", "max_norm_ratio", "runs", "until")
_AT_LEAST = ("batch_size", "fraction", "at_least", "word_sites")


def lines_beyond(agreed: Agreement, asked: Agreement) -> list[str]:
    """The lines in which the agreement `asked` allows more than `agreed` does."""
    old, new = dict(agreed), dict(asked)
    wrong = [name for name in _AT_MOST if new[name] > old[name]]
    wrong += [name for name in _AT_LEAST if new[name] < old[name]]
    wrong += [name for name in ("combine", "rows") if not set(new[name]) <= set(old[name])]
    if ANYONE not in agreed.lead and not set(asked.lead) <= set(agreed.lead):
        wrong.append("lead")
    if not set(agreed.sites) <= set(asked.sites):
        wrong.append("sites")
    if not agreed.others and (asked.others or set(asked.sites) - set(agreed.sites)):
        wrong.append("others")
    return [name for name in BOUNDS if name in wrong]


def agreement_lines(agreed: Agreement | None, asked: Agreement) -> list[AgreementLine]:
    """An agreement line by line, beside the one that is asked for."""
    wrong = lines_beyond(agreed, asked) if agreed else ()
    return [
        AgreementLine(
            name, says, agreed and getattr(agreed, name), getattr(asked, name), name in wrong
        )
        for name, says in BOUNDS.items()
    ]


def usual_agreement(
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


def proposed_agreement(settings: Settings, base: Agreement) -> Agreement:
    """The agreement `base`, changed to what a run with these settings needs.

    Raises SettingsError.
    """
    known = base.sites or settings.method == ALONE
    at_least = settings.federation.at_least or base.at_least
    needs = _needs(settings)
    needs["at_least"] = fewest_in_sum(settings, base.sites) if known else at_least
    needs["max_norm_ratio"] = needs["max_norm_ratio"] or base.max_norm_ratio
    return _valid(base.model_dump() | needs)


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


def _valid(plain: files.Tree) -> Agreement:
    try:
        return Agreement.model_validate(plain)
    except ValidationError as error:
        raise explained(error, Agreement) from error


SITE_FILE = "site.toml"
"""The site's own file, in the `local` folder of its kit."""
CONSENT_FILE = "consent.toml"
COUNT_FILE = "consent-runs.jsonl"
OUTSIDE = "outside-consent"


@dataclass(frozen=True)
class SiteAgreement:
    """An agreement to a method. `old`: it is from a site's own file, which had no bounds once."""

    method: str
    agreement: Agreement
    old: bool = False

    @property
    def mark(self) -> str:
        """Its name in the count of runs; editing its bounds by hand does not change it."""
        made = "" if self.old else self.agreement.agreed.astimezone(UTC).isoformat()
        return f"{self.method} {made}"


class Agreements:
    """The present agreements of the site whose own file is `path`, as its files say them now.

    `today` gives the day at the site; it is called for every run.
    """

    def __init__(self, path: Path, *, today: Callable[[], date] = date.today) -> None:
        self._path = path
        self._today = today

    def of(self, site: SiteFile) -> dict[str, SiteAgreement]:
        """All agreements of a site, by method. Raises SettingsError: damaged, or another site's."""
        path = self._path.with_name(CONSENT_FILE)
        held = load_consent(path) if path.exists() else None
        if held is not None and held.site != site.name:
            raise SettingsError(
                "these agreements belong to another site",
                expected=site.name,
                got=held.site,
                where=str(path),
            )
        named = (held.method if held else {}).items()
        return self.old(site) | {name: SiteAgreement(name, one) for name, one in named}

    def agreed(self, site: SiteFile, method: str, wire: str | None) -> SiteAgreement:
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

    def check(self, found: SiteAgreement, terms: RunTerms) -> None:
        """Raise Refusal, with the names of the fields, if a run is outside an agreement."""
        runs = self.runs(found)
        count = found.agreement.runs + 1 if runs is None else len(runs | {terms.key})
        fields = fields_outside(found.agreement, terms, runs=count, today=self._today())
        if fields:
            raise Refusal(OUTSIDE, ", ".join(fields))

    def runs(self, found: SiteAgreement) -> frozenset[str] | None:
        """The runs that count against an agreement; None if its count is lost.

        A line that cannot be read counts as a run under every agreement made before it.
        """
        path = self._path.with_name(COUNT_FILE)
        counted = _read_count(path) if path.exists() else {}
        if found.old:
            return frozenset(counted.get(found.mark, set()) | counted.get("", set()))
        return frozenset(counted[found.mark]) if found.mark in counted else None

    def count(self, found: SiteAgreement, terms: RunTerms) -> None:
        """Note once that a run began. Raises RunError if it cannot be written."""
        if terms.key not in (self.runs(found) or ()):
            _add(self._path.parent, found.mark, terms.key, self._today())

    def old(self, site: SiteFile) -> dict[str, SiteAgreement]:
        """The agreements in the site's own file, valid for a year from when it was written."""
        if not site.consent:
            return {}
        written = datetime.fromtimestamp(int(self._path.stat().st_mtime), UTC)
        least = site.guards.min_sites
        return {
            method: SiteAgreement(
                method,
                usual_agreement(method, table.wire, at_least=least, now=written, steps=table.steps),
                old=True,
            )
            for method, table in site.consent.items()
        }


def write_agreements(folder: Path, held: ConsentFile) -> None:
    """Write a site's agreements, and start a count of runs for the new ones.

    Raises RunError if they cannot be written.
    """
    with files.for_the_owner():
        count = _read_count(folder / COUNT_FILE) if (folder / COUNT_FILE).exists() else {}
        for method, agreement in held.method.items():
            mark = SiteAgreement(method, agreement).mark
            if mark not in count:
                _add(folder, mark, "", agreement.agreed.date())
        files.write_of_run(folder / CONSENT_FILE, dump_consent(held).encode())


def _add(folder: Path, agreement: str, run: str, day: date) -> None:
    line = json.dumps({"agreement": agreement, "run": run, "day": day.isoformat()})
    path = folder / COUNT_FILE
    with os_errors_as(
        RunError,
        "the count of runs could not be written",
        where=path,
        fix="free some disk space, and see that the file belongs to the user that runs the site",
    ):
        before = files.file_bytes(path, files.MOST_JSON) if path.exists() else b""
        torn = b"\n" if before and not before.endswith(b"\n") else b""
        files.append_durably(path, torn + line.encode() + b"\n")


def _read_count(path: Path) -> dict[str, set[str]]:
    """The runs by agreement; unreadable lines are under "" and under every agreement before."""
    found: dict[str, set[str]] = {"": set()}
    for number, line in enumerate(files.file_bytes(path, files.MOST_JSON).splitlines()):
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
