"""How many sites are enough, and the error for too few."""

from __future__ import annotations

from collections.abc import Iterable

from confide.errors import QuorumError, SiteFault


def round_half_up(number: float) -> int:
    """The nearest integer; .5 always rounds up (Python rounds it to even)."""
    return int(number + 0.5)


def too_few(
    step: str,
    answered: int,
    need: int,
    *,
    round: int,
    faults: Iterable[SiteFault],
    of: int = 0,
    odd: int = 0,
    how: str = "",
) -> QuorumError:
    """The error for a step that too few sites answered, with this round's faults.

    `of` sites were asked and `odd` replies were of no use; without `of`, the way in which replies
    are combined (`how`) needs more.
    """
    own = tuple(fault for fault in faults if fault.round == round)
    expected = f"at least {need} of {of}"
    fix = "repair the sites that failed and resume, or lower federation.at_least"
    if not of:
        expected = f"at least {need}, since combine = {how!r}"
        fix = (
            "ask more sites (federation.fraction), repair those that failed and resume, or set"
            ' federation.combine to "clipped" or "mean"'
        )
    said = [*map(str, own)]
    if odd:
        said.append(f"{odd} had nothing that could be summed: the logs of the sites say which")
    error = QuorumError(
        f"step {step}, round {round}: too few sites answered",
        expected=expected,
        got=f"{answered} ({'; '.join(said)})",
        fix=fix,
    )
    error.faults = own
    return error
