"""What a site refuses in the four exchanges, and what it gives again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.federation.failures import Refusal
from confide.federation.messages import encode
from confide.federation.secure import crypto, messages
from confide.federation.secure.crypto import box_info, derive_key, open_box
from confide.federation.secure.lanes import LaneLayout
from confide.federation.secure.messages import Agree, Mask, Unmask
from confide.federation.secure.site import SumState
from federation.secure.plays import (
    LAYOUT,
    Curious,
    Forgetful,
    Heard,
    Noted,
    Ring,
    ask_of,
    honest_play,
    member,
    named,
    offer,
    plus,
    ring,
)
from federation.secure.test_primitives import LOW_ORDER

FIVE = named(5)
OWN = FIVE[0]


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as raised:
        call()
    return raised.value.code


def masked(made: Ring, first: Sequence[str] = FIVE) -> Ring:
    for name in first:
        made.members[name].mask(made.mask_for(name, first))
    return made


def signatures(made: Ring, second: Sequence[str] = FIVE) -> dict[str, str]:
    return {name: made.members[name].agree(made.agree_on(second)).signature for name in second}


# --- one sum -----------------------------------------------------------------------------


@each("second", [FIVE, FIVE[:4], FIVE[1:]])
def test_an_honest_sum_opens_to_the_sum_and_nothing_else(second: list[str]) -> None:
    made = ring(5)
    heard = honest_play(made, FIVE, second)
    found = Curious(made, heard, colluders=[]).opened()
    assert list(found) == [frozenset(second)]
    wanted = plus(LAYOUT, [made.numbers[name] for name in second])
    assert np.array_equal(found[frozenset(second)], wanted)
    assert made.settled == second


def test_a_late_mask_stays_shut() -> None:
    """A site is lost, its key is put together, and then its masked numbers come after all."""
    made = ring(5)
    heard = honest_play(made, FIVE, FIVE[:4])
    curious = Curious(made, heard, colluders=[])
    assert "site-05" in curious.keys and "site-05" in heard.masked
    assert "site-05" not in curious.seeds
    assert list(curious.opened()) == [frozenset(FIVE[:4])]


def test_without_its_own_mask_a_late_one_would_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the second mask of Bonawitz et al. is what keeps it shut."""
    made = ring(5)
    real = crypto.add_streams
    first: list[bytes] = []

    def skip_own(parts: Any, keys: list[tuple[bytes, int]]) -> None:
        real(parts, [(key, sign) for key, sign in keys if key not in first])

    first += [
        crypto.derive_key(made.inside(name).seed, crypto.own_info(made.context)) for name in FIVE
    ]
    monkeypatch.setattr(crypto, "add_streams", skip_own)
    heard = honest_play(made, FIVE, FIVE[:4])
    monkeypatch.undo()
    curious = Curious(made, heard, colluders=[])
    late = heard.masked["site-05"].copy()
    curious.seeds["site-05"] = bytes(32)
    bare = curious._bare("site-05", set())
    parts = LAYOUT.by_width(bare)
    own = crypto.derive_key(bytes(32), crypto.own_info(made.context))
    crypto.add_streams(parts, [(own, 1)])  # `_bare` took off a mask that was never there
    assert np.array_equal(bare, made.numbers["site-05"])
    assert not np.array_equal(late, made.numbers["site-05"])


def test_up_to_the_bound_of_colluders_learn_the_sum_of_the_others() -> None:
    made = ring(5)
    heard = honest_play(made, FIVE, FIVE)
    found = Curious(made, heard, colluders=FIVE[4:]).opened()
    assert list(found) == [frozenset(FIVE[:4])]


def test_masked_zeros_look_like_noise() -> None:
    """Chi-square of the bytes of 40,000 lanes of zeros, on 255 degrees of freedom."""
    from scipy.stats import chi2

    parts = (*LAYOUT.parts[:1], replace(LAYOUT.parts[1], shape=(40_000,)))
    layout = LaneLayout(parts, 8.0)
    zeros = {name: np.zeros(layout.length, np.uint8) for name in FIVE}
    made = ring(5, layout=layout, numbers=zeros)
    found = [made.members[name].mask(made.mask_for(name, FIVE)).lanes_B for name in FIVE]
    low, high = chi2.ppf([1e-7, 1 - 1e-7], 255)
    for lanes in found:
        counts = np.bincount(lanes, minlength=256)
        even = len(lanes) / 256
        assert low < ((counts - even) ** 2 / even).sum() < high
    for one, other in zip(found, found[1:], strict=False):
        both = np.bincount(one ^ other, minlength=256)
        even = len(one) / 256
        assert low < ((both - even) ** 2 / even).sum() < high


def test_lanes_of_different_widths_share_no_byte_of_a_keystream() -> None:
    """Zeros under masks, laid end to end, are the sum of keystreams from their first byte on.

    The same numbers in two parts of one reply come out different (Fed-BioMed's LOM masked several
    vectors of a reply alike, so that their difference was bare).
    """
    layout = replace(
        LAYOUT, parts=(*LAYOUT.parts[:2], replace(LAYOUT.parts[1], name="b"), LAYOUT.parts[2])
    )
    zeros = {name: np.zeros(layout.length, np.uint8) for name in FIVE}
    made = ring(5, layout=layout, numbers=zeros)
    lanes = made.members[OWN].mask(made.mask_for(OWN, FIVE)).lanes_B
    views = layout.views(lanes)
    one, two = views["weights", "a"], views["weights", "b"]
    assert not np.array_equal(one, two) and np.array_equal(one - one, np.zeros(5))
    assert len(set(lanes.view("<u2").tolist())) > 0.9 * layout.length / 2


# --- the same again, and something else ----------------------------------------------------


def test_the_same_message_gets_the_same_bytes_from_memory() -> None:
    made = ring(5)
    first = {"mask": made.mask_for(OWN, FIVE), "agree": made.agree_on(FIVE)}
    own = made.members[OWN]
    said = {"mask": encode(own.mask(first["mask"]))}
    for name in FIVE[1:]:
        made.members[name].mask(made.mask_for(name, FIVE))
    said["agree"] = encode(own.agree(first["agree"]))  # type: ignore[arg-type]
    signed = {OWN: own.agree(made.agree_on(FIVE)).signature}
    signed |= {name: made.members[name].agree(made.agree_on(FIVE)).signature for name in FIVE[1:]}
    unmask = made.unmask_with(signed)
    said["unmask"] = encode(own.unmask(unmask))
    for _ in range(2):
        assert encode(own.mask(first["mask"])) == said["mask"]  # type: ignore[arg-type]
        assert encode(own.agree(first["agree"])) == said["agree"]  # type: ignore[arg-type]
        assert encode(own.unmask(unmask)) == said["unmask"]
    assert made.settled == [OWN]


def test_an_opening_that_was_answered_gets_the_same_offer() -> None:
    made = ring(5)
    own = made.members[OWN]
    again = own.offered(ask_of(made))
    assert again is not None and encode(again) == encode(made.offers[OWN])
    masked(made)
    again = own.offered(ask_of(made))
    assert again is not None and encode(again) == encode(made.offers[OWN])


def test_a_second_offer_of_other_content_is_refused() -> None:
    """The same turn and attempt with another layout: for it the site has keys already."""
    made = ring(5)
    other = LaneLayout(LAYOUT.parts[:2], LAYOUT.whole)
    own = made.members[OWN]
    assert code_of(lambda: own.offered(ask_of(made, layout=other))) == "second-ask"
    masked(made)  # and the sum goes on


def test_a_sum_is_offered_to_once_in_the_life_of_a_process() -> None:
    """Sum A, sum B, sum A: two offers to one sum would seal two boxes for each other site."""
    made = ring(5)
    own, first = made.members[OWN], made.opening
    for attempt in (1, 2):
        made.opening = replace(first, attempt=first.attempt + attempt)
        assert own.offered(ask_of(made)) is None
        offer(made, OWN)
        again = own.offered(ask_of(made))
        assert again is not None and encode(again) == encode(made.offers[OWN])
        assert code_of(lambda: own.offered(ask_of(made, opening=first))) == "second-ask"
        made.opening = first
        assert code_of(lambda: offer(made, OWN)) == "second-ask"


def test_a_box_is_sealed_for_one_offer() -> None:
    """Were a sum offered to twice all the same, no key would seal two boxes."""
    made = ring(5)
    boxes = made.offers[OWN].boxes_O148.copy()
    made.members[OWN]._offered.clear()
    key = made.offers[OWN].key
    assert offer(made, OWN).key != key
    session = made.members[OWN]._session
    assert session is not None
    peer = made.roster.peer(FIVE[1])
    shared = session.box_secret_with(peer.box_key)
    offered = bytes.fromhex(made.offers[OWN].key)
    info = box_info(made.context, OWN, peer.name, offered=offered)
    assert open_box(derive_key(shared, info), made.offers[OWN].boxes_O148[0].tobytes()) is not None
    assert open_box(derive_key(shared, info), boxes[0].tobytes()) is None


def test_a_second_mask_of_other_content_is_refused() -> None:
    made = masked(ring(5))
    own = made.members[OWN]
    assert code_of(lambda: own.mask(made.mask_for(OWN, FIVE[:4]))) == "second-ask"
    ask = made.mask_for(OWN, FIVE)
    boxes = ask.own_M148.copy()
    boxes[0, 0] ^= 1
    assert code_of(lambda: own.mask(replace(ask, own_M148=boxes))) == "second-ask"


def test_a_second_set_is_never_signed() -> None:
    made = masked(ring(5))
    signatures(made, FIVE)
    for second in (FIVE[:4], FIVE[1:], FIVE[:3], []):
        other = made.agree_on(second)
        assert code_of(partial(made.members[OWN].agree, other)) == "second-ask"


def test_a_second_unmasking_of_other_content_is_refused() -> None:
    made = masked(ring(5))
    signed = signatures(made)
    own = made.members[OWN]
    own.unmask(made.unmask_with(signed))
    fewer = dict(list(signed.items())[:4])
    assert code_of(lambda: own.unmask(made.unmask_with(fewer))) == "second-ask"


def test_without_the_refusal_of_second_sets_both_secrets_would_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that refusal is what keeps a site's key and seed apart."""
    made = ring(5)
    heard = honest_play(made, FIVE, FIVE)
    again = made.again()
    masked(again)
    monkeypatch.setattr(SumState, "again", lambda now, exchange, ask: None)
    second = FIVE[:4]
    signed = {name: again.members[name].agree(again.agree_on(second)).signature for name in second}
    more = Heard(dict.fromkeys(FIVE, (FIVE, second)), masked=heard.masked)
    for name in second:
        more.shares[name] = again.members[name].unmask(again.unmask_with(signed))
    key = Curious(again, more, colluders=[]).keys["site-05"]
    curious = Curious(made, heard, colluders=[])
    curious.keys["site-05"] = key
    assert frozenset(["site-05"]) in curious.opened()


# --- order and sets ------------------------------------------------------------------------


def test_exchanges_come_in_order() -> None:
    made = ring(5)
    own = made.members[OWN]
    assert code_of(lambda: own.agree(made.agree_on(FIVE))) == "early-ask"
    assert code_of(lambda: own.unmask(made.unmask_with(dict.fromkeys(FIVE, "00")))) == "early-ask"
    own.mask(made.mask_for(OWN, FIVE))
    assert code_of(lambda: own.unmask(made.unmask_with(dict.fromkeys(FIVE, "00")))) == "early-ask"


def test_a_site_knows_only_its_present_sum() -> None:
    made = ring(5)
    own = made.members[OWN]
    before = made.context
    made.opening = replace(made.opening, attempt=made.opening.attempt + 1)
    offer(made, OWN)
    made.context = bytes(32)
    for call in (
        lambda: own.mask(made.mask_for(OWN, FIVE)),
        lambda: own.agree(made.agree_on(FIVE)),
        lambda: own.unmask(made.unmask_with({})),
    ):
        assert code_of(call) == "no-sum"
    made.context = before
    assert code_of(lambda: member(OWN).mask(made.mask_for(OWN, FIVE))) == "no-sum"


@each(
    ("first", "code"),
    [
        (FIVE[:3], "bad-set"),  # fewer than t = 4
        (FIVE[1:], "bad-set"),  # without the site itself
        ([OWN], "bad-set"),
    ],
)
def test_sets_of_offers_that_are_refused(first: list[str], code: str) -> None:
    made = ring(5)
    ask = made.mask_for(OWN, [*first, OWN] if OWN not in first else first)
    if OWN not in first:
        place = ask.names.index(OWN)
        lists = ("names", "keys", "commitments", "boxes", "marks", "signatures")
        cut = {name: [v for k, v in enumerate(getattr(ask, name)) if k != place] for name in lists}
        ask = replace(ask, **cut)  # type: ignore[arg-type]
    assert code_of(lambda: made.members[OWN].mask(ask)) == code


@each(
    ("change", "code"),
    [
        (lambda ask: replace(ask, names=[*ask.names[:4], "site-09"]), "bad-set"),
        (lambda ask: replace(ask, names=ask.names[::-1]), "bad-set"),
        (lambda ask: replace(ask, names=[*ask.names[:4], ask.names[3]]), "bad-set"),
        (lambda ask: replace(ask, names=ask.names[:4]), "bad-ask"),
        (lambda ask: replace(ask, signatures=[]), "bad-ask"),
        (lambda ask: replace(ask, keys=ask.keys[:-1]), "bad-ask"),
        (lambda ask: replace(ask, own_M148=ask.own_M148[:-1]), "bad-ask"),
        (lambda ask: replace(ask, own_marks_M64=ask.own_marks_M64[:-1]), "bad-ask"),
        (lambda ask: replace(ask, keys=[*ask.keys[:4], "00" * 32]), "bad-offer"),
        (lambda ask: replace(ask, keys=[*ask.keys[:4], ask.keys[0]]), "bad-offer"),
        (lambda ask: replace(ask, keys=[*ask.keys[:4], "zz"]), "bad-ask"),
        (lambda ask: replace(ask, signatures=[*ask.signatures[:4], "00" * 64]), "bad-offer"),
        (lambda ask: replace(ask, signatures=[ask.signatures[0]] * 5), "bad-offer"),
        (lambda ask: replace(ask, commitments=["00" * 32] * 5), "bad-offer"),
        (lambda ask: replace(ask, boxes=["00" * 32] * 5), "bad-offer"),
        (lambda ask: replace(ask, marks=["00" * 32] * 5), "bad-offer"),
    ],
)
def test_offers_that_the_server_made_up(change: Callable[[Mask], Mask], code: str) -> None:
    made = ring(5)
    assert code_of(lambda: made.members[OWN].mask(change(made.mask_for(OWN, FIVE)))) == code
    masked(made)  # nothing was lost by it


@each("point", LOW_ORDER)
def test_a_key_of_low_order_that_a_colluder_signs(point: str) -> None:
    """Everyone could compute a mask with it."""
    made = ring(5)
    colluder = made.members["site-05"]
    assert colluder._session is not None
    ask = made.mask_for(OWN, FIVE)
    said = messages.offer_statement(
        made.context, point, commitment=ask.commitments[4], boxes=ask.boxes[4], marks=ask.marks[4]
    )
    signed = colluder._session.signer.sign(said).hex()
    bad = replace(ask, keys=[*ask.keys[:4], point], signatures=[*ask.signatures[:4], signed])
    assert code_of(lambda: made.members[OWN].mask(bad)) == "bad-offer"


def test_an_offer_of_another_sum_does_not_count() -> None:
    """The same sites, the same round: an older attempt's offer is signed over another context."""
    made = ring(5)
    older = ring(5, members=list(made.members.values()))
    ask = older.mask_for(OWN, FIVE)
    stale = replace(
        ask,
        keys=[*ask.keys[:4], made.offers["site-05"].key],
        signatures=[*ask.signatures[:4], made.offers["site-05"].signature],
    )
    assert code_of(lambda: older.members[OWN].mask(stale)) == "bad-offer"


def test_the_sites_own_offer_must_be_its_present_one() -> None:
    made = ring(5)
    before = made.offers[OWN]
    made.opening = replace(made.opening, attempt=made.opening.attempt + 1)
    offer(made, OWN)
    made.offers[OWN], made.context = before, made.inside(OWN).context
    assert code_of(lambda: made.members[OWN].mask(made.mask_for(OWN, FIVE))) == "bad-offer"


@each("second", [FIVE[1:], FIVE[:3], [], [*FIVE, "site-09"], FIVE[::-1], [*FIVE[:4], FIVE[3]]])
def test_sets_that_are_never_signed(second: list[str]) -> None:
    made = masked(ring(5))
    ask = Agree(made.context.hex(), second)
    assert code_of(lambda: made.members[OWN].agree(ask)) == "bad-set"


def test_a_set_beyond_the_offers_is_never_signed() -> None:
    made = masked(ring(5), FIVE[:4])
    assert code_of(lambda: made.members[OWN].agree(made.agree_on(FIVE))) == "bad-set"


def test_a_set_smaller_than_the_sites_own_guard_is_never_signed() -> None:
    made = ring(5, members=[member(name, least=5) for name in FIVE])
    assert code_of(lambda: made.members[OWN].mask(made.mask_for(OWN, FIVE[:4]))) == "bad-set"
    masked(made)
    assert code_of(lambda: made.members[OWN].agree(made.agree_on(FIVE[:4]))) == "bad-set"
    signed = signatures(made)
    fewer = dict(list(signed.items())[:4])
    own = made.members[OWN]
    assert code_of(lambda: own.unmask(made.unmask_with(fewer))) == "few-signatures"
    own.unmask(made.unmask_with(signed))


# --- signatures ----------------------------------------------------------------------------


def unmask_of(made: Ring, signed: dict[str, str]) -> str:
    return code_of(lambda: made.members[OWN].unmask(made.unmask_with(signed)))


def test_too_few_signatures_open_nothing() -> None:
    made = masked(ring(5))
    signed = signatures(made)
    assert unmask_of(made, dict(list(signed.items())[:3])) == "few-signatures"
    assert unmask_of(made, {}) == "few-signatures"
    own = made.members[OWN]
    own.unmask(made.unmask_with(dict(list(signed.items())[:4])))  # t = 4 are enough


def test_signatures_that_do_not_count() -> None:
    made = masked(ring(5))
    signed = signatures(made)
    one = signed[OWN]
    assert unmask_of(made, dict.fromkeys(FIVE, one)) == "few-signatures"
    assert unmask_of(made, {**signed, "site-05": "00" * 64}) == "few-signatures"
    assert unmask_of(made, {**signed, "site-05": "no hex"}) == "few-signatures"
    other = made.signed_by("site-05", FIVE, FIVE[:4])
    assert unmask_of(made, {**signed, "site-05": other}) == "few-signatures"
    fewer = made.signed_by("site-05", FIVE[:4], FIVE[:4])
    assert unmask_of(made, {**signed, "site-05": fewer}) == "few-signatures"
    assert unmask_of(made, {**signed, "site-09": one}) == "few-signatures"


def test_one_signature_does_not_count_twice() -> None:
    made = masked(ring(5))
    signed = signatures(made)
    names = [OWN, OWN, OWN, "site-02"]
    twice = Unmask(made.context.hex(), names, [signed[name] for name in names])
    assert code_of(lambda: made.members[OWN].unmask(twice)) == "bad-set"
    short = Unmask(made.context.hex(), FIVE, [signed[OWN]])
    assert code_of(lambda: made.members[OWN].unmask(short)) == "bad-set"


def test_only_sites_of_the_set_sign_it() -> None:
    """A colluder outside the set signs it too; that is none of the signatures that are needed."""
    made = masked(ring(5))
    second = FIVE[:4]
    signed = signatures(made, second)
    del signed["site-02"]
    signed["site-05"] = made.signed_by("site-05", FIVE, second)
    assert unmask_of(made, signed) == "few-signatures"


def test_a_signature_of_another_sum_does_not_count() -> None:
    made = masked(ring(5))
    signed = signatures(made)
    later = masked(ring(5, members=list(made.members.values())))
    signatures(later)
    assert unmask_of(later, signed) == "few-signatures"


# --- what is written down, and what is forgotten -------------------------------------------


def test_a_set_is_written_down_before_the_shares_leave() -> None:
    class Full(Forgetful):
        def claim(self, turn: object, names: list[str]) -> None:
            raise Refusal("other-set")

    made = ring(5, members=[member(name, record=Full()) for name in FIVE])
    masked(made)
    signed = signatures(made)
    assert unmask_of(made, signed) == "other-set"
    assert made.settled == []
    noted = Noted()
    made.members[OWN].record = noted
    made.members[OWN].unmask(made.unmask_with(signed))
    assert [names for _, names in noted.claims] == [FIVE]
    assert made.settled == [OWN]


def test_secrets_are_forgotten_once_the_sum_is_open() -> None:
    made = ring(5)
    honest_play(made, FIVE, FIVE)
    now = made.inside(OWN)
    assert (now.secret, now.seed, now.own_shares, now.held, now.lanes) == (b"", b"", b"", {}, None)
    made = ring(5)
    now = made.inside(OWN)
    for secret in (now.secret, now.seed, now.own_shares):
        assert str(secret) not in repr(now) and secret.hex() not in repr(now)


def test_a_new_meeting_ends_the_present_sum() -> None:
    """Keys of another roster would be under another context."""
    made = ring(5)
    others = [made.members[OWN], *[member(name) for name in FIVE[1:]]]
    ring(5, members=others)
    assert code_of(lambda: made.members[OWN].mask(made.mask_for(OWN, FIVE))) == "no-sum"


@each("attempt", [-1, 2**63, -(2**63)])
def test_an_attempt_is_a_natural_number(attempt: int) -> None:
    made = ring(5)
    odd = replace(made.opening, attempt=attempt)
    own = made.members[OWN]
    assert code_of(lambda: own.offered(ask_of(made, opening=odd))) == "bad-ask"


def test_an_opening_for_another_roster_is_refused() -> None:
    made = ring(5)
    odd = replace(made.opening, roster="00" * 32)
    own = made.members[OWN]
    assert code_of(lambda: own.offered(ask_of(made, opening=odd))) == "not-met"
    stranger = member(OWN)
    assert code_of(lambda: stranger.offered(ask_of(made, opening=odd))) == "not-met"
