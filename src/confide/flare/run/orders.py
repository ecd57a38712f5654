"""The lead's order: which run, with which settings, at which sites; signed with the lead's key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confide.federation.digests import digest, statement
from confide.federation.failures import Refusal
from confide.federation.seals import is_signed_by
from confide.flare.kits.peers import Card, Place
from confide.settings import Settings, dump


@dataclass(frozen=True)
class Order:
    """What a lead orders. `settings` is the TOML that the sites get.

    `card` and `signature` are the lead's, both empty if the order is not signed.
    """

    run: str
    settings: str
    sites: tuple[str, ...]
    version: str
    card: str = ""
    signature: str = ""

    def said(self) -> bytes:
        """The statement that is signed."""
        return statement(
            "order",
            self.run.encode(),
            self.settings.encode(),
            digest(*(site.encode() for site in self.sites)),
            self.version.encode(),
        )

    @property
    def digest(self) -> str:
        """The digest of the order, 64 hexadecimal digits."""
        return digest(self.said()).hex()

    def lead(self) -> Card:
        """The lead's card. Raises Refusal if there is none, or if it did not sign this order."""
        card = Card.decode(self.card)
        if card.kind != "lead" or not is_signed_by(card.public, self.signature, self.said()):
            raise Refusal("bad-signature", "order")
        return card


def settings_for_sites(settings: Settings) -> str:
    """The settings as sites get them, without the place of the public set at the server."""
    public = settings.public.model_copy(update={"files": ()})
    return dump(settings.model_copy(update={"public": public}))


def signed_order(
    place: Place, *, run: str, settings: Settings, sites: Sequence[str], version: str
) -> dict[str, str]:
    """The lead's signature of an order, as it travels with a submission: `card`, `signature`."""
    order = Order(run, settings_for_sites(settings), tuple(sorted(sites)), version)
    return {"card": place.card.encode(), "signature": place.identity.sign(order.said())}


def submitted(signed: Mapping[str, str]) -> str:
    """A signed order as one argument of a submission, in hex: FLARE would interpret braces."""
    return json.dumps(dict(signed)).encode().hex()


def card_and_signature(text: str) -> tuple[str, str]:
    """The lead's card and signature in a submission. Raises Refusal if they are not there."""
    try:
        tree = json.loads(bytes.fromhex(text))
        card, signature = tree["card"], tree["signature"]
        if not (isinstance(card, str) and isinstance(signature, str) and signature):
            raise TypeError("text is expected")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refusal("bad-signature", "order") from error
    return card, signature


def packed(order: Order) -> str:
    """The part of an order that a `Join` has no other field for; "" if it is not signed."""
    if not order.signature:
        return ""
    said = {"sites": list(order.sites), "card": order.card, "signature": order.signature}
    return json.dumps(said)


def unpacked(text: str, *, run: str, settings: str, version: str) -> Order:
    """The order that a `Join` with these fields passes on. Raises Refusal."""
    try:
        tree = json.loads(text)
        sites, card, signature = tree["sites"], tree["card"], tree["signature"]
        if not all(isinstance(one, str) for one in [*sites, card, signature]):
            raise TypeError("text is expected")
        order = Order(run, settings, tuple(sites), version, card, signature)
        order.said()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refusal("bad-signature", "order") from error
    return order
