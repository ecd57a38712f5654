"""A site's side of secure sums: it greets, offers, masks, agrees to a set, and unmasks.

Nothing of a sum is written to disk but the set of sites in it: keys, shares and the numbers before
they are masked live in this process and end with it. Whatever the server says is checked against
what the site itself received: the roster, the sum (`context`), whose offers came and whose masked
numbers. A second message of the same exchange gets the same bytes if it is the same, and a refusal
if it is not.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confide.errors import SettingsError
from confide.federation.digests import digest
from confide.federation.failures import Refusal
from confide.federation.seals import is_signed_by
from confide.federation.secure.lanes import Lanes, Layout
from confide.federation.secure.messages import (
    BOX,
    INSIDE,
    Agree,
    Greet,
    Greeted,
    Mask,
    Masked,
    Meet,
    Met,
    Offered,
    Opening,
    Shares,
    Signed,
    Unmask,
)
from confide.federation.secure.ongoing import Ongoing
from confide.federation.secure.primitives import (
    add_streams,
    box_info,
    derived,
    fresh_secret,
    own_info,
    pair_info,
    public_of,
    sealed,
    sharing,
    unsealed,
)
from confide.federation.secure.repeats import Record, Turns
from confide.federation.secure.roster import (
    Roster,
    Session,
    Vetting,
    check_columns,
    groups_of,
    roster_of,
)
from confide.federation.secure.shamir import SHARE, split_both
from confide.federation.secure.statements import (
    Asked,
    agreement,
    named_by,
    offer_statement,
    raw,
    seed_commitment,
    share_marks,
)

R = TypeVar("R")


@dataclass(eq=False)
class Member:
    """A site among those that sum.

    Attributes:
        name: the site's.
        identity: its identity key (Ed25519), which signs only the greeting.
        pinned: the identity keys of the others that it knows.
        colluding: how many sites it supposes to be in league with the server; None: as the server
            says.
        least: the fewest sites in a sum, from the site's own guard `min_sites` and its agreement.
        binding: digest of the settings and the wire table that the site received.
        record: where it writes down the sets that it has helped to sum.
        run: the run that it joined; None: as the server says.
        card: what certifies its identity key to the others.
        group: the size of fixed groups that may be summed by themselves; 0: none.
        asked: the digest of the present ask.
        common: the digest of all else that the server has given or told the site, as it did all.
    """

    name: str
    identity: Ed25519PrivateKey = field(repr=False)
    _: KW_ONLY
    pinned: Vetting
    colluding: int | None = None
    least: int = 1
    binding: bytes
    record: Record
    run: str | None = None
    card: str = ""
    group: int = 0
    _session: Session | None = field(default=None, init=False, repr=False)
    _roster: Roster | None = field(default=None, init=False, repr=False)
    _sum: Ongoing | None = field(default=None, init=False, repr=False)
    _offered: set[bytes] = field(default_factory=set, init=False, repr=False)
    asked: Asked = field(default_factory=Asked, init=False, repr=False)
    common: bytes = field(default=digest(), init=False, repr=False)

    # --- before the first sum -----------------------------------------------------------------

    def greet(self, ask: Greet, *, account: str = "") -> Greeted:
        """Show the keys of this process, and the account. Raises Refusal for another run."""
        if self.run is not None and ask.run != self.run:
            raise Refusal("bad-ask")
        if self._session is None or self._session.run != ask.run:
            own = self.name, self.identity, ask.run, self.binding, self.card
            self._session = Session(*own, account)
            self._roster = self._sum = None
        return self._session.greeting()

    def meet(self, ask: Meet) -> Met:
        """Check the greetings of all sites, and sum with these from now on. Raises Refusal."""
        session = self._session
        if session is None:
            raise Refusal("not-met")
        if self.colluding is not None and ask.colluding < self.colluding:
            raise Refusal("other-roster", "colluding")
        check_columns(ask)
        self.pinned.check(ask)
        roster = roster_of(ask, run=session.run, binding=self.binding)
        if self.name not in roster.names or roster.peer(self.name).box_key != public_of(
            session.box_secret
        ):
            raise Refusal("other-roster", self.name)
        if len(roster.names) < self.least:
            raise Refusal("few-sites")
        if self._roster is None or self._roster.id != roster.id:
            self._roster, self._sum = roster, None
        return Met(roster.id.hex())

    # --- the four exchanges -------------------------------------------------------------------

    def opened(self, opening: Opening, *, round: int, step: str, layout: Layout) -> Offered | None:
        """The reply that this opening got already; None if it is new. Raises Refusal."""
        turn = self._summed_with(opening).run, round, step
        context = self.context(opening, round=round, step=step, layout=layout)
        before = self._sum
        if before is not None and before.context == context:
            found: Offered = before.said["offer"][1]
            return found
        if before is not None and before.turn[:3] == turn and opening.attempt == before.turn[4]:
            raise Refusal("second-ask")
        self._check_new(context)
        self._sum = None
        return None

    def context(self, opening: Opening, *, round: int, step: str, layout: Layout) -> bytes:
        """The digest of everything that names a sum. Raises Refusal."""
        return named_by(
            self.asked.of(opening),
            self._summed_with(opening).id,
            round=round,
            step=step,
            attempt=_natural(opening.attempt),
            layout=layout.digest,
            common=self.common,
        )

    def fix(self, opening: Opening, *, round: int, step: str) -> None:
        """Answer this ask in this turn, and no other. Raises Refusal."""
        run, asked = self._summed_with(opening).run, self.asked.of(opening)
        self.record.fix(Turns(run, round, step, asked, opening.attempt, opening.group))

    def opened_before(self, opening: Opening, *, round: int, step: str) -> bytes:
        """The digest of what was asked by this step in this round. Raises Refusal.

        Only if the site has helped to open that sum.
        """
        run = self._summed_with(opening).run
        found = self.record.fixed(Turns(run, round, step, b""))
        if not found:
            raise Refusal("early-ask")
        return bytes.fromhex(found)

    @property
    def honest(self) -> int:
        """The fewest honest sites in a sum. Raises Refusal."""
        if self._roster is None:
            raise Refusal("not-met")
        return self._roster.honest

    def offer(
        self,
        opening: Opening,
        *,
        round: int,
        step: str,
        layout: Layout,
        lanes: Lanes,
        settle: Callable[[], None],
    ) -> Offered:
        """Fresh keys for the masks of this sum, and sealed shares of them; once for every context.

        `settle` is called once the site has given its shares, so that the sum can be opened.
        Raises Refusal.
        """
        roster = self._summed_with(opening)
        session = self._session
        assert session is not None, "a site that met others has greeted"
        context = self.context(opening, round=round, step=step, layout=layout)
        self._check_new(context)
        self._offered.add(context)
        secret, seed = fresh_secret(), fresh_secret()
        offered = public_of(secret)
        both = split_both(secret, seed, len(roster.names), least=roster.least)
        boxes = []
        for place, peer in enumerate(roster.peers):
            if peer.name != self.name:
                info = box_info(context, self.name, peer.name, offered=offered)
                boxes.append(sealed(self._box_key(info, peer.box_key), both[place]))
        marks = b"".join(share_marks(context, share) for share in both)
        key, commitment = offered.hex(), seed_commitment(context, seed).hex()
        packed = b"".join(boxes)
        text = offer_statement(
            context,
            key,
            commitment=commitment,
            boxes=digest(packed).hex(),
            marks=digest(marks).hex(),
        )
        reply = Offered(
            key=key,
            commitment=commitment,
            boxes_O148=np.frombuffer(packed, np.uint8).reshape(-1, BOX),
            marks_N64=np.frombuffer(marks, np.uint8).reshape(-1, 64),
            common=self.common.hex(),
            signature=session.signer.sign(text).hex(),
        )
        asked = self.asked.of(opening)
        turn = Turns(roster.run, round, step, asked, opening.attempt, opening.group)
        own = both[roster.place(self.name) - 1]
        self._sum = Ongoing(context, roster, turn, layout, lanes, settle, secret, seed, own)
        self._sum.said["offer"] = (b"", reply)
        return reply

    def mask(self, ask: Mask) -> Masked:
        """The numbers under the site's own mask and one for every pair. Raises Refusal."""
        now = self._now(ask.context)
        if (same := now.again("mask", ask)) is not None:
            before: Masked = same
            return before
        roster = now.roster
        known = self._checked(now, ask)
        lanes = now.lanes
        assert lanes is not None, "a sum that was not masked has its numbers"
        now.offered = dict(zip(ask.names, ask.keys, strict=True))
        others = [name for name in ask.names if name != self.name]
        for name, box, marks in zip(others, ask.own_M148, ask.own_marks_M64, strict=True):
            offered = raw(now.offered[name])
            info = box_info(now.context, name, self.name, offered=offered)
            key = self._box_key(info, roster.peer(name).box_key)
            inside = unsealed(key, box.tobytes())
            fits = inside is not None and len(inside) == INSIDE
            fits = fits and share_marks(now.context, inside or b"") == marks.tobytes()
            now.held[name] = inside if fits else None
        now.held[self.name] = now.own_shares
        masks = [(derived(now.seed, own_info(now.context)), 1)]
        for name in others:
            pair = derived(known[name], pair_info(now.context, self.name, name))
            masks.append((pair, 1 if self.name < name else -1))
        add_streams(now.layout.by_width(lanes), masks)
        now.lanes = None  # the numbers themselves are gone
        return now.say("mask", ask, Masked(lanes))

    def agree(self, ask: Agree) -> Signed:
        """Sign the set of sites whose masked numbers came: one set, once. Raises Refusal."""
        now = self._now(ask.context)
        if (same := now.again("agree", ask)) is not None:
            before: Signed = same
            return before
        if "mask" not in now.said:
            raise Refusal("early-ask")
        if not set(ask.names) <= now.offered.keys() or ask.names != sorted(set(ask.names)):
            raise Refusal("bad-set")
        if self.name not in ask.names or len(ask.names) < self._fewest(now):
            raise Refusal("bad-set")
        session = self._session
        assert session is not None, "a site that masked has greeted"
        now.signed = list(ask.names)
        signature = session.signer.sign(agreement(now.context, now.offered, now.signed)).hex()
        return now.say("agree", ask, Signed(signature))

    def unmask(self, ask: Unmask) -> Shares:
        """Give the shares once enough sites signed the site's own set. Raises Refusal."""
        now = self._now(ask.context)
        if (same := now.again("unmask", ask)) is not None:
            before: Shares = same
            return before
        if now.signed is None:
            raise Refusal("early-ask")
        if len(ask.names) != len(ask.signatures) or ask.names != sorted(set(ask.names)):
            raise Refusal("bad-set")
        if not set(ask.names) <= set(now.signed) or len(ask.names) < self._fewest(now):
            raise Refusal("few-signatures")
        roster, signing = now.roster, agreement(now.context, now.offered, now.signed)
        for name, signature in zip(ask.names, ask.signatures, strict=True):
            if not is_signed_by(roster.peer(name).sign_key, signature, signing):
                raise Refusal("few-signatures", name)
        self.record.claim(now.turn, now.signed)
        names = list(now.offered)
        given = np.array([now.held[name] is not None for name in names], np.bool_)
        shares = np.zeros((len(names), SHARE), np.uint8)
        for row, name in enumerate(names):
            inside = now.held[name]
            if inside is not None:
                half = inside[SHARE:] if name in now.signed else inside[:SHARE]
                shares[row] = np.frombuffer(half, np.uint8)
        reply = now.say("unmask", ask, Shares(given, shares))
        now.settle()
        now.secret = now.seed = now.own_shares = b""
        now.held.clear()
        return reply

    # --- what all of them check ---------------------------------------------------------------

    def _fewest(self, now: Ongoing) -> int:
        return max(now.roster.least, self.least)

    def _summed_with(self, opening: Opening) -> Roster:
        """The sites of a sum: all, or the site's own group, which it works out by itself."""
        roster = self._met(opening.roster)
        if not opening.group:
            return roster
        groups = groups_of(roster.names, self.group) if self.group else []
        own = next((one for one in groups if self.name in one), None)
        if own is None:
            raise Refusal("bad-set")
        try:
            return roster.part(own)
        except SettingsError as error:
            raise Refusal("few-sites") from error

    def _met(self, roster: str) -> Roster:
        """The roster, if it is the one that the server means. Raises Refusal."""
        known = self._roster
        if known is None or roster != known.id.hex():
            raise Refusal("not-met")
        return known

    def _now(self, context: str) -> Ongoing:
        """The present sum, if it is the one that the server means. Raises Refusal."""
        now = self._sum
        if now is None or not hmac.compare_digest(now.context.hex(), context):
            raise Refusal("no-sum")
        return now

    def _checked(self, now: Ongoing, ask: Mask) -> dict[str, bytes]:
        """What this site knows with each other one, by keys that are each signed by its site.

        Raises Refusal.
        """
        roster = now.roster
        columns = (ask.keys, ask.commitments, ask.boxes, ask.marks, ask.signatures)
        if any(len(column) != len(ask.names) for column in columns):
            raise Refusal("bad-ask")
        if ask.names != sorted(set(ask.names)) or not set(ask.names) <= set(roster.names):
            raise Refusal("bad-set")
        if self.name not in ask.names or len(ask.names) < self._fewest(now):
            raise Refusal("bad-set")
        if not len(ask.own_M148) == len(ask.own_marks_M64) == len(ask.names) - 1:
            raise Refusal("bad-ask")
        if raw(ask.keys[ask.names.index(self.name)]) != public_of(now.secret):
            raise Refusal("bad-offer", self.name)
        with_key, known = sharing(now.secret), {}
        for name, key, commitment, boxes, marks, signature in zip(ask.names, *columns, strict=True):
            text = offer_statement(
                now.context, key, commitment=commitment, boxes=boxes, marks=marks
            )
            if not is_signed_by(roster.peer(name).sign_key, signature, text):
                raise Refusal("bad-offer", name)
            if name != self.name:
                try:
                    known[name] = with_key(raw(key))
                except ValueError as error:  # a key of low order, or none at all
                    raise Refusal("bad-offer", name) from error
        return known

    def _check_new(self, context: bytes) -> None:
        """Raise Refusal if this process has offered to this very sum before, and another since."""
        if context in self._offered:
            raise Refusal("second-ask")

    def _box_key(self, info: bytes, key: bytes) -> bytes:
        session = self._session
        assert session is not None, "a site that met others has greeted"
        return derived(session.box_secret_with(key), info)


def _natural(value: int) -> int:
    if not 0 <= value < 2**63:
        raise Refusal("bad-ask")
    return value
