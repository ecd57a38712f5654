"""Shares: known answers, any few of them that are enough, and nothing from fewer."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.federation.secure import crypto
from confide.federation.secure.crypto import PRIME, SHARE, join_shares, shares_of, split_secret

SECRET = bytes([7]) * 32
SEVENS = "07" * 32


def test_known_answers() -> None:
    """Two of three, with the coefficient 5."""
    shares = shares_of(int.from_bytes(SECRET, "big"), [5], 3)
    start = "00" * 34 + "07" * 31
    assert [share.hex() for share in shares] == [start + last for last in ("0c", "11", "16")]
    for places in combinations((1, 2, 3), 2):
        assert join_shares({x: shares[x - 1] for x in places}).hex() == SEVENS  # type: ignore[union-attr]


@settings(max_examples=40)
@given(st.integers(2, 9), st.integers(0, 8), st.binary(min_size=32, max_size=32))
def test_any_enough_shares_give_the_secret_back(least: int, more: int, secret: bytes) -> None:
    shares = split_secret(secret, least + more, least=least)
    assert {len(share) for share in shares} == {SHARE}
    for places in list(combinations(range(1, least + more + 1), least))[:20]:
        assert join_shares({x: shares[x - 1] for x in places}) == secret


@settings(max_examples=40)
@given(st.integers(2, 6), st.binary(min_size=32, max_size=32))
def test_fewer_shares_fit_every_secret(least: int, other: bytes) -> None:
    """For whatever other secret there is a polynomial through the same shares, and only one."""
    shares = split_secret(SECRET, least, least=least)[: least - 1]
    points = {0: int.from_bytes(other, "big")}
    points |= {x: int.from_bytes(share, "big") for x, share in enumerate(shares, start=1)}
    last = _through(points, least)
    joined = join_shares(dict(enumerate([*shares, last.to_bytes(SHARE, "big")], start=1)))
    assert joined == other


def _through(points: dict[int, int], at: int) -> int:
    """The value at `at` of the polynomial through these points."""
    total = 0
    for x, y in points.items():
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * (at - other) % PRIME, below * (x - other) % PRIME
        total += y * above * pow(below, -1, PRIME)
    return total % PRIME


def test_shares_are_fresh_and_coefficients_cover_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_secret(SECRET, 3, least=2) != split_secret(SECRET, 3, least=2)
    drawn: list[int] = []

    def below(most: int) -> int:
        drawn.append(most)
        return most - 1

    monkeypatch.setattr(crypto.secrets, "randbelow", below)
    split_secret(SECRET, 5, least=4)
    assert drawn == [PRIME] * 3


def test_shares_that_do_not_belong_together_give_no_secret() -> None:
    shares = split_secret(SECRET, 3, least=3)
    odd = dict(enumerate([shares[0], shares[1], bytes([1, 255]) + bytes(64)], start=1))
    assert join_shares(odd) != SECRET
    largest = shares_of(2**256, [], 2)
    assert join_shares({1: largest[0]}) is None
    whole = shares_of(2**256 - 1, [], 2)
    assert join_shares({1: whole[0]}) == b"\xff" * 32


def test_three_hundred_sites_can_share() -> None:
    shares = split_secret(SECRET, 300, least=201)
    places = range(100, 301)
    assert join_shares({x: shares[x - 1] for x in places}) == SECRET
