"""The site's side of evidence: a home that answers only asks that the server's key has signed.

It checks the seal of an ask before the home sees the ask, notes both seals in the site's ledger,
and seals the reply. `confide.federation.seals` describes the seals.
"""

from __future__ import annotations

import dataclasses

from confide.errors import MessageError
from confide.federation.digests import EMPTY
from confide.federation.failures import Refusal, failure_from
from confide.federation.files import for_the_owner
from confide.federation.ledger import MET, OPENED, SEAL, Ledger, read_lines
from confide.federation.messages import decode, encode
from confide.federation.seals import (
    AskSeal,
    ReplySeal,
    decode_seal,
    encode_seal,
    fresh_nonce,
    inner_digest,
    keep_nonce,
    message_digest,
    signed,
    verifies,
)
from confide.flare.kits.naming import SERVER
from confide.flare.kits.peers import Card, Place
from confide.flare.run.home import SiteHome
from confide.flare.run.joining import JOIN, Join
from confide.flare.run.orders import Order, unpacked
from confide.userfiles import Tree


class SignedHome:
    """The home of a site that has an identity. Answers bytes and a seal with bytes and a seal."""

    def __init__(self, home: SiteHome, place: Place) -> None:
        self._home = home
        home.place = self._place = place
        self._server: Card | None = None
        self._run = ""
        self._heads: dict[str, str] = {}
        self._met: dict[str, str] = {}

    def answer(self, step: str, round: int, data: bytes, *, seal: bytes) -> tuple[bytes, bytes]:
        """The encoded reply or failure, and its seal; both are noted before they are returned.

        An ask whose seal cannot be read gets a failure without a seal.
        """
        with for_the_owner():
            try:
                asked = decode_seal(AskSeal, seal)
            except MessageError as error:
                refused = Refusal("bad-signature", "seal")
                refused.__cause__ = error
                return self._home.refuse(step, round, data, error=refused), b""
            inner = inner_digest(data)
            real = message_digest(bytes.fromhex(asked.nonce), inner)
            why = ""
            try:
                self._check(asked, step, round, real)
                if step == JOIN.name:
                    self._check_join(asked, data)
            except Exception as error:
                why = error.code if isinstance(error, Refusal) else "error"
                reply = self._home.refuse(step, round, data, error=error)
            else:
                reply = self._home.answer(step, round, data)
            return self._sealed(asked, real, reply, weight=len(seal), refused=why)

    def _check(self, asked: AskSeal, step: str, round: int, real: str) -> None:
        """Raise Refusal if an ask is not the one that the server signed, or not for this turn."""
        if asked.card:
            self._meet_server(Card.decode(asked.card))
        if self._server is None or not verifies(asked, self._server.public):
            raise Refusal("bad-signature", "signature")
        fits = {
            "site": asked.site == self._place.name,
            "step": asked.step == step,
            "round": asked.round == round,
            "digest": asked.digest == real,
        }
        if step != JOIN.name:
            fits["run"] = asked.run == self._run
            fits["head"] = self._heads.get(asked.head) == asked.reply
        wrong = [name for name, fit in fits.items() if not fit]
        if wrong:
            raise Refusal("bad-signature", wrong[0])

    def _meet_server(self, card: Card) -> None:
        self._place.meet(card, "server", SERVER, only_compared=self._home.only_compared)
        self._server = card

    def _check_join(self, asked: AskSeal, data: bytes) -> None:
        """Raise Refusal if the lead did not order this run with these sites."""
        try:
            ask = decode(Join, data)
        except MessageError as error:
            raise Refusal("bad-ask") from error
        order = unpacked(ask.order, run=ask.run, settings=ask.settings, version=ask.version)
        lead = order.lead()
        fits = {
            "run": ask.run == asked.run,
            "lead": ask.lead == lead.name,
            "sites": self._place.name in ask.sites and set(ask.sites) <= set(order.sites),
        }
        wrong = [name for name, fit in fits.items() if not fit]
        if wrong:
            raise Refusal("bad-signature", wrong[0])
        self._place.meet(lead, "lead", lead.name, only_compared=self._home.only_compared)
        self._home.opening = self._opening(order, lead)
        self._run = ask.run

    def _opening(self, order: Order, lead: Card) -> Tree:
        """The run and identities in the first line of a new ledger."""
        assert self._server is not None, "its seal has been checked"
        return {
            "at": self._place.name,
            "run": order.run,
            "identity": self._place.identity.public.hex(),
            "server_identity": self._server.key,
            "lead": lead.name,
            "lead_identity": lead.key,
            "order": order.digest,
            "sites": list(order.sites),
        }

    def _sealed(
        self, asked: AskSeal, real: str, reply: bytes, *, weight: int, refused: str
    ) -> tuple[bytes, bytes]:
        """The reply and its seal, once both seals are noted; a failure if that goes wrong."""
        joined = self._home.book is not None
        book = self._home.book or self._home.refusals()
        head = book.head if joined else EMPTY
        try:
            if joined and asked.step == JOIN.name and not refused:
                book.flush()  # if the reply could not be noted, nothing is on disk yet
                self._recall(book)
            seal = self._reply_seal(asked, real, reply)
            down = {"refused": refused} if refused else {}
            self._note(book, {**dataclasses.asdict(asked), **down}, "down", weight)
            self._note(book, dataclasses.asdict(seal), "up", _weight(seal, head))
            if joined:
                for one in (asked, seal):
                    keep_nonce(self._home.book_path, one.digest, one.nonce)
            book.flush()
            head = book.head if joined else EMPTY
        except Exception as error:  # a reply that cannot be noted does not leave
            self._home.complain(asked.step, asked.round, error)
            reply = encode(failure_from(error))
            seal = self._reply_seal(asked, real, reply)
        if joined:
            self._heads[head] = seal.digest
        return reply, encode_seal(self._signed(seal, head))

    def _reply_seal(self, asked: AskSeal, real: str, reply: bytes) -> ReplySeal:
        nonce = fresh_nonce()
        return ReplySeal(
            run=asked.run,
            site=self._place.name,
            round=asked.round,
            step=asked.step,
            attempt=asked.attempt,
            ask=real,
            digest=message_digest(nonce, inner_digest(reply)),
            nonce=nonce.hex(),
            head=EMPTY,
            card=self._place.card.encode() if asked.step == JOIN.name else "",
        )

    def _signed(self, seal: ReplySeal, head: str) -> ReplySeal:
        return signed(dataclasses.replace(seal, head=head), self._place.identity.key)

    def _note(self, book: Ledger, facts: Tree, direction: str, weight: int) -> None:
        """Add the seal's line, without what the ledger's first line or the next one holds."""
        audience = facts.pop("audience", None)
        if audience is not None and list(audience) != self._home.opening.get("sites"):
            facts["audience"] = audience
        left_out = (
            {"nonce", "card"}
            | ({"run"} if facts["run"] == self._run else set())
            | ({"head", "signature"} if direction == "up" else set())
        )
        kept = {name: value for name, value in facts.items() if name not in left_out}
        book.seal(weight, {"direction": direction, **kept})

    def _recall(self, book: Ledger) -> None:
        """Read back the heads that an earlier process of this run signed, and the keys it met."""
        opening = self._home.opening
        for line in read_lines(self._home.book_path):
            tree = line.tree
            if tree.get("note") == OPENED:
                self._met = {SERVER: tree["server_identity"], self._place.name: tree["identity"]}
            elif tree.get("note") == MET:
                self._met[str(tree["peer"])] = str(tree["identity"])
            elif tree.get("field") == SEAL and tree["direction"] == "up":
                self._heads[line.digest] = str(tree["digest"])
        now = {SERVER: opening["server_identity"], self._place.name: opening["identity"]}
        for peer, key in now.items():
            if self._met.get(peer) != key:
                self._met[peer] = key
                book.note(MET, peer=peer, identity=key, compared=peer != SERVER)


def _weight(seal: ReplySeal, head: str) -> int:
    """The bytes of the seal with its signature; every head but the empty one is as long."""
    return len(encode_seal(dataclasses.replace(seal, head=head, signature="0" * 128)))
