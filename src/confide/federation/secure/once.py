"""One attempt at a secure sum, at the server: it asks, adds up, and takes the masks off."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from confide.errors import SiteFault
from confide.federation.failures import refused
from confide.federation.giving import MISSING, Later
from confide.federation.seals import is_signed_by
from confide.federation.secure.exchanges import AGREE, masking, offered, unmasking
from confide.federation.secure.lanes import Lanes, Layout, no_lanes
from confide.federation.secure.messages import Agree, Masked, Offered, Opening, Unmask
from confide.federation.secure.opening import Open, asks_to_mask, by_owner, is_sound, take_off
from confide.federation.secure.roster import Roster
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
    """One attempt at a sum.

    `opening` is without its ask, `sent`. `common` is the digest of what the sites of the newest
    offers have in common.
    """

    asking: Asking
    step: Step
    opening: Opening
    roster: Roster
    sent: Sent
    common: str = ""

    def sum(self, names: Sequence[str], layout: Layout) -> Added | None:
        """The sum over the sites that answered to the end; None if they were too few."""
        asking, step, roster, sent = self.asking, self.step, self.roster, self.sent
        opening = replace(self.opening, attempt=secrets.randbits(62))
        asked = Later(lambda: replace(opening, ask_B=np.frombuffer(sent.encoded(), np.uint8)))
        offers = asking.ask(offered(step, sites=len(roster.names)), asked, names)
        self._part(offers)
        context = named_by(
            sent.digest,
            roster.id,
            round=asking.round,
            step=step.name,
            attempt=opening.attempt,
            layout=layout.digest,
            common=bytes.fromhex(self.common),
        )
        self._check_signed(offers, context)
        if asking.unmet:
            return None
        return _masked(asking, Open(context, layout, offers, no_lanes(layout, odd=False)), roster)

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
        for name in [n for n in offers if not is_sound(context, self.roster, offers[n], name=n)]:
            self.asking.blame(name, self.step.name, "its offer is not signed by it")
            del offers[name]


def _is_laid_out(turn: Asking, layout: Layout, site: str, reply: Masked, *, step: str) -> bool:
    fits = len(reply.lanes_B) == layout.length
    if not fits:
        turn.blame(site, step, "its numbers are not laid out as the ask says")
    return fits


def _masked(turn: Asking, now: Open, roster: Roster) -> Added | None:
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
    if len(now.masked) < roster.least:
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
