"""The cross-entropy over a large table: torch's own numbers and gradients, and its estimate."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from confide.models import denoising
from confide.models.denoising import cross_entropy, drawn_rows, likeliest

N, V, D = 50, 300, 8


@pytest.fixture
def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    states = torch.randn(N, D, requires_grad=True)
    table = torch.randn(V, D, requires_grad=True)
    return states, table, torch.randint(V, (N,))


@pytest.mark.parametrize("at_once", [V, 7 * V, 1 << 20])
def test_loss_and_gradients_are_those_of_torch(
    drawn: tuple[torch.Tensor, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denoising, "_AT_ONCE", at_once)
    states, table, targets = drawn
    loss = cross_entropy(states, table, targets) / N
    slopes = torch.autograd.grad(loss, (states, table))
    plain = functional.cross_entropy(states @ table.T, targets)
    expected = torch.autograd.grad(plain, (states, table))
    torch.testing.assert_close(loss, plain)
    for slope, other in zip(slopes, expected, strict=True):
        torch.testing.assert_close(slope, other, atol=1e-6, rtol=1e-4)


def test_a_table_that_is_not_trained_gets_no_gradient(drawn: tuple[torch.Tensor, ...]) -> None:
    states, table, targets = drawn
    still = table.detach()
    cross_entropy(states, still, targets).backward()
    assert states.grad is not None and still.grad is None
    with torch.inference_mode():
        assert cross_entropy(states, still, targets) > 0


def test_rows_hold_every_target_and_others_once() -> None:
    targets = torch.tensor([5, 9, 5, 200])
    rows = drawn_rows(targets, V, count=40, generator=torch.Generator().manual_seed(1))
    assert rows is not None
    assert {5, 9, 200} <= set(rows.rows_U.tolist()) and len(set(rows.rows_U.tolist())) == 43
    added = dict(zip(rows.rows_U.tolist(), rows.added_U.tolist(), strict=True))
    assert [added.pop(target) for target in (5, 9, 200)] == [0.0, 0.0, 0.0]
    assert list(added.values()) == pytest.approx([math.log(297 / 40)] * 40)
    assert drawn_rows(targets, V, count=297, generator=torch.Generator()) is None


def test_the_sum_over_drawn_rows_is_right_in_expectation(drawn: tuple[torch.Tensor, ...]) -> None:
    states, table, targets = (part.detach() for part in drawn)
    exact = (states @ table.T).logsumexp(1).exp()
    generator = torch.Generator().manual_seed(2)
    sums = torch.zeros(N)
    for _ in range(400):
        rows = drawn_rows(targets, V, count=60, generator=generator)
        assert rows is not None
        sums += (states @ table[rows.rows_U].T + rows.added_U).exp().sum(1) / 400
    torch.testing.assert_close(sums, exact, rtol=0.15, atol=0.0)


def test_the_loss_over_drawn_rows_is_near_and_slopes_reach_only_them(
    drawn: tuple[torch.Tensor, ...],
) -> None:
    states, table, targets = drawn
    rows = drawn_rows(targets, V, count=200, generator=torch.Generator().manual_seed(3))
    assert rows is not None
    loss = cross_entropy(states, table, targets, rows=rows)
    torch.testing.assert_close(loss, cross_entropy(states, table, targets), rtol=0.1, atol=0.0)
    loss.backward()
    assert table.grad is not None
    untouched = torch.ones(V, dtype=torch.bool)
    untouched[rows.rows_U] = False
    assert untouched.any() and not table.grad[untouched].any() and table.grad[targets].any(1).all()


def test_the_likeliest_row(
    drawn: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denoising, "_AT_ONCE", 3 * V)
    states, table, _ = (part.detach() for part in drawn)
    assert torch.equal(likeliest(states, table), (states @ table.T).argmax(1))
    assert len(likeliest(states[:0], table)) == 0
