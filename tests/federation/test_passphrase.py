"""Keys at rest: passphrases, encrypted key files, and what hostile ones cannot do."""

from __future__ import annotations

import getpass
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from cases import each
from confide.errors import KeyFileError, LockedKeyError
from confide.federation import keys
from confide.federation import keys as passphrase
from confide.federation.keys import (
    VARIABLE,
    load_private,
    new_key,
    new_passphrase_for,
    passphrase_for,
    protect_key,
    read_key,
    save_private,
    seal,
    unlock,
    unprotect_key,
    unseal,
)

SECRET = "five words that nobody joins"
KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little work for scrypt, no passphrase in the environment, and nobody at the terminal."""
    monkeypatch.setattr(passphrase, "LEAST_COST", 2**4)
    monkeypatch.setattr(passphrase, "COST", 2**4)
    monkeypatch.setattr(passphrase, "_asked", _nobody)
    monkeypatch.setattr(keys, "_OPENED", {})
    monkeypatch.delenv(VARIABLE, raising=False)


def _nobody(prompt: str, path: Path, *, otherwise: str) -> str:
    raise passphrase._unasked(otherwise, path)


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a passphrase into the file of the environment."""

    def put(text: str = SECRET, mode: int = 0o600) -> Path:
        path = tmp_path / "passphrase"
        path.unlink(missing_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        path.chmod(mode)
        monkeypatch.setenv(VARIABLE, str(path))
        return path

    return put


def types(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[str]:
    """Somebody types these at the terminal; gives what was asked."""
    asked: list[str] = []
    left = iter(lines)

    def answer(prompt: str, path: Path, *, otherwise: str) -> str:
        asked.append(prompt)
        return next(left)

    monkeypatch.setattr(passphrase, "_asked", answer)
    return asked


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the passphrase -----------------------------------------------------------------------


def test_the_passphrase_is_the_one_line_of_the_file(known, tmp_path):
    for text in (SECRET, SECRET + "\n", SECRET + "\r\n"):
        known(text)
        assert passphrase_for(tmp_path / "k") == new_passphrase_for(tmp_path / "k")
        assert passphrase_for(tmp_path / "k") == SECRET.encode()


def test_letters_with_marks_are_the_same_from_every_keyboard(known, tmp_path):
    known("Bu\u0308rger zu\u0308rnen")
    assert passphrase_for(tmp_path / "k") == "Bürger zürnen".encode()


@each(
    ("text", "words"),
    [
        ("", "empty"),
        ("\n", "empty"),
        (SECRET + "\n\n", "one line"),
        (SECRET + "\nand another", "one line"),
        ("\n" + SECRET, "one line"),
        (SECRET + "\0", "control characters"),
        ("\x1b[2Jfive words that nobody joins", "control characters"),
        (SECRET + "\udcff", "UTF-8"),
        ("x" * 5000, "one line of text"),
    ],
)
def test_what_is_no_passphrase_is_refused_and_not_shown(known, tmp_path, text, words):
    known(text)
    for get in (passphrase_for, new_passphrase_for):
        with pytest.raises(LockedKeyError, match=words) as caught:
            get(tmp_path / "k")
        assert "five unrelated words" not in str(caught.value) and "xxx" not in str(caught.value)


@each("bits", [0o640, 0o604, 0o660, 0o666, 0o601, 0o777])
def test_a_passphrase_that_others_can_read_is_refused(known, tmp_path, bits):
    path = known(mode=bits)
    with pytest.raises(LockedKeyError, match=r"others can read.*0600") as caught:
        passphrase_for(tmp_path / "k")
    assert str(path) in str(caught.value) and f"{bits:04o}" in str(caught.value)
    path.chmod(0o400)
    assert passphrase_for(tmp_path / "k") == SECRET.encode()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_passphrase_of_another_user_is_refused(known, tmp_path):
    os.chown(known(), 12345, 12345)
    with pytest.raises(LockedKeyError, match="owner 12345"):
        passphrase_for(tmp_path / "k")


def test_a_pipe_a_device_and_a_folder_are_no_passphrase_and_never_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        monkeypatch.setenv(VARIABLE, str(path))
        with pytest.raises(LockedKeyError, match="not a passphrase file"):
            passphrase_for(tmp_path / "k")


def test_a_file_that_is_missing_is_named_and_nobody_is_asked(tmp_path, monkeypatch):
    asked = types(monkeypatch, SECRET)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(LockedKeyError, match=f"{VARIABLE}=.*none"):
        passphrase_for(tmp_path / "k")
    assert not asked


def test_a_new_passphrase_is_asked_for_twice_and_an_old_one_once(tmp_path, monkeypatch):
    asked = types(monkeypatch, SECRET, SECRET)
    assert new_passphrase_for(tmp_path / "k") == SECRET.encode()
    assert len(asked) == 2
    asked = types(monkeypatch, SECRET)
    assert passphrase_for(tmp_path / "k") == SECRET.encode()
    assert asked == [f"Passphrase of {tmp_path / 'k'}: "]


@each(
    ("lines", "words"),
    [
        ((SECRET, SECRET + "!"), "differ"),
        (("", ""), "empty"),
        (("elevenchars",) * 2, "too short"),
        (("line\nline and more",) * 2, "one line"),
    ],
)
def test_a_new_passphrase_that_will_not_do(tmp_path, monkeypatch, lines, words):
    types(monkeypatch, *lines)
    with pytest.raises(LockedKeyError, match=words) as caught:
        new_passphrase_for(tmp_path / "k")
    assert not any(line and line in str(caught.value) for line in lines)


def test_nothing_is_read_from_standard_input(tmp_path, monkeypatch):
    """Without a terminal, getpass would read standard input and show what is typed."""
    monkeypatch.undo()
    monkeypatch.delenv(VARIABLE, raising=False)

    def no_terminal(path: object, *rest: object) -> int:
        raise OSError(6, "No such device or address")

    monkeypatch.setattr(passphrase.os, "open", no_terminal)
    monkeypatch.setattr(getpass, "getpass", lambda prompt: pytest.fail("asked"))
    with pytest.raises(LockedKeyError, match=rf"is encrypted.*set {VARIABLE},"):
        passphrase_for(tmp_path / "k")
    with pytest.raises(LockedKeyError, match=rf"needs a new passphrase.*set {VARIABLE}"):
        new_passphrase_for(tmp_path / "k")


def test_nothing_is_typed_where_it_would_be_shown(tmp_path, monkeypatch):
    """A terminal that cannot hide what is typed is no terminal."""
    monkeypatch.undo()
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(passphrase.os, "open", lambda *_: 99)
    monkeypatch.setattr(passphrase.os, "close", lambda handle: None)

    def shown(prompt: str) -> str:
        warnings.warn("Can not control echo", getpass.GetPassWarning, stacklevel=1)
        return SECRET

    monkeypatch.setattr(getpass, "getpass", shown)
    with warnings.catch_warnings(), pytest.raises(LockedKeyError, match=VARIABLE):
        warnings.simplefilter("ignore")
        passphrase_for(tmp_path / "k")


def test_where_nobody_may_be_asked_the_message_says_what_to_set(tmp_path, monkeypatch):
    asked = types(monkeypatch, SECRET)
    with pytest.raises(LockedKeyError, match=rf"set {VARIABLE},.*chmod 600"):
        passphrase_for(tmp_path / "k", ask=False)
    assert not asked


# --- the shared key -----------------------------------------------------------------------


def test_an_encrypted_key_is_the_key_to_whoever_knows_the_passphrase(known, tmp_path):
    path = new_key(tmp_path / "shared.key", KEY, passphrase=SECRET.encode())
    assert mode(path) == 0o600
    content = path.read_text()
    assert content.startswith("confide-key-2 shared scrypt ") and KEY.hex() not in content
    with pytest.raises(LockedKeyError, match=VARIABLE):
        read_key(path)
    known()
    assert read_key(path) == KEY


def test_the_form_is_the_one_that_is_written_down(tmp_path):
    """Opened by hand: scrypt of the passphrase, the line before the box as associated data."""
    content = seal(b"plain", SECRET.encode(), kind="shared").decode()
    header, box = content.rstrip("\n").rsplit(" ", 1)
    mark, kind, name, cost, r, p, salt, nonce = header.split()
    assert (mark, kind, name, r, p) == ("confide-key-2", "shared", "scrypt", "8", "1")
    own = Scrypt(salt=bytes.fromhex(salt), length=32, n=int(cost), r=8, p=1).derive(SECRET.encode())
    opened = ChaCha20Poly1305(own).decrypt(
        bytes.fromhex(nonce), bytes.fromhex(box), header.encode()
    )
    assert opened == b"plain"
    with pytest.raises(InvalidTag):
        ChaCha20Poly1305(own).decrypt(bytes.fromhex(nonce), bytes.fromhex(box), b"")


def test_a_real_key_costs_what_it_should(monkeypatch):
    monkeypatch.undo()
    assert 2**15 <= passphrase.LEAST_COST <= 2**17 <= passphrase.COST <= passphrase.MOST_COST
    assert passphrase.MOST_COST * 8 * 128 <= 2**28
    content = seal(KEY, SECRET.encode(), kind="shared")
    assert content.split()[3:6] == [str(passphrase.COST).encode(), b"8", b"1"]
    assert unseal(content, Path("k"), kind="shared", passphrase=SECRET.encode()) == KEY


def test_two_files_of_one_key_have_nothing_in_common():
    one, two = (seal(KEY, SECRET.encode(), kind="shared").split() for _ in range(2))
    assert not set(one[6:]) & set(two[6:])


def test_a_wrong_passphrase_is_said_so_and_nothing_is_lost(known, tmp_path):
    path = new_key(tmp_path / "shared.key", KEY, passphrase=SECRET.encode())
    before = path.read_bytes()
    known("another passphrase of ours")
    for use in (read_key, unprotect_key):
        with pytest.raises(LockedKeyError, match="does not open the key") as caught:
            use(path)
        assert str(path) in str(caught.value) and "another passphrase" not in str(caught.value)
    assert path.read_bytes() == before
    known()
    assert read_key(path) == KEY


def test_every_byte_counts(tmp_path):
    content = seal(KEY, SECRET.encode(), kind="shared")
    path = tmp_path / "k"
    assert unseal(content, path, kind="shared", passphrase=SECRET.encode()) == KEY
    for place in range(len(content)):
        for change in (1, 0x20, 0x80):
            bent = bytearray(content)
            bent[place] ^= change
            with pytest.raises(KeyFileError):
                unseal(bytes(bent), path, kind="shared", passphrase=SECRET.encode())
                pytest.fail(f"byte {place}: {bytes(bent)[place : place + 1]!r} was accepted")


def test_every_truncation_is_refused(tmp_path):
    content = seal(KEY, SECRET.encode(), kind="shared")
    for length in range(len(content)):
        with pytest.raises(KeyFileError):
            unseal(content[:length], tmp_path, kind="shared", passphrase=SECRET.encode())
    for more in (b"\n", b" ", b"00\n", content):
        with pytest.raises(KeyFileError, match="damaged"):
            unseal(content + more, tmp_path, kind="shared", passphrase=SECRET.encode())


@each("cost", [2**14, 2**19, 2**30, 2**33, 2**15 + 1, 99999, 9999999999])
def test_a_hostile_file_gets_no_memory(known, tmp_path, monkeypatch, cost):
    """Refused before scrypt is called, and before anybody is asked for a passphrase."""
    monkeypatch.setattr(passphrase, "LEAST_COST", 2**15)
    monkeypatch.setattr(passphrase, "_stretched", lambda *_: pytest.fail("scrypt was called"))
    monkeypatch.setattr(passphrase, "passphrase_for", lambda *_, **__: pytest.fail("asked"))
    path = tmp_path / "shared.key"
    path.write_text(f"confide-key-2 shared scrypt {cost} 8 1 {'0' * 32} {'0' * 24} {'0' * 96}\n")
    with pytest.raises(KeyFileError, match="cost"):
        read_key(path)


@pytest.mark.parametrize("numbers", ["32768 16 1", "32768 8 2", "032768 8 1", "-1 8 1", "1e5 8 1"])
def test_other_parameters_are_refused(known, tmp_path, numbers):
    known()
    path = tmp_path / "shared.key"
    path.write_text(f"confide-key-2 shared scrypt {numbers} {'0' * 32} {'0' * 24} {'0' * 96}\n")
    with pytest.raises(KeyFileError, match="damaged"):
        read_key(path)


def test_a_long_file_a_pipe_and_a_device_are_no_key(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"confide-key-2 " + b"0" * 10_000_000)
    for path in (tmp_path / "pipe", tmp_path / "long", Path("/dev/zero"), tmp_path):
        for read in (read_key, load_private, protect_key):
            with pytest.raises(KeyFileError, match=r"no(t a)? key file"):
                read(path)


def test_a_key_is_opened_once_and_again_when_the_file_changed(known, tmp_path, monkeypatch):
    path = new_key(tmp_path / "shared.key", KEY, passphrase=SECRET.encode())
    asked = types(monkeypatch, SECRET, SECRET)
    assert read_key(path) == read_key(path) == KEY
    assert len(asked) == 1
    path.unlink()
    new_key(path, KEY[::-1], passphrase=SECRET.encode())
    assert read_key(path) == KEY[::-1]
    assert len(asked) == 2


def test_keys_are_unlocked_before_work_begins(known, tmp_path, monkeypatch):
    plain = new_key(tmp_path / "plain.key", KEY)
    sealed = new_key(tmp_path / "sealed.key", KEY, passphrase=SECRET.encode())
    (tmp_path / "torn.key").write_text("torn")
    asked = types(monkeypatch, SECRET)
    unlock([plain, tmp_path / "torn.key", tmp_path / "none.key"], ask=False)
    with pytest.raises(LockedKeyError, match=VARIABLE):
        unlock([plain, sealed], ask=False)
    assert not asked
    unlock([plain, sealed])
    assert len(asked) == 1 and read_key(sealed, ask=False) == KEY


def test_a_worker_process_asks_nobody(tmp_path, monkeypatch):
    path = new_key(tmp_path / "shared.key", KEY, passphrase=SECRET.encode())
    asked = types(monkeypatch, SECRET)
    monkeypatch.setattr(keys.multiprocessing, "parent_process", lambda: object())
    with pytest.raises(LockedKeyError, match=VARIABLE):
        read_key(path)
    assert not asked


# --- private keys -------------------------------------------------------------------------

PRIVATE = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "rsa": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
}


@pytest.fixture(params=PRIVATE)
def private(request) -> Iterator[ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey]:
    return PRIVATE[request.param]()


def test_a_private_key_comes_back(known, tmp_path, private):
    plain, sealed = tmp_path / "plain.pem", tmp_path / "deep" / "sealed.pem"
    save_private(plain, private, passphrase=None)
    save_private(sealed, private, passphrase=SECRET.encode())
    assert mode(plain) == mode(sealed) == 0o600
    assert plain.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert sealed.read_bytes().startswith(b"confide-key-2 private scrypt ")
    assert load_private(plain).public_key() == private.public_key()
    with pytest.raises(LockedKeyError, match=VARIABLE):
        load_private(sealed)
    known()
    assert load_private(sealed).public_key() == private.public_key()
    with pytest.raises(KeyFileError, match="never overwritten"):
        save_private(sealed, private, passphrase=None)
    save_private(sealed, private, passphrase=None, over=True)
    assert sealed.read_bytes() == plain.read_bytes()


def test_an_empty_passphrase_encrypts_nothing(tmp_path, private):
    with pytest.raises(LockedKeyError, match="empty"):
        save_private(tmp_path / "k", private, passphrase=b"")
    with pytest.raises(LockedKeyError, match="empty"):
        new_key(tmp_path / "k", passphrase=b"")
    assert not list(tmp_path.iterdir())


def test_every_byte_of_an_encrypted_private_key_counts(tmp_path, known):
    """A private key that opens with other bytes would be another key, without an error."""
    known()
    path = tmp_path / "identity.key"
    save_private(path, PRIVATE["ed25519"](), passphrase=SECRET.encode())
    content = path.read_bytes()
    for place in range(len(content)):
        bent = bytearray(content)
        bent[place] ^= 1
        path.write_bytes(bytes(bent))
        with pytest.raises(KeyFileError):
            load_private(path)


def test_a_key_of_one_kind_is_none_of_the_other(known, tmp_path):
    known()
    shared = new_key(tmp_path / "shared.key", KEY, passphrase=SECRET.encode())
    save_private(tmp_path / "root.key", PRIVATE["ed25519"](), passphrase=SECRET.encode())
    with pytest.raises(KeyFileError, match="wrong kind"):
        load_private(shared)
    with pytest.raises(KeyFileError, match="wrong kind"):
        read_key(tmp_path / "root.key")
    shared.write_bytes(shared.read_bytes().replace(b" shared ", b" private "))
    with pytest.raises(LockedKeyError, match="was changed"):
        load_private(shared)


@each("content", [b"", b"torn", b"-----BEGIN PRIVATE KEY-----\n", b"\0" * 99, b"confide-key-1 ab"])
def test_what_is_no_private_key_is_refused(tmp_path, content):
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(KeyFileError, match="not a private key"):
        load_private(tmp_path / "k")


def test_a_key_that_another_program_encrypted_is_named(tmp_path, private):
    own = forms.BestAvailableEncryption(b"other")
    pem = private.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, own)
    (tmp_path / "k").write_bytes(pem)
    for use in (load_private, protect_key):
        with pytest.raises(KeyFileError, match="another program"):
            use(tmp_path / "k")


# --- protect, unprotect -------------------------------------------------------------------


def test_a_key_is_protected_and_unprotected(known, tmp_path, private):
    known()
    shared = new_key(tmp_path / "shared.key", KEY)
    save_private(tmp_path / "root.key", private, passphrase=None)
    for path in (shared, tmp_path / "root.key"):
        before = path.read_bytes()
        path.chmod(0o644)
        protect_key(path)
        assert mode(path) == 0o600 and before not in path.read_bytes()
        assert path.read_bytes().startswith(b"confide-key-2 ")
        with pytest.raises(KeyFileError, match="already encrypted"):
            protect_key(path)
        unprotect_key(path)
        assert mode(path) == 0o600 and path.read_bytes() == before
        with pytest.raises(KeyFileError, match="not encrypted"):
            unprotect_key(path)
    assert {path.name for path in tmp_path.iterdir()} == {"shared.key", "root.key", "passphrase"}


def test_a_link_keeps_being_one(known, tmp_path):
    known()
    real = new_key(tmp_path / "real.key", KEY)
    link = tmp_path / "link.key"
    link.symlink_to(real)
    assert protect_key(link) == real
    assert link.is_symlink() and real.read_bytes().startswith(b"confide-key-2 ")


def test_a_full_disk_loses_no_key(known, tmp_path, monkeypatch):
    known()
    path = new_key(tmp_path / "shared.key", KEY)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(passphrase.os, "fsync", full)
    with pytest.raises(KeyFileError, match="No space left"):
        protect_key(path)
    with pytest.raises(KeyFileError, match="No space left"):
        new_key(tmp_path / "new.key")
    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {"shared.key", "passphrase"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_key_of_another_user_is_left_to_that_user(known, tmp_path):
    known()
    path = new_key(tmp_path / "shared.key", KEY)
    os.chown(path, 12345, 12345)
    for use in (protect_key, unprotect_key):
        with pytest.raises(KeyFileError, match="another user"):
            use(path)
    assert read_key(path) == KEY
