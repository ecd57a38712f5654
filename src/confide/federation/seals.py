"""Seals: what vouches for a message between real sites, beside its bytes.

The seal of an ask signs the run, the site, the round, the step, the attempt, the digest of the ask,
who else gets the very same bytes, the digest of the last reply that came from this site, the head
of the site's ledger as that reply told it, and the head of the server's own. The seal of a reply
signs the same run, site, round, step and attempt, the digests of the ask and of the reply, and the
head of the site's ledger. So neither side can change what its ledger says of an earlier message,
unless it has the other side's identity key.

The digest of a message is that of a random nonce and the message: a ledger can be shown without
anyone being able to guess a small message from its digest. The nonces lie in a file beside it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from confide.errors import MessageError
from confide.federation.digests import EMPTY, digest, is_digest, number, statement

LARGEST = 65536
"""Bytes that a seal may have."""
NONCES = "nonces.txt"
"""Beside a ledger: the nonce of each message, by its digest. Is not shown with the ledger."""
_ROUNDS = 2**31

S = TypeVar("S", "AskSeal", "ReplySeal")


@dataclass(frozen=True)
class AskSeal:
    """What the server signs of an ask.

    `audience`: the sites that get the same bytes, sorted. `reply` and `head`: of the last reply
    that came from this site, empty before there is one. `own`: the head of the server's ledger.
    `card` shows who signs, with the first ask; it vouches for itself.
    """

    run: str
    site: str
    round: int
    step: str
    attempt: int
    digest: str
    nonce: str
    audience: tuple[str, ...]
    reply: str
    head: str
    own: str
    card: str = ""
    signature: str = ""

    def said(self) -> bytes:
        """What the signature is over."""
        return statement(
            "ask",
            *_turn(self),
            bytes.fromhex(self.digest),
            digest(*(name.encode() for name in self.audience)),
            bytes.fromhex(self.reply),
            bytes.fromhex(self.head),
            bytes.fromhex(self.own),
        )


@dataclass(frozen=True)
class ReplySeal:
    """What a site signs of a reply. `ask` is the digest of the ask; `head` that of its ledger.

    `head` is empty where the site has no ledger of the run: it refused to join.
    """

    run: str
    site: str
    round: int
    step: str
    attempt: int
    ask: str
    digest: str
    nonce: str
    head: str
    card: str = ""
    signature: str = ""

    def said(self) -> bytes:
        """What the signature is over."""
        return statement(
            "reply",
            *_turn(self),
            bytes.fromhex(self.ask),
            bytes.fromhex(self.digest),
            bytes.fromhex(self.head),
        )


def _turn(seal: AskSeal | ReplySeal) -> tuple[bytes, ...]:
    return (
        seal.run.encode(),
        seal.site.encode(),
        number(seal.round),
        seal.step.encode(),
        number(seal.attempt),
    )


def fresh_nonce() -> bytes:
    """Thirty-two random bytes."""
    return secrets.token_bytes(32)


def message_digest(nonce: bytes, inner: bytes) -> str:
    """The digest of a message, from its nonce and its own SHA-256 digest (`inner_digest`)."""
    return digest(nonce, inner).hex()


def inner_digest(message: bytes) -> bytes:
    """What is computed once for all sites that get the same bytes."""
    return hashlib.sha256(message).digest()


def opens(sealed: str, *, nonce: bytes, message: bytes) -> bool:
    """Whether this message is the one of that digest."""
    return message_digest(nonce, inner_digest(message)) == sealed


def keep_nonce(ledger: Path, sealed: str, nonce: str) -> None:
    """Note a nonce beside a ledger."""
    with open(ledger.with_name(NONCES), "a", encoding="ascii") as file:
        file.write(f"{sealed} {nonce}\n")


def signed(seal: S, key: Ed25519PrivateKey) -> S:
    """The seal with its signature."""
    return dataclasses.replace(seal, signature=key.sign(seal.said()).hex())


def verifies(seal: AskSeal | ReplySeal, key: bytes) -> bool:
    """Whether the seal was signed by the owner of this public key (32 bytes)."""
    return is_signed_by(key, seal.signature, seal.said())


def is_signed_by(key: bytes, signature: str, said: bytes) -> bool:
    """Whether a signature, as text, over `said` is of the owner of this public key (32 bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(signature), said)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def encode_seal(seal: AskSeal | ReplySeal) -> bytes:
    """The bytes of a seal."""
    return json.dumps(dataclasses.asdict(seal), separators=(",", ":")).encode("ascii")


def decode_seal(kind: type[S], data: bytes) -> S:
    """The seal in `data`. Raises MessageError on anything else."""
    if len(data) > LARGEST:
        raise MessageError("a seal that is too large", expected=f"{LARGEST} bytes")
    try:
        return seal_of(kind, json.loads(data))
    except (ValueError, RecursionError) as error:
        raise MessageError("these bytes are not a seal") from error


def seal_of(kind: type[S], tree: Any) -> S:
    """The seal that a dictionary holds. Raises MessageError where a part is not as it should be."""
    if not isinstance(tree, dict):
        raise MessageError("this is not a seal")
    values = {field.name: tree.get(field.name, "") for field in dataclasses.fields(kind)}
    if "audience" in values and isinstance(values["audience"], list):
        values["audience"] = tuple(values["audience"])
    odd = [name for name, value in values.items() if not _is_sound(name, value)]
    if odd:
        raise MessageError(f"a seal whose {odd[0]} is not as it should be")
    return kind(**values)


def _is_sound(name: str, value: Any) -> bool:
    if name in ("round", "attempt"):
        return type(value) is int and 0 <= value < _ROUNDS
    if name == "audience":
        return isinstance(value, tuple) and all(_is_text(one) for one in value)
    if name in ("reply", "head"):
        return value == EMPTY or is_digest(value)
    if name in ("digest", "ask", "own", "nonce"):
        return is_digest(value)
    return _is_text(value)


def _is_text(value: Any) -> bool:
    """Whether it is text that can be signed: JSON can hold halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)
