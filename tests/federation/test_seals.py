"""Digests of several parts, the form of what is signed, and seals on the wire."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import MessageError
from confide.federation import seals
from confide.federation.seals import (
    LARGEST,
    AskSeal,
    ReplySeal,
    digest,
    fresh_nonce,
    inner_digest,
    is_signed_by,
    keep_nonce,
    message_digest,
    statement,
)

ONE, TWO = "11" * 32, "22" * 32


def test_digests_are_those_that_were_worked_out_before() -> None:
    known = "f4e2859f46f15445a48dba5fed2fe4454650f2cb6b94ae1537fa436fca045cc9"
    assert digest(b"run", b"turn", b"ask").hex() == known
    by_hand = b"\x03" + bytes(7) + b"run" + b"\x04" + bytes(7) + b"turn" + b"\x03" + bytes(7)
    assert hashlib.sha256(by_hand + b"ask").hexdigest() == known
    assert digest().hex() == hashlib.sha256(b"").hexdigest()


@given(st.lists(st.binary(max_size=9), max_size=5), st.lists(st.binary(max_size=9), max_size=5))
def test_other_parts_have_another_digest(one: list[bytes], other: list[bytes]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


def test_what_is_signed_is_no_text_and_says_what_it_is_for() -> None:
    said = statement("ask", b"run", b"turn", b"ask")
    assert said == b"\xffconfide/ask/1" + digest(b"run", b"turn", b"ask")
    with pytest.raises(UnicodeDecodeError):
        said.decode("utf-8")
    assert said != statement("reply", b"run", b"turn", b"ask")


def ask_seal() -> AskSeal:
    return AskSeal("run", "north", 3, "train", 1, ONE, TWO, ("north", "south"), ONE, TWO, ONE)


def reply_seal() -> ReplySeal:
    return ReplySeal("run", "north", 3, "train", 1, ONE, TWO, ONE, TWO)


@each("seal", [ask_seal(), reply_seal()])
def test_a_signature_is_over_every_part(seal: Any) -> None:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    done = seal.sign(key)
    assert done.verifies(public)
    assert not done.verifies(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    assert not done.verifies(b"")
    other: dict[type, Any] = {str: "33" * 32, int: 4, tuple: ("north",)}
    for field in dataclasses.fields(seal):
        if field.name not in ("nonce", "card"):  # the digest is of the nonce; a card has its own
            value = other[type(getattr(seal, field.name))]
            assert not dataclasses.replace(done, **{field.name: value}).verifies(public)


def test_an_ask_is_no_reply_though_its_parts_are_the_same() -> None:
    key = Ed25519PrivateKey.generate()
    one = reply_seal().sign(key)
    forged = dataclasses.replace(ask_seal(), signature=one.signature)
    assert not forged.verifies(key.public_key().public_bytes_raw())


def test_a_seal_travels_and_nothing_else_is_one() -> None:
    for seal in (ask_seal(), reply_seal()):
        assert type(seal).decode(seal.encode()) == seal  # type: ignore[type-var]
    tree = json.loads(ask_seal().encode())
    odd: list[Any] = [
        {**tree, "round": True}, {**tree, "round": -1}, {**tree, "round": 2**40},
        {**tree, "round": "3"}, {**tree, "digest": "11"}, {**tree, "digest": ONE[:-1] + "G"},
        {**tree, "head": "x"}, {**tree, "audience": [1]}, {**tree, "audience": "north"},
        {**tree, "site": None}, {**tree, "site": "\ud800"}, {**tree, "signature": 5}, [], None, 7,
    ]  # fmt: skip
    for one in odd:
        with pytest.raises(MessageError):
            AskSeal.decode(json.dumps(one).encode())
    for data in (b"", b"\xff", b"[" * 50_000, b" " * (LARGEST + 1), b'{"round": 1e999}'):
        with pytest.raises(MessageError):
            AskSeal.decode(data)


def test_a_digest_in_a_ledger_can_be_opened_with_its_nonce_only(tmp_path: Path) -> None:
    nonce, message = fresh_nonce(), b"entities: 3"
    sealed = message_digest(nonce, inner_digest(message))
    guesses = [f"entities: {count}".encode() for count in range(1000)]
    for guess in guesses:  # whoever has only the ledger
        assert hashlib.sha256(guess).hexdigest() != sealed
        assert sealed != message_digest(bytes(32), inner_digest(guess))
    keep_nonce(tmp_path / "ledger.jsonl", sealed, nonce.hex())
    digest_there, nonce_there = (tmp_path / "nonces.txt").read_text().split()
    assert digest_there == sealed
    held = bytes.fromhex(nonce_there)
    assert [one for one in guesses if message_digest(held, inner_digest(one)) == sealed] == [
        message
    ]


def test_a_signature_that_was_checked_vouches_for_nothing_else() -> None:
    one, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    key, stranger = (k.public_key().public_bytes_raw() for k in (one, other))
    signature = one.sign(b"said").hex()
    for _ in range(2):
        assert is_signed_by(key, signature, b"said")
        assert not is_signed_by(key, signature, b"unsaid")
        assert not is_signed_by(stranger, signature, b"said")
        assert not is_signed_by(key, other.sign(b"said").hex(), b"said")
        assert not is_signed_by(key, "no digits", b"said")
        assert not is_signed_by(b"short", signature, b"said")


def test_nothing_of_another_size_is_remembered() -> None:
    """A site that signs with megabytes takes none of the server's memory."""
    key = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    seals._checked.cache_clear()
    assert not is_signed_by(key, "ab" * 100_000, b"said")
    assert not is_signed_by(bytes(100_000), "ab" * 64, b"said")
    assert seals._checked.cache_info().currsize == 0
