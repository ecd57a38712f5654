"""Secret draws: which units take part in a round, and the key of a site's noise.

Both come from the site's *run key*, which is drawn at random when the site joins a run and never
leaves it. The same unit numbers, text and settings give the same draw, so a re-ask gets the same
answer. Noise depends on the vector that it hides: the same vector gets the same noise, and another
one gets other noise, so that no two asks share noise whose difference could be taken.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from confide.errors import SettingsError


def keyed(run_key: bytes, use: str, *parts: bytes) -> bytes:
    """HMAC-SHA256 over the use and the parts, each after its length (8 bytes, little-endian)."""
    if len(run_key) < 32:
        raise SettingsError("a run key has at least 32 bytes", got=str(len(run_key)))
    said = b"".join(len(part).to_bytes(8, "little") + part for part in (use.encode(), *parts))
    return hmac.digest(run_key, said, "sha256")


def draw_key(run_key: bytes, context: bytes, *, text: bytes) -> bytes:
    """The key that decides who is drawn: of this run, round, settings and text."""
    return keyed(run_key, "draw", context, text)


def noise_key(
    run_key: bytes, context: bytes, *, text: bytes, clean: Mapping[str, NDArray[np.int64]]
) -> bytes:
    """The key of the noise for this clean sum, in the same round on the same text."""
    return keyed(run_key, "noise", context, text, digest_of(clean))


def digest_of(clean: Mapping[str, NDArray[np.int64]]) -> bytes:
    """SHA-256 over names, shapes and numbers."""
    found = hashlib.sha256()
    for name, array in sorted(clean.items()):
        head = f"{name}\0{array.shape}\0".encode()
        found.update(len(head).to_bytes(8, "little") + head)
        found.update(np.ascontiguousarray(array, "<i8").tobytes())
    return found.digest()


def drawn(key: bytes, count: int, *, rate: float) -> NDArray[np.bool_]:
    """drawn_U: whether each unit takes part, each by itself with this probability.

    The probability is rounded down to a multiple of 2^-63, so it is never more.
    """
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    bits = np.frombuffer(stream.update(bytes(8 * count)), "<u8") >> np.uint64(1)
    below: NDArray[np.bool_] = bits < np.uint64(min(2**63, int(rate * 2**63)))
    return below
