"""Keys: the secret that sites share and the server never sees, private keys, and keys at rest.

A key file is one line, "confide-key-1 " and 64 hexadecimal digits (32 random bytes), or that line
encrypted (see *Keys at rest*).
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import multiprocessing
import os
import re
import secrets
import stat
import unicodedata
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from confide.errors import KeyFileError, LockedKeyError, printable
from confide.files import NotAFileError, TooLargeError, file_bytes, open_regular

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


# --- Keys at rest
#
# The sources of a passphrase, and the form of files encrypted with it.
#
# A passphrase comes from the file that `CONFIDE_PASSPHRASE_FILE` names, or from the terminal;
# never from the command line. An encrypted key is one line:
#
#     confide-key-2 KIND scrypt COST 8 1 SALT NONCE BOX
#
# KIND is `shared` (the sites' key) or `private` (PKCS #8 of a private key). BOX is the key
# encrypted with ChaCha20-Poly1305 (RFC 8439), under the key that scrypt (RFC 7914) derives from
# passphrase and salt; everything before BOX is its associated data. The form leaves no freedom,
# so no byte of a file can be changed unnoticed.


VARIABLE = "CONFIDE_PASSPHRASE_FILE"
"""The environment variable with the path of the passphrase file, for use without a terminal."""

Kind = Literal["shared", "private"]

COST = 2**17
"""The cost of scrypt for a new file: 128 MiB of memory, about a second."""
LEAST_COST, MOST_COST = 2**15, 2**18
"""The costs that a file may ask for: 32 to 256 MiB. A hostile file gets no more."""
FEWEST_LETTERS = 12
"""The shortest new passphrase."""

_SEALED_MARK = b"confide-key-2 "
_LINE = re.compile(
    rb"(confide-key-2 (shared|private) scrypt ([1-9][0-9]{0,9}) 8 1 ([0-9a-f]{32}) ([0-9a-f]{24}))"
    rb" ((?:[0-9a-f]{2}){17,8000})\n"
)
_MOST_BYTES = 2**15
_SHUT = "the key is encrypted, and there is no terminal here to ask for its passphrase"
_NONE = "the key needs a new passphrase, and there is no terminal here to ask for one"
_SET = (
    f"set {VARIABLE}, in the environment of this command or service, to the path of a file with"
    " the passphrase on one line, readable by its owner only (chmod 600); or run the command at a"
    " terminal"
)


# --- where the passphrase comes from ------------------------------------------------------


def passphrase_for(path: Path, *, ask: bool = True) -> bytes:
    """The passphrase of the encrypted key at `path`, from the passphrase file or the terminal.

    With `ask=False` the terminal is not used. Raises LockedKeyError if there is none.
    """
    if named := os.environ.get(VARIABLE):
        return secret_in(Path(named), "passphrase", where=f"{VARIABLE}={named}")
    if not ask:
        raise _unasked(_SHUT, path)
    return _usable(_asked(f"Passphrase of {path}: ", path, otherwise=_SHUT), where=str(path))


def new_passphrase_for(path: Path) -> bytes:
    """A passphrase to encrypt a key with; at the terminal it is asked for twice.

    Raises LockedKeyError: none, shorter than 12 letters, or different the second time.
    """
    if named := os.environ.get(VARIABLE):
        where = f"{VARIABLE}={named}"
        passphrase = secret_in(Path(named), "passphrase", where=where)
    else:
        where = str(path)
        typed = _asked(f"New passphrase of {path}: ", path, otherwise=_NONE)
        passphrase = _usable(typed, where=where)
        if _usable(_asked("The same again: ", path, otherwise=_NONE), where=where) != passphrase:
            raise LockedKeyError(
                "the two passphrases differ",
                where=where,
                fix="run the command again; nothing was changed",
            )
    if len(passphrase.decode()) < FEWEST_LETTERS:
        raise LockedKeyError(
            "the passphrase is too short",
            expected=f"{FEWEST_LETTERS} letters or more, such as five unrelated words",
            where=where,
        )
    return passphrase


def _asked(prompt: str, path: Path, *, otherwise: str) -> str:
    """Read a secret from the terminal without echo. Raises LockedKeyError: there is no terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)  # never with an echo
            return getpass.getpass(printable(prompt, 1000))
    except (OSError, EOFError, getpass.GetPassWarning):
        raise _unasked(otherwise, path) from None


def _unasked(what: str, path: Path) -> LockedKeyError:
    return LockedKeyError(what, where=str(path), fix=_SET)


def secret_in(path: Path, what: str, *, where: str) -> bytes:
    """The secret in a file that only this user can read: one line of text.

    `what` it is, and `where` the file was named, are for the error. Raises LockedKeyError.
    """
    no_file = LockedKeyError(
        f"this is not a {what} file", expected="a file with one line of text", where=where
    )
    try:
        with open_regular(path) as file:
            found, data = os.fstat(file.fileno()), file.read(4097)
    except NotAFileError:
        raise no_file from None
    except OSError as error:
        raise LockedKeyError(
            f"the {what} file cannot be read ({error.strerror})",
            where=where,
            fix="name a file that exists and that this user can read",
        ) from None
    if len(data) > 4096:
        raise no_file
    if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid not in (os.geteuid(), 0):
        raise LockedKeyError(
            f"others can read the {what} file",
            expected="mode 0600, and this user as its owner",
            got=f"mode {stat.S_IMODE(found.st_mode):04o}, owner {found.st_uid}",
            where=where,
            fix=f"chmod 600 it; if others may have read it, choose another {what}",
        )
    text = data.decode("utf-8", "replace")
    return _usable(text.removesuffix("\n").removesuffix("\r"), what, where=where)


def _usable(text: str, what: str = "passphrase", *, where: str) -> bytes:
    """A secret as it is used, the same from every keyboard (NFC). Raises LockedKeyError."""
    if not text:
        raise LockedKeyError(f"the {what} is empty", where=where)
    if "\ufffd" in text or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise LockedKeyError(
            f"this is not a {what}",
            expected="one line of UTF-8 without control characters",
            where=where,
        )
    return unicodedata.normalize("NFC", text).encode()


# --- the form of an encrypted key ---------------------------------------------------------


def is_sealed(content: bytes) -> bool:
    """Return whether this is an encrypted key, whole or damaged."""
    return content.startswith(_SEALED_MARK)


def seal(plain: bytes, passphrase: bytes, *, kind: Kind) -> bytes:
    """`plain` encrypted: the line of a file that only the passphrase opens."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    if not passphrase:
        raise LockedKeyError("the passphrase is empty")
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    header = f"{_SEALED_MARK.decode()}{kind} scrypt {COST} 8 1 {salt.hex()} {nonce.hex()}".encode()
    box = ChaCha20Poly1305(_stretched(passphrase, salt, COST)).encrypt(nonce, plain, header)
    return header + b" " + box.hex().encode() + b"\n"


def unseal(
    content: bytes, path: Path, *, kind: Kind, passphrase: bytes | None = None, ask: bool = True
) -> bytes:
    """The plain key sealed in the file at `path`; asks for a passphrase that is not given.

    Raises KeyFileError: damaged, of another kind, or an absurd cost; LockedKeyError.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    where = str(path)
    match = _LINE.fullmatch(content)
    if match is None:
        raise KeyFileError(
            "the encrypted key is damaged",
            expected="the one line that confide wrote",
            where=where,
            fix="restore the file from your backup",
        )
    header, found, cost, salt, nonce, box = match.groups()
    if found.decode() != kind:
        raise KeyFileError(
            "this is the wrong kind of key", expected=kind, got=found.decode(), where=where
        )
    work = int(cost)
    if work & (work - 1) or not LEAST_COST <= work <= MOST_COST:
        raise KeyFileError(
            "the cost in this encrypted key is not one that confide writes",
            expected=f"a power of two from {LEAST_COST} to {MOST_COST}",
            got=str(work),
            where=where,
            fix="restore the file from your backup; do not use one from elsewhere",
        )
    salt, nonce, box = (bytes.fromhex(part.decode()) for part in (salt, nonce, box))
    passphrase = passphrase or passphrase_for(path, ask=ask)
    try:
        return ChaCha20Poly1305(_stretched(passphrase, salt, work)).decrypt(nonce, box, header)
    except InvalidTag:
        raise LockedKeyError(
            "this passphrase does not open the key, or the file was changed",
            where=where,
            fix="try again; if the passphrase is right, restore the file from your backup",
        ) from None


def _stretched(passphrase: bytes, salt: bytes, cost: int) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    try:
        return Scrypt(salt=salt, length=32, n=cost, r=8, p=1).derive(passphrase)
    except MemoryError as error:
        raise LockedKeyError(
            "there is not enough memory to encrypt or decrypt a key",
            expected=f"{cost // 1024} MiB",
            fix="end other programs, then run the command again",
        ) from error


# --- private keys -------------------------------------------------------------------------


def save_private(
    path: Path, key: PrivateKeyTypes, *, passphrase: bytes | None, over: bool = False
) -> None:
    """Write a private key for its owner's eyes only: plain PEM, or encrypted.

    Overwrites a file only with `over`, and keeps the old one until the new one is complete. Raises
    KeyFileError.
    """
    if passphrase is None:
        write_key(path, in_plain(key, "PEM"), over=over)
    else:
        write_key(path, seal(in_plain(key, "DER"), passphrase, kind="private"), over=over)


def in_plain(key: PrivateKeyTypes, encoding: Literal["PEM", "DER"]) -> bytes:
    """A private key as unencrypted PKCS #8."""
    from cryptography.hazmat.primitives import serialization as forms

    form = forms.Encoding.PEM if encoding == "PEM" else forms.Encoding.DER
    return key.private_bytes(form, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def load_private(path: Path, *, passphrase: bytes | None = None) -> PrivateKeyTypes:
    """The private key in a file; if it is encrypted, asks for a passphrase that is not given.

    Raises KeyFileError, LockedKeyError.
    """
    return private_from(read_key_file(path), path, passphrase=passphrase)


def private_from(content: bytes, path: Path, *, passphrase: bytes | None = None) -> PrivateKeyTypes:
    """The private key in the content of the file at `path`. Raises as `load_private` does."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms

    load = forms.load_pem_private_key
    if is_sealed(content):
        load = forms.load_der_private_key
        content = unseal(content, path, kind="private", passphrase=passphrase)
    try:
        return load(content, password=None)
    except TypeError:
        raise KeyFileError(
            "this private key was encrypted by another program",
            where=str(path),
            fix="decrypt it with that program, then encrypt it with `confide key protect`",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError("this is not a private key", expected="PEM", where=str(path)) from None


# --- files --------------------------------------------------------------------------------


def read_key_file(path: Path, *, fix: str | None = None) -> bytes:
    """The content of a key file. Raises KeyFileError: missing, not a regular file, far too long.

    `fix` says what to do where there is none.
    """
    try:
        return file_bytes(path, _MOST_BYTES)
    except (NotAFileError, TooLargeError):
        raise KeyFileError(
            "this is not a key file",
            expected=f"a regular file of at most {_MOST_BYTES} bytes",
            where=str(path),
        ) from None
    except OSError as error:
        why = error.strerror or error
        raise KeyFileError(f"there is no key file ({why})", where=str(path), fix=fix) from error


def write_key(path: Path, data: bytes, *, over: bool = False) -> None:
    """Write a file of mode 0600, whole or not at all. Overwrites one only with `over`.

    Raises KeyFileError.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(handle)
            if over:
                fresh.replace(path)
            else:
                os.link(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    except FileExistsError as error:
        raise KeyFileError(
            "there is already a file, and a key is never overwritten",
            where=str(path),
            fix="choose another path, or move the old key away",
        ) from error
    except OSError as error:
        raise KeyFileError(
            f"the key could not be written ({error.strerror})", where=str(path)
        ) from error


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


def new_key(path: Path | str, key: bytes | None = None, *, passphrase: bytes | None = None) -> Path:
    """Write a key file, readable by its owner only; a new random key unless one is given.

    A passphrase encrypts it. Never overwrites a file: raises KeyFileError if there is one.
    """
    path = Path(path)
    line = _line(key or secrets.token_bytes(_BYTES))
    write_key(path, line if passphrase is None else seal(line, passphrase, kind="shared"))
    return path


def read_key(path: Path, *, ask: bool = True) -> bytes:
    """The 32 bytes of a key file. Raises KeyFileError: missing, short, or not a key.

    A process opens an encrypted key once, and again only if the file changed. If no passphrase file
    is set, it asks at the terminal, but not in a worker process or with `ask=False`. Raises
    LockedKeyError.
    """
    fix = "ask another site for the shared key, or make one with `confide key new`"
    content = read_key_file(path, fix=fix)
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


def protect_key(path: Path | str) -> Path:
    """Encrypt the key in a file, the sites' or a private one, with a passphrase; asks for it.

    The file is replaced once the new one is complete and has been opened again. The old key may
    still be found on the disk, and in backups. Raises KeyFileError, LockedKeyError.
    """
    path, content = _own_file(path)
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


def unprotect_key(path: Path | str) -> Path:
    """Write the key in a file in plain again. Raises KeyFileError, LockedKeyError."""
    path, content = _own_file(path)
    if not is_sealed(content):
        raise KeyFileError("the key is not encrypted", where=str(path))
    if content.split(b" ", 2)[1] == b"private":
        save_private(path, private_from(content, path), passphrase=None, over=True)
    else:
        opened = unseal(content, path, kind="shared")
        write_key(path, _line(_plain(opened, path)), over=True)
    return path


def _own_file(path: Path | str) -> tuple[Path, bytes]:
    """The file that `path` leads to, and its content. Raises KeyFileError if it is another's."""
    path = Path(path).resolve()
    if path.exists() and path.stat().st_uid != os.geteuid():
        raise KeyFileError(
            "the key belongs to another user, who could not read it afterwards",
            where=str(path),
            fix="run the command as that user",
        )
    return path, read_key_file(path)


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
