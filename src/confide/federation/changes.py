"""Sends only the rows of an uploaded table that training changed; the ask holds the others.

A site that trains on from the weights in the ask leaves most rows of a word table untouched: those
of words that its text does not have. It sends the changed rows, and one bit for each row of the
table. The server knows the rest, so the table that it adds up is the same bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from confide.errors import GuardError
from confide.federation.messages import Arrays
from confide.federation.steps import Step

ROWS = "?"
"""`NAME?` holds one bit for every row of the table `NAME`: whether it travels."""


def shortened(step: Step, ask: object, reply: Any) -> object:
    """The reply as it travels: its tables without the rows that are as in the ask."""
    if step.start is None:
        return reply
    ((_, field),) = step.like
    sent: Arrays = {}
    for name, table_VD in getattr(reply, field).items():
        sent[name] = table_VD
        start_VD = step.start(ask, reply, name) if table_VD.ndim == 2 else None
        if start_VD is None:
            continue
        changed_V = _unlike(table_VD, start_VD)
        bits = np.packbits(changed_V)
        if bits.nbytes < (~changed_V).sum() * table_VD[:1].nbytes:
            sent |= {name: table_VD[changed_V], name + ROWS: bits}
    return replace(reply, **{field: sent})


def restored(step: Step, ask: object, reply: Any) -> object:
    """The reply with whole tables. Raises GuardError if its rows do not fit the ask's tables."""
    if step.start is None:
        return reply
    ((asked, field),) = step.like
    sent = getattr(reply, field)
    whole: Arrays = {}
    for name, array in sent.items():
        if name.endswith(ROWS):
            if name.removesuffix(ROWS) not in sent:
                raise GuardError(f"{field}/{name} belongs to no table")
        elif name + ROWS in sent:
            if name not in getattr(ask, asked):
                raise GuardError(f"{field} and {asked} do not hold the same arrays: {name}")
            table_VD = np.array(step.start(ask, reply, name))
            changed_V = _named(f"{field}/{name}", sent[name + ROWS], array, table_VD)
            table_VD[changed_V] = array
            whole[name] = table_VD
        else:
            whole[name] = array
    return replace(reply, **{field: whole})


def _unlike(one_VD: np.ndarray, other_VD: np.ndarray) -> np.ndarray:
    """Which rows differ in any bit: 0 and -0 do."""
    kind = f"u{one_VD.dtype.itemsize}"
    unlike_V: np.ndarray = (one_VD.view(kind) != other_VD.view(kind)).any(axis=1)
    return unlike_V


def _named(place: str, bits: np.ndarray, rows_RD: np.ndarray, table_VD: np.ndarray) -> np.ndarray:
    """Which rows of the table the bits name. Raises GuardError unless `rows_RD` fit there."""
    if table_VD.ndim != 2:
        raise GuardError(f"{place} is not a table")
    count = len(table_VD)
    if bits.dtype != np.uint8 or bits.shape != ((count + 7) // 8,):
        raise GuardError(f"{place}{ROWS} does not hold one bit per row")
    named_V = np.unpackbits(bits).astype(bool)
    if named_V[count:].any() or rows_RD.shape != (named_V.sum(), *table_VD.shape[1:]):
        raise GuardError(f"{place} does not hold the rows that {place}{ROWS} names")
    if rows_RD.dtype != table_VD.dtype:
        raise GuardError(
            f"{place} has the wrong number type",
            expected=table_VD.dtype.name,
            got=rows_RD.dtype.name,
        )
    return named_V[:count]
