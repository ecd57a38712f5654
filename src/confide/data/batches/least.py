"""The fewest rows that one gradient may cover: a site's own guard, for whatever trains there.

A row is what a model learns from at once: a sentence (a window of a long one), a pair of entities,
a bag. The site sets the least around all work that it does for others; what makes
batches joins short ones to their neighbours, and what takes a gradient refuses one of fewer rows.
Elsewhere the least is 1, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from confide.data.batches.flat import Rows
from confide.errors import SmallBatchError

_LEAST: ContextVar[int] = ContextVar("least", default=1)


@contextmanager
def covering(least: int) -> Iterator[None]:
    """No gradient that is taken within covers fewer than `least` rows."""
    before = _LEAST.set(least)
    try:
        yield
    finally:
        _LEAST.reset(before)


def check_covers(rows: int) -> None:
    """Raise SmallBatchError if a gradient may not cover so few rows."""
    if rows < _LEAST.get():
        raise SmallBatchError(
            "a gradient would cover too few rows",
            expected=f"at least {_LEAST.get()}",
            got=str(rows),
        )


def covered(rows: int) -> bool:
    """Whether a gradient may cover so few rows."""
    return rows >= _LEAST.get()


def joined(batches: Iterable[Rows]) -> list[Rows]:
    """The batches, with each short one joined to the next, and a short last one to that before it.

    >>> with covering(3):
    ...     [one.tolist() for one in joined(map(np.array, ([1, 2, 3, 4], [5, 6], [7], [8])))]
    [[1, 2, 3, 4], [5, 6, 7, 8]]
    """
    least = _LEAST.get()
    found: list[list[Rows]] = []
    short = 0
    for batch in batches:
        if short:
            found[-1].append(batch)
        else:
            found.append([batch])
        short += len(batch)
        short = short if short < least else 0
    if short and len(found) > 1:
        last = found.pop()
        found[-1].extend(last)
    return [one[0] if len(one) == 1 else np.concatenate(one) for one in found]
