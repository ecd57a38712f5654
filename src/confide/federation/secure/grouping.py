"""Sums over fixed groups of sites, and what they come to when groups that are far off do not count.

Under masks no single update can be compared with the others. The sums of fixed groups can: each
hides its sites from the server as the sum of all would. A group whose mean change is many times as
large as that of the others is left out of the round, as a site is where single replies are seen;
of the rest, a median moves little if one holds a liar. The price is that the server sees each
group's sum.

Without the first rule a median of three groups is not enough: with one of them far off, the median
of a number is always the one of the two honest groups that is nearer to the lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import chain

from confide.errors import SiteFault
from confide.federation.combining import Combining, Pile
from confide.federation.failures import blaming
from confide.federation.secure.once import Asking
from confide.federation.secure.summing import Found, Summing
from confide.federation.steps import Step


def summed_unseen(
    summing: Summing,
    step: Step,
    ask: object,
    *,
    names: list[str],
    asking: Asking,
    how: Combining,
    labels: Sequence[str] = (),
) -> Found:
    """The sum of the replies, of which no single one is seen: over all sites, or by groups."""
    if summing.dealt and step.learnt is not None and step.learnt.combined:
        return grouped(summing, step, ask, names=names, asking=asking, combining=how)
    found = summing.sum(step, ask, names, asking=asking, labels=labels)
    return found or Found({}, [], 0)


def grouped(
    summing: Summing,
    step: Step,
    ask: object,
    *,
    names: list[str],
    asking: Asking,
    combining: Combining,
) -> Found:
    """The groups' sums combined, as if every site had learnt the combined change.

    A group that loses a site it cannot do without, or none of whose replies can be summed, does not
    count in this round, and neither does one that is too far off (`Combining.too_far`).
    """
    sites: dict[str, list[str]] = {}
    far: list[str] = []
    odd = 0
    with closing(Pile(step, combining)) as pile:
        for number, members in enumerate(summing.dealt, 1):
            own = [name for name in members if name in names]
            found = summing.sum(step, ask, own, asking=asking, group=True) if own else None
            if found is None or found.odd == len(found.sites):
                odd += found.odd if found else 0
                continue
            try:
                with blaming(f"group {number}", step=step.name, round=asking.round):
                    pile.put(f"group {number}", ask, step.reply(**found.total))
            except SiteFault:
                continue
            sites[f"group {number}"] = found.sites
            odd += found.odd
        if len(pile.sites) < combining.needed:
            return Found({}, [], odd)
        for group, (code, why) in pile.leave_out().items():
            far += sites[group]
            told = f"{group}, the sum of {', '.join(sites[group])}, does not count: {why}"
            for name in sites[group]:
                asking.blame(name, step.name, told, code=code)
        return Found(pile.total(), sorted(chain(*sites.values())), odd, far=far)
