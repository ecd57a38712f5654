"""The messages of secure sums: sites greet once, and every sum takes four exchanges.

1. *offer*: the site does its work, and sends a fresh key, sealed shares and commitments;
2. *mask*: it hears whose offers came, and sends its numbers under masks;
3. *agree*: it hears whose masked numbers came, and signs that set, once;
4. *unmask*: it sees that enough sites signed the very same set, and gives its shares.

Keys, digests and signatures are raw bytes as hexadecimal digits. N sites on the roster, O the
others of them, M sites whose offers came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.messages import carries
from confide.federation.secure.primitives import TAG, is_low_order
from confide.federation.secure.shamir import SHARE

INSIDE = 2 * SHARE
BOX = INSIDE + TAG
MOST_SITES = 2_000
_COLUMN = 2**20
"""Bytes of JSON allowed for one key of every site."""


@dataclass(frozen=True)
class Greet:
    """Show your keys."""

    run: str = carries("name of the run")


@dataclass(frozen=True)
class Greeted:
    """A site's identity key, and its keys for this process, signed by it."""

    identity: str = carries("public identity key")
    box_key: str = carries("public key for boxes, made by this process")
    sign_key: str = carries("public key for signatures, made by this process")
    signature: str = carries("of the identity key, over the run, the settings and both keys")
    binding: str = carries("digest of the settings and the wire table that the site received")
    card: str = carries("what certifies the identity key; empty on one machine", most=2**16)
    account: str = carries(
        "how many sums under noise the site has charged, and a digest of its account; empty without"
        " any",
        start=str,
    )


@dataclass(frozen=True)
class Meet:
    """The sites of the run, and what each of them showed."""

    colluding: int = carries("how many sites may be in league with the server")
    names: list[str] = carries("the sites, sorted")
    identities: list[str] = carries("public identity keys")
    box_keys: list[str] = carries("public keys for boxes")
    sign_keys: list[str] = carries("public keys for signatures")
    signatures: list[str] = carries("of the identity keys")
    bindings: list[str] = carries("digests of the settings and wire tables that the sites received")
    cards: list[str] = carries("what certifies the identity keys", most=2**27)
    accounts: list[str] = carries("how the sites' accounts of noise stand", start=list)


@dataclass(frozen=True)
class Met:
    """The site sums with these sites."""

    roster: str = carries("digest of the run, the threshold, and all names and keys")


@dataclass(frozen=True)
class Opening:
    """Do this work, and offer what it takes to sum the reply with those of others."""

    ask_B: NDArray[np.uint8] = carries("the encoded ask of the step")
    roster: str = carries("digest of the roster")
    attempt: int = carries("a number of its own for every sum")
    group: bool = carries("whether only the site's own group is summed")
    sites: int = carries("how many sites are asked")
    examples: float = carries("training examples of all sites together; 0 before they are known")
    labels: list[str] = carries("the rows of tables of counts: names of types or relations")
    lane: int = carries(
        "bytes of a lane for what sites learn; 0: as many as the step says", start=int
    )
    rooms: dict[str, float] = carries(
        "the largest change that such lanes have room for, by array", start=dict
    )


@dataclass(frozen=True)
class Offered:
    """The work is done, and this is what it takes to hide and to sum it."""

    key: str = carries("public key for the masks of this sum")
    commitment: str = carries("digest of the seed of the site's own mask")
    boxes_O148: NDArray[np.uint8] = carries(
        "shares of both secrets, sealed for each other site", most=MOST_SITES
    )
    marks_N64: NDArray[np.uint8] = carries("digests of the shares, by site", most=MOST_SITES)
    common: str = carries(
        "digest of all else that the server has given or told the site, as it did all"
    )
    signature: str = carries("over all of this and the sum")


@dataclass(frozen=True)
class Mask:
    """These sites' offers came: send your numbers under masks."""

    context: str = carries("digest of everything that names the sum")
    names: list[str] = carries("whose offers came, sorted")
    keys: list[str] = carries("their keys for the masks of this sum")
    commitments: list[str] = carries("their commitments")
    boxes: list[str] = carries("digests of their boxes")
    marks: list[str] = carries("digests of their marks")
    signatures: list[str] = carries("of their offers")
    own_M148: NDArray[np.uint8] = carries("the boxes for this site", most=MOST_SITES)
    own_marks_M64: NDArray[np.uint8] = carries(
        "digests of the shares in these boxes", most=MOST_SITES
    )


@dataclass(frozen=True)
class Masked:
    """The reply of the step under masks; without all others' it is noise."""

    lanes_B: NDArray[np.uint8] = carries("the numbers of the reply, masked")


@dataclass(frozen=True)
class Agree:
    """These sites' masked numbers came: sign that they are summed."""

    context: str = carries("digest of everything that names the sum")
    names: list[str] = carries("whose masked numbers came, sorted")


@dataclass(frozen=True)
class Signed:
    """The site agrees to this set, and signs no other in this sum."""

    signature: str = carries("over the sum, whose offers came, and whose masked numbers came")


@dataclass(frozen=True)
class Unmask:
    """Enough sites signed: give your shares."""

    context: str = carries("digest of everything that names the sum")
    names: list[str] = carries("who signed, sorted")
    signatures: list[str] = carries("their signatures")


@dataclass(frozen=True)
class Shares:
    """A share for each site whose offer came: of its own mask's seed, or of a lost site's key."""

    given_M: NDArray[np.bool_] = carries("whether there is a share", most=MOST_SITES)
    shares_M66: NDArray[np.uint8] = carries("the shares", most=MOST_SITES)


def check_greeted(ask: object, reply: Greeted) -> None:
    """Raise GuardError unless these are keys and a signature."""
    for name in ("identity", "box_key", "sign_key", "signature", "binding"):
        check_hex(name, getattr(reply, name), 64 if name == "signature" else 32)
    if is_low_order(bytes.fromhex(reply.box_key)):
        raise GuardError("box_key is of low order")
    if len(reply.account) > 200 or not (reply.account.isascii() and reply.account.isprintable()):
        raise GuardError("account is no number and digest")


def check_met(ask: object, reply: Met) -> None:
    """Raise GuardError unless this is a digest."""
    check_hex("roster", reply.roster, 32)


def check_offered(ask: object, reply: Offered) -> None:
    """Raise GuardError unless keys and digests are well formed, and the key is a good one."""
    check_hex("key", reply.key, 32)
    check_hex("commitment", reply.commitment, 32)
    check_hex("common", reply.common, 32)
    check_hex("signature", reply.signature, 64)
    if is_low_order(bytes.fromhex(reply.key)):
        raise GuardError("key is of low order")


def check_signed(ask: object, reply: Signed) -> None:
    """Raise GuardError unless this is a signature."""
    check_hex("signature", reply.signature, 64)


def check_shares(ask: object, reply: Shares) -> None:
    """Raise GuardError unless there is a flag for each share."""
    if len(reply.given_M) != len(reply.shares_M66):
        raise GuardError("given_M and shares_M66 differ in length")


def check_hex(field: str, text: str, size: int) -> None:
    """Raise GuardError unless this is `size` bytes as hexadecimal digits."""
    if len(text) != 2 * size or not set(text) <= set("0123456789abcdef"):
        raise GuardError(f"{field} is malformed", expected=f"{2 * size} hexadecimal digits")
