"""The order in which the server handles replies: as they come, or by the names of their sites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confide.federation.engine import Delivery


def as_they_come(deliveries: Iterable[Delivery]) -> Iterator[tuple[str, Delivery]]:
    """Deliveries with the names of their sites; none is held while the next one comes."""
    for delivery in deliveries:
        yield delivery.site, delivery
        del delivery


def in_order(
    deliveries: Iterable[Delivery], asked: Iterable[str]
) -> Iterator[tuple[str, Delivery]]:
    """Deliveries in the order of the sites' names; an early one waits for those before it."""
    waiting: dict[str, Delivery] = {}
    order = iter(sorted(asked))
    turn = next(order, None)
    for delivery in deliveries:
        waiting[delivery.site] = delivery
        while turn is not None and turn in waiting:
            yield turn, waiting.pop(turn)
            turn = next(order, None)
