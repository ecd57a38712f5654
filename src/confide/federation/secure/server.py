"""The server's side of secure sums: it collects what sites send, and can open only their sum.

`Summing` asks through the federation, so that every exchange is checked, noted and timed as any
other step. It never sees a site's numbers: masked lanes come, and the masks go once the sites that
are left have given their shares. docs/secure-aggregation.md says what that promises.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide.errors import FederationError, SiteFault
from confide.federation.broadcast import MISSING, Later
from confide.federation.combining import Combining, Pile, Total
from confide.federation.failures import Refusal, blaming, refused
from confide.federation.messages import encode
from confide.federation.quantising import can_be_coded
from confide.federation.seals import digest, is_signed_by
from confide.federation.secure.crypto import (
    SECRET,
    Joiner,
    add_streams,
    derived,
    own_info,
    pair_info,
    public_of,
    sharing,
)
from confide.federation.secure.lanes import Lanes, Layout, largest_of, layout_of, no_lanes
from confide.federation.secure.messages import (
    BOX,
    Agree,
    Greet,
    Greeted,
    Mask,
    Masked,
    Meet,
    Offered,
    Opening,
    Roster,
    Unmask,
    agreement,
    colluders,
    groups_of,
    named_by,
    offer_statement,
    roster_of,
    seed_commitment,
    share_mark,
)
from confide.federation.secure.steps import (
    AGREE,
    GREET,
    MEET,
    masking,
    narrow_of,
    offered,
    summed,
    unmasking,
)
from confide.federation.steps import Step
from confide.files import json_of, text_of, write_of_run

# --- Offers, shares and unmasking at the server
#
# It hands offers and shares on, and takes all masks off a sum.
#
# A share that does not fit its digest is the fault of who gave it: whoever held it has compared it
# when it came. A box that gave its holder no such share is the fault of who made it. What shares
# join to is compared with the site's key or with its commitment, so no wrong secret is ever used.


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
    """Return whether an offer is whole, and signed by its site for this sum."""
    boxes, marks = digest(offer.boxes_O148.tobytes()).hex(), digest(offer.marks_N64.tobytes()).hex()
    said = offer_statement(
        context, offer.key, commitment=offer.commitment, boxes=boxes, marks=marks
    )
    fits = len(offer.boxes_O148) == len(roster.names) - 1 and len(offer.marks_N64) == len(
        roster.names
    )
    return fits and is_signed_by(roster.peer(name).sign_key, offer.signature, said)


def asks_to_mask(now: Open, roster: Roster) -> dict[str, Mask]:
    """Make each site's ask to mask: all offered keys, and the boxes for itself."""
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


# --- One attempt at a secure sum, at the server
#
# It asks, adds up, and takes the masks off.


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


# --- Lost sites
#
# The server's disk holds which sites the sums of a run have lost, and in which turn.
#
# Sites do not help to sum a set that has grown, and open the sum of a turn for one set only. So a
# run that goes on from an earlier checkpoint has to lose the same sites in the same turns. They
# are noted before a sum is opened: from then on sites may hold the server to that set.


class Losses:
    """The lost sites of one run; without a path they end with the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._turns: dict[str, list[Any]] = {}
        if path is not None and path.exists():
            self._turns = json_of(text_of(path))

    def note(self, sites: Iterable[str], *, round: int, step: str) -> None:
        """Write down that the sum of this turn has lost these sites. Raises RunError."""
        new: dict[str, list[Any]] = {site: [round, step] for site in sites}
        found = new | self._turns
        if found != self._turns:
            self._turns = found
            if self._path is not None:
                write_of_run(self._path, json.dumps(found, sort_keys=True).encode())

    def at(self, round: int, step: str) -> set[str]:
        """The sites that the sum of this turn has lost before."""
        return {site for site, turn in self._turns.items() if turn == [round, step]}


_ROOM = 8.0
"""The limit of a site's change, in multiples of the mean change of the last sum."""


@dataclass
class Found:
    """A sum: by field, over these sites, and the number of those with nothing to add.

    `far`: those of `sites` whose group was summed, but is too far from the others to count.
    """

    total: Total
    sites: list[str]
    odd: int
    far: Sequence[str] = ()

    @property
    def counted(self) -> set[str]:
        """The sites whose numbers are in the sum."""
        return set(self.sites) - set(self.far)

    @property
    def answered(self) -> int:
        """The number of sites that had something to add that counts."""
        return len(self.sites) - len(self.far) - self.odd


class Summing:
    """Sums replies as whole numbers under masks.

    Args:
        run: the run's name; part of every key's context.
        sites: all sites of the run.
        colluding: how many of them may be in league with the server; None: `colluders`.
        group: the size of fixed groups, whose sums the server compares; 0: none.
        losses: the sites that earlier sums of the run have lost.
        lane: the bytes of a lane for changes of weights, once a sum has shown how large they are;
            0: as many as the step says.

    `newest` are the sites in the newest sum; `rooms` is how large a change may be that has room, by
    step and array.
    """

    def __init__(
        self,
        *,
        run: str,
        sites: Sequence[str],
        colluding: int | None = None,
        group: int = 0,
        losses: Losses | None = None,
        lane: int = 0,
    ) -> None:
        self._lane = lane
        self.rooms: dict[str, dict[str, float]] = {}
        self._losses = losses or Losses()
        self.dealt = groups_of(sites, group) if group else []
        self.examples = 0.0
        self.newest: list[str] = []
        self._run = run
        self.sites = sorted(sites)
        self.colluding = colluders(len(self.sites)) if colluding is None else colluding
        self._greetings: dict[str, Greeted] = {}
        self._roster: Roster | None = None

    def sum(
        self,
        step: Step,
        ask: object,
        names: Sequence[str],
        *,
        asking: Asking,
        labels: Sequence[str] = (),
        group: bool = False,
    ) -> Found | None:
        """The sum over the sites that answered to the end; None if they were too few.

        With `group` the sites are one of the run's fixed groups, and no others are in the sum.
        """
        asked, own = digest(encode(ask)), summed(step, list(labels))
        rooms = {} if group else self.rooms.get(step.name, {})
        lane = self._lane if rooms else 0
        narrow = narrow_of(own, ask, lane=lane, rooms=rooms)
        layout = layout_of(own, ask, sites=len(names), examples=self.examples, narrow=narrow)
        there, again = self._still_there(names, asking, step.name), 2
        while again:
            again -= 1
            asking.unmet = False
            whole = self._greeted(asking)
            opening = Opening(
                ask_B=np.empty(0, np.uint8),
                roster=whole.id.hex(),
                group=group,
                attempt=0,
                sites=len(names),
                examples=self.examples,
                labels=list(labels),
                lane=lane,
                rooms=rooms,
            )
            roster = whole.part(self._group_of(names[0])) if group else whole
            sent = Sent(asked, lambda: encode(asking.packed(ask, there)))
            once = Once(asking, step, opening, roster, sent)
            found = once.sum(there, layout)
            if found is not None or not asking.unmet:
                break
            self._roster = None  # a process was restarted: greet again
        if found is None:
            return None
        lanes, sites = found
        total, odd = layout.total_of(own, ask, lanes)
        if odd > len(sites):
            raise _spoilt(step, asking.round)
        self.newest = sites
        if self._lane and can_be_coded(own) and not group:
            self.rooms[step.name] = _rooms_after(largest_of(layout, own, lanes), len(names))
        return Found(total, sites, odd)

    def _still_there(self, names: Sequence[str], asking: Asking, step: str) -> list[str]:
        """The sites that this turn has not lost before; whoever is lost now is noted."""

        def note(masked: list[str]) -> None:
            self._losses.note(set(names) - set(masked), round=asking.round, step=step)

        asking.opening = note
        return sorted(set(names) - self._losses.at(asking.round, step))

    def _group_of(self, name: str) -> list[str]:
        return next(members for members in self.dealt if name in members)

    def _greeted(self, turn: Asking) -> Roster:
        """The roster of the run; sites greet before the first sum and after a restart.

        A site that has ended keeps its place on the roster, and so the threshold stays. Raises
        FederationError if a site never greeted.
        """
        if self._roster is not None:
            return self._roster
        self._greetings |= turn.ask(GREET, Greet(self._run), self.sites)
        greetings = self._greetings
        missing = sorted(set(self.sites) - greetings.keys())
        if missing:
            raise FederationError(
                f"sites did not greet, so nothing can be summed under masks: {', '.join(missing)}",
                fix="start them, or begin the run without them",
            )
        shown = [greetings[name] for name in self.sites]
        meet = Meet(
            colluding=self.colluding,
            names=self.sites,
            identities=[one.identity for one in shown],
            box_keys=[one.box_key for one in shown],
            sign_keys=[one.sign_key for one in shown],
            signatures=[one.signature for one in shown],
            bindings=[one.binding for one in shown],
            cards=[one.card for one in shown],
            accounts=[one.account for one in shown],
        )
        try:
            roster = roster_of(meet, run=self._run, binding=None)
        except Refusal as error:
            raise FederationError(f"the sites' greetings do not fit: {error.what}") from error
        met = turn.ask(MEET, meet, self.sites)
        odd = sorted(name for name, reply in met.items() if reply.roster != roster.id.hex())
        for name in odd:
            turn.blame(name, MEET.name, "it means another roster")
        if len(met) - len(odd) < roster.least:
            agreed = ", ".join(sorted(set(met) - set(odd))) or "none"
            failed = ", ".join(sorted(set(turn.failed)))
            raise FederationError(
                "too few sites agreed to the roster, so nothing can be summed under masks",
                expected=f"at least {roster.least} of {len(self.sites)}",
                got=f"{agreed}; others failed with {failed}" if failed else agreed,
                fix="look the codes up in docs/codes.md; at each site its own log says more",
            )
        self._roster = roster
        return roster


def _rooms_after(largest: Mapping[str, float], sites: int) -> dict[str, float]:
    """Work out the range of a site's change in the next sum, by array, from those of this one."""
    times = max(_ROOM, 2 * math.sqrt(sites))
    return {name: times * most for name, most in largest.items() if most}


def _spoilt(step: Step, round: int) -> FederationError:
    return FederationError(
        f"the sum of step {step.name}, round {round}, is of no use: a site sent something other"
        " than its masked numbers, and nobody can tell which",
        fix="look at the sites' own logs, and resume the run",
    )


# --- Secure sums per group
#
# Groups of sites are fixed, and outlying groups do not count.
#
# Under masks no single update can be compared with the others. The sums of fixed groups can: each
# hides its sites from the server as the sum of all would. A group whose mean change is many times
# that of the others is left out of the round, as a site is where single replies are
# seen; of the rest, a median moves little if one holds a liar. The price is that the server sees
# each group's sum.
#
# Without the first rule a median of three groups is not enough: with one of them far off, the
# median of a number is always the one of the two honest groups that is nearer to the lie.


def summed_unseen(
    summing: Summing,
    step: Step,
    ask: object,
    *,
    names: list[str],
    asking: Asking,
    how: Combining,
    labels: Sequence[str] = (),
) -> Found:
    """The sum of the replies, of which no single one is seen: over all sites, or by groups."""
    if summing.dealt and step.learnt is not None and step.learnt.combined:
        return grouped(summing, step, ask, names=names, asking=asking, combining=how)
    found = summing.sum(step, ask, names, asking=asking, labels=labels)
    return found or Found({}, [], 0)


def grouped(
    summing: Summing,
    step: Step,
    ask: object,
    *,
    names: list[str],
    asking: Asking,
    combining: Combining,
) -> Found:
    """The groups' sums combined, as if every site had learnt the combined change.

    A group that loses a site it cannot do without, or none of whose replies can be summed, does not
    count in this round, and neither does one that is too far off (`Combining.too_far`).
    """
    sites: dict[str, list[str]] = {}
    far: list[str] = []
    odd = 0
    with closing(Pile(step, combining)) as pile:
        for number, members in enumerate(summing.dealt, 1):
            own = [name for name in members if name in names]
            found = summing.sum(step, ask, own, asking=asking, group=True) if own else None
            if found is None or found.odd == len(found.sites):
                odd += found.odd if found else 0
                continue
            try:
                with blaming(f"group {number}", step=step.name, round=asking.round):
                    pile.put(f"group {number}", ask, step.reply(**found.total))
            except SiteFault:
                continue
            sites[f"group {number}"] = found.sites
            odd += found.odd
        if len(pile.sites) < combining.needed:
            return Found({}, [], odd)
        for group, (code, why) in pile.leave_out().items():
            far += sites[group]
            told = f"{group}, the sum of {', '.join(sites[group])}, does not count: {why}"
            for name in sites[group]:
                asking.blame(name, step.name, told, code=code)
        return Found(pile.total(), sorted(chain(*sites.values())), odd, far=far)
