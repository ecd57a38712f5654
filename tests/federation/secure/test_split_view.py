"""A server that tells sites different sets, with colluders who sign whatever it likes.

The search is over sets: every assignment of views at five sites, and a climb towards the fewest
missing shares at seven and ten. What it finds is then played against real members. A server that
did without the third exchange (nobody signs the sets) would read single vectors in this way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations, product

import numpy as np
import pytest

from cases import each
from confide.federation.failures import Refusal
from confide.federation.secure import site
from federation.secure.plays import Curious, Heard, Ring, plus, ring
from federation.secure.views import Size, View, bits, climbed, deficit, opened

SIZES = [(5, 4, 1), (7, 5, 2), (10, 7, 2), (10, 7, 3)]


@contextmanager
def unsigned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody looks at the signatures of the third exchange; those of offers are as they were."""
    real = site.is_signed_by

    def any_set(key: bytes, signature: str, said: bytes) -> bool:
        return said.startswith(b"\xffconfide/agree/") or real(key, signature, said)

    with monkeypatch.context() as patch:
        patch.setattr(site, "is_signed_by", any_set)
        yield


def play(start: Ring, size: Size, views: list[View]) -> tuple[Heard, Curious]:
    """All four exchanges, in which each honest site is told its own view."""
    made, names = start.again(), start.names
    honest, colluders = names[: size.honest], names[size.honest :]
    told = {
        name: ([names[k] for k in bits(first)], [names[k] for k in bits(second)])
        for name, (first, second) in zip(honest, views, strict=True)
    }
    heard = Heard(told)
    for name, (first, second) in told.items():
        heard.masked[name] = made.members[name].mask(made.mask_for(name, first)).lanes_B
        heard.signed[name] = made.members[name].agree(made.agree_on(second)).signature
    for name, (first, second) in told.items():
        signatures = {one: heard.signed[one] for one in second if told.get(one) == told[name]}
        signatures |= {
            one: made.signed_by(one, first, second) for one in second if one in colluders
        }
        if not size.agree:
            signatures |= dict.fromkeys(set(second) - set(signatures), "00" * 64)
        try:
            heard.shares[name] = made.members[name].unmask(made.unmask_with(signatures))
        except Refusal as error:
            assert error.code == "few-signatures"
            heard.refused[name] = error.code
    return heard, Curious(made, heard, colluders=colluders)


def read(start: Ring, size: Size, views: list[View]) -> list[frozenset[str]]:
    """The sets whose sums the server computed; each of them must be the true sum."""
    _, curious = play(start, size, views)
    found = curious.opened()
    for names, total in found.items():
        wanted = plus(start.layout, [start.numbers[name] for name in sorted(names)])
        assert np.array_equal(total, wanted), "the server's arithmetic is wrong"
    expected = [frozenset(start.names[k] for k in bits(one)) for one in opened(size, views)]
    assert set(found) == set(expected), "the members do not act as the rules say"
    return list(found)


def least_of(size: Size) -> Ring:
    made = ring(size.sites, size.colluding)
    assert made.roster.least == size.least
    return made


def orbits(size: Size) -> list[list[View]]:
    """Every assignment of views to honest sites, up to their names."""
    choices = [size.views(own) for own in range(size.honest)]
    turns = [
        [1 << turn[k] if k < size.honest else 1 << k for k in range(size.sites)]
        for turn in permutations(range(size.honest))
    ]
    seen: set[tuple[View, ...]] = set()
    found = []
    for views in product(*choices):
        if views in seen:
            continue
        found.append(list(views))
        for turn in turns:
            moved: list[View] = [(0, 0)] * size.honest
            for own, (first, second) in enumerate(views):
                place = turn[own].bit_length() - 1
                moved[place] = (
                    sum(turn[k] for k in bits(first)),
                    sum(turn[k] for k in bits(second)),
                )
            seen.add(tuple(moved))
    return found


def test_five_sites_whatever_each_is_told() -> None:
    """All 6,561 assignments of sets by the rules; those of each kind against members."""
    size = Size(5, 4, 1)
    told = list(product(*[size.views(own) for own in range(size.honest)]))
    assert len(told) == 6_561
    for views in told:
        found = opened(size, list(views))
        assert len(found) <= 1 and all(one.bit_count() >= 3 for one in found)
    start = least_of(size)
    several = orbits(size)
    assert len(several) < len(told) / 15
    chosen = random.Random(1).sample(several, 60)
    chosen += [views for views in several if opened(size, views)][:20]
    seen = {tuple(map(len, read(start, size, views))) for views in chosen}
    assert seen == {(), (3,), (4,)}


@pytest.mark.slow
def test_five_sites_whatever_each_is_told_against_members() -> None:
    size = Size(5, 4, 1)
    start = least_of(size)
    for views in orbits(size):
        assert all(len(one) >= 3 for one in read(start, size, views))


@each("sizes", SIZES)
def test_the_search_opens_nothing_below_the_bound(sizes: tuple[int, int, int]) -> None:
    size, generator = Size(*sizes), random.Random(sum(sizes))
    start = least_of(size)
    for number in range(12):
        lacks, views = climbed(size, generator, steps=1_200)
        assert lacks >= size.needed
        if number < 4:
            assert all(len(one) >= size.needed for one in read(start, size, views))


@each("sizes", SIZES[1:])
def test_without_the_third_exchange_the_search_opens_a_vector(
    sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the search above can fail, and the third exchange is what stops it."""
    size, generator = Size(*sizes, agree=False), random.Random(3)
    start = least_of(size)
    for _ in range(60):
        lacks, views = climbed(size, generator, steps=3_000)
        if lacks == 0 and any(one.bit_count() < size.needed for one in opened(size, views)):
            break
    else:
        pytest.fail("the search found nothing")
    with unsigned(monkeypatch):
        found = read(start, size, views)
    assert min(map(len, found)) < size.needed
    assert all(len(one) >= size.needed for one in read(start, Size(*sizes), views))


def test_at_five_sites_three_exchanges_would_do() -> None:
    """Nobody can be voted out twice where only one site may be lost."""
    size = Size(5, 4, 1, agree=False)
    for views in product(*[size.views(own) for own in range(size.honest)]):
        assert all(one.bit_count() >= 3 for one in opened(size, list(views)))


@each(("sites", "least", "colluding"), [(5, 3, 1), (7, 4, 2), (10, 6, 3)])
def test_a_threshold_one_lower_lets_two_sets_be_signed(
    sites: int, least: int, colluding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2t > n + c is needed: with one less, two groups of honest sites sign two sets."""
    from confide.federation.secure import messages

    size = Size(sites, least, colluding)
    monkeypatch.setattr(messages, "threshold", lambda n, c: least)
    half = size.needed
    assert 2 * half <= size.honest
    everyone = (1 << sites) - 1
    target = 1
    one, other = (everyone, everyone), (everyone, everyone & ~target)
    views = [one if k < half else other for k in range(size.honest)]
    assert deficit(size, views, target) > 0  # its own seed and key, not those of all others
    found = read(least_of(size), size, views)
    assert frozenset(["site-01"]) in found
    right = Size(sites, least + 1, colluding)
    assert all(one.bit_count() >= right.needed for one in opened(right, views))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
def test_a_longer_search_opens_nothing_either(sizes: tuple[int, int, int]) -> None:
    size, generator = Size(*sizes), random.Random(11)
    start = least_of(size)
    for number in range(150):
        lacks, views = climbed(size, generator, steps=5_000)
        assert lacks >= size.needed
        if number < 40:
            assert all(len(one) >= size.needed for one in read(start, size, views))
