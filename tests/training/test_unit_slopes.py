"""Gradients by unit: what is noted of each layer, and what is done where a layer is unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import each
from confide.training import examples
from confide.training.batches import Rows
from confide.training.examples import (
    UnknownError,
    alone,
    known_layers,
    unfolded,
    unit_gradients,
    units_together,
)

ROWS, PLACES = 9, 5
UNITS = [np.array([0, 1]), np.array([2]), np.zeros(0, np.int64), np.array([3, 5, 8]), np.array([4])]
LENGTHS = np.full(ROWS, PLACES)


class Own(nn.Linear):
    """A layer of a type of its own, of which nothing is known."""


class Small(nn.Module):
    """A table, places of a text, a norm, two layers that share nothing, and one used twice."""

    def __init__(
        self,
        last: type[nn.Linear] = nn.Linear,
        *,
        tied: bool = False,
        over: bool = False,
        repeated: bool = False,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6, padding_idx=0)
        self.places = nn.Embedding(PLACES, 6)
        self.norm = nn.LayerNorm(6)
        self.twice = nn.Linear(6, 6)
        self.last = last(6, 3)
        self.tied, self.over, self.repeated = tied, over, repeated
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids_BL: Tensor) -> Tensor:
        values = self.table(ids_BL) + self.places(torch.arange(PLACES)[None])
        values = self.norm(self.twice(torch.tanh(self.twice(values))))
        if self.repeated:  # what is the same for all rows, by the model itself, as DeBERTa does
            same = self.twice(self.places(torch.arange(PLACES)[None]).mean(0, keepdim=True))
            values = values + same.repeat(len(values), 1, 1)
        if self.tied:  # a weight that is read where no layer shows it
            values = values @ self.twice.weight
        read = self.dropout(values).clone()
        found: Tensor = self.last(read)
        if self.over:  # what a layer read is not there any more
            with torch.no_grad():
                read.mul_(2.0)
        return found


def made(**changes: Any) -> tuple[Small, Callable[[Rows], Tensor]]:
    torch.manual_seed(3)
    model = Small(**changes)
    ids_SL = torch.randint(0, 7, (ROWS, PLACES))
    return model, lambda rows_B: model(ids_SL[torch.from_numpy(rows_B)]).square().sum((1, 2))


def check(model: nn.Module, losses: Callable[[Rows], Tensor]) -> None:
    """Every unit's gradient is that of autograd, and the model is left as it was."""
    like = {name: p.detach().numpy() for name, p in model.named_parameters()}
    found: dict[int, Any] = {}
    for some in unit_gradients(model, losses, UNITS, lengths_S=LENGTHS):
        found |= dict(zip(some.numbers_U.tolist(), some.each(like), strict=True))
    assert sorted(found) == list(range(len(UNITS)))
    for number, rows in enumerate(UNITS):
        right = alone(model, losses, rows, lengths_S=LENGTHS)
        assert any(one.any() for one in right.values()) == bool(len(rows))
        for name, one in right.items():
            np.testing.assert_allclose(found[number][name], one, rtol=1e-4, atol=1e-5)
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(one._forward_hooks for one in model.modules())


def test_every_layer_s_terms_are_those_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    for numbers in (1, 2**18):  # written out one unit at a time, and all at once
        monkeypatch.setattr(examples, "_NUMBERS", numbers)
        model, losses = made()
        check(model, losses)
        assert examples._KNOWN[model]


def test_units_of_one_row_each_are_multiplied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "UNITS", [np.array([one]) for one in range(ROWS)])
    check(*made())


@each("changes", [{"last": Own}, {"tied": True}, {"repeated": True}])
def test_what_is_not_known_is_gone_through_unit_by_unit(changes: dict[str, Any]) -> None:
    """A layer of another type, a weight read outside its layer, and rows that are repeated."""
    model, losses = made(**changes)
    check(model, losses)
    assert not examples._KNOWN.get(model, False)


def test_what_was_read_and_then_overwritten_is_noticed() -> None:
    """In the backward pass, where autograd itself may not notice: it needs no gradient here."""
    model, losses = made(over=True)
    layers = known_layers(model)
    assert layers is not None
    with pytest.raises(UnknownError):
        examples._together(model, losses, UNITS, layers)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(one._forward_hooks for one in model.modules())


def test_a_large_unit_is_gone_through_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    model, losses = made()

    def seen(rows_B: Rows) -> Tensor:
        sizes.append(len(rows_B))
        return losses(rows_B)

    whole = alone(model, seen, np.arange(ROWS), lengths_S=LENGTHS)
    monkeypatch.setattr(examples, "_MOST", 2 * PLACES)
    parts = alone(model, seen, np.arange(ROWS), lengths_S=LENGTHS)
    assert sizes == [9, 2, 2, 2, 2, 1]
    for name, one in whole.items():
        np.testing.assert_allclose(parts[name], one, rtol=1e-4, atol=1e-5)
    check(model, losses)


def test_units_of_similar_length_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "_MOST", 20)
    lengths = np.array([3, 9, 4, 8, 2, 50])
    units = [np.array([one]) for one in (0, 1, 2, 3, 4, 5)]
    assert list(units_together(units, lengths)) == [[5], [1, 3], [2, 0, 4]]
    assert list(units_together([], lengths)) == []
    assert list(units_together([np.arange(6), np.zeros(0, np.int64)], lengths)) == [[0], [1]]


def test_an_lstm_run_step_by_step_is_torch_s() -> None:
    torch.manual_seed(1)
    lstm, noted = nn.LSTM(4, 3, batch_first=True), []
    values = torch.randn(5, 6, 4, requires_grad=True)
    right = lstm(values)[0]
    slope = torch.randn_like(right)
    wanted = torch.autograd.grad(right, [values, *lstm.parameters()], slope)
    found = unfolded(lstm, values, lambda *seen: noted.append(seen))
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(torch.autograd.grad(found, values, slope)[0], wanted[0])
    ((read, before, slopes),) = noted
    for mine, other in ((read, wanted[1]), (before, wanted[2])):
        torch.testing.assert_close(torch.einsum("lbz,lbd->zd", slopes, mine), other)
    torch.testing.assert_close(slopes.sum((0, 1)), wanted[3])
