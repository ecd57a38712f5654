"""Digests of several parts, and the form of what an identity key signs.

A signed statement begins with a byte that no UTF-8 text has, and then names its use. So none of our
signatures can pass for one over a text, or over a statement with another use.
"""

from __future__ import annotations

import hashlib

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


def number(value: int) -> bytes:
    """A number as a part: 8 bytes, little-endian."""
    return value.to_bytes(8, "little")


def is_digest(value: object) -> bool:
    """Whether this is a digest as text: 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= _HEX


_HEX = frozenset("0123456789abcdef")
