"""The secret key that the sites share and the server never sees.

A key file is one line, "confide-key-1 " and 64 hexadecimal digits (32 random bytes), or that line
encrypted (see `passphrase`).
"""

from __future__ import annotations

import hashlib
import hmac
import multiprocessing
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from confide.errors import KeyFileError, LockedKeyError
from confide.federation.passphrase import (
    Kind,
    in_plain,
    is_sealed,
    new_passphrase_for,
    private_from,
    read_key_file,
    save_private,
    seal,
    unseal,
    write_key,
)

_MARK = "confide-key-1"
_BYTES = 32

_OPENED: dict[str, bytes] = {}
"""Keys that this process has opened, by the digest of the encrypted file, so it asks only once."""


def simulated_key(seed: int) -> bytes:
    """The key of simulated sites. Anyone who knows the seed knows it, so it protects nothing.

    A key decides how words are numbered; this one makes an experiment on a published corpus give
    the same numbers again.
    """
    return hashlib.sha256(f"confide simulated key\0{seed}".encode()).digest()


def new_key(path: Path, key: bytes | None = None, *, passphrase: bytes | None = None) -> Path:
    """Write a key file, readable by its owner only; a new random key unless one is given.

    A passphrase encrypts it. Never overwrites a file: raises KeyFileError if there is one.
    """
    write_key(path, _content(key or secrets.token_bytes(_BYTES), passphrase))
    return path


def read_key(path: Path, *, ask: bool = True) -> bytes:
    """The 32 bytes of a key file. Raises KeyFileError: missing, short, or not a key.

    A process opens an encrypted key once, and again only if the file changed. If no passphrase file
    is set, it asks at the terminal, but not in a worker process or with `ask=False`. Raises
    LockedKeyError.
    """
    try:
        content = read_key_file(path)
    except KeyFileError as error:
        if error.__cause__ is None:
            raise
        raise KeyFileError(
            "there is no key file",
            where=str(path),
            fix="ask another site for the shared key, or make one with `confide key new`",
        ) from error
    if not is_sealed(content):
        return _plain(content, path)
    name = hashlib.sha256(content).hexdigest()
    if name not in _OPENED:
        ask = ask and multiprocessing.parent_process() is None
        opened = unseal(content, path, kind="shared", ask=ask)
        _OPENED[name] = _plain(opened, path)
    return _OPENED[name]


def unlock(paths: Iterable[Path], *, ask: bool = True) -> None:
    """Open the encrypted ones among these key files, before work begins that needs them.

    Raises LockedKeyError. Anything else that is wrong with a file is left to whoever reads it.
    """
    for path in sorted(set(paths)):
        try:
            if is_sealed(read_key_file(path)):
                read_key(path, ask=ask)
        except LockedKeyError:
            raise
        except KeyFileError:
            continue


def protect_key(path: Path) -> Path:
    """Encrypt the key in a file, the sites' or a private one, with a passphrase; asks for it.

    The file is replaced once the new one is complete and has been opened again. The old key may
    still be found on the disk, and in backups. Raises KeyFileError, LockedKeyError.
    """
    path = _own(path)
    content = read_key_file(path)
    if is_sealed(content):
        raise KeyFileError(
            "the key is already encrypted",
            where=str(path),
            fix="to change the passphrase, `confide key unprotect`, then `confide key protect`",
        )
    kind: Kind = "private" if content.lstrip().startswith(b"-----BEGIN ") else "shared"
    if kind == "private":
        plain = in_plain(private_from(content, path), "DER")
    else:
        plain = _line(_plain(content, path))
    passphrase = new_passphrase_for(path)
    sealed = seal(plain, passphrase, kind=kind)
    if unseal(sealed, path, kind=kind, passphrase=passphrase) != plain:
        raise KeyFileError(
            "the encrypted key does not open again; the file was left as it was", where=str(path)
        )
    write_key(path, sealed, over=True)
    return path


def unprotect_key(path: Path) -> Path:
    """Write the key in a file in plain again. Raises KeyFileError, LockedKeyError."""
    path = _own(path)
    content = read_key_file(path)
    if not is_sealed(content):
        raise KeyFileError("the key is not encrypted", where=str(path))
    if content.split(b" ", 2)[1] == b"private":
        save_private(path, private_from(content, path), passphrase=None, over=True)
    else:
        opened = unseal(content, path, kind="shared")
        write_key(path, _line(_plain(opened, path)), over=True)
    return path


def _own(path: Path) -> Path:
    """The file that `path` leads to. Raises KeyFileError if it is another user's."""
    path = path.resolve()
    if path.exists() and path.stat().st_uid != os.geteuid():
        raise KeyFileError(
            "the key belongs to another user, who could not read it afterwards",
            where=str(path),
            fix="run the command as that user",
        )
    return path


def _content(key: bytes, passphrase: bytes | None) -> bytes:
    """What a key file holds."""
    return _line(key) if passphrase is None else seal(_line(key), passphrase, kind="shared")


def _line(key: bytes) -> bytes:
    return f"{_MARK} {key.hex()}\n".encode()


def _plain(content: bytes, path: Path) -> bytes:
    """The key in the line of a plain file."""
    words = content.decode("ascii", "replace").split()
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
    """A value that only sites with the same key share, and that reveals nothing about the key."""
    return hmac.new(key, f"confide key check\0{nonce}".encode(), hashlib.sha256).hexdigest()[:32]
