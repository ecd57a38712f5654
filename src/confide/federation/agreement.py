"""What all sites must have in common, and how a run continues without the sites that differ.

One site with a different key, or one that claims to have one, must not end the run for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from confide.errors import ConfideError, SiteFault
from confide.federation.federation import Federation
from confide.federation.steps import Step

DIFFERS = "differs"
"""The code of a site that differs from the others where all must be the same."""


@dataclass(frozen=True)
class Parted:
    """Sites that do not agree: the `odd` ones, and all `groups`, the largest first.

    `odd` is empty if the largest groups are equally large.
    """

    odd: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]

    @property
    def tied(self) -> bool:
        """Whether nobody can tell which sites are the odd ones."""
        return not self.odd

    def who(self, one: str, tied: str) -> str:
        """`one` with the odd sites for its {}; where nobody can tell them, `tied`: the groups."""
        if self.tied:
            return f"{tied}: {' | '.join(map(', '.join, self.groups))}"
        return one.format(", ".join(self.odd))


def alike(
    federation: Federation,
    said: Mapping[str, Hashable],
    *,
    step: Step,
    why: str,
    error: Callable[[Parted], ConfideError],
    ours: Hashable | None = None,
) -> list[str]:
    """The sites that say what most sites say, or what the server says (`ours`), sorted.

    The others become faults of round 0, each by name and with the words `why`, and the run
    continues without them. Raises `error` if fewer than `at_least` sites would be left, or if the
    largest groups are equally large.
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
