"""Two ledgers of one run, compared: the server's and a site's, or two sites'.

If the ledgers hold seals, their chains and signatures are verified first, then what each side
signed about the other's ledger, then every message of one against the other. Ledgers without seals
(from one machine, or an older version) are compared entry by entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confide.errors import RunError
from confide.federation.ledger import Entry, ledger_files, read_lines
from confide.federation.records import Record, faults_of, read_record
from confide.federation.tallying import with_server, with_site

SERVER = "server"


@dataclass(frozen=True, slots=True)
class LedgerDifference:
    """Where two ledgers of one run differ.

    Attributes:
        site: the site whose ledger was given.
        messages: the number of its entries.
        again: entries that only the site's ledger holds, because they crossed the wall once more
            after a crash.
        only_here: what only the ledger of the run holds.
        only_there: what only the site's ledger holds.
        faults: lines that were changed, removed or not properly signed, the first one first.
        unheard: asks that the server noted and the site never got, or that one of two sites never
            got.
        verified: the number of signatures checked.
    """

    site: str
    messages: int
    again: int
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    faults: tuple[str, ...] = ()
    unheard: int = 0
    verified: int = 0

    @property
    def agree(self) -> bool:
        """Whether both hold the same messages and neither was changed."""
        return not self.only_here and not self.only_there and not self.faults


def compare_ledgers(run: Path, other: Path) -> LedgerDifference:
    """Compare the ledger of a run with the one that a site kept of it.

    `run` is the run's folder at the server, at the lead or at another site; `other` is the site's.
    Raises RunError if either ledger is missing or unreadable, or if `other` is not the ledger of
    one site.
    """
    theirs = other / "ledger.jsonl" if other.is_dir() else other
    if not theirs.is_file():
        raise RunError(
            "there is no site's ledger here",
            expected="the one that the site kept: MEMORY/runs/RUN/ledger.jsonl",
            where=str(theirs),
        )
    paths = ledger_files(run) if run.is_dir() else [run]
    if not paths:
        raise RunError("this folder holds no ledger", where=str(run), fix="name a run's folder")
    there, ours = read_record(theirs), [read_record(path) for path in paths]
    if there.at == SERVER or not any(one.is_sealed for one in [there, *ours]):
        return _without_seals(paths, theirs)
    here = next((one for one in ours if there.at and there.at in (one.at, *one.sites)), None)
    if here is None:
        raise RunError(
            "one of the two ledgers does not say whose it is, or they are of different runs",
            where=", ".join(map(str, paths)),
            expected=f"a ledger of the run {there.run!r}, of the server or of one of its sites",
            fix="compare two unchanged ledgers of the same run",
        )
    return _with_seals(here, there)


def _with_seals(here: Record, there: Record) -> LedgerDifference:
    faults = [*faults_of(here), *faults_of(there)]
    found = with_server(here, there) if here.at == SERVER else with_site(here, there)
    return LedgerDifference(
        there.at,
        messages=len(there.entries),
        again=found.again,
        only_here=found.only_here,
        only_there=found.only_there,
        faults=(*faults, *found.faults),
        unheard=found.unheard,
        verified=here.signatures + there.signatures,
    )


def _without_seals(paths: list[Path], theirs: Path) -> LedgerDifference:
    there = [line.entry for line in read_lines(theirs) if line.entry]
    names = {entry.site for entry in there}
    if len(names) != 1:
        raise RunError(
            "this is not the ledger of one site",
            where=str(theirs),
            expected="the one that the site kept: MEMORY/runs/RUN/ledger.jsonl",
            got=f"one of {len(names)} sites",
        )
    site = names.pop()
    here = [entry for entry in _entries(paths) if entry.site == site]
    ours, sites = Counter(here), Counter(there)
    return LedgerDifference(
        site,
        messages=sum(sites.values()),
        again=sum(max(sites[one] - ours[one], 0) for one in sites if one in ours),
        only_here=tuple(sorted({one.words() for one in ours if ours[one] > sites[one]})),
        only_there=tuple(sorted({one.words() for one in sites if one not in ours})),
        faults=tuple(
            f"{path}:{line.number}: this line, or the one before it, was changed"
            for path in [*paths, theirs]
            for line in read_lines(path)
            if line.chained is False
        ),
    )


def _entries(paths: list[Path]) -> Iterator[Entry]:
    for path in paths:
        for line in read_lines(path):
            if line.entry:
                yield line.entry
