"""Known answers: our own, and those of the standards, through the functions that sums use."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from confide.federation.seals import digest, is_signed_by, statement
from confide.federation.secure import crypto
from confide.federation.secure.crypto import (
    SECRET,
    TAG,
    add_streams,
    box_info,
    derive_key,
    is_low_order,
    open_box,
    own_info,
    pair_info,
    public_key,
    seal_box,
    shared_secret,
)

ONE, TWO = bytes(range(32)), bytes(range(32, 64))
CONTEXT = bytes.fromhex("f4e2859f46f15445a48dba5fed2fe4454650f2cb6b94ae1537fa436fca045cc9")
PAIR_KEY = bytes.fromhex("11031ffd553371081fcb29ed2d070d210c2f3eed51be003ce3cef34798ae394f")
LOW_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]
"""Points that lead everyone to the same secret: https://cr.yp.to/ecdh.html, "validate"."""


def keystream(key: bytes, count: int, width: int = 4) -> np.ndarray:
    lanes = np.zeros(count * width, np.uint8)
    add_streams([(lanes, width)], [(key, 1)])
    return lanes.view(f"<u{width}")


# --- our own known answers ---------------------------------------------------------------


def test_a_digest_of_parts() -> None:
    assert digest(b"run", b"turn", b"ask") == CONTEXT
    assert digest(b"runturn", b"", b"ask") != CONTEXT


def test_a_pair_of_keys_and_their_mask() -> None:
    assert public_key(ONE).hex() == (
        "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"
    )
    assert public_key(TWO).hex() == (
        "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254"
    )
    both = shared_secret(ONE, public_key(TWO))
    assert both == shared_secret(TWO, public_key(ONE))
    assert both.hex() == "9663aa1da97e848a914a436d04163dfbb89178f107f1b5b77ed3854203382854"
    assert keystream(PAIR_KEY, 4).tolist() == [1418046945, 3876031614, 3445161604, 902844259]


def test_the_key_of_a_pair_follows_from_the_secret_and_both_names() -> None:
    """HKDF by hand (RFC 5869, sections 2.2 and 2.3), with the names in order."""
    both = shared_secret(ONE, public_key(TWO))
    said = b"".join(
        len(part).to_bytes(8, "little") + part for part in (CONTEXT, b"pair", b"site-1", b"site-2")
    )
    extracted = hmac.digest(bytes(32), both, "sha256")
    by_hand = hmac.digest(extracted, hashlib.sha256(said).digest() + b"\x01", "sha256")
    assert derive_key(both, pair_info(CONTEXT, "site-2", "site-1")) == by_hand
    assert derive_key(both, pair_info(CONTEXT, "site-1", "site-3")) != by_hand
    assert derive_key(both, pair_info(digest(b"other"), "site-1", "site-2")) != by_hand


def test_the_key_of_a_sites_own_mask() -> None:
    own = derive_key(bytes(32), own_info(CONTEXT))
    assert keystream(own, 4).tolist() == [2449981377, 2137136345, 1127154615, 685992718]


# --- the standards -----------------------------------------------------------------------


@each(
    ("secret", "public", "both"),
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_rfc_7748(secret: str, public: str, both: str) -> None:
    """Section 5.2."""
    assert shared_secret(bytes.fromhex(secret), bytes.fromhex(public)).hex() == both


def test_rfc_7748_iterated() -> None:
    """Section 5.2: after one and after a thousand iterations from the base point."""
    key, point = bytes([9]) + bytes(31), bytes([9]) + bytes(31)
    for count in range(1_000):
        key, point = shared_secret(key, point), key
        if count == 0:
            assert key.hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert key.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


@each(
    ("seed", "key", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e397"
            "01cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f361"
            "3d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_rfc_8032(seed: str, key: str, message: str, signature: str) -> None:
    """Section 7.1, tests 1 and 2: what sessions sign with, and what checks it."""
    signer = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed))
    said = bytes.fromhex(message)
    assert signer.public_key().public_bytes_raw().hex() == key
    assert signer.sign(said).hex() == signature
    assert is_signed_by(bytes.fromhex(key), signature, said)
    assert not is_signed_by(bytes.fromhex(key), signature, said + b".")
    assert not is_signed_by(bytes.fromhex(key), signature[:-2] + "ff", said)
    assert not is_signed_by(bytes.fromhex(key)[:-1], signature, said)
    with pytest.raises(InvalidSignature):
        signer.public_key().verify(bytes.fromhex(signature), said + b".")


def test_rfc_5869() -> None:
    """Appendix A.3, without salt and info: the first 32 bytes."""
    found = derive_key(bytes.fromhex("0b" * 22), b"")
    assert found.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def blocks_of_aes(key: bytes, first: int, count: int) -> bytes:
    """The cipher of `count` counters from `first` on, which is counter mode by its definition."""
    counters = b"".join(number.to_bytes(16, "big") for number in range(first, first + count))
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counters)


def test_sp_800_38a() -> None:
    """F.5.5, CTR-AES256: what our keystream is compared with, and the plain text, by XOR."""
    first = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    found = np.frombuffer(plain, "<u4") ^ np.frombuffer(blocks_of_aes(key, first, 4), "<u4")
    assert found.tobytes().hex() == (
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )


@each("lengths", [(8, 24), (8, 28), (40, 4_000), (100_000, 300_004)])
def test_a_keystream_is_that_of_counter_mode(lengths: tuple[int, int]) -> None:
    """From block 0 to the last, over parts that end anywhere and blocks of work of any size."""
    wide, narrow = (np.zeros(length, np.uint8) for length in lengths)
    add_streams([(wide, 8), (narrow, 4)], [(ONE, 1)])
    found = wide.tobytes() + narrow.tobytes()
    assert found == blocks_of_aes(ONE, 0, 1 + len(found) // 16)[: len(found)]


def test_the_counter_begins_at_zero_and_counts_blocks() -> None:
    """AES-256 of the blocks 0, 1 and 2 under a key of zeros: FIPS 197's validation vectors, and
    the GCM specification's test cases 13 and 14 (E(K, Y0) and the cipher text of zeros)."""
    assert keystream(bytes(32), 12).tobytes().hex() == (
        "dc95c078a2408989ad48a21492842087"
        "530f8afbc74536b9a963b4f1c4cb738b"
        "cea7403d4d606b6e074ec5d3baf39d18"
    )


def test_rfc_8439_seals_a_box_with_a_tag_and_a_nonce_of_zeros() -> None:
    box = seal_box(ONE, b"inside")
    assert len(box) == 6 + TAG
    assert open_box(ONE, box) == b"inside"
    assert ChaCha20Poly1305(ONE).decrypt(bytes(12), box, None) == b"inside"


# --- lanes and boxes ---------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([2, 4, 8]), st.integers(0, 40)), max_size=5))
def test_no_byte_of_a_keystream_is_used_twice(parts: list[tuple[int, int]]) -> None:
    """Lanes of any widths, laid end to end, get one keystream from its first byte on."""
    lanes = [(np.zeros(width * count, np.uint8), width) for width, count in parts]
    add_streams(lanes, [(ONE, 1)])
    joined = b"".join(lane.tobytes() for lane, _ in lanes)
    assert joined == keystream(ONE, len(joined) // 2, 2).tobytes()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 90)), max_size=5),
    st.integers(1, 5),
)
def test_threads_share_the_work_and_nothing_else(parts: list[tuple[int, int]], many: int) -> None:
    """Each adds its own keystreams, and no block loses what another adds at the same time."""
    keys = [(ONE, 1), (TWO, -1), (bytes(32), 1)]
    found = []
    for threads in (1, many):
        lanes = [(np.zeros(width * count, np.uint8), width) for width, count in parts]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(crypto, "_BLOCK", 40)
            patch.setattr(crypto, "_WORTH", 1)
            patch.setattr(crypto, "_THREADS", threads)
            add_streams(lanes, keys)
        found.append(b"".join(lane.tobytes() for lane, _ in lanes))
    assert found[0] == found[1]


def test_a_thread_that_fails_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto, "_WORTH", 1)
    monkeypatch.setattr(crypto, "_THREADS", 2)
    monkeypatch.setattr(crypto, "_BLOCK", 64)
    with pytest.raises(ValueError, match="key"):
        add_streams([(np.zeros(400, np.uint8), 4)], [(ONE, 1), (b"short", 1)])


def test_many_keystreams_at_once_are_each_of_them_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto, "_BLOCK", 64)
    once, turns = np.zeros(400, np.uint8), np.zeros(400, np.uint8)
    keys = [(ONE, 1), (TWO, -1), (ONE, 1)]
    add_streams([(once[:80], 8), (once[80:], 4)], keys)
    for key, sign in keys:
        add_streams([(turns[:80], 8), (turns[80:], 4)], [(key, sign)])
    assert once.any() and once.tobytes() == turns.tobytes()


def test_a_keystream_goes_on_from_block_to_block(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = keystream(ONE, 4_000)
    monkeypatch.setattr(crypto, "_BLOCK", 64)
    assert (keystream(ONE, 4_000) == whole).all()
    assert len(set(whole.tolist())) > 3_990


@each("width", [2, 4, 8])
def test_adding_and_subtracting_a_keystream_wraps_around(width: int) -> None:
    most = 256**width
    start = np.array([0, 1, most - 1, most // 2], f"<u{width}")
    stream = keystream(TWO, 4, width)
    up, down = start.view(np.uint8).copy(), start.view(np.uint8).copy()
    add_streams([(up, width)], [(TWO, 1)])
    add_streams([(down, width)], [(TWO, -1)])
    exact = [(int(one) + int(two)) % most for one, two in zip(start, stream, strict=True)]
    assert up.view(f"<u{width}").tolist() == exact
    exact = [(int(one) - int(two)) % most for one, two in zip(start, stream, strict=True)]
    assert down.view(f"<u{width}").tolist() == exact
    add_streams([(up, width)], [(TWO, -1)])
    assert (up == start.view(np.uint8)).all()


@each("point", LOW_ORDER)
def test_keys_of_low_order_are_seen(point: str) -> None:
    assert is_low_order(bytes.fromhex(point))
    with pytest.raises(ValueError, match=r"."):
        shared_secret(ONE, bytes.fromhex(point))


def test_other_keys_are_not_of_low_order_and_half_keys_are_none() -> None:
    assert not is_low_order(public_key(ONE))
    assert is_low_order(b"") and is_low_order(bytes(31)) and is_low_order(public_key(ONE) + b"0")


@each("box", [b"", b"x", bytes(16), bytes(148)])
def test_what_was_not_sealed_does_not_open(box: bytes) -> None:
    assert open_box(ONE, box) is None


def test_a_box_opens_only_with_its_own_key_and_unchanged() -> None:
    box = seal_box(ONE, bytes(132))
    assert open_box(TWO, box) is None
    for place in range(len(box)):
        changed = bytearray(box)
        changed[place] ^= 1
        assert open_box(ONE, bytes(changed)) is None
    infos = {
        box_info(CONTEXT, *names, offered=key)
        for key in (ONE, CONTEXT)
        for names in (("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"))
    }
    assert len(infos) == 8


def test_every_secret_is_fresh_and_32_bytes() -> None:
    found = {crypto.fresh_secret() for _ in range(50)}
    assert len(found) == 50 and {len(one) for one in found} == {SECRET}


def test_a_signature_of_ours_is_never_one_over_text() -> None:
    with pytest.raises(UnicodeDecodeError):
        statement("agree", b"x").decode()
    assert statement("agree", b"x") != statement("offer", b"x")
    assert statement("agree", b"x", b"y") != statement("agree", b"xy")
