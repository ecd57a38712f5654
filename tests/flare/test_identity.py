"""Identity keys: made at the place itself, for its owner's eyes only, and never lost."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import x25519

from cases import each
from confide.errors import KeyFileError, KitError
from confide.federation.failures import Refusal
from confide.flare.peers import (
    Card,
    Pins,
    fingerprint_of,
    grouped_fingerprint,
    make_identity,
    read_fingerprint,
    read_identity,
)


def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "identity" / "identity.key"
    made = make_identity(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert b"BEGIN PRIVATE KEY" in path.read_bytes()
    assert read_identity(path).public == made.public
    assert made.fingerprint == hashlib.sha256(made.public).hexdigest()
    assert "PrivateKey" not in repr(made)


def test_a_key_that_is_replaced_goes_to_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    keys = [make_identity(path) for _ in range(3)]
    archived = {read_identity(one).public for one in (tmp_path / "archive").iterdir()}
    assert archived == {one.public for one in keys[:2]}
    assert read_identity(path).public == keys[2].public


def test_what_is_no_identity_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    with pytest.raises(KeyFileError, match=r"no identity key.*site setup"):
        read_identity(path)
    make_identity(path)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="others can read"):
        read_identity(path)
    path.chmod(0o600)
    path.write_bytes(b"nonsense")
    with pytest.raises(KeyFileError, match=r"not an? (identity|private) key"):
        read_identity(path)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    other = x25519.X25519PrivateKey.generate()
    path.write_bytes(other.private_bytes(*plain, serialization.NoEncryption()))
    with pytest.raises(KeyFileError, match="expected Ed25519"):
        read_identity(path)


def test_a_fingerprint_is_read_as_it_is_shown() -> None:
    fingerprint = fingerprint_of(bytes(32))
    assert re.fullmatch(r"([0-9a-f]{4} ){15}[0-9a-f]{4}", grouped_fingerprint(fingerprint))
    for said in (
        grouped_fingerprint(fingerprint),
        fingerprint.upper(),
        fingerprint.replace("6", "6-"),
    ):
        assert read_fingerprint(said) == fingerprint
    for said in ("", fingerprint[:-1], fingerprint + "0", "z" * 64):
        with pytest.raises(KeyFileError, match="64 hexadecimal"):
            read_fingerprint(said)


def test_a_key_is_pinned_when_it_is_first_met_and_another_is_refused(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "peers.json")
    assert not pins.meet("north", b"1" * 32).compared
    assert (tmp_path / "peers.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Refusal) as refused:
        pins.meet("north", b"2" * 32)
    assert (refused.value.code, refused.value.detail) == ("other-identity", "north")
    with pytest.raises(Refusal) as refused:
        pins.meet("north", b"1" * 32, only_compared=True)
    assert refused.value.code == "not-compared"
    pins.pin("north", fingerprint_of(b"1" * 32), compared=True)
    assert pins.meet("north", b"1" * 32, only_compared=True).compared
    pins.forget("north")
    with pytest.raises(KitError, match="no peer of that name is pinned; expected none yet"):
        pins.forget("north")
    assert not pins.meet("north", b"2" * 32).compared


@each("text", ["", "{}", "[]", "7", '{"kind": 1}', "[" * 20_000])
def test_what_is_no_card_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        Card.decode(text)
    assert refused.value.code == "uncertified"


def test_a_card_with_halves_of_characters_is_refused() -> None:
    card = Card("site", "\ud800", "11" * 32, "", "")
    with pytest.raises(Refusal):
        Card.decode(card.encode())
