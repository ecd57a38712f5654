"""Sums of the rows that some site has touched, and of no others.

A gradient of a word table is zero but in the rows of one batch's words. Under masks zeros cost as
much as numbers, so such a reply is summed in two parts. In the first, `rows`, each site sends for
every row a lane that is 0 where its own lanes are all 0, and a random number from 1 to 2^32 - 1
where they are not: the sum tells which rows some site has touched, and not how many did. (In one
case of 2^32 the numbers of several sites cancel, and the row waits for another round.) In the
second, `values`, the sites send the lanes of these rows alone, with all that has no rows.

The sum of the whole reply would show the same rows. What it would not show is a site that is lost
between the two: the rows that it alone has would be in the union, and have zeros in the sum. So the
second part is summed over the first one's own set of sites, or not at all; and it is bound to the
first and to the rows that are asked for, since sites that were asked for different rows would add
up rows that do not belong together, and zeros would hide nobody.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from confide.federation.digests import digest
from confide.federation.failures import Refusal
from confide.federation.messages import carries, encode
from confide.federation.secure.lanes import ODD, Lanes, Layout, Part
from confide.federation.secure.ongoing import Then
from confide.federation.steps import Step

ALL, ROWS, VALUES = "all", "rows", "values"
"""What of a reply is summed: all of it, which rows are touched, the values of given rows."""
_FLAG = 4
_LARGEST = 2**32 - 1


@dataclass(frozen=True)
class Values:
    """Send the values of these rows, of the reply whose rows were summed before."""

    of: str = carries("digest of everything that names the sum over the rows")
    rows: dict[str, NDArray[np.uint8]] = carries(
        "a bit for each row of an array: whether its values are summed", legend="B"
    )


@dataclass
class Held:
    """A site's reply between the two sums.

    `of`: the round, the step and the context of the first; `asked`: the digest of its ask;
    `names`: its sites, once it is open.
    """

    of: tuple[int, str, str]
    asked: bytes
    layout: Layout
    lanes: Lanes = field(repr=False)
    keep: Callable[[], None] = field(repr=False)
    tables: list[Part]
    names: list[str] | None = None
    settled: bool = False

    def then(self, ask: Values) -> Then:
        """What the second sum goes on from."""
        return Then(self.names, digest(b"values", self.asked, encode(replace(ask, of=""))))

    def settle(self) -> None:
        """Settle the step, once."""
        if not self.settled:
            self.settled = True
            self.keep()


def tables_of(step: Step, ask: object, layout: Layout) -> list[Part]:
    """The arrays of a reply whose rows are summed first: of two axes or more, if the step says so.

    >>> tables_of(Step("s", int, int, print), None, Layout((), 1.0))
    []
    """
    learnt = step.learnt
    if learnt is None or learnt.by_rows is None or not learnt.by_rows(ask):
        return []
    parts = [part for part in layout.parts if part.field == learnt.field and not part.base]
    return [part for part in parts if len(part.shape) > 1]


def layout_of_rows(layout: Layout, tables: Sequence[Part]) -> Layout:
    """How the first sum is laid out: a lane for each row.

    The lane of odd sites stays 0: they are counted with the values.
    """
    odd = [part for part in layout.parts if part.field == ODD]
    flags = [Part(ROWS, _key(part), part.shape[:1], _FLAG, 1.0) for part in tables]
    return replace(layout, parts=(*odd, *flags))


def layout_of_values(layout: Layout, rows: Mapping[str, NDArray[np.bool_]]) -> Layout:
    """How the second sum is laid out: as the whole reply, but of tables only these rows."""
    parts = [
        replace(part, shape=(int(rows[_key(part)].sum()), *part.shape[1:]))
        if _key(part) in rows
        else part
        for part in layout.parts
    ]
    return replace(layout, parts=tuple(parts))


def touched(layout: Layout, lanes: Lanes, tables: Sequence[Part]) -> Lanes:
    """The lanes of the first sum, of a reply in lanes."""
    own = layout_of_rows(layout, tables)
    found = np.zeros(own.length, np.uint8)
    flags, views = own.views(found), layout.views(lanes)
    for part in tables:
        rows_RX = views[part.field, part.name].reshape(part.shape[0], -1)
        draws_R = np.frombuffer(secrets.token_bytes(8 * part.shape[0]), "<u8") % _LARGEST + 1
        flags[ROWS, _key(part)][:] = np.where(rows_RX.any(1), draws_R, 0)
    return found


def union_of(layout: Layout, lanes: Lanes) -> dict[str, NDArray[np.bool_]]:
    """The rows of each array that some site has touched, from the lanes of the first sum."""
    views = layout.views(lanes)
    return {part.name: views[ROWS, part.name] != 0 for part in layout.parts if part.field == ROWS}


def picked(layout: Layout, lanes: Lanes, rows: Mapping[str, NDArray[np.bool_]]) -> Lanes:
    """The lanes of the second sum, of a reply in lanes."""
    own = layout_of_values(layout, rows)
    found = np.zeros(own.length, np.uint8)
    small, whole = own.views(found), layout.views(lanes)
    for part in layout.parts:
        place = part.field, part.name
        if _key(part) in rows:
            rows_RX = whole[place].reshape(part.shape[0], -1)
            small[place][:] = rows_RX[rows[_key(part)]].ravel()
        else:
            small[place][:] = whole[place]
    return found


def spread(layout: Layout, lanes: Lanes, rows: Mapping[str, NDArray[np.bool_]]) -> Lanes:
    """The lanes of the whole reply, from those of the second sum; other rows are 0."""
    found = np.zeros(layout.length, np.uint8)
    small, whole = layout_of_values(layout, rows).views(lanes), layout.views(found)
    for part in layout.parts:
        place = part.field, part.name
        if _key(part) in rows:
            rows_RX = whole[place].reshape(part.shape[0], -1)
            rows_RX[rows[_key(part)]] = small[place].reshape(-1, rows_RX.shape[1])
        else:
            whole[place][:] = small[place]
    return found


def packed(rows: Mapping[str, NDArray[np.bool_]]) -> dict[str, NDArray[np.uint8]]:
    """A bit for each row, as it travels."""
    return {name: np.packbits(rows_R) for name, rows_R in rows.items()}


def unpacked(ask: Values, tables: Sequence[Part]) -> dict[str, NDArray[np.bool_]]:
    """The rows that are asked for. Raises Refusal unless they are of these arrays."""
    if ask.rows.keys() != {_key(part) for part in tables}:
        raise Refusal("bad-ask")
    found = {}
    for part in tables:
        bits, count = ask.rows[_key(part)], part.shape[0]
        if bits.shape != ((count + 7) // 8,):
            raise Refusal("bad-ask")
        found[_key(part)] = np.unpackbits(bits)[:count].astype(np.bool_)
    return found


def _key(part: Part) -> str:
    """By what name the rows of an array are known."""
    return f"{part.field}/{part.name}"
