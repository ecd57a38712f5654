"""What carries messages between the server and the sites, without knowing what they mean."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Delivery:
    """One site's encoded reply, and the seconds that the site worked on it.

    `seal` vouches for the reply, if the engine carries seals. `heard` is False if no reply came and
    the engine made this failure in the site's place.
    """

    site: str
    reply: bytes
    seconds: float
    seal: bytes = b""
    heard: bool = True


class Engine(Protocol):
    """Carries encoded asks to sites and encoded replies back, without knowing what they mean."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, sorted."""
        ...

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply or failure, in any order; the caller closes the generator."""
        ...
