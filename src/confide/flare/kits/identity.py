"""Identity keys: each place makes an Ed25519 key of its own, which never leaves it.

The keys in kits come from the founder of the consortium, so they give no protection from that
person, and they change whenever a kit is renewed. Identity keys have neither flaw. Peers pin them,
and people compare them by telephone.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from confide.errors import KeyFileError, os_errors_as
from confide.federation.passphrase import load_private, save_private
from confide.userfiles import bytes_of

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
        """What peers pin: 64 hexadecimal digits."""
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
    digest = hashlib.sha256(bytes_of(path)).hexdigest()[:16]
    kept = path.parent / ARCHIVE / f"{path.stem}-{digest}{path.suffix}"
    kept.parent.mkdir(exist_ok=True, mode=0o700)
    path.replace(kept)
    return kept


def fingerprint_of(public: bytes) -> str:
    """The fingerprint of a public key: SHA-256 of its 32 bytes, 64 hexadecimal digits."""
    return hashlib.sha256(public).hexdigest()


def shown(fingerprint: str) -> str:
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
