"""How the server takes the masks off a sum, once the sites that are left have given their shares.

A share that does not fit its digest is the fault of who gave it: whoever held it has compared it
when it came. A box that gave its holder no such share is the fault of who made it. What shares
join to is compared with the site's key or with its commitment, so no wrong secret is ever used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confide.errors import FederationError
from confide.federation.secure.lanes import Lanes, Layout
from confide.federation.secure.messages import Offered, Shares
from confide.federation.secure.primitives import (
    SECRET,
    add_streams,
    derived,
    own_info,
    pair_info,
    public_of,
    shared,
)
from confide.federation.secure.roster import Roster
from confide.federation.secure.shamir import Joiner
from confide.federation.secure.statements import seed_commitment, share_mark

Blame = Callable[[str, str, str], None]
"""Notes that a site's reply to a step was of no use, and why."""


@dataclass
class Open:
    """One sum under way at the server: `lanes` is what the masked numbers come to so far."""

    context: bytes
    layout: Layout
    offers: dict[str, Offered]
    lanes: Lanes
    masked: list[str] = field(default_factory=list)


def by_owner(
    blame: Blame, now: Open, roster: Roster, given: Mapping[str, Shares]
) -> dict[str, dict[int, bytes]]:
    """The good shares of each site's secret, by the place of who gave them."""
    names = sorted(now.offers)
    found: dict[str, dict[int, bytes]] = {name: {} for name in names}
    for holder, reply in given.items():
        if len(reply.given_M) != len(names):
            blame(holder, "unmask", "it did not give a share for each site")
            continue
        place = roster.place(holder)
        for row, owner in enumerate(names):
            share = reply.shares_M66[row].tobytes()
            half = 32 if owner in now.masked else 0
            mark = now.offers[owner].marks_N64[place - 1][half : half + 32].tobytes()
            if not reply.given_M[row]:
                blame(owner, "unmask", f"its box for {holder} did not hold its share")
            elif share_mark(now.context, share) != mark:
                blame(holder, "unmask", f"it gave a share of {owner} that {owner} did not make")
            else:
                found[owner][place] = share
    return found


def take_off(
    blame: Blame, now: Open, roster: Roster, shares: Mapping[str, Mapping[int, bytes]]
) -> None:
    """Take all masks off the sum. Raises FederationError if a secret cannot be put together."""
    joiners: dict[tuple[int, ...], Joiner] = {}
    parts = now.layout.by_width(now.lanes)
    for owner, own in shares.items():
        if len(own) < roster.least:
            raise _closed(blame, owner, f"only {len(own)} of {roster.least} shares came")
        places = tuple(sorted(own)[: roster.least])
        if places not in joiners:
            joiners[places] = Joiner(places)
        secret = joiners[places].join({x: own[x] for x in places})
        offer = now.offers[owner]
        if owner in now.masked:
            if secret is None or seed_commitment(now.context, secret).hex() != offer.commitment:
                raise _closed(blame, owner, "its shares do not give what it committed to")
            add_streams(parts, derived(secret, own_info(now.context)), sign=-1)
            continue
        if secret is None or len(secret) != SECRET or public_of(secret).hex() != offer.key:
            raise _closed(blame, owner, "its shares do not give its key")
        for name in now.masked:
            public = bytes.fromhex(now.offers[name].key)
            pair = derived(shared(secret, public), pair_info(now.context, owner, name))
            add_streams(parts, pair, sign=-1 if name < owner else 1)


def _closed(blame: Blame, owner: str, why: str) -> FederationError:
    blame(owner, "unmask", why)
    return FederationError(f"a sum stays closed: {owner}: {why}", fix="resume the run")
