"""Secrets in shares: any `least` of them give the secret back, fewer say nothing about it.

Shamir, "How to Share a Secret", Communications of the ACM 22(11), 1979, over the integers modulo
2^521 - 1. Place x (1, 2, …) gets the value of a random polynomial at x; the secret is its value
at 0.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from confide.federation.secure.primitives import SECRET

PRIME = 2**521 - 1
SHARE = 66
"""The bytes of a share."""


def split(secret: bytes, places: int, *, least: int) -> list[bytes]:
    """A share for each of the places 1 … `places`."""
    chosen = [secrets.randbelow(PRIME) for _ in range(least - 1)]
    return shares_of(int.from_bytes(secret, "big"), chosen, places)


def split_both(one: bytes, other: bytes, places: int, *, least: int) -> list[bytes]:
    """For each place its shares of two secrets, end to end."""
    shares = split(one, places, least=least), split(other, places, least=least)
    return [first + second for first, second in zip(*shares, strict=True)]


def shares_of(secret: int, coefficients: Sequence[int], places: int) -> list[bytes]:
    """The values of secret + c_1 x + c_2 x^2 … at x = 1 … `places`."""
    found = []
    for x in range(1, places + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value + coefficient) * x % PRIME
        found.append(((value + secret) % PRIME).to_bytes(SHARE, "big"))
    return found


class Joiner:
    """Joins shares of the same places, for as many secrets as there are."""

    def __init__(self, places: Sequence[int]) -> None:
        self._factors = {}
        for x in places:
            above, below = 1, 1
            for other in places:
                if other != x:
                    above = above * other % PRIME
                    below = below * (other - x) % PRIME
            self._factors[x] = above * pow(below, -1, PRIME) % PRIME

    def join(self, shares: Mapping[int, bytes]) -> bytes | None:
        """The secret whose shares these are, by place; None if they do not belong together."""
        terms = (int.from_bytes(shares[x], "big") * factor for x, factor in self._factors.items())
        value = sum(terms) % PRIME
        return value.to_bytes(SECRET, "big") if value < 2 ** (8 * SECRET) else None
