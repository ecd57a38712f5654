"""What all sites must have in common, and how a run goes on without those that have another one.

One site with another key, or one that says so, must not end the run of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from confide.errors import ConfideError, SiteFault
from confide.federation.federation import Federation
from confide.federation.steps import Step

DIFFERS = "differs"
"""The code of a site that has something else than the others, where all must have the same."""


@dataclass(frozen=True)
class Parted:
    """Sites that do not say the same: the `odd` ones, or of as many on each side all `groups`."""

    odd: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]

    @property
    def tied(self) -> bool:
        """Whether nobody can say which ones are the odd ones."""
        return not self.odd


def alike(
    federation: Federation,
    said: Mapping[str, Hashable],
    *,
    step: Step,
    why: str,
    error: Callable[[Parted], ConfideError],
    ours: Hashable | None = None,
) -> list[str]:
    """The sites that say what most say, or what the server says (`ours`), sorted.

    The others are faults of round 0, each by name and with the words `why`, and the run goes on
    without them. Raises `error` where fewer than `at_least` would be left, or where the largest
    groups are as large as each other.
    """
    groups: dict[Hashable, list[str]] = {}
    for site, value in sorted(said.items()):
        groups.setdefault(value, []).append(site)
    by_size = sorted(groups.values(), key=len, reverse=True)
    if ours is not None:
        kept = groups.get(ours, [])
    else:
        tied = len(by_size) > 1 and len(by_size[0]) == len(by_size[1])
        kept = by_size[0] if by_size and not tied else []
    odd = tuple(sorted(said.keys() - set(kept))) if kept or ours is not None else ()
    if len(kept) == len(said):
        return kept
    if not kept or not federation.enough(len(kept)):
        raise error(Parted(odd, tuple(map(tuple, by_size))))
    for site in odd:
        federation.leave_out(SiteFault(site=site, step=step.name, round=0, code=DIFFERS, what=why))
    return kept
