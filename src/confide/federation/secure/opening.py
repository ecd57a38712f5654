"""What the server does with offers and shares: it hands them on, and takes all masks off a sum.

A share that does not fit its digest is the fault of who gave it: whoever held it has compared it
when it came. A box that gave its holder no such share is the fault of who made it. What shares
join to is compared with the site's key or with its commitment, so no wrong secret is ever used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from confide.errors import FederationError
from confide.federation.digests import digest
from confide.federation.seals import is_signed_by
from confide.federation.secure.lanes import Lanes, Layout
from confide.federation.secure.messages import BOX, Mask, Offered
from confide.federation.secure.primitives import (
    SECRET,
    add_streams,
    derived,
    own_info,
    pair_info,
    public_of,
    sharing,
)
from confide.federation.secure.roster import Roster
from confide.federation.secure.shamir import Joiner
from confide.federation.secure.statements import offer_statement, seed_commitment, share_mark

Blame = Callable[[str, str, str], None]
"""Notes that a site's reply to a step was of no use: the site, the step and why."""


@dataclass
class Open:
    """One sum under way at the server."""

    context: bytes
    layout: Layout
    offers: dict[str, Offered]
    lanes: Lanes
    masked: list[str] = field(default_factory=list)


def is_sound(context: bytes, roster: Roster, offer: Offered, *, name: str) -> bool:
    """Whether an offer is whole, and signed by its site for this sum."""
    boxes, marks = digest(offer.boxes_O148.tobytes()).hex(), digest(offer.marks_N64.tobytes()).hex()
    said = offer_statement(
        context, offer.key, commitment=offer.commitment, boxes=boxes, marks=marks
    )
    fits = len(offer.boxes_O148) == len(roster.names) - 1 and len(offer.marks_N64) == len(
        roster.names
    )
    return fits and is_signed_by(roster.peer(name).sign_key, offer.signature, said)


def asks_to_mask(now: Open, roster: Roster) -> dict[str, Mask]:
    """What each site hears of the offers: all keys, and the boxes for itself."""
    names, offers = sorted(now.offers), now.offers
    common = {
        "context": now.context.hex(),
        "names": names,
        "keys": [offers[name].key for name in names],
        "commitments": [offers[name].commitment for name in names],
        "boxes": [digest(offers[name].boxes_O148.tobytes()).hex() for name in names],
        "marks": [digest(offers[name].marks_N64.tobytes()).hex() for name in names],
        "signatures": [offers[name].signature for name in names],
    }
    asks = {}
    for name in names:
        own = np.zeros((len(names) - 1, BOX), np.uint8)
        marks = np.zeros((len(names) - 1, 64), np.uint8)
        for row, sender in enumerate(one for one in names if one != name):
            others = [one for one in roster.names if one != sender]
            own[row] = offers[sender].boxes_O148[others.index(name)]
            marks[row] = offers[sender].marks_N64[roster.place(name) - 1]
        asks[name] = Mask(**common, own_M148=own, own_marks_M64=marks)  # type: ignore[arg-type]
    return asks


def by_owner(
    now: Open, roster: Roster, given: Mapping[str, Any], *, blame: Blame
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
    now: Open, roster: Roster, shares: Mapping[str, Mapping[int, bytes]], *, blame: Blame
) -> None:
    """Take all masks off the sum. Raises FederationError if a secret cannot be put together."""
    joiners: dict[tuple[int, ...], Joiner] = {}
    masks: list[tuple[bytes, int]] = []
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
            masks.append((derived(secret, own_info(now.context)), -1))
            continue
        if secret is None or len(secret) != SECRET or public_of(secret).hex() != offer.key:
            raise _closed(blame, owner, "its shares do not give its key")
        with_key = sharing(secret)
        for name in now.masked:
            known = with_key(bytes.fromhex(now.offers[name].key))
            pair = derived(known, pair_info(now.context, owner, name))
            masks.append((pair, -1 if name < owner else 1))
    add_streams(now.layout.by_width(now.lanes), masks)


def _closed(blame: Blame, owner: str, why: str) -> FederationError:
    blame(owner, "unmask", why)
    return FederationError(f"the sum stays closed: {owner}: {why}", fix="resume the run")
