"""Seals: what vouches for a message between real sites, and travels beside it.

The seal of an ask signs the run, the site, the round, the step, the attempt, the digest of the ask,
who else gets the very same bytes, the digest of the last reply that came from this site, the head
of the site's ledger as given in that reply, and the head of the server's own ledger. The seal of a
reply signs the same run, site, round, step and attempt, the digests of the ask and of the reply,
and the head of the site's ledger. So neither side can change what its ledger says about an earlier
message without the other side's identity key.

The digest of a message covers a random nonce as well, so a ledger can be shown without anyone
guessing a small message from its digest. The nonces lie in a file beside the ledger.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from confide.errors import MessageError
from confide.federation.messages import Pieces

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# --- Digests of several parts, and statements that an identity key signs
#
# A signed statement begins with a byte that no UTF-8 text has, and then names its use. So none of
# our signatures can pass for one over a text, or over a statement with another use.


EMPTY = ""
"""Stands in for a digest when there is nothing to digest yet."""


def digest(*parts: bytes | memoryview) -> bytes:
    """SHA-256 over all parts, each preceded by its length in 8 bytes, little-endian: 32 bytes.

    A memoryview is one of single bytes: a long part need not be copied.
    """
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def statement(use: str, *parts: bytes) -> bytes:
    """The bytes to sign: 0xFF, "confide/USE/1", and the digest of the parts."""
    return b"\xff" + f"confide/{use}/1".encode("ascii") + digest(*parts)


def int_bytes(value: int) -> bytes:
    """A number as a part: 8 bytes, little-endian."""
    return value.to_bytes(8, "little")


def is_digest(value: object) -> bool:
    """Return whether this is a digest as text: 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


LARGEST = 65536
"""The most bytes that a seal may have."""
NONCES = "nonces.txt"
"""Beside a ledger: the nonce of each message, by its digest. Not to be shown with the ledger."""
_ROUNDS = 2**31
_SIGNATURE = 64
"""The bytes of a signature: nothing longer is remembered."""


@dataclass(frozen=True)
class _Seal:
    """The turn of a message; `attempt` counts how often the server has asked in it."""

    run: str
    site: str
    round: int
    step: str
    attempt: int
    card: str = field(default="", kw_only=True)
    signature: str = field(default="", kw_only=True)

    def said(self) -> bytes:
        """The statement that is signed."""
        raise NotImplementedError

    def _turn(self) -> tuple[bytes, ...]:
        """These fields as parts of a statement."""
        return (
            self.run.encode(),
            self.site.encode(),
            int_bytes(self.round),
            self.step.encode(),
            int_bytes(self.attempt),
        )

    def sign(self, key: Ed25519PrivateKey) -> Self:
        """The seal with its signature."""
        return replace(self, signature=key.sign(self.said()).hex())

    def verifies(self, key: bytes) -> bool:
        """Return whether the seal was signed by the owner of this public key (32 bytes)."""
        return is_signed_by(key, self.signature, self.said())

    def encode(self) -> bytes:
        """The bytes of the seal."""
        return json.dumps(asdict(self), separators=(",", ":")).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The seal in `data`. Raises MessageError on anything else."""
        if len(data) > LARGEST:
            raise MessageError(
                "the seal is too large",
                expected=f"at most {LARGEST} bytes",
                got=f"{len(data)} bytes",
            )
        try:
            return cls.of(json.loads(data))
        except (ValueError, RecursionError) as error:
            raise MessageError("these bytes are not a seal") from error

    @classmethod
    def of(cls, tree: object) -> Self:
        """The seal in a dictionary. Raises MessageError if a part is missing or malformed."""
        if not isinstance(tree, dict):
            raise MessageError("this is not a seal")
        values = {one.name: tree.get(one.name, "") for one in fields(cls)}
        if isinstance(values.get("audience"), list):
            values["audience"] = tuple(values["audience"])
        malformed = [name for name, value in values.items() if not _is_sound(name, value)]
        if malformed:
            raise MessageError(f"the {malformed[0]} of a seal is malformed")
        return cls(**values)


@dataclass(frozen=True)
class AskSeal(_Seal):
    """The statement about an ask that the server signs.

    `audience`: the sites that get the same bytes, sorted. `reply` and `head`: the digest of the
    last reply that came from this site and the head given in it, empty before the first. `own`: the
    head of the server's ledger. `card`: the server's card, with the first ask; it is not signed
    here but vouches for itself.
    """

    digest: str
    nonce: str
    audience: tuple[str, ...]
    reply: str
    head: str
    own: str

    def said(self) -> bytes:
        """The statement that is signed."""
        return statement(
            "ask",
            *self._turn(),
            bytes.fromhex(self.digest),
            digest(*(name.encode() for name in self.audience)),
            bytes.fromhex(self.reply),
            bytes.fromhex(self.head),
            bytes.fromhex(self.own),
        )


@dataclass(frozen=True)
class ReplySeal(_Seal):
    """A site's signed statement about a reply. `ask` is the digest of the ask, `head` its ledger's.

    `head` is empty if the site has no ledger of the run because it refused to join.
    """

    ask: str
    digest: str
    nonce: str
    head: str

    def said(self) -> bytes:
        """The statement that is signed."""
        return statement(
            "reply",
            *self._turn(),
            bytes.fromhex(self.ask),
            bytes.fromhex(self.digest),
            bytes.fromhex(self.head),
        )


def fresh_nonce() -> bytes:
    """A new nonce: 32 random bytes."""
    return secrets.token_bytes(32)


def message_digest(nonce: bytes, inner: bytes) -> str:
    """The digest of a message, from its nonce and its own SHA-256 digest (`inner_digest`)."""
    return digest(nonce, inner).hex()


def inner_digest(message: bytes | Pieces) -> bytes:
    """SHA-256 of the bytes, computed once for all sites that get the same."""
    found = hashlib.sha256()
    for part in message.parts if isinstance(message, Pieces) else [message]:
        found.update(part)
    return found.digest()


def keep_nonce(ledger: Path, sealed: str, nonce: str) -> None:
    """Append a nonce to the file beside a ledger."""
    with open(ledger.with_name(NONCES), "a", encoding="ascii") as file:
        file.write(f"{sealed} {nonce}\n")


def is_signed_by(key: bytes, signature: str, said: bytes) -> bool:
    """True if the owner of this public key (32 bytes) made this signature, as text, over `said`.

    What was checked lately is remembered: in process all sites check what each of them says.
    """
    try:
        made = bytes.fromhex(signature)
        return len(made) == _SIGNATURE and _checked(key, made, said)
    except (ValueError, TypeError):
        return False


@lru_cache(maxsize=20_000)
def _checked(key: bytes, signature: bytes, said: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, said)
    except InvalidSignature:
        return False
    return True


def _is_sound(name: str, value: object) -> bool:
    if name in ("round", "attempt"):
        return type(value) is int and 0 <= value < _ROUNDS
    if name == "audience":
        return isinstance(value, tuple) and all(_is_text(one) for one in value)
    if name in ("reply", "head"):
        return value == EMPTY or is_digest(value)
    if name in ("digest", "ask", "own", "nonce"):
        return is_digest(value)
    return _is_text(value)


def _is_text(value: object) -> bool:
    """Return whether this is text that can be encoded; JSON can hold lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)
