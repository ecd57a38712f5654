"""One site that sums by itself, to measure noise: it adds all of it, and nothing is hidden.

confide refuses sums that hide nobody (`threshold` in `confide.federation.secure.messages`).
Experiments on what noise costs, and on what an attacker sees who has everybody else's help, need
just these.
"""

from __future__ import annotations

from confide.federation.secure import messages
from confide.runs import run


def allow() -> None:
    """Let a run of a single site sum under masks, in this process."""
    refuses, chooses = messages.threshold, messages.colluders

    def threshold(sites: int, colluding: int) -> int:
        return 1 if sites == 1 else refuses(sites, colluding)

    messages.threshold = run.threshold = threshold
    messages.colluders = lambda sites: 0 if sites == 1 else chooses(sites)
