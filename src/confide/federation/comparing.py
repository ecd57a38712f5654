"""Two ledgers of one run, compared: the server's and a site's, or two sites'.

If the ledgers hold seals, their chains and signatures are verified first, then what each side
signed about the other's ledger, then every message of one against the other. Ledgers without seals
(from one machine, or an older version) are compared entry by entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from confide.errors import MessageError, RunError
from confide.federation import ledger
from confide.federation.ledger import Entry, LedgerLine
from confide.federation.seals import EMPTY, AskSeal, ReplySeal, is_digest
from confide.files import Tree

# --- A sealed ledger
#
# It is read for comparison: its identities, its messages, and its own faults.


_NONE = "0" * 64


@dataclass(frozen=True)
class Sealed:
    """A message in a ledger, from the line of its seal. `refused`: the code, if it was refused."""

    line: LedgerLine
    seal: AskSeal | ReplySeal
    refused: str = ""

    @property
    def words(self) -> str:
        """The message in words."""
        way = "ask" if isinstance(self.seal, AskSeal) else "reply"
        return f"round {self.seal.round}, {self.seal.step}, {way}, attempt {self.seal.attempt}"

    @property
    def turn(self) -> tuple[int, str, int]:
        """Round, step and attempt of the ask, or of the ask that it replies to."""
        return self.seal.round, self.seal.step, self.seal.attempt


@dataclass
class LedgerRecord:
    """A ledger with its seals.

    `at`: whose it is ("server", a site, or "" if it holds no identities). `keys`: for each peer,
    every identity key that the ledger names, the newest last. `asks` and `replies` are those of all
    sites, in the order of the file. `signatures` were checked.
    """

    path: Path
    lines: list[LedgerLine]
    at: str = ""
    run: str = ""
    order: str = ""
    lead: str = ""
    sites: tuple[str, ...] = ()
    keys: dict[str, list[bytes]] = field(default_factory=dict)
    asks: list[Sealed] = field(default_factory=list)
    replies: list[Sealed] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    signatures: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def is_sealed(self) -> bool:
        """True if it says whose it is, or holds seals."""
        return bool(self.at or self.asks or self.replies)

    def place(self, one: Sealed) -> str:
        """Where the ledger holds a message, in words."""
        return f"{self.path}:{one.line.number}: {one.words}"

    def fault(self, number: int, what: str) -> None:
        """Note a fault of a line."""
        self.faults.append(f"{self.path}:{number}: {what}")


def verified(path: Path) -> LedgerRecord:
    """A ledger, with its signatures verified. Raises RunError if it cannot be read."""
    record = LedgerRecord(path, ledger.read_lines(path))
    for line in record.lines:
        if line.chained is False:
            record.fault(line.number, "this line, or the one before it, was changed")
        try:
            _take(record, line)
        except (MessageError, KeyError, TypeError, ValueError):
            record.fault(line.number, "not a line of a signed ledger")
    return record


def ledger_faults(record: LedgerRecord) -> list[str]:
    """List the faults of a ledger taken by itself, the first line first."""
    faults = list(record.faults)
    first = record.lines[0].tree if record.lines else {}
    if first.get("note") != ledger.OPENED:
        faults.insert(0, f"{record.path}:1: the first line does not say whose ledger it is")
    closing = [one.line.number for one in record.asks if one.seal.step == "close"]
    ended = [line.number for line in record.lines if line.tree.get("note") == ledger.CLOSED]
    if record.at == "server" and closing and not (ended and ended[-1] > closing[-1]):
        number = record.lines[-1].number
        faults.append(f"{record.path}:{number}: the end of the ledger is missing after this line")
    return faults


def _take(record: LedgerRecord, line: LedgerLine) -> None:
    """Add what one line says to the record."""
    tree = line.tree
    if tree.get("note") == ledger.OPENED:
        if record.at:
            raise ValueError("a ledger is opened only once")
        record.at, record.run, record.order = (str(tree[name]) for name in ("at", "run", "order"))
        record.sites = tuple(map(str, tree["sites"]))
        record.lead = str(tree["lead_identity"])
        record.keys[record.at] = [_key(tree["identity"])]
        if record.at != "server":
            record.keys["server"] = [_key(tree["server_identity"])]
    elif tree.get("note") == ledger.MET:
        record.keys.setdefault(str(tree["peer"]), []).append(_key(tree["identity"]))
    elif tree.get("field") == ledger.SEAL:
        _take_seal(record, line)
    if line.entry:
        record.entries.append(line.entry)


def _take_seal(record: LedgerRecord, line: LedgerLine) -> None:
    tree: Tree = {"run": record.run, **line.tree, "nonce": _NONE}
    sealed: Sealed
    if tree["direction"] == "down":
        audience = tree.get("audience", list(record.sites))
        seal = AskSeal.of({**tree, "audience": audience})
        sealed = Sealed(line, seal, refused=str(tree.get("refused", "")))
        record.asks.append(sealed)
        signer = "" if record.at == "server" else "server"
    else:
        sealed = Sealed(line, ReplySeal.of(tree))
        record.replies.append(sealed)
        signer = str(tree["site"]) if record.at == "server" else ""
    if not signer or sealed.refused:
        return
    record.signatures += 1
    keys = record.keys.get(signer, [])
    if not keys or not sealed.seal.verifies(keys[-1]):
        record.fault(line.number, f"the signature of {signer} does not fit ({sealed.words})")


def _key(text: str) -> bytes:
    if not is_digest(text):
        raise ValueError("not a key")
    return bytes.fromhex(text)


def is_before_joining(one: Sealed) -> bool:
    """True if a reply came before the site had a ledger of the run: the site refused to join."""
    return isinstance(one.seal, ReplySeal) and one.seal.head == EMPTY


# --- Comparison of sealed ledgers
#
# Message by message: a site's with the server's or another site's.


Key = tuple[int, str, str]
"""Round, step, direction."""


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
    again: int = 0
    only_here: tuple[str, ...] = ()
    only_there: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    unheard: int = 0
    verified: int = 0

    @property
    def agree(self) -> bool:
        """True if both hold the same messages and neither was changed."""
        return not self.only_here and not self.only_there and not self.faults


def with_server(server: LedgerRecord, site: LedgerRecord) -> LedgerDifference:
    """Compare the server's ledger with that of one of its sites."""
    asks = [one for one in server.asks if one.seal.site == site.at]
    replies = [one for one in server.replies if one.seal.site == site.at]
    joined = [one for one in replies if not is_before_joining(one)]
    refused = {one.turn for one in replies if is_before_joining(one)}
    met = {
        "the site met another server": {*site.keys["server"]} <= {*server.keys["server"]},
        "the server met another site": {*server.keys.get(site.at, [])} <= {*site.keys[site.at]},
    }
    faults = [*_strangers(server, site, met), *_broken_heads(server, site, joined)]
    faults += [*_unequal(server, site, asks), *_twice(server, joined), *_twice(site, site.replies)]
    ours = {one.seal.digest for one in asks}
    theirs = {one.seal.digest for one in site.asks}
    answered = {one.turn for one in joined}
    missed = [one for one in asks if one.seal.digest not in theirs and one.turn not in refused]
    unheard = [one for one in missed if one.turn not in answered]
    late = _not_arrived(site, joined)
    came = {one.seal.digest for one in joined}
    kept = {one.seal.digest for one in site.replies}
    only_here = [one for one in missed if one not in unheard]
    only_here += [one for one in joined if one.seal.digest not in kept]
    only_there = [one for one in site.asks if one.seal.digest not in ours]
    only_there += [one for one in site.replies if one.seal.digest not in came and one not in late]
    found = _different_entries(
        site.at,
        [entry for entry in server.entries if entry.site == site.at],
        site.entries,
        skip_here={(one.seal.round, one.seal.step, "down") for one in unheard}
        | {(turn[0], turn[1], way) for turn in refused for way in ("down", "up")},
        skip_there={(one.seal.round, one.seal.step, "up") for one in late},
    )
    return replace(
        found,
        only_here=(*map(server.place, only_here), *found.only_here),
        only_there=(*map(site.place, only_there), *found.only_there),
        faults=tuple(faults),
        unheard=len(unheard),
    )


def _strangers(one: LedgerRecord, other: LedgerRecord, met: Mapping[str, bool]) -> list[str]:
    """Signs that the two took part in different runs, or, of those `met`, the ones that are not."""
    checks = {
        "not of the same run": one.run == other.run,
        "the lead gave them different orders": one.order == other.order,
        "their orders are from different leads": one.lead == other.lead,
        **met,
    }
    return [f"{one.path}:1 and {other.path}:1: {what}" for what, fits in checks.items() if not fits]


def _unequal(server: LedgerRecord, site: LedgerRecord, asks: list[Sealed]) -> list[str]:
    """Asks of which the two hold different seals."""
    ours = {one.seal.digest: one for one in asks}
    pairs = [(ours.get(one.seal.digest), one) for one in site.asks if not one.refused]
    return [
        f"{server.place(here)}; {site.place(there)}: the two do not hold the same ask"
        for here, there in pairs
        if here and here.seal != replace(there.seal, signature="")
    ]


def _twice(record: LedgerRecord, replies: list[Sealed]) -> list[str]:
    """Replies that are in a ledger more than once, although each has a nonce of its own."""
    seen, found = set(), []
    for one in replies:
        if one.seal.digest in seen:
            found.append(f"{record.place(one)}: the ledger has this reply already")
        seen.add(one.seal.digest)
    return found


def _broken_heads(server: LedgerRecord, site: LedgerRecord, replies: list[Sealed]) -> list[str]:
    """Where a ledger lacks a line that its owner signed as its head; the first for each side."""
    faults = []
    sent = {one.line.digest: one.seal.digest for one in site.replies}
    for one in replies:
        if sent.get(one.seal.head) != one.seal.digest:
            faults.append(
                f"{server.path}:{one.line.number}: the site signed a head that is not in its"
                f" ledger ({one.words})"
            )
            break
    lines = {line.digest for line in server.lines}
    came = {one.seal.digest for one in replies} | {""}
    for one in site.asks:
        seal = one.seal
        assert isinstance(seal, AskSeal), "an ask has the seal of an ask"
        if one.refused:
            continue
        if seal.own not in lines or (seal.reply not in came and seal.head):
            faults.append(
                f"{site.path}:{one.line.number}: the server signed something that is not in its"
                f" ledger ({one.words})"
            )
            break
    return faults


def _not_arrived(site: LedgerRecord, joined: list[Sealed]) -> list[Sealed]:
    """Replies of the site that got lost: the server's later signed asks do not know them."""
    came = {one.seal.digest for one in joined}
    found = []
    for reply in site.replies:
        later = [one for one in site.asks if one.line.number > reply.line.number]
        if reply.seal.digest not in came and later:
            known = {one.seal.reply for one in later if isinstance(one.seal, AskSeal)}
            if reply.seal.digest not in known:
                found.append(reply)
    return found


def _different_entries(
    site: str,
    here: Sequence[Entry],
    there: Sequence[Entry],
    *,
    skip_here: Set[Key] = frozenset(),
    skip_there: Set[Key] = frozenset(),
) -> LedgerDifference:
    """Entries that only one side has, and how many times the site repeats the server's."""
    ours, sites = Counter(here), Counter(there)
    only_here = {
        one.words()
        for one in ours
        if ours[one] > sites[one] and (one.round, one.step, one.direction) not in skip_here
    }
    only_there = {
        one.words()
        for one in sites
        if one not in ours and (one.round, one.step, one.direction) not in skip_there
    }
    return LedgerDifference(
        site,
        messages=len(there),
        again=sum(max(sites[one] - ours[one], 0) for one in sites if one in ours),
        only_here=tuple(sorted(only_here)),
        only_there=tuple(sorted(only_there)),
    )


# --- two sites ----------------------------------------------------------------------------


def with_site(one: LedgerRecord, other: LedgerRecord) -> LedgerDifference:
    """Compare the ledgers of two sites of one run: were they asked the same?"""
    same_server = one.keys["server"][-1] == other.keys["server"][-1]
    faults = _strangers(one, other, {"the two met different servers": same_server})
    first, second = (
        {ask.turn: ask for ask in side.asks if not ask.refused} for side in (one, other)
    )
    for turn in sorted(first.keys() & second.keys(), key=lambda turn: first[turn].line.number):
        here, there = first[turn], second[turn]
        among = _is_to(here, other.at) or _is_to(there, one.at)
        if among and here.seal.digest != there.seal.digest:
            where = f"{one.place(here)}; {other.place(there)}"
            faults.append(
                f"{where}: the server asked the two different things and signed that they are"
                " the same"
            )
    lone = {turn for turn in first if _is_to(first[turn], other.at)} - second.keys()
    lone_there = {turn for turn in second if _is_to(second[turn], one.at)} - first.keys()
    together = {turn[:2] for turn in first.keys() & second.keys()}
    for turn in sorted(lone):
        apart = [that for that in lone_there if that[:2] == turn[:2]]
        if apart and turn[:2] not in together:
            faults.append(
                f"{one.place(first[turn])}; {other.place(second[min(apart)])}: the two were never"
                " asked the same"
            )
    return LedgerDifference(
        other.at,
        messages=len(other.entries),
        faults=tuple(faults),
        unheard=len(lone) + len(lone_there),
    )


def _is_to(one: Sealed, site: str) -> bool:
    """Return whether the server signed that this site gets the same ask."""
    return isinstance(one.seal, AskSeal) and site in one.seal.audience


def compare_ledgers(run: Path | str, other: Path | str) -> LedgerDifference:
    """Compare the ledger of a run with the one that a site kept of it.

    `run` is the run's folder at the server, at the lead or at another site; `other` is the site's.
    Raises RunError if either ledger is missing or unreadable, or if `other` is not the ledger of
    one site.
    """
    run, other = Path(run), Path(other)
    theirs = other / "ledger.jsonl" if other.is_dir() else other
    if not theirs.is_file():
        raise RunError(
            "there is no site's ledger here",
            expected="the one that the site kept: MEMORY/runs/RUN/ledger.jsonl",
            where=str(theirs),
        )
    paths = ledger.ledger_files(run) if run.is_dir() else [run]
    if not paths:
        raise RunError("this folder holds no ledger", where=str(run), fix="name a run's folder")
    there, ours = verified(theirs), [verified(path) for path in paths]
    if there.at == "server" or not any(one.is_sealed for one in [there, *ours]):
        return _without_seals(ours, there)
    here = next((one for one in ours if there.at and there.at in (one.at, *one.sites)), None)
    if here is None:
        raise RunError(
            "one of the two ledgers does not say whose it is, or they are of different runs",
            where=", ".join(map(str, paths)),
            expected=f"a ledger of the run {there.run!r}, of the server or of one of its sites",
            fix="compare two unchanged ledgers of the same run",
        )
    found = with_server(here, there) if here.at == "server" else with_site(here, there)
    return replace(
        found,
        faults=(*ledger_faults(here), *ledger_faults(there), *found.faults),
        verified=here.signatures + there.signatures,
    )


def _without_seals(ours: Sequence[LedgerRecord], theirs: LedgerRecord) -> LedgerDifference:
    names = {entry.site for entry in theirs.entries}
    if len(names) != 1:
        raise RunError(
            "this is not the ledger of one site",
            where=str(theirs.path),
            expected="the one that the site kept: MEMORY/runs/RUN/ledger.jsonl",
            got=f"one of {len(names)} sites",
        )
    (site,) = names
    here = [entry for one in ours for entry in one.entries if entry.site == site]
    found = _different_entries(site, here, theirs.entries)
    return replace(found, faults=tuple(fault for one in (*ours, theirs) for fault in one.faults))
