"""Rosters that a server chooses: other sites, other keys, fewer of them, or fewer who collude."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cases import each
from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.secure import crypto
from confide.federation.secure.crypto import public_key
from confide.federation.secure.messages import Greet, Meet, colluders, roster_of, threshold
from federation.secure.plays import BINDING, RUN, meeting, member, named
from federation.secure.test_primitives import LOW_ORDER

LISTS = ("names", "identities", "box_keys", "sign_keys", "signatures", "bindings")


def chosen(meet: Meet, places: list[int]) -> Meet:
    """The same meeting with only these places, in this order."""
    lists = [name for name in Meet.__dataclass_fields__ if isinstance(getattr(meet, name), list)]
    return replace(meet, **{name: [getattr(meet, name)[k] for k in places] for name in lists})


def swapped(meet: Meet, column: str, one: int = 0, other: int = 1) -> Meet:
    """The same meeting with two sites' values of one column swapped."""
    values = list(getattr(meet, column))
    values[one], values[other] = values[other], values[one]
    return replace(meet, **{column: values})


def put(meet: Meet, column: str, value: str, place: int = 1) -> Meet:
    values = list(getattr(meet, column))
    values[place] = value
    return replace(meet, **{column: values})


def refusal(meet: Meet, **parts: object) -> str:
    """The code with which the first site refuses a meeting."""
    own = MEMBERS[0]
    for name, value in {"colluding": None, "least": 1, "vet": None, **parts}.items():
        setattr(own, name, value)
    with pytest.raises(Refusal) as raised:
        own.meet(meet)
    return raised.value.code


KEYS = [Ed25519PrivateKey.generate() for _ in named(5)]
MEMBERS = [member(name, identity=key) for name, key in zip(named(5), KEYS, strict=True)]
MEET = meeting(MEMBERS, colluding=1)
PINS = dict(zip(MEET.names, MEET.identities, strict=True))


def pinned(ask: Meet) -> None:
    """Refuse all but these very sites and keys."""
    if dict(zip(ask.names, ask.identities, strict=True)) != PINS:
        raise Refusal("other-roster")


# --- the threshold -----------------------------------------------------------------------


def test_two_sums_always_share_an_honest_site() -> None:
    """t is the least number with 2t > n + c, and at least two honest sites hide each other."""
    for sites, colluding in ((n, c) for n in range(1, 120) for c in range(1, n)):
        try:
            least = threshold(sites, colluding)
        except SettingsError:
            lowest = next(t for t in range(sites + 2 + colluding) if 2 * t > sites + colluding)
            assert lowest > sites or lowest - colluding < 2
            continue
        assert 2 * least > sites + colluding >= 2 * (least - 1)
        assert least <= sites and least - colluding >= 2


def test_the_default_number_of_colluders() -> None:
    for sites in range(3, 200):
        assert colluders(sites) == max(1, -(-sites // 3) - 1)
        assert threshold(sites, colluders(sites)) <= sites


def test_three_sites_cannot_lose_one_and_five_can() -> None:
    assert [n - threshold(n, colluders(n)) for n in (3, 4, 5)] == [0, 1, 1]


@each(("sites", "colluding"), [(0, 0), (1, 0), (2, 0), (2, 1), (3, 2), (5, 0), (5, -1)])
def test_too_few_sites_to_hide_one(sites: int, colluding: int) -> None:
    with pytest.raises(SettingsError):
        threshold(sites, colluding)


def test_a_group_has_a_threshold_of_its_own_and_may_be_too_small() -> None:
    roster = roster_of(MEET, run=RUN, binding=BINDING)
    group = roster.part(named(5)[1:4])
    assert (group.names, group.least) == (tuple(named(5)[1:4]), threshold(3, 1))
    assert group.id not in (roster.id, roster.part(named(5)[:3]).id)
    for names in ([], named(5)[:1], named(5)[:2]):
        with pytest.raises(SettingsError):
            roster.part(names)


# --- what a server may not choose --------------------------------------------------------


def test_a_sound_meeting_is_met() -> None:
    for one in MEMBERS:
        one.vet, one.colluding, one.least = pinned, 1, 5
        met = one.meet(MEET)
        assert met.roster == roster_of(MEET, run=RUN, binding=BINDING).id.hex()


@each(
    ("change", "code"),
    [
        (lambda: chosen(MEET, [0, 1, 2, 3]), "other-roster"),  # a smaller one
        (lambda: chosen(MEET, [0, 1, 2]), "other-roster"),
        (lambda: swapped(MEET, "identities"), "other-roster"),
        (lambda: put(MEET, "names", "site-09", 4), "other-roster"),
        (lambda: put(MEET, "identities", "ab" * 32, 4), "other-roster"),
        (lambda: put(MEET, "identities", MEET.identities[2], 4), "other-roster"),
        (lambda: put(MEET, "identities", MEET.identities[1].upper(), 1), "other-roster"),
        (lambda: replace(MEET, names=MEET.names[:-1]), "bad-ask"),
        (lambda: replace(MEET, identities=MEET.identities[:-1]), "bad-ask"),
    ],
)
def test_a_roster_other_than_the_pinned_one(change: Callable[[], Meet], code: str) -> None:
    assert refusal(change(), vet=pinned) == code


def test_without_pins_a_smaller_roster_would_pass() -> None:
    """So the pins are what stops it: four of five sites, or a stranger, are met."""
    own = MEMBERS[0]
    own.vet, own.colluding, own.least = None, None, 1
    own.meet(chosen(MEET, [0, 1, 2, 3]))
    stranger = meeting([*MEMBERS[:4], member("site-09")], colluding=1)
    own.meet(stranger)


@each(
    ("change", "code"),
    [
        (lambda: chosen(MEET, [1, 2, 3, 4]), "other-roster"),  # without the site itself
        (lambda: chosen(MEET, [0, 2, 1, 3, 4]), "bad-ask"),  # not in order
        (lambda: chosen(MEET, [0, 1, 1, 3, 4]), "bad-ask"),  # one twice
        (lambda: replace(MEET, box_keys=MEET.box_keys[:-1]), "bad-ask"),
        (lambda: replace(MEET, signatures=[]), "bad-ask"),
        (lambda: put(MEET, "box_keys", "zz" * 32), "bad-ask"),
        (lambda: put(MEET, "box_keys", "ab" * 31), "bad-ask"),
        (lambda: put(MEET, "sign_keys", ""), "bad-ask"),
        (lambda: swapped(MEET, "box_keys"), "bad-greeting"),
        (lambda: swapped(MEET, "sign_keys", 2, 3), "bad-greeting"),
        (lambda: swapped(MEET, "signatures", 2, 3), "bad-greeting"),
        (lambda: swapped(MEET, "identities", 2, 3), "bad-greeting"),
        (lambda: put(MEET, "box_keys", public_key(bytes(range(32))).hex()), "bad-greeting"),
        (lambda: put(MEET, "bindings", "11" * 32), "bad-greeting"),
        (lambda: put(MEET, "accounts", "1 " + "ab" * 32), "bad-greeting"),
        (lambda: replace(MEET, accounts=MEET.accounts[:-1]), "bad-ask"),
        (lambda: replace(MEET, colluding=4), "few-sites"),
        (lambda: replace(MEET, colluding=0), "few-sites"),
        (lambda: replace(MEET, colluding=-1), "few-sites"),
    ],
)
def test_greetings_that_do_not_hold(change: Callable[[], Meet], code: str) -> None:
    assert refusal(change()) == code


def signed_by(name: str, key: object, *, run: str = RUN, **parts: object) -> dict[str, str]:
    """A greeting that a colluder signs: whatever it likes, by its own identity key."""
    own = {"binding": BINDING, **parts}
    return vars(member(name, identity=key, **own).greet(Greet(run)))


def replaced(greeting: dict[str, str], place: int) -> Meet:
    meet = MEET
    columns = {"identity": "identities", "box_key": "box_keys", "sign_key": "sign_keys",
               "signature": "signatures", "binding": "bindings", "account": "accounts"}  # fmt: skip
    for field, column in columns.items():
        meet = put(meet, column, greeting[field], place)
    return meet


def test_one_identity_under_two_names() -> None:
    """A colluder that counts twice would make up the number of honest sites."""
    again = signed_by("site-05", KEYS[3])
    assert refusal(replaced(again, 4)) == "bad-greeting"


def test_one_identity_in_two_spellings() -> None:
    """The same key in capitals, or with blanks, is the same key."""
    for spell in (str.upper, lambda text: " ".join([text[:10], text[10:]])):
        again = signed_by("site-05", KEYS[3])
        again["identity"] = spell(again["identity"])
        assert refusal(replaced(again, 4)) in ("bad-greeting", "bad-ask")


def test_a_greeting_of_another_run_or_other_settings() -> None:
    assert refusal(replaced(signed_by("site-05", KEYS[4], run="other"), 4)) == "bad-greeting"
    other = signed_by("site-05", KEYS[4], binding=b"c" * 32)
    assert refusal(replaced(other, 4)) == "other-binding"


@each("point", LOW_ORDER)
def test_a_box_key_of_low_order(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto, "public_key", lambda secret: bytes.fromhex(point))
    shown = signed_by("site-05", KEYS[4])
    monkeypatch.undo()
    assert shown["box_key"] == point
    assert refusal(replaced(shown, 4)) == "bad-greeting"


def test_an_older_greeting_of_this_very_site() -> None:
    """Keys of a process that has ended: nobody could open what is sealed for them."""
    own = signed_by("site-01", KEYS[0])
    assert refusal(replaced(own, 0)) == "other-roster"


def test_fewer_colluders_than_the_site_supposes() -> None:
    """The threshold would be lower, and a sum could be over fewer honest sites."""
    assert refusal(replace(MEET, colluding=0), colluding=1) == "other-roster"
    assert refusal(MEET, colluding=2) == "other-roster"
    MEMBERS[0].colluding = 1
    MEMBERS[0].vet, MEMBERS[0].least = None, 1
    MEMBERS[0].meet(MEET)


def test_a_roster_smaller_than_the_sites_own_guard() -> None:
    assert refusal(MEET, least=6) == "few-sites"


def test_a_site_that_has_not_greeted_meets_nobody() -> None:
    with pytest.raises(Refusal) as raised:
        member("site-01").meet(MEET)
    assert raised.value.code == "not-met"


def test_every_part_of_a_roster_is_in_its_name() -> None:
    """Run, threshold, colluders, names and all keys; a change of any gives other contexts."""
    ids = {roster_of(MEET, run=RUN, binding=BINDING).id}
    ids.add(roster_of(replace(MEET, colluding=2), run=RUN, binding=BINDING).id)
    ids.add(roster_of(chosen(MEET, [0, 1, 2, 3]), run=RUN, binding=BINDING).id)
    ids.add(roster_of(replaced(signed_by("site-05", KEYS[4]), 4), run=RUN, binding=BINDING).id)
    members = [member(name, identity=key) for name, key in zip(named(5), KEYS, strict=True)]
    again = meeting(members, colluding=1, run="other")
    ids.add(roster_of(again, run="other", binding=BINDING).id)
    assert len(ids) == 5


def test_keys_are_those_of_a_process_and_a_run() -> None:
    one = member("site-01", identity=KEYS[0])
    first = one.greet(Greet(RUN))
    assert one.greet(Greet(RUN)) == first
    other = one.greet(Greet("other"))
    assert other.identity == first.identity
    assert other.box_key != first.box_key and other.sign_key != first.sign_key
    again = member("site-01", identity=KEYS[0]).greet(Greet(RUN))
    assert again.box_key != first.box_key and again.sign_key != first.sign_key
    assert "secret" not in repr(one._session) and "signer" not in repr(one._session)
