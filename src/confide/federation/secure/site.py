"""A site's side of secure sums: it greets, offers, masks, agrees to a set, and unmasks.

Nothing of a sum is written to disk but the set of sites in it: keys, shares and the numbers before
they are masked live in this process and end with it. Whatever the server says is checked against
what the site itself received: the roster, the sum (`context`), whose offers came and whose masked
numbers. A second message of the same exchange gets the same bytes if it is the same, and a refusal
if it is not.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import encode
from confide.federation.seals import digest, is_signed_by, number
from confide.federation.secure.crypto import (
    SHARE,
    add_streams,
    box_info,
    derived,
    fresh_secret,
    own_info,
    pair_info,
    public_of,
    sealed,
    sharing,
    split_both,
    unsealed,
)
from confide.federation.secure.lanes import Lanes, Layout
from confide.federation.secure.messages import (
    BOX,
    INSIDE,
    Agree,
    Asked,
    Greet,
    Greeted,
    Mask,
    Masked,
    Meet,
    Met,
    Offered,
    Opening,
    Roster,
    Session,
    Shares,
    Signed,
    Unmask,
    Vetting,
    agreement,
    check_columns,
    groups_of,
    named_by,
    offer_statement,
    raw,
    roster_of,
    seed_commitment,
    share_marks,
)

# --- A site's record of sums
#
# It holds the sets of sites in them, so that no difference of two sums tells of one site.
#
# Two sums of the same replies over sets that differ by one site give that site's reply away. So a
# site writes down each set before it gives the shares that open its sum, and refuses
#
# - the same turn of a run, or the same ask of a step in any run, for another set;
# - in one run, a set with a site that an earlier set of the run lacked, unless this very sum was
#   opened before: a run that goes on from an earlier checkpoint gets the same sum again;
# - in one turn of a step that weighs what the site holds (`Step.once`), another ask.
#
# These rules stop exact repeats only: sums of other rounds or runs over other sets may still
# differ by little more than one site.


SUMS = "sums"
"""The folder in a site's memory."""
TURN = "turn-"
"""The prefix of the files that hold the set of one turn."""


class Turns(NamedTuple):
    """One sum: the run, the round, the step, the digest of the ask; and the attempt."""

    run: str
    round: int
    step: str
    ask: bytes
    attempt: int = 0
    group: bool = False


class Record(Protocol):
    """Where a site writes down which sets it has helped to sum."""

    def claim(self, turn: Turns, names: list[str]) -> None:
        """Write down a set before the answer that opens its sum. Raises Refusal."""
        ...

    def fix(self, turn: Turns) -> None:
        """Write down the one ask that the site answers in a turn. Raises Refusal for another."""
        ...

    def fixed(self, turn: Turns) -> str:
        """The ask that was fixed for a turn, once a set was claimed there; empty before."""
        ...


class Sets:
    """The sets that a site has helped to sum, in a folder that it owns; many processes may write.

    A file, once there, is never changed: it is written under another name and linked, so that of
    two processes only one can claim a turn.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, turn: Turns, names: list[str]) -> None:
        """Write down a set before its sum is opened. Raises Refusal if another was claimed.

        Sums of all sites and of a fixed group (`turn.group`) are different sums.
        """
        said = "\n".join(names) + "\n"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        run, step = turn.run.encode(), turn.step.encode()
        marks = [_turn(turn), "ask-" + digest(b"ask", step, turn.ask).hex()]
        again = "sum-" + digest(b"sum", run, number(turn.round), step, turn.ask).hex()
        for mark in marks:  # a claim that is refused leaves nothing behind
            path = self._folder / mark
            if path.exists() and path.read_text() != said:
                raise Refusal("other-set")
        opened = self._folder / again
        if opened.exists():  # by now, although no mark was there: another process may be as far
            if opened.read_text() != said:
                raise Refusal("other-set")
            return
        self._shrink(turn, said)
        if not self._put([*marks, again], said):
            raise Refusal("other-set")

    def fix(self, turn: Turns) -> None:
        """Write down the one ask that the site answers in a turn. Raises Refusal for another.

        For steps that weigh what a site holds by numbers of the server's: two asks would be two
        sums of the same vectors, each with weights of its own.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._put([_once(turn)], turn.ask.hex() + "\n"):
            raise Refusal("second-ask")

    def fixed(self, turn: Turns) -> str:
        """The digest of the ask that was fixed for a turn, once its sum was opened; else empty."""
        path = self._folder / _once(turn)
        there = (self._folder / _turn(turn)).exists() and path.exists()
        return path.read_text().strip() if there else ""

    def sizes(self) -> list[int]:
        """The number of sites in each sum that the site has helped to open."""
        return [len(path.read_text().split()) for path in sorted(self._folder.glob(f"{TURN}*"))]

    def _shrink(self, turn: Turns, said: str) -> None:
        """Note a run's smallest set. Raises Refusal for a site that an earlier set lacked."""
        mark = digest(b"run", turn.run.encode(), number(turn.group)).hex()
        before, place = "", 0
        while True:
            path = self._folder / f"run-{mark}-{place:04d}"
            if path.exists():
                before = path.read_text()
                if not set(said.split("\n")) <= set(before.split("\n")):
                    raise Refusal("other-set")
                place += 1
            elif before == said or self._put([path.name], said):
                return

    def _put(self, names: list[str], said: str) -> bool:
        """Make the files of these names in turn; whether they all hold this, not another set."""
        new: Path | None = None
        try:
            for name in names:
                path = self._folder / name
                if not path.exists():
                    new = new or self._written(said)
                    with contextlib.suppress(FileExistsError):
                        os.link(new, path)
                if path.read_text() != said:
                    return False
            return True
        finally:
            if new is not None:
                new.unlink()

    def _written(self, said: str) -> Path:
        """A new file under a name of its own that holds this, on the disk."""
        new = self._folder / f".{secrets.token_hex(8)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(said)
            file.flush()
            os.fsync(file.fileno())
        return new


def _turn(turn: Turns) -> str:
    """The file that holds the set of a turn."""
    named = digest(b"turn", turn.run.encode(), number(turn.round), turn.step.encode())
    return TURN + named.hex()


def _once(turn: Turns) -> str:
    """The file that holds the one ask of a turn."""
    named = digest(b"once", turn.run.encode(), number(turn.round), turn.step.encode())
    return "once-" + named.hex()


# --- One sum at a site, from its offer to its shares
#
# It lives in the process and ends with it.


R = TypeVar("R")


@dataclass
class Ongoing:
    """One sum at a site: its secrets, and what it has said already."""

    context: bytes
    roster: Roster
    turn: Turns
    layout: Layout
    lanes: Lanes | None
    settle: Callable[[], None]
    secret: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    own_shares: bytes = field(repr=False)
    offered: dict[str, str] = field(default_factory=dict)
    held: dict[str, bytes | None] = field(default_factory=dict, repr=False)
    signed: list[str] | None = None
    said: dict[str, tuple[bytes, Any]] = field(default_factory=dict, repr=False)

    def again(self, exchange: str, ask: object) -> Any:
        """The reply to the very same message; None if there was none.

        Raises Refusal for another.
        """
        before = self.said.get(exchange)
        if before is None:
            return None
        if before[0] != digest(encode(ask)):
            raise Refusal("second-ask")
        return before[1]

    def say(self, exchange: str, ask: object, reply: R) -> R:
        """Keep a reply, which the very same message gets again."""
        self.said[exchange] = (digest(encode(ask)), reply)
        return reply


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
        """Check each other site's signed keys, and derive the secret shared with it.

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
