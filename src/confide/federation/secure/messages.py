"""Secure sums: their messages, what sites sign in them, and the roster.

Sites greet once, and every sum takes four exchanges.

1. *offer*: the site does its work, and sends a fresh key, sealed shares and commitments;
2. *mask*: it hears whose offers came, and sends its numbers under masks;
3. *agree*: it hears whose masked numbers came, and signs that set, once;
4. *unmask*: it sees that enough sites signed the very same set, and gives its shares.

Keys, digests and signatures are raw bytes as hexadecimal digits. N sites on the roster, O the
others of them, M sites whose offers came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import carries
from confide.federation.seals import digest, int_bytes, is_signed_by, statement
from confide.federation.secure.crypto import SHARE, TAG, is_low_order

INSIDE = 2 * SHARE
BOX = INSIDE + TAG
MOST_SITES = 2_000


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
    lane_width: int = carries(
        "bytes of a lane for what sites learn; 0: as many as the step says", start=int
    )
    ranges: dict[str, float] = carries(
        "the largest change that such lanes hold, by array", start=dict
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


_SIZES = {
    "identity": 32, "box_key": 32, "sign_key": 32, "binding": 32, "roster": 32, "key": 32,
    "commitment": 32, "common": 32, "signature": 64,
}  # fmt: skip
"""The bytes of every key, digest and signature in a reply, by field."""


def check_exchange(ask: object, reply: object) -> None:
    """Raise GuardError unless all keys, digests and signatures of a reply are well formed."""
    for field, value in vars(reply).items():
        size = 2 * _SIZES.get(field, 0)
        if size and (len(value) != size or not set(value) <= set("0123456789abcdef")):
            raise GuardError(f"{field} is malformed", expected=f"{size} hexadecimal digits")
        if field in ("box_key", "key") and is_low_order(bytes.fromhex(value)):
            raise GuardError(f"{field} is of low order")
    if isinstance(reply, Greeted):
        account = reply.account
        if len(account) > 200 or not (account.isascii() and account.isprintable()):
            raise GuardError("account is no number and digest")
    if isinstance(reply, Shares) and len(reply.given_M) != len(reply.shares_M66):
        raise GuardError("given_M and shares_M66 differ in length")


# --- Names of sums, and the sites' statements in them


def sum_context(
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
    turn = int_bytes(round), step.encode(), int_bytes(attempt)
    return digest(b"sum", roster, *turn, asked, layout, common)


def set_statement(context: bytes, offered: Mapping[str, str], names: Sequence[str]) -> bytes:
    """The statement that a site signs: the sum, whose offers (and keys) and masked numbers came."""
    one = digest(*(part for name, key in offered.items() for part in (name.encode(), raw(key))))
    return statement("agree", context, one, digest(*(name.encode() for name in names)))


def offer_statement(context: bytes, key: str, *, commitment: str, boxes: str, marks: str) -> bytes:
    """The statement about its offer that a site signs."""
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


def raw(text: str, size: int = 0) -> bytes:
    """The bytes of hexadecimal digits; with `size`, this many, in their one spelling.

    Raises Refusal.
    """
    try:
        found = bytes.fromhex(text)
    except ValueError as error:
        raise Refusal("bad-ask") from error
    if size and (len(found) != size or found.hex() != text):
        raise Refusal("bad-ask")
    return found


# --- The roster and the threshold
#
# The members of secure sums, the fewest of them, and the keys with which they greet.
#
# n sites are on the roster, of which up to c may be in league with the server. A sum covers at
# least t sites, the least number with 2t > n + c: then two sets of t sites have an honest site in
# common, and no honest site signs two sets. The sum tells the server nothing about fewer than t -
# c honest sites, so t - c must be at least 2.


def colluders(sites: int) -> int:
    """The number of sites that may be in league with the server, unless the settings say otherwise.

    >>> [colluders(n) for n in (3, 5, 6, 7, 10, 50)]
    [1, 1, 1, 2, 3, 16]
    """
    return max(1, math.ceil(sites / 3) - 1)


def threshold(sites: int, colluding: int) -> int:
    """t, the fewest sites in a sum.

    Raises SettingsError if these are too few sites to hide one of them from the colluders.

    >>> [threshold(n, colluders(n)) for n in (3, 4, 5, 7, 10)]
    [3, 3, 4, 5, 7]
    """
    least = (sites + colluding) // 2 + 1
    if colluding < 1 or least > sites or least - colluding < 2:
        raise SettingsError(
            f"{sites} sites, of which {colluding} may collude, cannot hide what one site sends",
            expected="at least 3 sites, and more honest ones than half of them",
            fix='name more sites, lower federation.colluding, or set federation.sums = "plain"',
        )
    return least


def groups_of(names: Sequence[str], size: int) -> list[list[str]]:
    """Fixed groups of at least `size` of these sites, dealt in the order of their names.

    >>> groups_of(["a", "b", "c", "d", "e", "f", "g"], 3)
    [['a', 'c', 'e', 'g'], ['b', 'd', 'f']]
    """
    count = max(1, len(names) // size)
    return [sorted(names)[first::count] for first in range(count)]


@dataclass(frozen=True)
class Peer:
    """The session keys of one site, raw."""

    name: str
    box_key: bytes
    sign_key: bytes


@dataclass(frozen=True)
class Roster:
    """All sites of a run, sorted, with the keys of their present processes."""

    run: str
    colluding: int
    peers: tuple[Peer, ...]
    id: bytes

    @property
    def least(self) -> int:
        """The threshold t: the fewest sites in a sum."""
        return threshold(len(self.peers), self.colluding)

    @property
    def honest(self) -> int:
        """The fewest honest sites in a sum: t less those in league with the server."""
        return self.least - self.colluding

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The sites' names."""
        return tuple(peer.name for peer in self.peers)

    def part(self, names: Sequence[str]) -> Roster:
        """A fixed group of these sites, with a threshold of its own.

        Raises SettingsError if it cannot hide one site.
        """
        threshold(len(names), self.colluding)
        peers = tuple(peer for peer in self.peers if peer.name in names)
        named = digest(self.id, b"group", *(peer.name.encode() for peer in peers))
        return Roster(self.run, self.colluding, peers, named)

    def place(self, name: str) -> int:
        """A site's place among the shares: 1, 2, … Raises ValueError for a stranger."""
        return self.names.index(name) + 1

    def peer(self, name: str) -> Peer:
        """A site's keys."""
        return self.peers[self.place(name) - 1]


def check_columns(ask: Meet) -> None:
    """Raise Refusal unless the names are in order, and every list has a value for each."""
    lists = [value for value in vars(ask).values() if isinstance(value, list)]
    if any(len(one) != len(ask.names) for one in lists) or ask.names != sorted(set(ask.names)):
        raise Refusal("bad-ask")


def roster_of(ask: Meet, *, run: str, binding: bytes | None) -> Roster:
    """The roster that a server hands out, with every signature checked.

    With `binding`, every site must have received the same settings and wire table. The columns of
    `ask` are equally long. Raises Refusal.
    """
    columns = (
        ask.identities, ask.box_keys, ask.sign_keys, ask.signatures, ask.bindings, ask.accounts,
    )  # fmt: skip
    try:
        least = threshold(len(ask.names), ask.colluding)
    except SettingsError as error:
        raise Refusal("few-sites") from error
    peers, parts = [], []
    for name, *shown in zip(ask.names, *columns, strict=True):
        identity, box_key, sign_key, bound = (raw(one, 32) for one in (*shown[:3], shown[4]))
        said = greeting(run, name, bound, box_key=box_key, sign_key=sign_key, account=shown[5])
        if not is_signed_by(identity, shown[3], said) or is_low_order(box_key):
            raise Refusal("bad-greeting", name)
        if binding is not None and bound != binding:
            raise Refusal("other-binding", name)
        peers.append(Peer(name, box_key, sign_key))
        parts += [name.encode(), identity, box_key, sign_key]
    if len(set(ask.identities)) != len(ask.identities):
        raise Refusal("bad-greeting", "one key twice")
    named = digest(b"run", run.encode(), int_bytes(least), int_bytes(ask.colluding), *parts)
    return Roster(run, ask.colluding, tuple(peers), named)


def greeting(
    run: str, name: str, binding: bytes, *, box_key: bytes, sign_key: bytes, account: str
) -> bytes:
    """The statement that introduces a site's process, which its identity key signs."""
    said = [run.encode(), name.encode(), binding, box_key, sign_key]
    if account:
        said.append(account.encode("utf-8", "surrogatepass"))
    return statement("greet", *said)
