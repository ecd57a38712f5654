"""Which sites the sums of a run have lost, and in which turn, as the server's disk has it.

Sites do not help to sum a set that has grown, and open the sum of a turn for one set only. So a run
that goes on from an earlier checkpoint has to lose the same sites in the same turns. They are noted
before a sum is opened: from then on sites may hold the server to that set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confide.federation.files import write_of_run
from confide.userfiles import json_of, text_of


class Losses:
    """The lost sites of one run; without a path they end with the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._turns: dict[str, list[Any]] = {}
        if path is not None and path.exists():
            self._turns = json_of(text_of(path))

    def note(self, sites: Iterable[str], *, round: int, step: str) -> None:
        """Write down that the sum of this turn has lost these sites. Raises RunError."""
        new: dict[str, list[Any]] = {site: [round, step] for site in sites}
        found = new | self._turns
        if found != self._turns:
            self._turns = found
            if self._path is not None:
                write_of_run(self._path, json.dumps(found, sort_keys=True).encode())

    def at(self, round: int, step: str) -> set[str]:
        """The sites that the sum of this turn has lost before."""
        return {site for site, turn in self._turns.items() if turn == [round, step]}
