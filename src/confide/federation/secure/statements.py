"""What names a sum, and what sites sign and commit to in it."""

from __future__ import annotations

from confide.federation.digests import digest, number, statement
from confide.federation.failures import Refusal
from confide.federation.secure.messages import Opening
from confide.federation.secure.shamir import SHARE


class Asked:
    """The digest of an opening's ask: a large one is gone through once, and not held for it."""

    def __init__(self) -> None:
        self._known: tuple[Opening, bytes] | None = None

    def note(self, opening: Opening, asked: bytes) -> None:
        """Take the digest of this opening's ask, which it may be without."""
        self._known = opening, asked

    def of(self, opening: Opening) -> bytes:
        """The digest. Raises Refusal if the opening has no ask, and had none."""
        if self._known is None or self._known[0] is not opening:
            if not opening.ask_B.size:
                raise Refusal("bad-ask")
            self._known = opening, digest(opening.ask_B.data)
        return self._known[1]


def named_by(
    asked: bytes,
    roster: bytes,
    *,
    round: int,
    step: str,
    attempt: int,
    layout: bytes,
    common: bytes,
) -> bytes:
    """The digest of everything that names a sum; all its keys are made for it alone.

    `asked` is the digest of the ask, `common` that of all that a site was given before and that is
    the same at all sites: who holds something else shares no masks with the others.
    """
    turn = number(round), step.encode(), number(attempt)
    return digest(b"sum", roster, *turn, asked, layout, common)


def agreement(context: bytes, offered: dict[str, str], names: list[str]) -> bytes:
    """What a site signs: the sum, whose offers came with which key, whose masked numbers came."""
    one = digest(*(part for name, key in offered.items() for part in (name.encode(), raw(key))))
    return statement("agree", context, one, digest(*(name.encode() for name in names)))


def offer_statement(context: bytes, key: str, *, commitment: str, boxes: str, marks: str) -> bytes:
    """What a site signs of its offer."""
    return statement("offer", context, *map(raw, (key, commitment, boxes, marks)))


def seed_commitment(context: bytes, seed: bytes) -> bytes:
    """The digest by which the seed of a site's own mask is known before it is opened."""
    return digest(context, b"seed", seed)


def share_mark(context: bytes, share: bytes) -> bytes:
    """The digest by which a share is known before it is given."""
    return digest(context, b"share", share)


def share_marks(context: bytes, both: bytes) -> bytes:
    """The digests of the two shares that a box holds."""
    return share_mark(context, both[:SHARE]) + share_mark(context, both[SHARE:])


def raw(text: str) -> bytes:
    """The bytes of hexadecimal digits. Raises Refusal."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise Refusal("bad-ask") from error
