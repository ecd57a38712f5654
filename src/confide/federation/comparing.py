"""Two ledgers of one run, compared: the server's and a site's, or two sites'.

Where the ledgers hold seals, chains and signatures are verified first, then what either side signed
of the other's ledger, then every message of one against the other. Ledgers without seals (of one
machine, or of an older version) are compared entry by entry.
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
    """What two ledgers of one run do not say alike.

    `site`: whose ledger was given; `messages`: its entries. `again`: entries that only the site's
    holds because they crossed the wall once more, after a crash; `only_here` and `only_there`: what
    one of the two does not know at all; `faults`: lines that were changed, taken out or not signed
    as they should be, the first one first. `unheard`: asks that the server noted and the site never
    got, or that one of two sites never got. `verified`: how many signatures were looked at.
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
        """Whether both hold the same messages, and nobody changed either."""
        return not self.only_here and not self.only_there and not self.faults


def compare_ledgers(run: Path, other: Path) -> LedgerDifference:
    """Compare the ledger of a run with the one that a site kept of it.

    `run` is the server's or the lead's folder of the run, or that of another site; `other` the
    site's. Raises RunError where one of the two is missing or cannot be read at all, or the second
    is not one site's.
    """
    theirs = other / "ledger.jsonl" if other.is_dir() else other
    if not theirs.is_file():
        raise RunError("there is no ledger of a site here", where=str(theirs))
    paths = ledger_files(run) if run.is_dir() else [run]
    if not paths:
        raise RunError("this folder holds no ledger", where=str(run), fix="name a run's folder")
    there, ours = read_record(theirs), [read_record(path) for path in paths]
    if there.at == SERVER or not any(one.is_sealed for one in [there, *ours]):
        return _without_seals(paths, theirs)
    here = next((one for one in ours if there.at and there.at in (one.at, *one.sites)), None)
    if here is None:
        raise RunError(
            "one of the two ledgers does not say whose it is, or they are not of one run",
            where=", ".join(map(str, paths)),
            expected=f"a ledger of the run {there.run!r}, of the server or of one of its sites",
            fix="compare ledgers of one run, as they were written",
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
            expected="the one that a site kept: MEMORY/runs/RUN/ledger.jsonl",
            got=f"{len(names)} sites",
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
            f"{path}:{line.number}: this line, or the one before it, is not what was written"
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
