"""Who takes part in secure sums, how many must, and the keys with which they greet each other.

n sites are on the roster, of which up to c may be in league with the server. A sum covers at least
t sites, the least number with 2t > n + c: then two sets of t sites have an honest site in common,
and no honest site signs two sets. The sum tells the server nothing about fewer than t - c honest
sites, so t - c must be at least 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confide.errors import SettingsError
from confide.federation.digests import digest, number, statement
from confide.federation.failures import Refusal
from confide.federation.seals import is_signed_by
from confide.federation.secure.messages import Greeted, Meet
from confide.federation.secure.primitives import (
    fresh_secret,
    fresh_signer,
    is_low_order,
    public_of,
    shared,
)


def colluders(sites: int) -> int:
    """How many sites may be in league with the server, unless the settings say otherwise.

    >>> [colluders(n) for n in (3, 5, 6, 7, 10, 50)]
    [1, 1, 1, 2, 3, 16]
    """
    return max(1, math.ceil(sites / 3) - 1)


def threshold(sites: int, colluding: int) -> int:
    """t, the fewest sites in a sum.

    Raises SettingsError if so few sites cannot hide one of them from so many colluders.

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


class Vetting(Protocol):
    """What a site knows of the others before a run."""

    def check(self, ask: Meet) -> None:
        """Raise Refusal unless the site sums with these sites, and these identity keys."""
        ...


@dataclass(frozen=True)
class Pinned:
    """A fixed list of sites and identity keys.

    `peers` holds each name's key (64 hexadecimal digits), this site among them; None: every key
    that is shown is believed, as on one machine.
    """

    peers: Mapping[str, str] | None = None

    def check(self, ask: Meet) -> None:
        """Raise Refusal unless the run's sites are exactly those pinned, with the same keys."""
        if self.peers is None:
            return
        shown = dict(zip(ask.names, ask.identities, strict=True))
        odd = sorted(
            name
            for name in {*shown, *self.peers}
            if shown.get(name) is None or shown[name] != self.peers.get(name)
        )
        if odd:
            raise Refusal("other-roster", odd[0])


def groups_of(names: Sequence[str], size: int) -> list[list[str]]:
    """Fixed groups of at least `size` of these sites, dealt in the order of their names.

    >>> groups_of(["a", "b", "c", "d", "e", "f", "g"], 3)
    [['a', 'c', 'e', 'g'], ['b', 'd', 'f']]
    """
    count = max(1, len(names) // size)
    return [sorted(names)[first::count] for first in range(count)]


@dataclass(frozen=True)
class Session:
    """A site's keys for one process. They are never stored.

    `binding` is the digest of the settings and the wire table as this site received them, `account`
    how its account of noise stood when the process first greeted.
    """

    name: str
    identity: Ed25519PrivateKey
    run: str
    binding: bytes
    card: str = ""
    account: str = ""
    box_secret: bytes = field(default_factory=fresh_secret, repr=False)
    signer: Ed25519PrivateKey = field(default_factory=fresh_signer, repr=False)
    _boxes: dict[bytes, bytes] = field(default_factory=dict, init=False, repr=False)

    def box_secret_with(self, public: bytes) -> bytes:
        """What this process and the owner of a public key for boxes know; worked out once."""
        if public not in self._boxes:
            self._boxes[public] = shared(self.box_secret, public)
        return self._boxes[public]

    def greeting(self) -> Greeted:
        """What the other sites have to know."""
        box_key, sign_key = public_of(self.box_secret), self.signer.public_key().public_bytes_raw()
        said = _greeting(self.run, self.name, self.binding, box_key, sign_key, account=self.account)
        return Greeted(
            identity=self.identity.public_key().public_bytes_raw().hex(),
            box_key=box_key.hex(),
            sign_key=sign_key.hex(),
            signature=self.identity.sign(said).hex(),
            binding=self.binding.hex(),
            card=self.card,
            account=self.account,
        )


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
        """T."""
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

    With `binding`, every site must have received the same settings and wire table. Raises Refusal.
    """
    check_columns(ask)
    columns = (
        ask.identities, ask.box_keys, ask.sign_keys, ask.signatures, ask.bindings, ask.accounts,
    )  # fmt: skip
    try:
        threshold(len(ask.names), ask.colluding)
    except SettingsError as error:
        raise Refusal("few-sites") from error
    peers, parts = [], []
    for name, *shown in zip(ask.names, *columns, strict=True):
        identity, box_key, sign_key, bound = (_raw(one) for one in (*shown[:3], shown[4]))
        said = _greeting(run, name, bound, box_key, sign_key, account=shown[5])
        if not is_signed_by(identity, shown[3], said) or is_low_order(box_key):
            raise Refusal("bad-greeting", name)
        if binding is not None and bound != binding:
            raise Refusal("other-binding", name)
        peers.append(Peer(name, box_key, sign_key))
        parts += [name.encode(), identity, box_key, sign_key]
    least = threshold(len(peers), ask.colluding)
    if len(set(ask.identities)) != len(ask.identities):
        raise Refusal("bad-greeting", "one key twice")
    named = digest(b"run", run.encode(), number(least), number(ask.colluding), *parts)
    return Roster(run, ask.colluding, tuple(peers), named)


def _greeting(
    run: str, name: str, binding: bytes, box_key: bytes, sign_key: bytes, *, account: str
) -> bytes:
    said = [run.encode(), name.encode(), binding, box_key, sign_key]
    return statement(
        "greet", *said, *([account.encode("utf-8", "surrogatepass")] if account else [])
    )


def _raw(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise Refusal("bad-ask") from error
    if len(raw) != 32 or raw.hex() != text:  # no key has two spellings
        raise Refusal("bad-ask")
    return raw
