"""Keys: made once, read strictly, compared without being shown."""

from __future__ import annotations

import hashlib
import hmac
import stat
from pathlib import Path

import pytest

from cases import each
from confide.errors import KeyFileError
from confide.federation import keys
from confide.federation.keys import key_check, new_key, read_key
from confide.training.vocabulary import keyed_digest


def test_a_new_key_is_32_bytes_for_its_owner_only(tmp_path: Path) -> None:
    path = new_key(tmp_path / "deep" / "shared.key")
    assert len(read_key(path)) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("confide-key-1 ")


def test_no_two_keys_are_equal(tmp_path: Path) -> None:
    assert len({read_key(new_key(tmp_path / f"{n}.key")) for n in range(5)}) == 5


def test_a_process_that_dies_leaves_no_half_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before all is on the disk, nothing has the key's name, which another command would refuse."""
    path = tmp_path / "k"
    seen: list[bool] = []
    monkeypatch.setattr(keys.os, "fsync", lambda _: seen.append(path.exists()))
    new_key(path)
    assert seen == [False] and [one.name for one in tmp_path.iterdir()] == ["k"]


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = new_key(tmp_path / "shared.key")
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match="never overwritten"):
        new_key(path)
    assert path.read_bytes() == before


@each(
    ("content", "words"),
    [
        (b"", "not a key file"),
        (b"\x00\xff\xfe", "not a key file"),
        (b"hello", "not a key file"),
        (b"confide-key-1", "not a key file"),
        (b"confide-key-2 " + b"ab" * 32, "damaged"),
        (b"confide-key-1 " + b"ab" * 32 + b" ab", "not a key file"),
        (b"confide-key-1 " + b"ab" * 31, "too short"),
        (b"confide-key-1 " + b"zz" * 32, "too short"),
        (b"confide-key-1 " + b"a" * 63, "too short"),
    ],
)
def test_what_is_no_key_is_refused_without_showing_it(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "shared.key"
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=words) as caught:
        read_key(path)
    assert b"abab" not in str(caught.value).encode()
    assert str(path) in str(caught.value)


def test_a_missing_key_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"no key file.*confide key new"):
        read_key(tmp_path / "none.key")
    with pytest.raises(KeyFileError, match="not a key file"):
        read_key(tmp_path)


def test_the_check_value_is_an_hmac_of_the_nonce() -> None:
    key = bytes(range(32))
    check = key_check(key, "12ab")
    expected = hmac.new(key, b"confide key check\x0012ab", hashlib.sha256).hexdigest()
    assert check == expected[:32]
    assert check != key_check(key, "12ac")
    assert check != key_check(bytes(32), "12ab")
    assert key.hex() not in check


def test_a_server_that_chooses_the_number_cannot_have_a_word_digested() -> None:
    """Check values and digests of words are HMACs of texts that begin differently."""
    key = bytes(range(32))
    for nonce in ("word\0aspirin", "aspirin", "\0aspirin", "word"):
        check = key_check(key, nonce)
        for kind in ("word", "character", "file"):
            assert not check.startswith(keyed_digest(key, kind, "aspirin").hex()[:8])
