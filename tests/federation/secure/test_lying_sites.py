"""Sites that lie: no wrong sum passes as one that shares opened, and who lied is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import FederationError
from confide.federation.failures import Failure
from confide.federation.messages import decode, encode
from confide.federation.seals import digest
from confide.federation.secure import crypto, messages
from confide.federation.secure.crypto import (
    SHARE,
    box_info,
    derive_key,
    public_key,
    seal_box,
    shared_secret,
    split_secret,
)
from confide.federation.secure.lanes import LaneLayout
from confide.federation.secure.messages import (
    Greeted,
    Masked,
    Offered,
    Shares,
    Signed,
    offer_statement,
)
from confide.federation.secure.server import SumAttempt
from federation.secure.summed import (
    COUNT,
    SENT,
    Sites,
    ask,
    by_hand,
    federation_of,
    same,
    sites_of,
    summing_of,
)

LIAR = "site-02"


def lying(folder: Path, step: str, change: Callable[[Any], Any], *, count: int = 5) -> Sites:
    """Sites of which one changes what it says in one exchange."""
    kinds = {"count": Offered, "mask": Masked, "agree": Signed, "unmask": Shares, "greet": Greeted}

    def tamper(site: str, name: str, data: bytes) -> bytes:
        if site != LIAR or name != step:
            return data
        return encode(change(decode(kinds[step], data)))

    engine = sites_of(count, folder)
    engine.change = tamper
    return engine


def check(engine: Sites, *, without: str = LIAR) -> list[tuple[str, str]]:
    """The sum is that of the others; gives who is blamed, and for what."""
    federation = federation_of(engine, summing_of(engine))
    total = federation.sum(COUNT, ask(), round=1)
    replies = [SENT[1, "count", site] for site in engine.sites if site != without]
    assert same(total, by_hand(COUNT, ask(), replies, whole=1.0))
    return [(fault.site, fault.code) for fault in federation.faults]


def blamed(engine: Sites) -> set[str]:
    """Who is blamed for a sum that stays closed."""
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises(FederationError):
        federation.sum(COUNT, ask(), round=1)
    return {fault.site for fault in federation.faults}


@each(
    "change",
    [
        lambda offer: replace(offer, key="00" * 32),
        lambda offer: replace(offer, key="01" + "00" * 31),
        lambda offer: replace(offer, key=offer.key[:-2]),
        lambda offer: replace(offer, key=offer.key.upper()),
        lambda offer: replace(offer, key="é" * 64),
        lambda offer: replace(offer, commitment=offer.key),
        lambda offer: replace(offer, signature="00" * 64),
        lambda offer: replace(offer, boxes_O148=offer.boxes_O148[:-1]),
        lambda offer: replace(offer, boxes_O148=np.zeros((40, 148), np.uint8)),
        lambda offer: replace(offer, boxes_O148=offer.boxes_O148[::-1]),
        lambda offer: replace(offer, marks_N64=offer.marks_N64[:-1]),
        lambda offer: replace(offer, marks_N64=offer.marks_N64[::-1]),
        lambda offer: Failure("lost", "", "", ""),
        lambda offer: Masked(np.zeros(4, np.uint8)),
    ],
)
def test_an_offer_that_is_not_the_sites_own_is_left_out(
    change: Callable[[Any], Any], tmp_path: Path
) -> None:
    faults = check(lying(tmp_path, "count", change))
    assert {site for site, _ in faults} == {LIAR}


@each(
    "change",
    [
        lambda masked: Masked(masked.lanes_B[:-1]),
        lambda masked: Masked(masked.lanes_B[:0]),
        lambda masked: Masked(np.concatenate([masked.lanes_B] * 2)),
        lambda masked: Masked(masked.lanes_B[:8]),
    ],
)
def test_masked_numbers_of_another_length_are_left_out(
    change: Callable[[Any], Any], tmp_path: Path
) -> None:
    assert {site for site, _ in check(lying(tmp_path, "mask", change))} == {LIAR}


@each("signature", ["00" * 64, "zz" * 64, "00"])
def test_a_bad_signature_does_not_count(signature: str, tmp_path: Path) -> None:
    """The site's numbers are in the sum all the same: the others signed it."""
    engine = lying(tmp_path, "agree", lambda signed: Signed(signature))
    assert {site for site, _ in check(engine, without="")} == {LIAR}


@each(
    "change",
    [
        lambda given: replace(given, shares_M66=given.shares_M66 ^ 1),
        lambda given: replace(given, shares_M66=np.roll(given.shares_M66, 1, axis=0)),
        lambda given: replace(given, shares_M66=np.zeros_like(given.shares_M66)),
        lambda given: replace(given, shares_M66=given.shares_M66[:, :-1]),
        lambda given: replace(given, shares_M66=given.shares_M66[:-1]),
        lambda given: Shares(given.given_M[:-1], given.shares_M66[:-1]),
        lambda given: Shares(given.given_M[:0], given.shares_M66[:0]),
    ],
)
def test_a_wrong_share_is_the_fault_of_who_gives_it(
    change: Callable[[Any], Any], tmp_path: Path
) -> None:
    """The others' shares are enough; nobody whose share it was is blamed."""
    engine = lying(tmp_path, "unmask", change)
    assert {site for site, _ in check(engine, without="")} == {LIAR}


def test_shares_that_are_kept_back_are_missed_only_if_too_many(tmp_path: Path) -> None:
    def none(given: Shares) -> Shares:
        return Shares(np.zeros_like(given.given_M), given.shares_M66)

    check(lying(tmp_path, "unmask", none), without="")
    engine = lying(tmp_path / "few", "unmask", none, count=3)
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises(FederationError, match="stays closed"):
        federation.sum(COUNT, ask(), round=1)


# --- crafted offers ----------------------------------------------------------------------


def craft(
    monkeypatch: pytest.MonkeyPatch, engine: Sites, changed: Callable[..., dict[str, Any]]
) -> None:
    """Let the liar sign another offer than an honest site would."""
    liar = engine.members[LIAR]
    honest = liar.offer

    def offer(opening: Any, **parts: Any) -> Offered:
        made = honest(opening, **parts)
        now, session = liar._sum, liar._session
        assert now is not None and session is not None
        fields = vars(made) | changed(liar, now, made)
        boxes = digest(fields["boxes_O148"].tobytes()).hex()
        marks = digest(fields["marks_N64"].tobytes()).hex()
        said = offer_statement(
            now.context, fields["key"], commitment=fields["commitment"], boxes=boxes, marks=marks
        )
        reply = Offered(**fields | {"signature": session.signer.sign(said).hex()})
        now.offer = reply
        return reply

    monkeypatch.setattr(liar, "offer", offer)


def boxed(liar: Any, now: Any, shares: list[bytes], *, size: int = 2 * SHARE) -> np.ndarray:
    roster, session = liar._roster, liar._session
    found = []
    for place, peer in enumerate(roster.peers):
        if peer.name != liar.name:
            key = derive_key(
                shared_secret(session.box_secret, peer.box_key),
                box_info(now.context, liar.name, peer.name, offered=public_key(now.secret)),
            )
            found.append(seal_box(key, shares[place].ljust(size, b"\0")[:size]))
    return np.frombuffer(b"".join(found), np.uint8).reshape(len(found), -1)


def marked(now: Any, shares: list[bytes]) -> np.ndarray:
    marks = b"".join(
        digest(now.context, b"share", one[:SHARE]) + digest(now.context, b"share", one[SHARE:])
        for one in shares
    )
    return np.frombuffer(marks, np.uint8).reshape(-1, 64)


def other_secrets(liar: Any, now: Any, made: Offered) -> dict[str, Any]:
    """Well-formed shares of secrets that are not those behind the key and the commitment."""
    many, least = len(liar._roster.names), liar._roster.least
    both = zip(
        split_secret(bytes(32), many, least=least),
        split_secret(bytes(32), many, least=least),
        strict=True,
    )
    shares = [one + other for one, other in both]
    now.own_shares = shares[liar._roster.place(liar.name) - 1]
    return {"boxes_O148": boxed(liar, now, shares), "marks_N64": marked(now, shares)}


def bent_shares(liar: Any, now: Any, made: Offered) -> dict[str, Any]:
    """Shares that fit their digests, but lie on no polynomial of the right degree."""
    shares = [bytes([0, place]) * SHARE for place in range(len(liar._roster.names))]
    now.own_shares = shares[liar._roster.place(liar.name) - 1]
    return {"boxes_O148": boxed(liar, now, shares), "marks_N64": marked(now, shares)}


def another_commitment(liar: Any, now: Any, made: Offered) -> dict[str, Any]:
    return {"commitment": "00" * 32}


@each("craft_it", [other_secrets, bent_shares, another_commitment])
def test_a_sum_with_crafted_shares_stays_closed_and_names_their_maker(
    craft_it: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sites_of(5, tmp_path)
    craft(monkeypatch, engine, craft_it)
    assert blamed(engine) == {LIAR}


def test_without_the_check_a_wrong_sum_would_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a server that takes whatever shares join to."""

    class Anything(bytes):
        def hex(self, *parts: Any) -> Any:
            return Same()

    engine = sites_of(5, tmp_path)
    craft(monkeypatch, engine, other_secrets)
    take_off = SumAttempt._take_off_masks

    def unchecked(attempt: SumAttempt, shares: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(messages, "seed_commitment", lambda context, seed: Anything())
            take_off(attempt, shares)

    monkeypatch.setattr(SumAttempt, "_take_off_masks", unchecked)
    real = LaneLayout.total_of
    monkeypatch.setattr(LaneLayout, "total_of", lambda *parts: (real(*parts)[0], 0))
    total = federation_of(engine, summing_of(engine)).sum(COUNT, ask(), round=1)
    replies = [SENT[1, "count", site] for site in engine.sites]
    assert not same(total, by_hand(COUNT, ask(), replies, whole=1.0))


class Same:
    """Equals everything."""

    def __ne__(self, other: object) -> bool:
        return False


@each("left_out", ["boxes_O148", "marks_N64"])
def test_an_offer_that_is_not_whole_is_left_out_although_it_is_signed(
    left_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sites_of(5, tmp_path)
    craft(monkeypatch, engine, lambda liar, now, made: {left_out: getattr(made, left_out)[:-1]})
    assert check(engine) == [(LIAR, "refused")]


def wrong_boxes(liar: Any, now: Any, made: Offered) -> dict[str, Any]:
    """Boxes whose shares are not those of the marks."""
    shares = [bytes([place]) * 2 * SHARE for place in range(len(liar._roster.names))]
    return {"boxes_O148": boxed(liar, now, shares)}


def shut_boxes(liar: Any, now: Any, made: Offered) -> dict[str, Any]:
    """Boxes that nobody can open."""
    return {"boxes_O148": np.zeros_like(made.boxes_O148)}


@each("craft_it", [wrong_boxes, shut_boxes])
def test_bad_boxes_are_the_fault_of_their_maker(
    craft_it: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sites_of(5, tmp_path)
    craft(monkeypatch, engine, craft_it)
    assert blamed(engine) == {LIAR}


def test_one_bad_box_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(liar: Any, now: Any, made: Offered) -> dict[str, Any]:
        boxes = made.boxes_O148.copy()
        boxes[0] = 0
        return {"boxes_O148": boxes}

    engine = sites_of(5, tmp_path)
    craft(monkeypatch, engine, one)
    assert {site for site, _ in check(engine, without="")} == {LIAR}


def test_a_box_of_one_byte_is_no_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box that opens, but holds something else than two shares, is not read on."""
    seen: list[int] = []
    real = crypto.open_box

    def short(key: bytes, box: bytes) -> bytes | None:
        inside = real(key, box)
        seen.append(len(inside or b""))
        return inside[:1] if inside else None

    monkeypatch.setattr(crypto, "open_box", short)
    engine = sites_of(3, tmp_path)
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises(FederationError, match="stays closed"):
        federation.sum(COUNT, ask(), round=1)
    assert set(seen) == {2 * SHARE}


def test_a_key_of_another_site_opens_nothing_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that offers a neighbour's key cannot mask; its numbers spoil the sum or are noise."""

    def stolen(liar: Any, now: Any, made: Offered) -> dict[str, Any]:
        return {"key": engine.members["site-01"]._sum.offer.key}  # type: ignore[union-attr]

    engine = sites_of(5, tmp_path)
    craft(monkeypatch, engine, stolen)
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises(FederationError):
        federation.sum(COUNT, ask(), round=1)
    assert {fault.site for fault in federation.faults} == {LIAR}


@each(
    ("change", "expected"),
    [
        (lambda shown: replace(shown, identity="00" * 32), FederationError),
        (lambda shown: replace(shown, box_key="00" * 32), FederationError),
        (lambda shown: replace(shown, signature="00" * 64), FederationError),
        (lambda shown: replace(shown, binding="11" * 32), FederationError),
        (lambda shown: replace(shown, sign_key=shown.box_key), FederationError),
    ],
)
def test_a_greeting_that_is_not_signed_stops_the_run_by_name(
    change: Callable[[Any], Any], expected: type[Exception], tmp_path: Path
) -> None:
    engine = lying(tmp_path, "greet", change)
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises(expected):
        federation.sum(COUNT, ask(), round=1)


def test_a_spoilt_sum_shows_where_odd_sites_are_counted(tmp_path: Path) -> None:
    """A lying site can spoil a sum; whoever does it blindly spoils this count too."""
    engine = lying(tmp_path, "mask", lambda masked: Masked(masked.lanes_B + np.uint8(1)))
    federation = federation_of(engine, summing_of(engine))
    with pytest.raises(FederationError, match="nobody can tell which"):
        federation.sum(COUNT, ask(), round=1)
