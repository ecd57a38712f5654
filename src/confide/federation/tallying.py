"""Compares two sealed ledgers message by message: a site's with the server's or another site's."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

from confide.federation.ledger import Entry
from confide.federation.records import Record, Sealed, is_before_joining
from confide.federation.seals import AskSeal

Key = tuple[int, str, str]
"""Round, step, direction."""


@dataclass(frozen=True)
class Tally:
    """Where two records differ; the parts are those of a `LedgerDifference`."""

    faults: tuple[str, ...]
    only_here: tuple[str, ...] = ()
    only_there: tuple[str, ...] = ()
    again: int = 0
    unheard: int = 0


def with_server(server: Record, site: Record) -> Tally:
    """Compare the server's ledger with that of one of its sites."""
    asks, replies = server.of(site.at)
    joined = [one for one in replies if not is_before_joining(one)]
    refused = {one.turn for one in replies if is_before_joining(one)}
    faults = [*_strangers(server, site), *_broken_heads(server, site, joined)]
    faults += [*_unequal(server, site, asks), *_twice(server, joined), *_twice(site, site.replies)]
    ours = {one.seal.digest for one in asks}
    theirs = {one.seal.digest for one in site.asks}
    answered = {one.turn for one in joined}
    missed = [one for one in asks if one.seal.digest not in theirs and one.turn not in refused]
    unheard = [one for one in missed if one.turn not in answered]
    late = _not_arrived(site, joined)
    only_here = [_only(server, one) for one in missed if one not in unheard]
    only_there = [_only(site, one) for one in site.asks if one.seal.digest not in ours]
    came = {one.seal.digest for one in joined}
    only_there += [
        _only(site, one) for one in site.replies if one.seal.digest not in came and one not in late
    ]
    kept = {one.seal.digest for one in site.replies}
    only_here += [_only(server, one) for one in joined if one.seal.digest not in kept]
    here, there, again = _entries(
        [entry for entry in server.entries if entry.site == site.at],
        site.entries,
        skip_here={(one.seal.round, one.seal.step, "down") for one in unheard}
        | {(turn[0], turn[1], way) for turn in refused for way in ("down", "up")},
        skip_there={(one.seal.round, one.seal.step, "up") for one in late},
    )
    return Tally(
        tuple(faults),
        (*only_here, *here),
        (*only_there, *there),
        again=again,
        unheard=len(unheard),
    )


def _strangers(server: Record, site: Record) -> list[str]:
    """Signs that the two took part in different runs, or did not meet each other."""
    checks = {
        "not of the same run": server.run == site.run,
        "the lead gave them different orders": server.order == site.order,
        "their orders are from different leads": server.lead == site.lead,
        "the site met another server": {*site.keys["server"]} <= {*server.keys["server"]},
        "the server met another site": {*server.keys.get(site.at, [])} <= {*site.keys[site.at]},
    }
    return [
        f"{server.path}:1 and {site.path}:1: {what}" for what, fits in checks.items() if not fits
    ]


def _unequal(server: Record, site: Record, asks: list[Sealed]) -> list[str]:
    """Asks of which the two hold different seals."""
    ours = {one.seal.digest: one for one in asks}
    pairs = [(ours.get(one.seal.digest), one) for one in site.asks if not one.refused]
    return [
        f"{_only(server, here)}; {_only(site, there)}: the two do not hold the same ask"
        for here, there in pairs
        if here and here.seal != dataclasses.replace(there.seal, signature="")
    ]


def _twice(record: Record, replies: list[Sealed]) -> list[str]:
    """Replies that are in a ledger more than once, although each has a nonce of its own."""
    seen, found = set(), []
    for one in replies:
        if one.seal.digest in seen:
            found.append(f"{_only(record, one)}: the ledger has this reply already")
        seen.add(one.seal.digest)
    return found


def _broken_heads(server: Record, site: Record, replies: list[Sealed]) -> list[str]:
    """Where a ledger lacks a line that its owner signed as its head; the first for each side."""
    faults = []
    sent = {one.line.digest: one.seal.digest for one in site.replies}
    for one in replies:
        head = getattr(one.seal, "head", "")
        if sent.get(head) != one.seal.digest:
            faults.append(
                f"{server.path}:{one.line.number}: the site signed a head that is not in its"
                f" ledger ({one.words})"
            )
            break
    lines = server.heads
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


def _not_arrived(site: Record, joined: list[Sealed]) -> list[Sealed]:
    """Replies of the site that got lost: the server's later signed asks do not know them."""
    came = {one.seal.digest for one in joined}
    found = []
    for reply in site.replies:
        later = [one for one in site.asks if one.line.number > reply.line.number]
        if reply.seal.digest not in came and later:
            known = {getattr(one.seal, "reply", "") for one in later}
            if reply.seal.digest not in known:
                found.append(reply)
    return found


def _only(record: Record, one: Sealed) -> str:
    return f"{record.path}:{one.line.number}: {one.words}"


def _entries(
    here: list[Entry], there: list[Entry], *, skip_here: set[Key], skip_there: set[Key]
) -> tuple[list[str], list[str], int]:
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
    again = sum(max(sites[one] - ours[one], 0) for one in sites if one in ours)
    return sorted(only_here), sorted(only_there), again


# --- two sites ----------------------------------------------------------------------------


def with_site(one: Record, other: Record) -> Tally:
    """Compare the ledgers of two sites of one run: were they asked the same?"""
    faults = [
        f"{one.path}:1 and {other.path}:1: {what}"
        for what, fits in {
            "not of the same run": one.run == other.run,
            "the lead gave them different orders": one.order == other.order,
            "their orders are from different leads": one.lead == other.lead,
            "the two met different servers": one.keys["server"][-1] == other.keys["server"][-1],
        }.items()
        if not fits
    ]
    first, second = _shared(one), _shared(other)
    for turn in sorted(first.keys() & second.keys(), key=lambda turn: first[turn].line.number):
        faults += _unlike(one, other, first[turn], second[turn])
    lone = {turn for turn in first if _is_to(first[turn], other.at)} - second.keys()
    lone_there = {turn for turn in second if _is_to(second[turn], one.at)} - first.keys()
    together = {turn[:2] for turn in first.keys() & second.keys()}
    for turn in sorted(lone):
        apart = [that for that in lone_there if that[:2] == turn[:2]]
        if apart and turn[:2] not in together:
            faults.append(
                f"{_only(one, first[turn])}; {_only(other, second[min(apart)])}: the two were never"
                " asked the same"
            )
    return Tally(tuple(faults), unheard=len(lone) + len(lone_there))


def _shared(record: Record) -> dict[tuple[int, str, int], Sealed]:
    """The asks that a site did not refuse, by their turn."""
    return {one.turn: one for one in record.asks if not one.refused}


def _is_to(one: Sealed, site: str) -> bool:
    """Whether the server signed that this site gets the same ask."""
    return isinstance(one.seal, AskSeal) and site in one.seal.audience


def _unlike(one: Record, other: Record, first: Sealed, second: Sealed) -> list[str]:
    """A fault if the two sites hold different versions of one broadcast ask."""
    same = first.seal.digest == second.seal.digest
    among = _is_to(first, other.at) or _is_to(second, one.at)
    if same or not among:
        return []
    where = f"{_only(one, first)}; {_only(other, second)}"
    return [f"{where}: the server asked the two different things and signed that they are the same"]
