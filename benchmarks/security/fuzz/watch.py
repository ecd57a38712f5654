"""One hostile input at a time: how long it took, what came of it, and an end if it never ends."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from types import FrameType

from tally import Tally

PATIENCE = 60
"""Seconds of the clock after which an input is stopped: it waits for something."""
GROWTH = 1 << 30


class _Stuck(BaseException):
    """An input that was stopped."""


class Watch:
    """Tries inputs. An error that is not among `ours`, or too much time, is a failure."""

    def __init__(self, ours: tuple[type[Exception], ...], slow: float) -> None:
        self._ours, self._slow = ours, slow
        self._refused = self._accepted = 0
        self._slowest = 0.0
        self._failures: list[str] = []
        self._grown = 0

    def attempt(self, name: str, act: Callable[[], object]) -> Exception | None:
        """Do it. The error with which it was refused, if it was one of ours; `name` for reports."""
        found: Exception | None = None
        before = signal.signal(signal.SIGALRM, _stop)
        peak = _peak()
        start = time.process_time()
        try:
            signal.alarm(PATIENCE)
            act()
            self._accepted += 1
        except self._ours as error:
            found = error
            self._refused += 1
        except (Exception, _Stuck) as error:
            self.fail(name, f"{type(error).__name__}: {str(error)[:200]}")
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        seconds = time.process_time() - start
        self._grown += _peak() - peak  # making the input is not counted
        self._slowest = max(self._slowest, seconds)
        if seconds > self._slow:
            self.fail(name, f"{seconds:.1f} s")
        return found

    def fail(self, name: str, what: str) -> None:
        """Note a failure."""
        self._failures.append(f"{name}: {what}")

    def tally(self, count: int) -> Tally:
        """What all of them came to."""
        if self._grown > GROWTH:
            self._failures.append(f"the process grew by {self._grown / 2**20:.0f} MiB")
        return Tally(
            count, self._refused, self._accepted, self._slowest, tuple(self._failures[:50])
        )


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Stuck(f"not done after {PATIENCE} s")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
