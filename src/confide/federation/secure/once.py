"""One attempt at a secure sum, at the server: it asks, adds up, and takes the masks off."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from confide.errors import SiteFault
from confide.federation.digests import digest
from confide.federation.failures import refused
from confide.federation.giving import MISSING, Later
from confide.federation.messages import encode
from confide.federation.seals import is_signed_by
from confide.federation.secure.exchanges import AGREE, in_lanes, masking, offered, unmasking
from confide.federation.secure.lanes import Lanes, Layout, Part, no_lanes
from confide.federation.secure.messages import Agree, Masked, Offered, Opening, Unmask
from confide.federation.secure.opening import Open, asks_to_mask, by_owner, is_sound, take_off
from confide.federation.secure.roster import Roster
from confide.federation.secure.rows import (
    ALL,
    ROWS,
    VALUES,
    Values,
    layout_of_rows,
    layout_of_values,
    packed,
    spread,
    union_of,
)
from confide.federation.secure.statements import agreement, named_by
from confide.federation.steps import Step

Exchange = Callable[..., Generator[tuple[str, Any], None, None]]
"""`exchange(step, asks, round=n)` gives the good replies by site; failures are noted."""
Packed = Callable[[Any, Sequence[str]], Any]
"""`packed(ask, sites)` is the ask as it travels to these sites (`Giving.packed`)."""
NOT_MET = "not-met"
OTHERS = "other-common"
"""The code of a site that was given something other than most were."""


Added = tuple[Lanes, list[str]]
"""Summed lanes, and over which sites."""


class Asking:
    """Asks in one round; remembers who answered last, how others failed, and who must be met again.

    `exchange` asks; `refuse` is told of sites that fail in a way which only sums can see.
    """

    def __init__(
        self,
        round: int,
        exchange: Exchange,
        refuse: Callable[[SiteFault], None],
        *,
        packed: Packed = lambda ask, names: ask,
    ) -> None:
        self.round = round
        self.unmet = False
        self.answered: set[str] = set()
        self.failed: list[str] = []  # by the codes of failures
        self.opening: Callable[[list[str]], None] = lambda masked: None  # told of each set first
        self.packed = packed
        self._exchange = exchange
        self._refuse = refuse

    def ask(self, step: Step, ask: object, names: Sequence[str]) -> dict[str, Any]:
        """The good replies to one ask or, from a mapping, to each site's own, by site."""
        return dict(sorted(self.each(step, ask, names)))

    def each(
        self, step: Step, ask: object, names: Sequence[str]
    ) -> Generator[tuple[str, Any], None, None]:
        """The good replies, as they come."""
        asks = ask if isinstance(ask, Mapping) else dict.fromkeys(names, ask)
        self.answered, self.failed = set(), []
        for site, reply in self._exchange(step, asks, round=self.round, failed=self._saw):
            self.answered.add(site)
            yield site, reply
            del reply  # not to be held while the next one comes

    def blame(self, site: str, step: str, why: str, *, code: str = "refused") -> None:
        """Note that a site's reply was of no use."""
        self._refuse(refused(why, site=site, step=step, round=self.round, code=code))

    def _saw(self, code: str) -> None:
        self.unmet |= code in (NOT_MET, MISSING)
        self.failed.append(code)


class Sent(NamedTuple):
    """The ask of a sum, which may be large: it is encoded when it is sent, and not held for long.

    `digest` is that of the ask with whole weights, however `encoded` gives them.
    """

    digest: bytes
    encoded: Callable[[], bytes]


@dataclass
class Once:
    """One attempt at a sum; without a `roster`, of whole numbers in the clear.

    `opening` is without its ask, `sent`. `dropped`: rows were summed, but not their values.
    `common` is the digest of what the sites of the newest offers have in common.
    """

    asking: Asking
    step: Step
    opening: Opening
    roster: Roster | None
    sent: Sent
    dropped: bool = False
    common: str = ""

    def sum(self, names: Sequence[str], layout: Layout) -> Added | None:
        """The sum over the sites that answered to the end; None if they were too few."""
        return self.sum_of(self._opened(ALL), self.sent, names, layout=layout)

    def _opened(self, part: str) -> Opening:
        """The opening of a sum of its own, of this part of the reply."""
        return replace(self.opening, part=part, attempt=secrets.randbits(62))

    def sum_of(
        self,
        opening: Opening,
        sent: Sent,
        names: Sequence[str],
        *,
        layout: Layout,
        only: Sequence[str] | None = None,
    ) -> Added | None:
        """The same of an opening; None also if the sites are not `only` these."""
        asking, step, roster = self.asking, self.step, self.roster
        if roster is None:
            return _integers(asking, step, _with(opening, sent), names, layout=layout, only=only)
        offers = asking.ask(offered(step, sites=len(roster.names)), _with(opening, sent), names)
        self._part(offers)
        context = self._context(opening, sent, layout)
        self._check_signed(offers, context)
        if asking.unmet or (only is not None and sorted(offers) != only):
            return None
        now = Open(context, layout, offers, no_lanes(layout, odd=False))
        return _masked(asking, now, roster, only=only)

    def by_rows(self, names: Sequence[str], layout: Layout, tables: Sequence[Part]) -> Added | None:
        """The same sum, but of the rows of tables only those that some site has touched.

        Their values are summed over the very sites whose rows were, or not at all.
        """
        flags, first = layout_of_rows(layout, tables), self._opened(ROWS)
        found = self.sum_of(first, self.sent, names, layout=flags)
        if found is None:
            return None
        rows, sites = union_of(flags, found[0]), found[1]
        values = encode(Values(self._context(first, self.sent, flags).hex(), packed(rows)))
        second = Sent(digest(values), lambda: values)
        of_rows = layout_of_values(layout, rows)
        summed_rows = self.sum_of(self._opened(VALUES), second, sites, layout=of_rows, only=sites)
        self.dropped = summed_rows is None
        return None if summed_rows is None else (spread(layout, summed_rows[0], rows), sites)

    def _part(self, offers: dict[str, Offered]) -> None:
        """Leave out sites that were given something other than most."""
        said = Counter(offers[name].common for name in sorted(offers))
        self.common = max(said, key=said.__getitem__, default="")
        for name in [one for one in offers if offers[one].common != self.common]:
            why = "it was given something other than most sites were"
            self.asking.blame(name, self.step.name, why, code=OTHERS)
            del offers[name]

    def _check_signed(self, offers: dict[str, Offered], context: bytes) -> None:
        """Leave out sites that did not sign their offers."""
        assert self.roster is not None, "only members of a roster offer"
        for name in [n for n in offers if not is_sound(context, self.roster, offers[n], name=n)]:
            self.asking.blame(name, self.step.name, "its offer is not signed by it")
            del offers[name]

    def _context(self, opening: Opening, sent: Sent, layout: Layout) -> bytes:
        return named_by(
            sent.digest,
            self.roster.id if self.roster else b"",
            round=self.asking.round,
            step=self.step.name,
            attempt=opening.attempt,
            layout=layout.digest,
            common=bytes.fromhex(self.common),
        )


def _with(opening: Opening, sent: Sent) -> Later:
    return Later(lambda: replace(opening, ask_B=np.frombuffer(sent.encoded(), np.uint8)))


def _integers(
    turn: Asking,
    step: Step,
    opening: Later,
    names: Sequence[str],
    *,
    layout: Layout,
    only: Sequence[str] | None,
) -> Added | None:
    """The sum of lanes that come in the clear."""
    lanes = no_lanes(layout, odd=False)
    sites = []
    for site, reply in turn.each(in_lanes(step, layout), opening, names):
        if _is_laid_out(turn, layout, site, reply, step=step.name):
            _add(layout, lanes, reply.lanes_B)
            sites.append(site)
    fits = bool(sites) if only is None else sorted(sites) == only
    return (lanes, sorted(sites)) if fits else None


def _is_laid_out(turn: Asking, layout: Layout, site: str, reply: Masked, *, step: str) -> bool:
    fits = len(reply.lanes_B) == layout.length
    if not fits:
        turn.blame(site, step, "its numbers are not laid out as the ask says")
    return fits


def _masked(turn: Asking, now: Open, roster: Roster, *, only: Sequence[str] | None) -> Added | None:
    """The sum of lanes under masks, after the offers; None if too few sites take part in one."""
    if len(now.offers) < roster.least:
        return None
    layout = now.layout
    asks = asks_to_mask(now, roster)
    for name, reply in turn.each(masking(layout), asks, list(asks)):
        if _is_laid_out(turn, layout, name, reply, step="mask"):
            _add(layout, now.lanes, reply.lanes_B)
            now.masked.append(name)
        del reply  # not to be held while the next one comes
    turn.answered = set(now.masked)
    now.masked.sort()
    if len(now.masked) < roster.least or (only is not None and now.masked != only):
        return None
    signatures = _agreed(turn, now, roster)
    if len(signatures) < roster.least:
        return None
    turn.opening(now.masked)
    unmask = Unmask(now.context.hex(), list(signatures), list(signatures.values()))
    given = turn.ask(unmasking(len(now.offers)), unmask, now.masked)
    if len(given) < roster.least:
        return None
    shares = by_owner(now, roster, given, blame=turn.blame)
    take_off(now, roster, shares, blame=turn.blame)
    return now.lanes, now.masked


def _agreed(turn: Asking, now: Open, roster: Roster) -> dict[str, str]:
    """The good signatures over the set whose masked numbers came, by site."""
    replies = turn.ask(AGREE, Agree(now.context.hex(), now.masked), now.masked)
    keys = {name: now.offers[name].key for name in sorted(now.offers)}
    said = agreement(now.context, keys, now.masked)
    signatures = {}
    for name, reply in replies.items():
        if is_signed_by(roster.peer(name).sign_key, reply.signature, said):
            signatures[name] = reply.signature
        else:
            turn.blame(name, AGREE.name, "it did not sign the set")
    return signatures


def _add(layout: Layout, lanes: Lanes, more: Lanes) -> None:
    """Add lanes, each modulo its size."""
    for (own, width), (other, _) in zip(
        layout.by_width(lanes), layout.by_width(np.ascontiguousarray(more)), strict=True
    ):
        kind = f"<u{width}"
        np.add(own.view(kind), other.view(kind), out=own.view(kind))
