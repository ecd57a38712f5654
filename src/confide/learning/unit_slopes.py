"""The gradients of units: documents, sentences or patients, of which noise is to hide any one.

Many units go through the model together, and the terms of each one's gradient are noted on the way
(`learning.taps`). A model with a layer of which nothing is known there is gone through once for
each unit: that is the reference, and a model's first unit is worked out both ways and compared. A
large unit is gone through alone as well, part by part.

Shapes: U units, B rows, L places of a row, N rows of a table that units reach, G numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.data.batches.flat import Rows
from confide.learning.devices import at_home, enough_memory, on, where_is
from confide.learning.taps import (
    Layer,
    Lookup,
    Outer,
    Pass,
    Plain,
    Term,
    Terms,
    UnknownError,
    layers_of,
    note_scores,
    watched,
)
from confide.learning.weights import Arrays, named, still
from confide.privacy.clipping import TableRows, UnitSlopes

RowLosses = Callable[[Rows], Tensor]
"""loss_B of these rows of an encoded text."""
_MOST = 768
"""Most places of rows, with padding, that are worked out together; more would be padding."""
_NUMBERS = 2**18
"""About how many numbers of gradients are written out at a time."""
_CLOSE = 1e-3
_KNOWN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether a model's gradients by row were found to be those that autograd gives."""
_LAYERS: WeakKeyDictionary[nn.Module, list[Layer] | None] = WeakKeyDictionary()


def unit_gradients(
    model: nn.Module, losses: RowLosses, units: Iterable[Rows], *, lengths_S: Rows
) -> Iterator[UnitSlopes]:
    """The gradient of each unit's loss by trained parameter, without dropout, in any order.

    A unit's loss is the sum over its rows, none of which any other unit has; without a row it is 0.
    `lengths_S` says how many places each row has. The model keeps its weights. What is yielded may
    be overwritten by what comes next.
    """
    every = list(units)
    if model not in _LAYERS:
        _LAYERS[model] = layers_of(model)
    layers = _LAYERS[model]
    for group in grouped(every, lengths_S):
        apart = layers is None or len(group) == 1 or not _KNOWN.get(model, True)
        if not apart:
            try:
                found = _together(model, losses, [every[one] for one in group], layers or [])
                if model not in _KNOWN and len(every[group[0]]):
                    _KNOWN[model] = _agrees(model, losses, every[group[0]], found)
            except UnknownError:
                _KNOWN[model] = False
            apart = not _KNOWN.get(model, True)
        if apart:
            for one in group:
                own = alone(model, losses, every[one], lengths_S=lengths_S)
                yield UnitSlopes.of(own, number=one)
            continue
        yield from found.slopes(np.array(group))


def grouped(units: Sequence[Rows], lengths_S: Rows) -> Iterator[list[int]]:
    """The units that are worked out together, by number: those of similar length, longest first."""
    longest_U = [int(lengths_S[rows].max(initial=0)) for rows in units]
    some: list[int] = []
    rows = longest = 0
    for number in sorted(range(len(units)), key=lambda one: -longest_U[one]):
        more = rows + len(units[number])
        if some and more * max(longest, longest_U[number]) > _MOST:
            yield some
            some, more, longest = [], len(units[number]), 0
        some.append(number)
        rows, longest = more, max(longest, longest_U[number])
    if some:
        yield some


def alone(model: nn.Module, losses: RowLosses, rows_B: Rows, *, lengths_S: Rows) -> Arrays:
    """The gradient of one unit by autograd: the reference for all others."""
    parameters = {name: p for name, p in named(model).items() if p.requires_grad}
    for parameter in parameters.values():
        parameter.grad = None
    with still(model), enough_memory(where_is(model)):
        for part in _parts(rows_B, lengths_S):
            losses(part).sum().backward()  # type: ignore[no-untyped-call]
    found = {
        name: at_home(torch.zeros_like(p) if p.grad is None else p.grad)
        for name, p in parameters.items()
    }
    for parameter in parameters.values():
        parameter.grad = None
    return found


def _parts(rows_B: Rows, lengths_S: Rows) -> Iterator[Rows]:
    """The rows, as many at a time as are worked out together."""
    start = longest = 0
    for place, length in enumerate(lengths_S[rows_B].tolist()):
        longest = max(longest, length)
        if place > start and longest * (place - start + 1) > _MOST:
            yield rows_B[start:place]
            start, longest = place, length
    if start < len(rows_B):
        yield rows_B[start:]


class _Found:
    """The terms of several units' gradients; unit u has the rows from `from_U1[u]` of the pass."""

    def __init__(self, terms: Terms, parameters: dict[str, nn.Parameter], from_U1: Rows) -> None:
        self._parameters = parameters
        self._from = from_U1.tolist()
        self.dense = {
            name: terms.get(name, [])
            for name in parameters
            if not any(isinstance(term, Lookup) for term in terms.get(name, []))
        }
        units_B = np.repeat(np.arange(len(from_U1) - 1), np.diff(from_U1))
        self._tables = {
            name: _reached(own, units_B, parameters[name])
            for name, own in terms.items()
            if name not in self.dense
        }

    def slopes(self, numbers_U: NDArray[np.int64]) -> Iterator[UnitSlopes]:
        """The gradients, written out some units at a time, always in the same memory."""
        size = sum(self._parameters[name].numel() for name in self.dense)
        some = min(len(numbers_U), max(1, _NUMBERS // max(size, 1)))
        device = next(iter(self._parameters.values())).device
        there_UG = torch.empty(some, size, device=device)  # new pages would cost more than numbers
        for start in range(0, len(numbers_U), some):
            own = slice(start, min(start + some, len(numbers_U)))
            tables = {name: _cut(table, own) for name, table in self._tables.items()}
            found_UG = self._written(own, there_UG[: own.stop - own.start])
            yield UnitSlopes(numbers_U[own], tuple(self.dense), found_UG, tables)

    def _written(self, own: slice, found_UG: Tensor) -> NDArray[np.float32]:
        begins = self._from[own.start : own.stop + 1]
        start = 0
        for name, terms in self.dense.items():
            count = self._parameters[name].numel()
            place_UG = found_UG[:, start : start + count]
            if not terms:
                place_UG.zero_()
            for before, term in enumerate(terms):
                _write(term, place_UG, begins, add=before > 0)
            start += count
        array: NDArray[np.float32] = at_home(found_UG)
        return array


def _write(term: Term, place_UG: Tensor, begins: list[int], *, add: bool) -> None:
    """Write, or add, a term's sum over each unit's rows."""
    single = begins[-1] - begins[0] == len(begins) - 1
    assert not isinstance(term, Lookup)
    if single and len(place_UG) > 1:
        own = slice(begins[0], begins[-1])
        if isinstance(term, Outer):
            found = torch.bmm(term.left_BLH[own].transpose(1, 2), term.right_BLD[own])
        else:
            found = term.values_BLH[own].sum(1)
        found = found.view(place_UG.shape)
        place_UG.add_(found) if add else place_UG.copy_(found)
        return
    for unit, (begin, end) in enumerate(zip(begins, begins[1:], strict=False)):
        place_G = place_UG[unit]
        if isinstance(term, Plain):
            found_H = term.values_BLH[begin:end].flatten(0, 1).sum(0)
            place_G.add_(found_H) if add else place_G.copy_(found_H)
            continue
        left_NH = term.left_BLH[begin:end].flatten(0, 1)
        right_ND = term.right_BLD[begin:end].flatten(0, 1)
        place_HD = place_G.view(left_NH.shape[1], right_ND.shape[1])
        torch.addmm(place_HD, left_NH.T, right_ND, beta=1 if add else 0, out=place_HD)


def _reached(terms: Sequence[Term], units_B: Rows, table: nn.Parameter) -> TableRows:
    """The rows of a table that each unit reaches, and their gradients."""
    rows, width = table.shape
    keys, values = [], []
    for term in terms:
        assert isinstance(term, Lookup)
        own_BL = on(units_B, term.ids_BL)[:, None] * rows + term.ids_BL
        there_BL = term.ids_BL >= 0
        keys.append(own_BL[there_BL])
        values.append(term.values_BLD[there_BL])
    keys_N, places = torch.unique(torch.cat(keys), return_inverse=True)
    rows_ND = torch.zeros(len(keys_N), width, device=table.device)
    rows_ND.index_add_(0, places, torch.cat(values))
    units_N, ids_N = np.divmod(keys_N.cpu().numpy(), rows)
    return TableRows(units_N, ids_N, at_home(rows_ND))


def _cut(table: TableRows, own: slice) -> TableRows:
    """The rows that some of the units reach; units are numbered from the first of these."""
    start, end = np.searchsorted(table.units_N, [own.start, own.stop])
    units_N = table.units_N[start:end] - own.start
    return TableRows(units_N, table.ids_N[start:end], table.rows_ND[start:end])


def _together(
    model: nn.Module, losses: RowLosses, units: Sequence[Rows], layers: Sequence[Layer]
) -> _Found:
    """One pass of these units' rows. Raises UnknownError."""
    parameters = {name: p for name, p in named(model).items() if p.requires_grad}
    from_U1 = np.append(0, np.cumsum([len(rows) for rows in units]))
    rows_B = np.concatenate([np.zeros(0, np.int64), *units])
    here = Pass(len(rows_B))
    if len(rows_B):
        with still(model), enough_memory(where_is(model)), watched(layers, here):
            try:
                loss_B = losses(rows_B)
            except RuntimeError as error:  # some models repeat what is the same for all rows
                if not here.widened or isinstance(error, torch.OutOfMemoryError):
                    raise
                raise UnknownError from error
            note_scores(layers, here, loss_B)
            loss_B.sum().backward()  # type: ignore[no-untyped-call]
    return _Found(here.terms, parameters, from_U1)


def _agrees(model: nn.Module, losses: RowLosses, rows_B: Rows, found: _Found) -> bool:
    """Whether the first unit's gradient is the one that autograd gives of this unit alone."""
    if not len(rows_B):
        return True
    parameters = {name: p for name, p in named(model).items() if p.requires_grad}
    shapes = {name: np.zeros(tuple(p.shape), np.float32) for name, p in parameters.items()}
    own = next(next(found.slopes(np.zeros(1, np.int64))).each(shapes))
    lengths_S = np.ones(int(rows_B.max()) + 1, np.int64)  # in one pass
    right = alone(model, losses, rows_B, lengths_S=lengths_S)
    norms = {name: float(np.linalg.norm(one)) for name, one in right.items()}
    most = max(norms.values())
    return all(
        float(np.linalg.norm(own[name] - one)) <= _CLOSE * (norms[name] + 1e-3 * most)
        for name, one in right.items()
    )
