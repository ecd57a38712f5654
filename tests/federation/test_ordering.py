"""Replies in order, and none of them longer than it is needed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from confide.federation.federation import in_order


class Large:
    """Stands for a delivery."""

    def __init__(self, site: str) -> None:
        self.site = site


def coming(*sites: str) -> Iterator[Large]:
    """Deliveries, of which each is gone before the next one comes."""
    for site in sites:
        one = Large(site)
        gone = weakref.ref(one)
        yield one
        del one
        assert gone() is None, f"what came from {site} is still held"


def test_an_early_reply_waits_for_those_before_it() -> None:
    deliveries = [Large(site) for site in ("c", "a", "b")]
    found = [one.site for one in in_order(deliveries, ["a", "b", "c"])]  # type: ignore[arg-type]
    assert found == ["a", "b", "c"]
