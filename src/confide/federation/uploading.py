"""How a site's replies leave it: with changed rows only, or with changes in codes.

What coarse codes leave out of a change is added to the next one (`Coder.loses_much`). It lies in
the site's memory, in versions as all of it does: an ask that comes again gets the same reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from confide.federation.changes import can_be_coded, in_codes, shortened
from confide.federation.coding import Coder, Coding
from confide.federation.memory import MemoryStore
from confide.federation.messages import Arrays, carries
from confide.federation.steps import Step
from confide.seeds import derive_seed

Up = Literal["rows"] | Coding
"""Changed rows as they are, or all changes in codes."""


@dataclass(frozen=True)
class Left:
    """What codes have left out so far, by step and array; never sent."""

    changes: Arrays = carries("rest of the changes")


class Uploading:
    """Makes replies into what travels, for one site and run; `most` is the site's `max_norm`."""

    def __init__(
        self,
        up: Up = "rows",
        *,
        share: float = 0.01,
        memory: MemoryStore[Left] | None = None,
        most: float | None = None,
    ) -> None:
        self._coder = None if up == "rows" else Coder(up, share)
        self._memory = memory
        self._most = math.inf if most is None else most

    def sent(
        self, step: Step, ask: object, reply: Any, *, round: int, seed: int
    ) -> tuple[object, Callable[[], None]]:
        """The reply as it travels, and what settles it. Raises GuardError as `in_codes` does."""
        coder = self._coder
        if coder is None or not can_be_coded(step):
            return shortened(step, ask, reply), _nothing
        memory = self._memory if coder.loses_much else None
        before = memory.before(round, step.name) if memory is not None else None
        every = before.changes if before is not None else {}
        start = f"{step.name}/"
        left = {name.removeprefix(start): a for name, a in every.items() if name.startswith(start)}
        draws = None if memory is not None else derive_seed(seed, "codes")
        said, codes = in_codes(
            step, ask, reply, coder=coder, seed=draws, left=left, most=self._most
        )
        if memory is None:
            return said, _nothing
        after = Left({**every, **{start + name: rest for name, rest in codes.left.items()}})
        return said, lambda: memory.commit(round, step.name, after)


def _nothing() -> None:
    """Settle nothing: nothing was left out that must be kept."""
