"""Sends only what training changed; the ask holds the rest.

A site that trains on from the weights in the ask leaves most rows of a word table untouched: those
of words that its text does not have. It sends the changed rows, and one bit for each row of the
table. The server knows the rest, so the table that it adds up is the same bit for bit.

Or the site sends the change in codes (`confide.federation.coding`). It then means what the codes
stand for, and so the server has that bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from confide.errors import GuardError
from confide.federation.coding import Coded, Coder, coded, decoded
from confide.federation.messages import Arrays
from confide.federation.steps import Step

ROWS = "?"
"""`NAME?` holds one bit for every row of the table `NAME`: whether it travels."""
CODED = "?coded"
"""Says that all arrays of the field are in codes."""


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


def can_be_coded(step: Step) -> bool:
    """Whether what sites learn in this step may travel in codes."""
    learnt = step.learnt
    return step.start is not None and learnt is not None and step.like[0][1] == learnt.field


def in_codes(
    step: Step,
    ask: object,
    reply: Any,
    *,
    coder: Coder,
    seed: int | None,
    left: Arrays,
    most: float = math.inf,
) -> tuple[object, Coded]:
    """The reply with its change in codes, as it travels, and the codes.

    `left` is added to the change, and `seed` as in `coded`. The L2 norm of what travels is at most
    `most`. Raises GuardError
    if a number is not finite.
    """
    field, weight = step.like[0][1], np.float32(_weight(step, reply))
    change: Arrays = {}
    for name, array in getattr(reply, field).items():
        moved = array.astype(np.float32, copy=False)
        begun = step.start(ask, reply, name) if step.start is not None else None
        change[name] = (moved if begun is None else moved - begun) / weight
        if name in left:
            change[name] += left[name]
    found = coded(change, coder, seed=seed, most=most)
    return replace(reply, **{field: found.sent | {CODED: np.zeros(0, np.uint8)}}), found


def _meant(step: Step, ask: Any, reply: Any) -> Arrays:
    """What a reply in codes means. Raises GuardError if they do not fit the ask's arrays."""
    ((asked, field),) = step.like
    sent = {name: array for name, array in getattr(reply, field).items() if name != CODED}
    like = getattr(ask, asked)
    weight = np.float32(_weight(step, reply))
    change = decoded(sent, {name: array.shape for name, array in like.items()})
    meant: Arrays = {}
    for name, moved in change.items():
        begun = step.start(ask, reply, name) if step.start is not None else None
        moved *= weight
        whole = moved if begun is None else begun + moved
        meant[name] = whole.astype(like[name].dtype, copy=False)
    return meant


def _weight(step: Step, reply: object) -> float:
    learnt = step.learnt
    return float(getattr(reply, learnt.weight)) if learnt is not None and learnt.weight else 1.0


def restored(step: Step, ask: object, reply: Any) -> object:
    """The reply with whole tables. Raises GuardError if its rows do not fit the ask's tables."""
    if step.start is None:
        return reply
    ((asked, field),) = step.like
    sent = getattr(reply, field)
    if CODED in sent:
        return replace(reply, **{field: _meant(step, ask, reply)})
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
