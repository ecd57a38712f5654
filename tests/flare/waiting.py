"""Tests wait for the thing itself, and never for seconds: one helper, and one generous deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 300.0 * float(os.environ.get("CONFIDE_TEST_PATIENCE", "1"))
"""Seconds after which a test gives up. Nothing takes so long, even on two busy cores; a slower
machine sets CONFIDE_TEST_PATIENCE to a factor."""


def until(
    true: Callable[[], T], *, within: float = PATIENCE, what: Callable[[], object] | None = None
) -> T:
    """Wait until `true()` is true, and give what it gave. `what` is said where it never is."""
    end = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < end, f"in vain for {within:.0f} s: {what() if what else true}"
        time.sleep(0.1)
    return found
