"""The server's side of secure sums: it collects what sites send, and can open only their sum.

`Summing` asks through the federation, so that every exchange is checked, noted and timed as any
other step. It never sees a site's numbers: masked lanes come, and the masks go once the sites that
are left have given their shares. docs/secure-sums.md says what that promises, and against whom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from confide.errors import FederationError
from confide.federation.adding import Total
from confide.federation.changes import can_be_coded
from confide.federation.digests import digest
from confide.federation.failures import Refusal
from confide.federation.messages import encode
from confide.federation.secure.exchanges import (
    GREET,
    MEET,
    narrow_of,
    summed,
)
from confide.federation.secure.lanes import layout_of
from confide.federation.secure.losses import Losses
from confide.federation.secure.messages import (
    Greet,
    Greeted,
    Meet,
    Opening,
)
from confide.federation.secure.narrow import largest_of
from confide.federation.secure.once import Asking, Once, Sent
from confide.federation.secure.roster import Roster, colluders, groups_of, roster_of
from confide.federation.steps import Step

_ROOM = 8.0
"""How many times as large as the mean change of the last sum a site's may be."""


@dataclass
class Found:
    """A sum: by field, over these sites, of which so many had nothing to add.

    `far`: those of `sites` whose group was summed, but is too far from the others to count.
    """

    total: Total
    sites: list[str]
    odd: int
    far: Sequence[str] = ()

    @property
    def counted(self) -> set[str]:
        """The sites whose numbers are in the sum."""
        return set(self.sites) - set(self.far)

    @property
    def answered(self) -> int:
        """How many sites had something to add that counts."""
        return len(self.sites) - len(self.far) - self.odd


class Summing:
    """Sums replies as whole numbers under masks.

    Args:
        run: the run's name; part of every key's context.
        sites: all sites of the run.
        colluding: how many of them may be in league with the server; None: `colluders`.
        group: the size of fixed groups, whose sums the server compares; 0: none.
        losses: the sites that earlier sums of the run have lost.
        lane: the bytes of a lane for changes of weights, once a sum has shown how large they are;
            0: as many as the step says.

    `newest` are the sites in the newest sum; `rooms` is how large a change may be that has room, by
    step and array.
    """

    def __init__(
        self,
        *,
        run: str,
        sites: Sequence[str],
        colluding: int | None = None,
        group: int = 0,
        losses: Losses | None = None,
        lane: int = 0,
    ) -> None:
        self._lane = lane
        self.rooms: dict[str, dict[str, float]] = {}
        self._losses = losses or Losses()
        self.dealt = groups_of(sites, group) if group else []
        self.examples = 0.0
        self.newest: list[str] = []
        self._run = run
        self.sites = sorted(sites)
        self.colluding = colluders(len(self.sites)) if colluding is None else colluding
        self._greetings: dict[str, Greeted] = {}
        self._roster: Roster | None = None

    def sum(
        self,
        step: Step,
        ask: object,
        names: Sequence[str],
        *,
        asking: Asking,
        labels: Sequence[str] = (),
        group: bool = False,
    ) -> Found | None:
        """The sum over the sites that answered to the end; None if they were too few.

        With `group` the sites are one of the run's fixed groups, and no others are in the sum.
        """
        asked, own = digest(encode(ask)), summed(step, list(labels))
        rooms = {} if group else self.rooms.get(step.name, {})
        lane = self._lane if rooms else 0
        narrow = narrow_of(own, ask, lane=lane, rooms=rooms)
        layout = layout_of(own, ask, sites=len(names), examples=self.examples, narrow=narrow)
        there, again = self._still_there(names, asking, step.name), 2
        while again:
            again -= 1
            asking.unmet = False
            whole = self._greeted(asking)
            opening = Opening(
                ask_B=np.empty(0, np.uint8),
                roster=whole.id.hex(),
                group=group,
                attempt=0,
                sites=len(names),
                examples=self.examples,
                labels=list(labels),
                lane=lane,
                rooms=rooms,
            )
            roster = whole.part(self._group_of(names[0])) if group else whole
            sent = Sent(asked, lambda: encode(asking.packed(ask, there)))
            once = Once(asking, step, opening, roster, sent)
            found = once.sum(there, layout)
            if found is not None or not asking.unmet:
                break
            self._roster = None  # a process was restarted: greet again
        if found is None:
            return None
        lanes, sites = found
        total, odd = layout.total_of(own, ask, lanes)
        if odd > len(sites):
            raise _spoilt(step, asking.round)
        self.newest = sites
        if self._lane and can_be_coded(own) and not group:
            self.rooms[step.name] = _rooms_after(largest_of(layout, own, lanes), len(names))
        return Found(total, sites, odd)

    def _still_there(self, names: Sequence[str], asking: Asking, step: str) -> list[str]:
        """The sites that this turn has not lost before; whoever is lost now is noted."""

        def note(masked: list[str]) -> None:
            self._losses.note(set(names) - set(masked), round=asking.round, step=step)

        asking.opening = note
        return sorted(set(names) - self._losses.at(asking.round, step))

    def _group_of(self, name: str) -> list[str]:
        return next(members for members in self.dealt if name in members)

    def _greeted(self, turn: Asking) -> Roster:
        """The roster of the run; sites greet before the first sum and after a restart.

        A site that has ended keeps its place on the roster, and so the threshold stays. Raises
        FederationError if a site never greeted.
        """
        if self._roster is not None:
            return self._roster
        self._greetings |= turn.ask(GREET, Greet(self._run), self.sites)
        greetings = self._greetings
        missing = sorted(set(self.sites) - greetings.keys())
        if missing:
            raise FederationError(
                f"sites did not greet, so nothing can be summed under masks: {', '.join(missing)}",
                fix="start them, or begin the run without them",
            )
        shown = [greetings[name] for name in self.sites]
        meet = Meet(
            colluding=self.colluding,
            names=self.sites,
            identities=[one.identity for one in shown],
            box_keys=[one.box_key for one in shown],
            sign_keys=[one.sign_key for one in shown],
            signatures=[one.signature for one in shown],
            bindings=[one.binding for one in shown],
            cards=[one.card for one in shown],
            accounts=[one.account for one in shown],
        )
        try:
            roster = roster_of(meet, run=self._run, binding=None)
        except Refusal as error:
            raise FederationError(f"the sites' greetings do not fit: {error.what}") from error
        met = turn.ask(MEET, meet, self.sites)
        odd = sorted(name for name, reply in met.items() if reply.roster != roster.id.hex())
        for name in odd:
            turn.blame(name, MEET.name, "it means another roster")
        if len(met) - len(odd) < roster.least:
            agreed = ", ".join(sorted(set(met) - set(odd))) or "none"
            failed = ", ".join(sorted(set(turn.failed)))
            raise FederationError(
                "too few sites agreed to the roster, so nothing can be summed under masks",
                expected=f"at least {roster.least} of {len(self.sites)}",
                got=f"{agreed}; others failed with {failed}" if failed else agreed,
                fix="look the codes up in docs/deployment.md; at each site its own log says more",
            )
        self._roster = roster
        return roster


def _rooms_after(largest: Mapping[str, float], sites: int) -> dict[str, float]:
    """How large a site's change may be in the next sum, by array, from those of this one."""
    times = max(_ROOM, 2 * math.sqrt(sites))
    return {name: times * most for name, most in largest.items() if most}


def _spoilt(step: Step, round: int) -> FederationError:
    return FederationError(
        f"the sum of step {step.name}, round {round}, is of no use: a site sent something other"
        " than its masked numbers, and nobody can tell which",
        fix="look at the sites' own logs, and resume the run",
    )
