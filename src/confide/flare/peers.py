"""Peers: the identity keys that a place has pinned, and the card with which it shows its own.

```
KIT/identity/identity.key    the place's own key; stays here
KIT/identity/card.json       its public key, certified by the kit's key; shown to peers
KIT/identity/peers.json      the peers' fingerprints, and which of them people compared
KIT/identity/archive/        keys and cards that were replaced
```
A peer is pinned when it is first met, and marked as not compared. If its key changes after that, it
is refused.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from pydantic import Field, TypeAdapter

from confide.errors import KeyFileError, KitError, os_errors_as
from confide.federation.failures import Refusal
from confide.federation.keys import load_private, save_private
from confide.federation.seals import is_digest, statement
from confide.files import decode_json, file_bytes, file_text, for_the_owner, write_atomically
from confide.flare.kit import LEADS, Kit, certificate_in, check_peer

# --- Identity keys
#
# Each place makes an Ed25519 key of its own, which never leaves it.
#
# The founder of the consortium can certify another key for TLS in any name, and these keys change
# whenever a kit is renewed. Identity keys have neither flaw. Peers pin them, and people compare
# them by telephone.


ARCHIVE = "archive"
"""The folder beside an identity key for replaced keys. They sign nothing any more."""


@dataclass(frozen=True)
class Identity:
    """An identity key."""

    key: Ed25519PrivateKey = field(repr=False)

    @property
    def public(self) -> bytes:
        """The public key, raw: 32 bytes."""
        return self.key.public_key().public_bytes_raw()

    @property
    def fingerprint(self) -> str:
        """The digest that peers pin: 64 hexadecimal digits."""
        return fingerprint_of(self.public)

    def sign(self, said: bytes) -> str:
        """The signature over a statement (`digests.statement`), as hexadecimal digits."""
        return self.key.sign(said).hex()


def make_identity(path: Path) -> Identity:
    """Make a new identity key, in a PEM file that only its owner can read.

    `confide key protect` encrypts it. An old key is moved to `ARCHIVE` beside it. Raises
    KeyFileError if the file cannot be written.
    """
    identity = Identity(Ed25519PrivateKey.generate())
    with os_errors_as(KeyFileError, "the identity key could not be written", where=path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists():
            archive(path)
    save_private(path, identity.key, passphrase=None)
    return identity


def read_identity(path: Path) -> Identity:
    """The identity key in a file.

    Raises KeyFileError if it is missing, readable by others or not a key, and LockedKeyError if it
    is encrypted and its passphrase is wrong or missing.
    """
    try:
        open_to = path.stat().st_mode & 0o077
    except OSError as error:
        raise KeyFileError(
            "there is no identity key",
            where=str(path),
            fix="run `confide site setup`, `confide server start` or `confide coordinate`, which"
            " make it; after a renewal, move the folder `identity` to the new kit",
        ) from error
    if open_to:
        raise KeyFileError(
            "others can read the identity key",
            where=str(path),
            fix="close it with `chmod 600`; if others may have read it, make a new one with"
            " `confide peers KIT --renew`",
        )
    key = load_private(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError("this is not an identity key", expected="Ed25519", where=str(path))
    return Identity(key)


def archive(path: Path) -> Path:
    """Move a key, or another file of an identity, to the archive beside it; its new path."""
    digest = hashlib.sha256(file_bytes(path)).hexdigest()[:16]
    kept = path.parent / ARCHIVE / f"{path.stem}-{digest}{path.suffix}"
    kept.parent.mkdir(exist_ok=True, mode=0o700)
    path.replace(kept)
    return kept


def fingerprint_of(public: bytes) -> str:
    """The fingerprint of a public key: SHA-256 of its 32 bytes, 64 hexadecimal digits."""
    return hashlib.sha256(public).hexdigest()


def grouped_fingerprint(fingerprint: str) -> str:
    """A fingerprint as people compare it by telephone: sixteen groups of four digits."""
    return " ".join(fingerprint[at : at + 4] for at in range(0, len(fingerprint), 4))


def read_fingerprint(text: str) -> str:
    """The fingerprint in typed or pasted text, in groups or not. Raises KeyFileError."""
    digits = re.sub(r"[\s:-]", "", text).lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise KeyFileError(
            "this is not a fingerprint",
            expected="64 hexadecimal digits, as `confide peers KIT` shows them",
            got=repr(text[:100]),
        )
    return digits


FOLDER, KEY, CARD, PINS = "identity", "identity.key", "card.json", "peers.json"
SCHEMA = 1
PSS = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=32)


@dataclass(frozen=True)
class Card:
    """A place's public identity key, certified by the key of its kit.

    `kind`: server, site or lead; `key`: 64 hexadecimal digits; `certificate`: the kit's, as PEM;
    `signature`: made with the kit's key, which signs nothing else of ours.
    """

    kind: str
    name: str
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    certificate: str
    signature: str

    @property
    def public(self) -> bytes:
        """The public key, raw: 32 bytes."""
        return bytes.fromhex(self.key)

    def said(self) -> bytes:
        """The statement that the kit's key signs."""
        return statement("identity", self.kind.encode(), self.name.encode(), self.public)

    def encode(self) -> str:
        """The card as text."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def decode(text: str) -> Card:
        """The card in a text. Raises Refusal on anything else."""
        try:
            card = TypeAdapter(Card).validate_json(text)
            card.said()
        except ValueError as error:
            raise Refusal("uncertified") from error
        return card


@dataclass(frozen=True)
class Pin:
    """A peer's fingerprint, and whether two people compared it."""

    fingerprint: str
    compared: bool


class Pins:
    """The file with the peers that a place has pinned."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Pin]:
        """All pins, by the peer's name. Raises KitError if the file is damaged."""
        try:
            held = decode_json(file_bytes(self._path))
            if held["schema"] > SCHEMA:
                raise ValueError("a newer schema")
            found = {name: Pin(**pin) for name, pin in held["peers"].items()}
            if not all(is_digest(pin.fingerprint) for pin in found.values()):
                raise ValueError("not a fingerprint")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise KitError(
                "the list of peers cannot be read",
                where=str(self._path),
                fix="restore the file; without it every peer must be compared again",
            ) from error
        return dict(sorted(found.items()))

    def pin(self, name: str, fingerprint: str, *, compared: bool) -> None:
        """Pin a peer; replaces an earlier pin."""
        self._write({**self.read(), name: Pin(fingerprint, compared)})

    def mark_compared(self, name: str) -> None:
        """Note that people have compared the pinned fingerprint of a peer. Raises KitError."""
        self.pin(name, self._pinned(name).fingerprint, compared=True)

    def forget(self, name: str) -> None:
        """Remove a pin, so that the next key that the peer shows is pinned. Raises KitError."""
        self._pinned(name)
        self._write({peer: pin for peer, pin in self.read().items() if peer != name})

    def _pinned(self, name: str) -> Pin:
        pins = self.read()
        if name not in pins:
            raise KitError(
                "no peer of that name is pinned", expected=", ".join(pins) or "none yet", got=name
            )
        return pins[name]

    def meet(self, name: str, public: bytes, *, only_compared: bool = False) -> Pin:
        """The pin of a peer that shows this key; a new peer is pinned now, as not compared.

        Raises Refusal if another key is pinned, or if the peer must have been compared and was not.
        """
        known, fingerprint = self.read().get(name), fingerprint_of(public)
        if known is not None and known.fingerprint != fingerprint:
            raise Refusal("other-identity", name)
        if known is None:
            known = Pin(fingerprint, compared=False)
            self.pin(name, fingerprint, compared=False)
        if only_compared and not known.compared:
            raise Refusal("not-compared", name)
        return known

    def _write(self, pins: Mapping[str, Pin]) -> None:
        peers = {name: dataclasses.asdict(pin) for name, pin in sorted(pins.items())}
        with for_the_owner():
            text = json.dumps({"schema": SCHEMA, "peers": peers}, indent=1) + "\n"
            write_atomically(self._path, text.encode())


Vouched = Callable[[Card], bool]
"""Tells whether a card is certified by a kit of this consortium."""


@dataclass(frozen=True)
class Signer:
    """A place that signs: its identity, its card, and the peers that it knows."""

    name: str
    identity: Identity
    card: Card
    pins: Pins
    vouched: Vouched

    def meet(self, card: Card, kind: str, name: str, *, only_compared: bool = False) -> Pin:
        """The pin of a peer that shows this card. Raises Refusal."""
        if (card.kind, card.name) != (kind, name) or not self.vouched(card):
            raise Refusal("uncertified", name)
        return self.pins.meet(name, card.public, only_compared=only_compared)


# --- a kit's ----------------------------------------------------------------------------


def open_signer(kit: Kit, *, make: bool = False) -> Signer:
    """The place of a kit. With `make` it gets an identity if it has none.

    If the kit was renewed, the place gets a new card. Raises KeyFileError, KitError.
    """
    folder = kit.path / FOLDER
    path = folder / KEY
    with for_the_owner():
        if make and not path.exists():
            identity = make_identity(path)
        else:
            identity = read_identity(path)
        card = _card(kit, identity)
    return Signer(kit.name, identity, card, pins_of(kit), functools.partial(_is_certified, kit))


def renew_identity(kit: Kit) -> Signer:
    """Give a place a new identity key; the old one and its card go to the archive.

    Peers refuse the place until they pin the new key. Raises KeyFileError, KitError.
    """
    with for_the_owner():
        make_identity(kit.path / FOLDER / KEY)
    return open_signer(kit)


def _card(kit: Kit, identity: Identity) -> Card:
    """The place's card; a new one if the old one does not belong to this key and this kit."""
    path = kit.path / FOLDER / CARD
    try:
        certificate = file_text(kit.certificate, encoding="ascii")
        before = file_bytes(path) if path.exists() else None
    except (OSError, ValueError) as error:
        raise KitError(
            "the kit's certificate or card cannot be read", where=str(kit.path)
        ) from error
    if before is not None:
        try:
            card = Card.decode(before.decode())
            if card.public == identity.public and card.certificate == certificate:
                return card
        except (Refusal, ValueError):
            pass  # a new one is made
        archive(path)
    plain = Card(kit.kind, kit.name, identity.public.hex(), certificate, "")
    card = dataclasses.replace(plain, signature=_certified(kit, plain.said()))
    with os_errors_as(KeyFileError, "the identity's card could not be written", where=path):
        write_atomically(path, card.encode().encode())
    return card


def _certified(kit: Kit, said: bytes) -> str:
    """The signature of the kit's own key. Raises KitError."""
    try:
        key = serialization.load_pem_private_key(file_bytes(kit.key), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise KitError("the kit's key cannot be read", where=str(kit.key)) from error
    if not isinstance(key, RSAPrivateKey):
        raise KitError("the kit's key is of the wrong kind", expected="RSA", where=str(kit.key))
    return key.sign(said, PSS, hashes.SHA256()).hex()


def _is_certified(kit: Kit, card: Card) -> bool:
    """True if the card's certificate fits our root, its name and today, and its key signed."""
    try:
        root = certificate_in(file_bytes(kit.root))
        shown = certificate_in(card.certificate.encode())
        shown.verify_directly_issued_by(root)
        key = shown.public_key()
        if not isinstance(key, RSAPublicKey):
            return False
        key.verify(bytes.fromhex(card.signature), card.said(), PSS, hashes.SHA256())
    except (OSError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    now = datetime.datetime.now(datetime.UTC)
    if not shown.not_valid_before_utc <= now <= shown.not_valid_after_utc:
        return False
    domain = kit.user.partition("@")[2] or LEADS
    names = {"server": kit.identity, "site": card.name, "lead": f"{card.name}@{domain}"}
    found = shown.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return [str(one.value) for one in found] == [names.get(card.kind)]


# --- what `confide peers` calls -----------------------------------------------------------


@dataclass(frozen=True)
class PeerList:
    """A place's own fingerprint ("" before it has a key), and its pins, by the peer's name."""

    name: str
    fingerprint: str
    peers: dict[str, Pin]


def list_peers(kit: Kit) -> PeerList:
    """The peers that the place of a kit knows. Raises KeyFileError, KitError."""
    path = kit.path / FOLDER / KEY
    own = read_identity(path).fingerprint if path.exists() else ""
    return PeerList(kit.name, own, pins_of(kit).read())


def pin_peer(kit: Kit, name: str, fingerprint: str) -> None:
    """Pin a peer whose fingerprint was compared; replaces an earlier pin.

    The server is called "server". Raises KeyFileError (not a fingerprint), KitError.
    """
    digits = read_fingerprint(fingerprint)
    if name == kit.name:
        raise KitError("this is the name of this place itself", expected="a peer", got=name)
    check_peer(name)
    pins_of(kit).pin(name, digits, compared=True)


def pins_of(kit: Kit) -> Pins:
    """The peers that the place of a kit has pinned."""
    return Pins(kit.path / FOLDER / PINS)
