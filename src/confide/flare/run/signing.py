"""The server's side of evidence: an engine that seals every ask and checks every reply's seal.

It wraps any engine that carries seals beside messages, and does not know what messages mean.
`confide.federation.seals` describes the seals.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from confide.errors import ConfideError, FederationError, MessageError, SettingsError
from confide.federation.digests import EMPTY
from confide.federation.engine import Delivery
from confide.federation.failures import CODES, Failure, Refusal
from confide.federation.ledger import MET, OPENED, SEAL, Ledger, read_lines
from confide.federation.messages import encode, peek
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
from confide.flare.kits.peers import Card, Place, place_of
from confide.flare.kits.startup import Kit
from confide.flare.run.joining import JOIN
from confide.flare.run.orders import Order, card_and_signature, settings_for_sites
from confide.settings import parse
from confide.settings.tomlfile import parse_toml
from confide.userfiles import Tree


class Carrier(Protocol):
    """An engine that carries a seal beside each message."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        ...

    def deliver(
        self,
        step: str,
        round: int,
        *,
        asks: Mapping[str, bytes],
        timeout: float | None,
        seals: Mapping[str, bytes] | None = None,
    ) -> Generator[Delivery, None, None]:
        """As `Engine.deliver`, with a seal for each ask; a site's own seal is in its delivery."""
        ...


@dataclass(frozen=True)
class Evidence:
    """The server's place, which signs, and the order that the lead signed."""

    place: Place
    order: Order

    def check(self) -> Card:
        """The lead's card. Raises FederationError if the lead is not who it claims to be."""
        try:
            card = self.order.lead()
            self.place.meet(card, "lead", card.name)
        except Refusal as error:
            raise FederationError(
                f"the lead's order is refused: {CODES[error.code]}",
                got=error.detail or None,
                where="at the server",
            ) from error
        return card

    def engine(self, carrier: Carrier, ledger: Ledger, path: Path) -> SignedEngine:
        """An engine that seals what `carrier` delivers, and notes it in this ledger, at `path`."""
        return SignedEngine(carrier, self, ledger, path)


def evidence_of(
    kit: Kit,
    lead: str,
    *,
    run: str,
    settings: str,
    sites: Sequence[str],
    version: str,
) -> Evidence:
    """The evidence of a run at the server of this kit; `lead` is from the lead's submission.

    The signature is checked when the run begins (`Evidence.check`). Raises SettingsError,
    KeyFileError, KitError, FederationError.
    """
    try:
        card, signature = card_and_signature(lead)
    except Refusal as error:
        raise FederationError(
            "the lead has not signed its order",
            fix="install the same version of confide everywhere, and submit the run again",
        ) from error
    try:
        tree = parse_toml(settings)
    except SettingsError as error:
        raise FederationError(f"the settings of the run cannot be read: {error.what}") from error
    plain = settings_for_sites(parse(tree))
    order = Order(run, plain, tuple(sorted(sites)), version, card, signature)
    return Evidence(place_of(kit), order)


class SignedEngine:
    """Seals every ask, and passes on only replies that their site has sealed."""

    def __init__(self, carrier: Carrier, evidence: Evidence, ledger: Ledger, path: Path) -> None:
        self._carrier = carrier
        self._place = evidence.place
        self._order = evidence.order
        self._ledger = ledger
        self._path = path
        self._last: dict[str, tuple[str, str]] = {}
        self._attempts: Counter[tuple[int, str]] = Counter()
        self._met: dict[str, str] = {}
        self._keys: dict[str, bytes] = {}
        self._remember()

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        return self._carrier.sites

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply or failure; a reply without a good seal becomes a failure."""
        sealed = self._sealed(step, round, asks)
        seals = {site: encode_seal(seal) for site, seal in sealed.items()}
        for site, seal in sealed.items():
            facts = dataclasses.asdict(seal)
            self._note(site, facts, "down", len(seals[site]), without="signature")
        self._ledger.flush()  # an ask is on disk before it leaves
        deliveries = self._carrier.deliver(step, round, asks=asks, timeout=timeout, seals=seals)
        with closing(deliveries):
            for delivery in deliveries:
                yield self._looked_at(delivery, sealed[delivery.site])
                del delivery  # not to be held while the next one comes

    def _sealed(self, step: str, round: int, asks: Mapping[str, bytes]) -> dict[str, AskSeal]:
        """A seal for each ask. Sites that get the same bytes share one digest, computed once."""
        self._attempts[round, step] += 1
        groups: dict[int, list[str]] = {}
        for site in sorted(asks):
            groups.setdefault(id(asks[site]), []).append(site)
        found: dict[str, AskSeal] = {}
        for names in groups.values():
            nonce = fresh_nonce()
            named = message_digest(nonce, inner_digest(asks[names[0]]))
            keep_nonce(self._path, named, nonce.hex())
            for site in names:
                reply, head = self._last.get(site, (EMPTY, EMPTY))
                seal = AskSeal(
                    run=self._order.run,
                    site=site,
                    round=round,
                    step=step,
                    attempt=self._attempts[round, step],
                    digest=named,
                    nonce=nonce.hex(),
                    audience=tuple(names),
                    reply=reply,
                    head=head,
                    own=self._ledger.head,
                    card=self._place.card.encode() if step == JOIN.name else "",
                )
                found[site] = signed(seal, self._place.identity.key)
        return found

    def _looked_at(self, delivery: Delivery, asked: AskSeal) -> Delivery:
        """The delivery if its seal is good, else a failure in its place."""
        if not delivery.heard:
            return delivery  # no reply came; the engine made this failure
        try:
            seal = self._checked(delivery, asked)
        except (Refusal, MessageError) as error:
            code = error.code if isinstance(error, Refusal) else "forged-reply"
            said = encode(Failure(code, "", "", delivery.site))
            return Delivery(delivery.site, said, delivery.seconds, heard=False)
        facts = dataclasses.asdict(seal)
        self._note(delivery.site, facts, "up", len(delivery.seal))
        keep_nonce(self._path, seal.digest, seal.nonce)
        self._last[delivery.site] = (seal.digest, seal.head)
        return delivery

    def _checked(self, delivery: Delivery, asked: AskSeal) -> ReplySeal:
        """The seal of a reply. Raises MessageError, Refusal."""
        seal, code = decode_seal(ReplySeal, delivery.seal), _code(delivery.reply)
        if seal.digest != message_digest(bytes.fromhex(seal.nonce), inner_digest(delivery.reply)):
            raise Refusal("forged-reply", "digest")
        fits = {name: getattr(seal, name) == getattr(asked, name)
                for name in ("run", "site", "round", "step", "attempt")}  # fmt: skip
        fits["ask"] = seal.ask == asked.digest
        fits["head"] = seal.head != EMPTY or (code != "" and seal.step == JOIN.name)
        wrong = [name for name, fit in fits.items() if not fit]
        if wrong and code != "bad-signature":  # with that code the site got something else
            raise Refusal("forged-reply", wrong[0])
        if seal.card:
            self._meet(delivery.site, seal)
        if not verifies(seal, self._keys.get(delivery.site, b"")):
            raise Refusal("forged-reply", "signature")
        return seal

    def _meet(self, site: str, seal: ReplySeal) -> None:
        """Pin the site's key, or check that it is the pinned one. Raises Refusal."""
        card = Card.decode(seal.card)
        if not verifies(seal, card.public):
            raise Refusal("forged-reply", "signature")
        try:
            pin = self._place.meet(card, "site", site)
        except ConfideError as error:
            raise error if isinstance(error, Refusal) else Refusal("uncertified", site) from error
        self._keys[site] = card.public
        if self._met.get(site) != card.key:
            self._met[site] = card.key
            self._ledger.note(MET, peer=site, identity=card.key, compared=pin.compared)

    def _note(
        self, site: str, facts: Tree, direction: str, weight: int, *, without: str = ""
    ) -> None:
        """Add the seal's line. An audience of all sites of the order is not written out."""
        everybody = list(self._order.sites)
        if list(facts.get("audience", everybody)) == everybody:
            facts.pop("audience", None)
        left_out = {"nonce", "card", without}
        if facts["run"] == self._order.run:
            left_out.add("run")
        kept = {name: value for name, value in facts.items() if name not in left_out}
        self._ledger.seal(weight, {"direction": direction, **kept})

    def _remember(self) -> None:
        """Read back what an earlier process of this run noted; in a new ledger, note the run."""
        lead, own = Card.decode(self._order.card), self._place.identity.public.hex()
        if self._ledger.lines == 0:
            self._ledger.note(
                OPENED,
                at=SERVER,
                run=self._order.run,
                identity=own,
                lead=lead.name,
                lead_identity=lead.key,
                order=self._order.digest,
                sites=list(self._order.sites),
            )
            self._ledger.flush()
            return
        for line in read_lines(self._path):
            tree = line.tree
            if tree.get("note") == OPENED:
                self._met[SERVER] = str(tree["identity"])
            elif tree.get("note") == MET:
                self._met[str(tree["peer"])] = str(tree["identity"])
            elif tree.get("field") == SEAL:
                turn, site = (tree["round"], tree["step"]), tree["site"]
                self._attempts[turn] = max(self._attempts[turn], tree["attempt"])
                if tree["direction"] == "up":
                    self._last[site] = (tree["digest"], tree["head"])
        if self._met.get(SERVER) != own:
            self._ledger.note(MET, peer=SERVER, identity=own, compared=True)


def _code(reply: bytes) -> str:
    """The code of a failure; "" if the reply is not a failure."""
    try:
        header = peek(reply)
    except MessageError:
        return ""
    return str(header["fields"].get("code")) if header["message"] == Failure.__name__ else ""
