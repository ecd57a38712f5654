"""The secret key that the sites share and the server never sees.

A key file is one line: "confide-key-1 " and 64 hexadecimal digits (32 random bytes).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from confide.errors import KeyFileError

_MARK = "confide-key-1"
_BYTES = 32


def simulated_key(seed: int) -> bytes:
    """The key of sites that are only simulated: whoever knows the seed knows it.

    It makes an experiment on a published corpus give the same numbers again, since a key decides
    how words are numbered. It protects nothing.
    """
    return hashlib.sha256(f"confide simulated key\0{seed}".encode()).digest()


def new_key(path: Path, key: bytes | None = None) -> Path:
    """Write a key file, readable by its owner only; a new random key unless one is given.

    Never overwrites a file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise KeyFileError(
            "there is a file already, and a key is never overwritten",
            where=str(path),
            fix="choose another path, or move the old key away",
        ) from error
    with os.fdopen(handle, "w") as file:
        file.write(f"{_MARK} {(key or secrets.token_bytes(_BYTES)).hex()}\n")
    return path


def read_key(path: Path) -> bytes:
    """The 32 bytes of a key file. Raises KeyFileError: missing, short, or not a key."""
    try:
        words = path.read_text(encoding="ascii").split()
    except OSError as error:
        raise KeyFileError(
            "there is no key file",
            where=str(path),
            fix="ask another site for the shared key, or make one with `confide key new`",
        ) from error
    except UnicodeDecodeError:
        words = []
    if len(words) != 2 or words[0] != _MARK:
        raise KeyFileError("this is not a key file", expected=f"'{_MARK} <hex>'", where=str(path))
    try:
        key = bytes.fromhex(words[1])
    except ValueError:
        key = b""
    if len(key) < _BYTES:
        raise KeyFileError(
            "the key is too short",
            expected=f"{2 * _BYTES} hexadecimal digits",
            got=f"{len(words[1])} characters",
            where=str(path),
            fix="make a key with `confide key new` and share it among the sites",
        )
    return key


def key_check(key: bytes, nonce: str) -> str:
    """A value that sites with the same key share, and that tells nothing about the key."""
    return hmac.new(key, f"confide key check\0{nonce}".encode(), hashlib.sha256).hexdigest()[:32]
