"""The cryptography of a secure sum: keys, keystreams, boxes, shares of secrets.

All of it but the shares comes from the library `cryptography`.

Key agreement is X25519 (RFC 7748), signatures are Ed25519 (RFC 8032), keys are derived by
HKDF-SHA256 (RFC 5869), keystreams are AES-256 in counter mode (NIST SP 800-38A), and boxes are
sealed with ChaCha20-Poly1305 (RFC 8439). Known answers: tests/federation/secure.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from confide.federation.seals import digest

SECRET = 32
"""The bytes of every secret: keys and seeds."""
TAG = 16
"""The bytes that a sealed box is longer than what is in it."""
_NONCE = bytes(12)  # every box key seals one message
_BLOCK = 2**17
"""Bytes of keystream at a time: few enough to stay in a core's cache."""
_WORTH = 2**24
"""Bytes of keystream, a few milliseconds of work, that are worth a thread."""
_FIRST = 32
"""Bytes of a keystream that come before those which AES-GCM gives: two blocks of the cipher."""
_THREADS = min(4, os.cpu_count() or 1)


def fresh_secret() -> bytes:
    """32 bytes from the operating system."""
    return secrets.token_bytes(SECRET)


def public_key(secret: bytes) -> bytes:
    """The public X25519 key of a secret one, raw."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def shared_secret(secret: bytes, public: bytes) -> bytes:
    """Derive two X25519 keys' common secret. Raises ValueError for a key of low order."""
    return secrets_with(secret)(public)


def secrets_with(secret: bytes) -> Callable[[bytes], bytes]:
    """`shared_secret` for many public keys: reading a secret key costs as much as using it.

    The function raises ValueError for a key of low order.
    """
    own = X25519PrivateKey.from_private_bytes(secret)
    return lambda public: own.exchange(X25519PublicKey.from_public_bytes(public))


def is_low_order(public: bytes) -> bool:
    """Return whether a public key leads everyone to the same shared secret, or is none at all."""
    try:
        _ANY(public)
    except ValueError:
        return True
    return False


_ANY = secrets_with(bytes([1]) * SECRET)
"""A key to try others with; every site tries every other's, so it is read once."""


def derive_key(secret: bytes, info: bytes) -> bytes:
    """A key for one use, which `info` names: HKDF-SHA256 without salt."""
    return HKDF(hashes.SHA256(), length=SECRET, salt=None, info=info).derive(secret)


def pair_info(context: bytes, one: str, other: str) -> bytes:
    """The context of a pair key: the sum, and the two names in order."""
    low, high = sorted((one, other))
    return digest(context, b"pair", low.encode(), high.encode())


def own_info(context: bytes) -> bytes:
    """The context of the key of a site's own mask."""
    return digest(context, b"own")


def box_info(context: bytes, sender: str, receiver: str, *, offered: bytes) -> bytes:
    """The context of a box's key: one offer, by its public key `offered`, from one to another."""
    return digest(context, b"box", offered, sender.encode(), receiver.encode())


def add_streams(
    parts: Sequence[tuple[NDArray[np.uint8], int]], keys: Iterable[tuple[bytes, int]]
) -> None:
    """Add keystreams, each laid end to end over parts of different widths, to all of them.

    Each key comes with the sign of its stream. The streams are shared among threads: each adds up
    its own in a block that stays in a core's cache, and adds that to the lanes.
    """
    blocks, offset = [], 0
    for part, width in parts:
        for start in range(0, len(part), _BLOCK):
            own = part[start : start + _BLOCK]
            blocks.append((offset + start, own.view(f"<u{width}")))
        offset += len(part)
    streams = list(keys)
    threads = min(_THREADS, len(streams), offset * len(streams) // _WORTH) or 1
    lock = Lock()
    with ThreadPoolExecutor(threads) as pool:
        shares = [streams[first::threads] for first in range(threads)]
        for _ in pool.map(lambda share: _add(blocks, share, lock), shares):
            pass


def _add(
    blocks: Sequence[tuple[int, NDArray[Any]]], keys: Sequence[tuple[bytes, int]], lock: Lock
) -> None:
    """Add these streams to all blocks, each given with where it begins.

    Zeros under AES-GCM with a nonce of zeros are the keystream of plain counter mode from its block
    2 on, and take a fraction of the time where the processor has wide instructions for AES.
    """
    streams = []
    for key, sign in keys:
        first = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(_FIRST))
        rest = Cipher(algorithms.AES(key), modes.GCM(bytes(12))).encryptor()
        streams.append((first, rest, np.add if sign > 0 else np.subtract))
    zeros, buffer = memoryview(bytes(_BLOCK)), memoryview(bytearray(_BLOCK + 16))
    for start, own in blocks:
        mask, total = np.frombuffer(buffer, own.dtype, count=len(own)), np.zeros_like(own)
        early = max(0, min(_FIRST - start, own.nbytes))
        for first, rest, add in streams:
            buffer[:early] = first[start : start + early]
            rest.update_into(zeros[early : own.nbytes], buffer[early:])
            add(total, mask, out=total)
        with lock:
            own += total


def seal_box(key: bytes, inside: bytes) -> bytes:
    """A box that only holders of this key can open or make. The key seals nothing else."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, inside, None)


def open_box(key: bytes, box: bytes) -> bytes | None:
    """Open a box; None if this key did not seal it."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, box, None)
    except (InvalidTag, ValueError):
        return None


# --- Secret sharing
#
# Any `least` shares give the secret back, fewer say nothing about it.
#
# Shamir, "How to Share a Secret", Communications of the ACM 22(11), 1979, over the integers modulo
# 2^521 - 1. Place x (1, 2, …) gets the value of a random polynomial at x; the secret is its value
# at 0.


PRIME = 2**521 - 1
SHARE = 66
"""The bytes of a share."""


def split_secret(secret: bytes, places: int, *, least: int) -> list[bytes]:
    """A share for each of the places 1 … `places`."""
    chosen = [secrets.randbelow(PRIME) for _ in range(least - 1)]
    return shares_of(int.from_bytes(secret, "big"), chosen, places)


def shares_of(secret: int, coefficients: Sequence[int], places: int) -> list[bytes]:
    """The values of secret + c_1 x + c_2 x^2 … at x = 1 … `places`."""
    found = []
    for x in range(1, places + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * x % PRIME
        found.append(((value + secret) % PRIME).to_bytes(SHARE, "big"))
    return found


def join_shares(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret whose shares these are, by place; None if they do not belong together."""
    factors = _factors(tuple(sorted(shares)))
    value = sum(int.from_bytes(share, "big") * factors[x] for x, share in shares.items()) % PRIME
    return value.to_bytes(SECRET, "big") if value < 2 ** (8 * SECRET) else None


@lru_cache(maxsize=64)
def _factors(places: tuple[int, ...]) -> dict[int, int]:
    """By place, the share's factor in the value at 0 of the polynomial through all (Lagrange)."""
    found = {}
    for x in places:
        above, below = 1, 1
        for other in places:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        found[x] = above * pow(below, -1, PRIME) % PRIME
    return found
