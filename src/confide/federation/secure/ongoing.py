"""One sum at a site, from its offer to its shares. It lives in the process and ends with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confide.federation.digests import digest
from confide.federation.failures import Refusal
from confide.federation.messages import encode
from confide.federation.secure.lanes import Lanes, Layout
from confide.federation.secure.repeats import Turns
from confide.federation.secure.roster import Roster

R = TypeVar("R")


@dataclass
class Ongoing:
    """One sum at a site: its secrets, and what it has said already."""

    context: bytes
    roster: Roster
    turn: Turns
    layout: Layout
    lanes: Lanes | None
    settle: Callable[[], None]
    secret: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    own_shares: bytes = field(repr=False)
    offered: dict[str, str] = field(default_factory=dict)
    held: dict[str, bytes | None] = field(default_factory=dict, repr=False)
    signed: list[str] | None = None
    said: dict[str, tuple[bytes, Any]] = field(default_factory=dict, repr=False)

    def again(self, exchange: str, ask: object) -> Any:
        """The reply to the very same message; None if there was none.

        Raises Refusal for another.
        """
        before = self.said.get(exchange)
        if before is None:
            return None
        if before[0] != digest(encode(ask)):
            raise Refusal("second-ask")
        return before[1]

    def say(self, exchange: str, ask: object, reply: R) -> R:
        """Keep a reply, which the very same message gets again."""
        self.said[exchange] = (digest(encode(ask)), reply)
        return reply
