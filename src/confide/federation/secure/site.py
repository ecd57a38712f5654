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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import encode
from confide.federation.seals import digest, int_bytes, is_signed_by
from confide.federation.secure import crypto, messages
from confide.federation.secure.lanes import LaneLayout, Lanes
from confide.federation.secure.messages import Masked, Offered, Opening, Roster, Shares, Signed
from confide.files import write_once

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


class SumTurn(NamedTuple):
    """One sum, whatever the attempt: the run, the round, the step and the digest of the ask."""

    run: str
    round: int
    step: str
    ask: bytes
    group: bool = False

    def file(self, use: str) -> str:
        """The name of the file about this turn of the run for one use."""
        turn = self.run.encode(), int_bytes(self.round), self.step.encode()
        return f"{use}-{digest(use.encode(), *turn).hex()}"


class Sets:
    """The sets that a site has helped to sum, in a folder that it owns; many processes may write.

    A file, once there, is never changed, and of two processes only one can claim a turn.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, turn: SumTurn, names: list[str]) -> None:
        """Write down a set before its sum is opened. Raises Refusal if another was claimed.

        Sums of all sites and of a fixed group (`turn.group`) are different sums.
        """
        said = "\n".join(names) + "\n"
        run, step = turn.run.encode(), turn.step.encode()
        marks = [turn.file("turn"), "ask-" + digest(b"ask", step, turn.ask).hex()]
        again = "sum-" + digest(b"sum", run, int_bytes(turn.round), step, turn.ask).hex()
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

    def fix(self, turn: SumTurn) -> None:
        """Write down the one ask that the site answers in a turn. Raises Refusal for another.

        For steps that weigh what a site holds by numbers of the server's: two asks would be two
        sums of the same vectors, each with weights of its own.
        """
        if not self._put([turn.file("once")], turn.ask.hex() + "\n"):
            raise Refusal("second-ask")

    def fixed(self, turn: SumTurn) -> str:
        """The digest of the ask that was fixed for a turn, once its sum was opened; else empty."""
        path = self._folder / turn.file("once")
        there = (self._folder / turn.file("turn")).exists() and path.exists()
        return path.read_text().strip() if there else ""

    def sizes(self) -> list[int]:
        """The number of sites in each sum that the site has helped to open."""
        return [len(path.read_text().split()) for path in sorted(self._folder.glob(f"{TURN}*"))]

    def size(self, turn: SumTurn) -> int:
        """The number of sites in the sum of a turn; 0 if the site has not helped to open one."""
        path = self._folder / turn.file("turn")
        return len(path.read_text().split()) if path.exists() else 0

    def _shrink(self, turn: SumTurn, said: str) -> None:
        """Note a run's smallest set. Raises Refusal for a site that an earlier set lacked."""
        mark = digest(b"run", turn.run.encode(), int_bytes(turn.group)).hex()
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
        return write_once(said.encode(), *(self._folder / name for name in names))


# --- One sum at a site, from its offer to its shares
#
# It lives in the process and ends with it.


@dataclass(frozen=True)
class SumAsk:
    """The first ask of a sum.

    Attributes:
        opening: how the server asks, without the ask itself.
        asked: the digest of the step's ask.
        common: the digest of all else that the server has given or told the site, as it did all.
    """

    opening: Opening
    asked: bytes
    common: bytes
    round: int
    step: str
    layout: LaneLayout


@dataclass
class SumState:
    """One sum at a site: its secrets, and what it has said already."""

    context: bytes
    roster: Roster
    ask: SumAsk
    lanes: Lanes | None
    settle: Callable[[], None]
    secret: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    own_shares: bytes = field(repr=False)
    offer: Offered
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

    def say(self, exchange: str, ask: object, reply: object) -> None:
        """Keep a reply, which the very same message gets again."""
        self.said[exchange] = (digest(encode(ask)), reply)


@dataclass(frozen=True)
class SessionKeys:
    """A site's keys for one process and run, and how it showed them. They are never stored."""

    greeted: messages.Greeted
    run: str
    box_secret: bytes = field(repr=False)
    signer: Ed25519PrivateKey = field(repr=False)
    _boxes: dict[bytes, bytes] = field(default_factory=dict, init=False, repr=False)

    def box_secret_with(self, public: bytes) -> bytes:
        """Return the secret shared with the owner of a public key for boxes; worked out once."""
        if public not in self._boxes:
            self._boxes[public] = crypto.shared_secret(self.box_secret, public)
        return self._boxes[public]


@dataclass(eq=False)
class Member:
    """A site among those that sum.

    Attributes:
        name: the site's.
        identity: its identity key (Ed25519), which signs only the greeting.
        binding: digest of the settings and the wire table that the site received.
        record: where it writes down the sets that it has helped to sum.
        vet: raises Refusal unless the site sums with these sites and identity keys; None: every key
            that is shown is believed, as on one machine.
        colluding: how many sites it supposes to be in league with the server; None: as the server
            says.
        least: the fewest sites in a sum, from the site's own guard `min_sites` and its agreement.
        run: the run that it joined; None: as the server says.
        card: what certifies its identity key to the others.
        group: the size of fixed groups that may be summed by themselves; 0: none.
    """

    name: str
    identity: Ed25519PrivateKey = field(repr=False)
    _: KW_ONLY
    binding: bytes
    record: Sets
    vet: Callable[[messages.Meet], None] | None = None
    colluding: int | None = None
    least: int = 1
    run: str | None = None
    card: str = ""
    group: int = 0
    _session: SessionKeys | None = field(default=None, init=False, repr=False)
    _roster: Roster | None = field(default=None, init=False, repr=False)
    _sum: SumState | None = field(default=None, init=False, repr=False)
    _offered: set[bytes] = field(default_factory=set, init=False, repr=False)

    # --- before the first sum -----------------------------------------------------------------

    def greet(self, ask: messages.Greet, *, account: str = "") -> messages.Greeted:
        """Show the keys of this process, and how the site's account of noise stood at first.

        Raises Refusal for another run.
        """
        if self.run is not None and ask.run != self.run:
            raise Refusal("bad-ask")
        if self._session is None or self._session.run != ask.run:
            box_secret, signer = crypto.fresh_secret(), Ed25519PrivateKey.generate()
            box_key, sign_key = (
                crypto.public_key(box_secret),
                signer.public_key().public_bytes_raw(),
            )
            said = messages.greeting(
                ask.run,
                self.name,
                self.binding,
                box_key=box_key,
                sign_key=sign_key,
                account=account,
            )
            greeted = messages.Greeted(
                identity=self.identity.public_key().public_bytes_raw().hex(),
                box_key=box_key.hex(),
                sign_key=sign_key.hex(),
                signature=self.identity.sign(said).hex(),
                binding=self.binding.hex(),
                card=self.card,
                account=account,
            )
            self._session = SessionKeys(greeted, ask.run, box_secret, signer)
            self._roster = self._sum = None
        return self._session.greeted

    def meet(self, ask: messages.Meet) -> messages.Met:
        """Check the greetings of all sites, and sum with these from now on. Raises Refusal."""
        session = self._session
        if session is None:
            raise Refusal("not-met")
        if self.colluding is not None and ask.colluding < self.colluding:
            raise Refusal("other-roster", "colluding")
        messages.check_columns(ask)
        if self.vet is not None:
            self.vet(ask)
        roster = messages.roster_of(ask, run=session.run, binding=self.binding)
        own_key = crypto.public_key(session.box_secret)
        if self.name not in roster.names or roster.peer(self.name).box_key != own_key:
            raise Refusal("other-roster", self.name)
        if len(roster.names) < self.least:
            raise Refusal("few-sites")
        if self._roster is None or self._roster.id != roster.id:
            self._roster, self._sum = roster, None
        return messages.Met(roster.id.hex())

    # --- the four exchanges -------------------------------------------------------------------

    def offered(self, ask: SumAsk) -> Offered | None:
        """The reply that this ask got already; None if it is new. Raises Refusal."""
        context, before = self.context(ask), self._sum
        if before is not None and before.context == context:
            return before.offer
        if before is not None and _attempt_of(before.ask) == _attempt_of(ask):
            raise Refusal("second-ask")
        self._check_new(context)
        self._sum = None
        return None

    def context(self, ask: SumAsk) -> bytes:
        """The digest of everything that names a sum. Raises Refusal."""
        attempt = ask.opening.attempt
        if not 0 <= attempt < 2**63:
            raise Refusal("bad-ask")
        return messages.sum_context(
            ask.asked,
            self._summed_with(ask.opening).id,
            round=ask.round,
            step=ask.step,
            attempt=attempt,
            layout=ask.layout.digest,
            common=ask.common,
        )

    def fix(self, ask: SumAsk) -> None:
        """Answer this ask in this turn, and no other. Raises Refusal."""
        self.record.fix(_turn_of(self._summed_with(ask.opening).run, ask))

    def asked_before(self, opening: Opening, *, round: int, step: str) -> bytes:
        """The digest of what was asked by this step in this round. Raises Refusal.

        Only if the site has helped to open that sum.
        """
        run = self._summed_with(opening).run
        found = self.record.fixed(SumTurn(run, round, step, b""))
        if not found:
            raise Refusal("early-ask")
        return bytes.fromhex(found)

    @property
    def honest(self) -> int:
        """The fewest honest sites in a sum. Raises Refusal."""
        if self._roster is None:
            raise Refusal("not-met")
        return self._roster.honest

    def offer(self, ask: SumAsk, *, lanes: Lanes, settle: Callable[[], None]) -> Offered:
        """Fresh keys for the masks of this sum, and sealed shares of them; once for every context.

        `settle` is called once the site has given its shares, so that the sum can be opened.
        Raises Refusal.
        """
        roster, context = self._summed_with(ask.opening), self.context(ask)
        self._check_new(context)
        self._offered.add(context)
        secret, seed = crypto.fresh_secret(), crypto.fresh_secret()
        key = crypto.public_key(secret)
        shares = [
            crypto.split_secret(one, len(roster.names), least=roster.least)
            for one in (secret, seed)
        ]
        both = [of_secret + of_seed for of_secret, of_seed in zip(*shares, strict=True)]
        boxes = b""
        for share, peer in zip(both, roster.peers, strict=True):
            if peer.name != self.name:
                info = crypto.box_info(context, self.name, peer.name, offered=key)
                boxes += crypto.seal_box(self._box_key(info, peer.box_key), share)
        marks = b"".join(messages.share_marks(context, share) for share in both)
        commitment = messages.seed_commitment(context, seed).hex()
        text = messages.offer_statement(
            context,
            key.hex(),
            commitment=commitment,
            boxes=digest(boxes).hex(),
            marks=digest(marks).hex(),
        )
        reply = Offered(
            key=key.hex(),
            commitment=commitment,
            boxes_O148=np.frombuffer(boxes, np.uint8).reshape(-1, messages.BOX),
            marks_N64=np.frombuffer(marks, np.uint8).reshape(-1, 64),
            common=ask.common.hex(),
            signature=self._keys.signer.sign(text).hex(),
        )
        own = both[roster.place(self.name) - 1]
        self._sum = SumState(context, roster, ask, lanes, settle, secret, seed, own, reply)
        return reply

    def mask(self, ask: messages.Mask) -> Masked:
        """The numbers under the site's own mask and one for every pair. Raises Refusal."""
        now = self._now(ask.context)
        if isinstance(same := now.again("mask", ask), Masked):
            return same
        known, lanes = self._checked(now, ask), now.lanes
        assert lanes is not None, "a sum that was not masked has its numbers"
        now.offered = dict(zip(ask.names, ask.keys, strict=True))
        others = [name for name in ask.names if name != self.name]
        for name, box, marks in zip(others, ask.own_M148, ask.own_marks_M64, strict=True):
            offered = messages.raw(now.offered[name])
            info = crypto.box_info(now.context, name, self.name, offered=offered)
            key = self._box_key(info, now.roster.peer(name).box_key)
            inside = crypto.open_box(key, box.tobytes())
            fits = inside is not None and len(inside) == messages.INSIDE
            fits = fits and messages.share_marks(now.context, inside or b"") == marks.tobytes()
            now.held[name] = inside if fits else None
        now.held[self.name] = now.own_shares
        masks = [(crypto.derive_key(now.seed, crypto.own_info(now.context)), 1)]
        for name in others:
            pair = crypto.derive_key(known[name], crypto.pair_info(now.context, self.name, name))
            masks.append((pair, 1 if self.name < name else -1))
        crypto.add_streams(now.ask.layout.by_width(lanes), masks)
        now.lanes = None  # the numbers themselves are gone
        reply = Masked(lanes)
        now.say("mask", ask, reply)
        return reply

    def agree(self, ask: messages.Agree) -> Signed:
        """Sign the set of sites whose masked numbers came: one set, once. Raises Refusal."""
        now = self._now(ask.context)
        if isinstance(same := now.again("agree", ask), Signed):
            return same
        if "mask" not in now.said:
            raise Refusal("early-ask")
        if not set(ask.names) <= now.offered.keys():
            raise Refusal("bad-set")
        self._check_set(now, ask.names)
        now.signed = list(ask.names)
        said = messages.set_statement(now.context, now.offered, now.signed)
        reply = Signed(self._keys.signer.sign(said).hex())
        now.say("agree", ask, reply)
        return reply

    def unmask(self, ask: messages.Unmask) -> Shares:
        """Give the shares once enough sites signed the site's own set. Raises Refusal."""
        now = self._now(ask.context)
        if isinstance(same := now.again("unmask", ask), Shares):
            return same
        if now.signed is None:
            raise Refusal("early-ask")
        if len(ask.names) != len(ask.signatures) or ask.names != sorted(set(ask.names)):
            raise Refusal("bad-set")
        if not set(ask.names) <= set(now.signed) or len(ask.names) < self._fewest(now):
            raise Refusal("few-signatures")
        said = messages.set_statement(now.context, now.offered, now.signed)
        for name, signature in zip(ask.names, ask.signatures, strict=True):
            if not is_signed_by(now.roster.peer(name).sign_key, signature, said):
                raise Refusal("few-signatures", name)
        self.record.claim(_turn_of(now.roster.run, now.ask), now.signed)
        given = np.array([now.held[name] is not None for name in now.offered], np.bool_)
        shares = np.zeros((len(now.offered), crypto.SHARE), np.uint8)
        for row, name in enumerate(now.offered):
            inside = now.held[name]
            if inside is not None:
                half = inside[crypto.SHARE :] if name in now.signed else inside[: crypto.SHARE]
                shares[row] = np.frombuffer(half, np.uint8)
        reply = Shares(given, shares)
        now.say("unmask", ask, reply)
        now.settle()
        now.secret = now.seed = now.own_shares = b""
        now.held.clear()
        return reply

    # --- what all of them check ---------------------------------------------------------------

    @property
    def _keys(self) -> SessionKeys:
        assert self._session is not None, "a site that met others has greeted"
        return self._session

    def _fewest(self, now: SumState) -> int:
        return max(now.roster.least, self.least)

    def _check_set(self, now: SumState, names: list[str]) -> None:
        """Raise Refusal unless a set is in order, large enough, and has the site itself."""
        if names != sorted(set(names)) or self.name not in names or len(names) < self._fewest(now):
            raise Refusal("bad-set")

    def _summed_with(self, opening: Opening) -> Roster:
        """The sites of a sum: all, or the site's own group, which it works out by itself."""
        roster = self._roster
        if roster is None or opening.roster != roster.id.hex():
            raise Refusal("not-met")
        if not opening.group:
            return roster
        groups = messages.groups_of(roster.names, self.group) if self.group else []
        own = next((one for one in groups if self.name in one), None)
        if own is None:
            raise Refusal("bad-set")
        try:
            return roster.part(own)
        except SettingsError as error:
            raise Refusal("few-sites") from error

    def _now(self, context: str) -> SumState:
        """The present sum, if it is the one that the server means. Raises Refusal."""
        now = self._sum
        if now is None or not hmac.compare_digest(now.context.hex(), context):
            raise Refusal("no-sum")
        return now

    def _checked(self, now: SumState, ask: messages.Mask) -> dict[str, bytes]:
        """Check each other site's signed keys, and derive the secret shared with it.

        Raises Refusal.
        """
        columns = (ask.keys, ask.commitments, ask.boxes, ask.marks, ask.signatures)
        if any(len(column) != len(ask.names) for column in columns):
            raise Refusal("bad-ask")
        if not set(ask.names) <= set(now.roster.names):
            raise Refusal("bad-set")
        self._check_set(now, ask.names)
        if not len(ask.own_M148) == len(ask.own_marks_M64) == len(ask.names) - 1:
            raise Refusal("bad-ask")
        own = ask.keys[ask.names.index(self.name)]
        if messages.raw(own) != crypto.public_key(now.secret):
            raise Refusal("bad-offer", self.name)
        with_key, known = crypto.secrets_with(now.secret), {}
        for name, key, commitment, boxes, marks, signature in zip(ask.names, *columns, strict=True):
            text = messages.offer_statement(
                now.context, key, commitment=commitment, boxes=boxes, marks=marks
            )
            if not is_signed_by(now.roster.peer(name).sign_key, signature, text):
                raise Refusal("bad-offer", name)
            if name != self.name:
                try:
                    known[name] = with_key(messages.raw(key))
                except ValueError as error:  # a key of low order, or none at all
                    raise Refusal("bad-offer", name) from error
        return known

    def _check_new(self, context: bytes) -> None:
        """Raise Refusal if this process has offered to this very sum before, and another since."""
        if context in self._offered:
            raise Refusal("second-ask")

    def _box_key(self, info: bytes, key: bytes) -> bytes:
        return crypto.derive_key(self._keys.box_secret_with(key), info)


def _turn_of(run: str, ask: SumAsk) -> SumTurn:
    return SumTurn(run, ask.round, ask.step, ask.asked, ask.opening.group)


def _attempt_of(ask: SumAsk) -> tuple[int, str, int]:
    return ask.round, ask.step, ask.opening.attempt
