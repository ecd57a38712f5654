"""Keys at rest: where a passphrase comes from, and files that only whoever knows it can read.

A passphrase comes from the file that `CONFIDE_PASSPHRASE_FILE` names, or from the terminal; never
from the command line. An encrypted key is one line:

    confide-key-2 KIND scrypt COST 8 1 SALT NONCE BOX

KIND is `shared` (the sites' key) or `private` (PKCS #8 of a private key). BOX is ChaCha20-Poly1305
(RFC 8439) under what scrypt (RFC 7914) makes of passphrase and salt; all before BOX is its
associated data. There is exactly one way to write a file down, so no byte can be changed unseen.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import stat
import unicodedata
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from confide.errors import KeyFileError, LockedKeyError
from confide.userfiles import NotAFileError, opened

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

VARIABLE = "CONFIDE_PASSPHRASE_FILE"
"""Names the file with the passphrase, for whatever runs where nobody can be asked."""

Kind = Literal["shared", "private"]

COST = 2**17
"""The work of scrypt for a new file: 128 MiB of memory, about a second."""
LEAST_COST, MOST_COST = 2**15, 2**18
"""What a file may ask for: 32 to 256 MiB. A hostile file gets no more."""
FEWEST_LETTERS = 12
"""Of a new passphrase."""

_MARK = b"confide-key-2 "
_LINE = re.compile(
    rb"(confide-key-2 (shared|private) scrypt ([1-9][0-9]{0,9}) 8 1 ([0-9a-f]{32}) ([0-9a-f]{24}))"
    rb" ((?:[0-9a-f]{2}){17,8000})\n"
)
_MOST_BYTES = 2**15
_SHUT = "the key is encrypted, and nobody can be asked for its passphrase here"
_NONE = "the key needs a new passphrase, and nobody can be asked for one here"
_SET = (
    f"set {VARIABLE} to the path of a file with the passphrase on one line, which only its owner"
    " can read (chmod 600), in the environment of this command or service; or give the command at"
    " a terminal"
)


# --- where the passphrase comes from ------------------------------------------------------


def passphrase_for(path: Path, *, ask: bool = True) -> bytes:
    """The passphrase of the encrypted key at `path`: from the file of the environment, or asked.

    Without `ask` nobody is asked at the terminal. Raises LockedKeyError where there is none.
    """
    if named := os.environ.get(VARIABLE):
        return _from_file(Path(named))
    if not ask:
        raise _unasked(_SHUT, path)
    return _usable(_asked(f"Passphrase of {path}: ", path, otherwise=_SHUT), where=str(path))


def new_passphrase_for(path: Path) -> bytes:
    """A passphrase for a key that is to be encrypted; at the terminal it is asked for twice.

    Raises LockedKeyError: none, shorter than 12 letters, or not twice the same.
    """
    if named := os.environ.get(VARIABLE):
        passphrase, where = _from_file(Path(named)), named
    else:
        where = str(path)
        typed = _asked(f"New passphrase of {path}: ", path, otherwise=_NONE)
        passphrase = _usable(typed, where=where)
        if _usable(_asked("The same again: ", path, otherwise=_NONE), where=where) != passphrase:
            raise LockedKeyError(
                "the two passphrases are not the same",
                where=where,
                fix="give the command again; nothing was changed",
            )
    if len(passphrase.decode()) < FEWEST_LETTERS:
        raise LockedKeyError(
            "the passphrase is too short",
            expected=f"{FEWEST_LETTERS} letters or more, such as five words that do not belong"
            " together",
            where=where,
        )
    return passphrase


def _asked(prompt: str, path: Path, *, otherwise: str) -> str:
    """What is typed at the terminal, unseen. Raises LockedKeyError where there is no terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)  # never with an echo
            return getpass.getpass(prompt)
    except (OSError, EOFError, getpass.GetPassWarning):
        raise _unasked(otherwise, path) from None


def _unasked(what: str, path: Path) -> LockedKeyError:
    return LockedKeyError(what, where=str(path), fix=_SET)


def _from_file(path: Path) -> bytes:
    """The passphrase in a file that is this user's alone. Raises LockedKeyError."""
    where = f"{VARIABLE}={path}"
    try:
        data, found = read_small(path, most=4096)
    except OSError as error:
        raise LockedKeyError(
            f"the file of the passphrase cannot be read ({error.strerror})",
            where=where,
            fix="name a file that is there",
        ) from None
    if data is None:
        raise LockedKeyError(
            "this holds no passphrase", expected="a file with one line of text", where=where
        )
    if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid not in (os.geteuid(), 0):
        raise LockedKeyError(
            "others can read the file of the passphrase",
            expected="mode 0600, and this user as its owner",
            got=f"mode {stat.S_IMODE(found.st_mode):04o}, owner {found.st_uid}",
            where=where,
            fix="chmod 600 it; where others have read it, choose another passphrase",
        )
    text = data.decode("utf-8", "replace")
    return _usable(text.removesuffix("\n").removesuffix("\r"), where=where)


def _usable(text: str, *, where: str) -> bytes:
    """A passphrase as it goes into the key, the same from every keyboard (NFC)."""
    if not text:
        raise LockedKeyError("the passphrase is empty", where=where)
    if "\ufffd" in text or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise LockedKeyError(
            "this is not a passphrase",
            expected="one line of UTF-8 without control characters",
            where=where,
        )
    return unicodedata.normalize("NFC", text).encode()


# --- the form of an encrypted key ---------------------------------------------------------


def is_sealed(content: bytes) -> bool:
    """Whether this is an encrypted key, whole or damaged."""
    return content.startswith(_MARK)


def seal(plain: bytes, passphrase: bytes, *, kind: Kind) -> bytes:
    """The line of a file that gives `plain` back to whoever knows the passphrase."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    if not passphrase:
        raise LockedKeyError("the passphrase is empty")
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    header = f"{_MARK.decode()}{kind} scrypt {COST} 8 1 {salt.hex()} {nonce.hex()}".encode()
    box = ChaCha20Poly1305(_stretched(passphrase, salt, COST)).encrypt(nonce, plain, header)
    return header + b" " + box.hex().encode() + b"\n"


def unseal(
    content: bytes, path: Path, *, kind: Kind, passphrase: bytes | None = None, ask: bool = True
) -> bytes:
    """What was sealed into the file at `path`; without a passphrase, by `passphrase_for`.

    Raises KeyFileError: damaged, or of another kind; LockedKeyError.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    where = str(path)
    header, salt, nonce, box, cost = _read(content, kind=kind, where=where)
    passphrase = passphrase or passphrase_for(path, ask=ask)
    try:
        return ChaCha20Poly1305(_stretched(passphrase, salt, cost)).decrypt(nonce, box, header)
    except InvalidTag:
        raise LockedKeyError(
            "this passphrase does not open the key, or the file was changed",
            where=where,
            fix="try the passphrase again; where it is right, bring the file back from your backup",
        ) from None


def _read(content: bytes, *, kind: Kind, where: str) -> tuple[bytes, bytes, bytes, bytes, int]:
    """The parts of a line: header, salt, nonce, box, and the cost, which is within bounds."""
    match = _LINE.fullmatch(content)
    if match is None:
        raise KeyFileError(
            "the encrypted key is damaged",
            expected="the one line that confide wrote",
            where=where,
            fix="bring the file back from your backup",
        )
    header, found, cost, salt, nonce, box = match.groups()
    if found.decode() != kind:
        raise KeyFileError(
            "this is another kind of key", expected=kind, got=found.decode(), where=where
        )
    work = int(cost)
    if work & (work - 1) or not LEAST_COST <= work <= MOST_COST:
        raise KeyFileError(
            "the encrypted key asks for more or less work than a key of confide",
            expected=f"a power of two from {LEAST_COST} to {MOST_COST}",
            got=str(work),
            where=where,
            fix="bring the file back from your backup; do not use one from somewhere else",
        )
    parts = (bytes.fromhex(part.decode()) for part in (salt, nonce, box))
    return header, *parts, work  # type: ignore[return-value]


def _stretched(passphrase: bytes, salt: bytes, cost: int) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    try:
        return Scrypt(salt=salt, length=32, n=cost, r=8, p=1).derive(passphrase)
    except MemoryError as error:
        raise LockedKeyError(
            "there is not enough memory to open or close an encrypted key",
            expected=f"{cost // 1024} MiB",
        ) from error


# --- private keys -------------------------------------------------------------------------


def save_private(
    path: Path, key: PrivateKeyTypes, *, passphrase: bytes | None, over: bool = False
) -> None:
    """Write a private key for its owner's eyes only: plain PEM, or encrypted.

    Only with `over` is a file written over; then the old one is there until the new one is whole.
    Raises KeyFileError.
    """
    if passphrase is None:
        write_key(path, in_plain(key, "PEM"), over=over)
    else:
        write_key(path, seal(in_plain(key, "DER"), passphrase, kind="private"), over=over)


def in_plain(key: PrivateKeyTypes, encoding: Literal["PEM", "DER"]) -> bytes:
    """A private key as PKCS #8, which anybody can read."""
    from cryptography.hazmat.primitives import serialization as forms

    form = forms.Encoding.PEM if encoding == "PEM" else forms.Encoding.DER
    return key.private_bytes(form, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def load_private(
    path: Path, *, passphrase: bytes | None = None, ask: bool = True
) -> PrivateKeyTypes:
    """The private key in a file; of an encrypted one, by `passphrase_for` where none is given.

    Raises KeyFileError, LockedKeyError.
    """
    return private_from(read_key_file(path), path, passphrase=passphrase, ask=ask)


def private_from(
    content: bytes, path: Path, *, passphrase: bytes | None = None, ask: bool = True
) -> PrivateKeyTypes:
    """The private key in what a file held. Raises as `load_private` does."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms

    load: Any = forms.load_pem_private_key
    if is_sealed(content):
        load = forms.load_der_private_key
        content = unseal(content, path, kind="private", passphrase=passphrase, ask=ask)
    try:
        key: PrivateKeyTypes = load(content, password=None)
    except TypeError:
        raise KeyFileError(
            "this private key was encrypted by another program",
            where=str(path),
            fix="decrypt it with that program, and encrypt it with `confide key protect`",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError("this is not a private key", expected="PEM", where=str(path)) from None
    return key


# --- files --------------------------------------------------------------------------------


def read_small(path: Path, *, most: int) -> tuple[bytes | None, os.stat_result]:
    """What a file holds, and what it is; None where it is no regular file, or holds more.

    Never waits for a pipe. Raises OSError.
    """
    try:
        with opened(path) as file:
            found, data = os.fstat(file.fileno()), file.read(most + 1)
    except NotAFileError:
        return None, path.stat()
    return (None if len(data) > most else data), found


def read_key_file(path: Path) -> bytes:
    """What a file with a key holds. Raises KeyFileError: missing, no regular file, far too long."""
    try:
        data, _ = read_small(path, most=_MOST_BYTES)
    except OSError as error:
        raise KeyFileError(f"there is no key file ({error.strerror})", where=str(path)) from error
    if data is None:
        raise KeyFileError(
            "this is no key file",
            expected=f"a regular file of at most {_MOST_BYTES} bytes",
            where=str(path),
        )
    return data


def write_key(path: Path, data: bytes, *, over: bool = False) -> None:
    """Write a file of mode 0600, whole or not at all; one that is there stays, unless `over`.

    Raises KeyFileError.
    """
    target = path.with_name(f".{path.name}.{secrets.token_hex(8)}") if over else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(handle)
            if over:
                target.replace(path)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    except FileExistsError as error:
        raise KeyFileError(
            "there is a file already, and a key is never overwritten",
            where=str(path),
            fix="choose another path, or move the old key away",
        ) from error
    except OSError as error:
        raise KeyFileError(
            f"the key could not be written ({error.strerror})", where=str(path)
        ) from error
