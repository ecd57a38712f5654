"""What a server learns that shows sites different sets: the rules of a sum, without cryptography.

Sites are bits: the honest ones 0 … h-1, then the colluders. A view is a pair of sets: whose offers
came (`first`) and whose masked numbers came (`second`), as one honest site was told.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

View = tuple[int, int]
"""Whose offers came and whose masked numbers came, as sets of bits."""


def bits(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


@dataclass(frozen=True)
class Size:
    """n sites, of which c collude, and the threshold t. `agree`: whether sets are signed."""

    sites: int
    least: int
    colluding: int
    agree: bool = True

    @property
    def honest(self) -> int:
        return self.sites - self.colluding

    @property
    def colluders(self) -> int:
        return (1 << self.sites) - (1 << self.honest)

    @property
    def needed(self) -> int:
        """The honest shares that give a secret away: colluders hold theirs anyway."""
        return self.least - self.colluding

    def views(self, own: int) -> list[View]:
        """All views that a site goes along with."""
        found = []
        for first in _supersets(1 << own, self.sites, self.least):
            found += [(first, s) for s in _subsets(first, 1 << own, self.least)]
        return found


def _supersets(own: int, sites: int, least: int) -> Iterator[int]:
    return _subsets((1 << sites) - 1, own, least)


def _subsets(whole: int, own: int, least: int) -> Iterator[int]:
    others = bits(whole & ~own)
    for count in range(least - 1, len(others) + 1):
        for chosen in combinations(others, count):
            yield own | sum(1 << one for one in chosen)


def given(size: Size, views: list[View]) -> tuple[int, int]:
    """Whose mask keys and whose own seeds the server can put together."""
    keys, seeds = votes(size, views)
    reach = range(size.honest)
    return (
        sum(1 << k for k in reach if keys[k] >= size.needed),
        sum(1 << k for k in reach if seeds[k] >= size.needed),
    )


def votes(size: Size, views: list[View]) -> tuple[list[int], list[int]]:
    """How many honest sites give their share of each one's mask key, and of its seed."""
    keys, seeds = [0] * size.sites, [0] * size.sites
    for own, (first, second) in enumerate(views):
        if size.agree:
            signers = sum(second >> k & 1 and one == views[own] for k, one in enumerate(views))
            if signers + (second & size.colluders).bit_count() < size.least:
                continue
        for k in bits(first):
            (seeds if second >> k & 1 else keys)[k] += 1
    del own
    return keys, seeds


def opened(size: Size, views: list[View]) -> list[int]:
    """The sets of honest sites whose sums the server can compute."""
    keys, seeds = given(size, views)
    honest = (1 << size.honest) - 1
    hidden = [
        0 if keys >> k & 1 else first & honest & ~keys & ~(1 << k)
        for k, (first, _) in enumerate(views)
    ]
    found, left = [], honest
    while left:
        start = left & -left
        whole, fringe = start, start
        while fringe:
            place = fringe.bit_length() - 1
            fringe &= ~(1 << place)
            new = hidden[place] & ~whole
            whole |= new
            fringe |= new
        left &= ~whole
        closed = all(
            seeds >> k & 1 and all(hidden[j] >> k & 1 for j in bits(hidden[k])) for k in bits(whole)
        )
        if closed:
            found.append(whole)
    return found


def deficit(size: Size, views: list[View], target: int) -> int:
    """How many shares the server lacks to open the sum over `target`, and nothing more."""
    keys, seeds = votes(size, views)
    around = 0
    for k in bits(target):
        around |= views[k][0]
    around &= (1 << size.honest) - 1 & ~target
    lack = sum(max(0, size.needed - keys[k]) for k in bits(around))
    return lack + sum(max(0, size.needed - seeds[k]) for k in bits(target))


@cache
def _all_views(size: Size, own: int) -> tuple[View, ...]:
    return tuple(size.views(own))


def climbed(size: Size, generator: random.Random, *, steps: int) -> tuple[int, list[View]]:
    """The fewest shares that a search finds missing for a set that is too small, and the views."""
    chosen = generator.sample(range(size.honest), generator.randrange(1, size.needed))
    target = sum(1 << one for one in chosen)
    choices = [_all_views(size, own) for own in range(size.honest)]
    whole = (1 << size.sites) - 1
    views = [(whole, whole)] * size.honest
    if generator.random() < 0.8:  # hide the target among as few as it goes along with
        others = [k for k in range(size.honest) if k not in chosen]
        few = generator.sample(others, max(0, size.least - size.colluding - len(chosen)))
        first = target | size.colluders | sum(1 << one for one in few)
        views = [(first, first) if k in chosen else view for k, view in enumerate(views)]
    best = deficit(size, views, target)
    for _ in range(steps):
        if not best:
            break
        groups = generator.random() < 0.4
        own = generator.randrange(size.honest)
        view = generator.choice(views if groups else choices[own])
        if not (view[0] & view[1]) >> own & 1:
            continue
        before, views[own] = views[own], view
        now = deficit(size, views, target)
        if now <= best or generator.random() < 0.01:
            best = now
        else:
            views[own] = before
    return best, views
