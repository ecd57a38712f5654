"""The server's own steps, against the formulas of Reddi et al. 2021 (Algorithm 2) by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cases import each
from confide.training.optimisers import Descent, Optimiser, ServerStep, Term, stepped

BEFORE = {"w": np.float32([1.0, -2.0, 0.5])}
MEANS = ({"w": np.float32([1.5, -2.0, 0.0])}, {"w": np.float32([1.25, -1.0, 0.25])})


def by_hand(how: ServerStep) -> list[float]:
    """Both rounds, number by number in float64."""
    found = []
    for place in range(3):
        w, m, v = float(BEFORE["w"][place]), 0.0, how.floor**2
        for mean in MEANS:
            delta = float(mean["w"][place]) - w
            if how.name == "momentum":
                m = how.momentum * m + delta
                w += how.rate * m
                continue
            m = how.momentum * m + (1 - how.momentum) * delta
            if how.name == "adam":
                v = how.squares * v + (1 - how.squares) * delta**2
            else:
                v -= (1 - how.squares) * delta**2 * math.copysign(1.0, v - delta**2)
            w += how.rate * m / (math.sqrt(v) + how.floor)
        found.append(w)
    return found


@each("name", ["momentum", "adam", "yogi"])
@each("rate", [1.0, 0.1])
def test_two_rounds_are_those_of_the_formulas(name: str, rate: float) -> None:
    how = ServerStep(name, rate, momentum=0.7)  # type: ignore[arg-type]
    weights, moments, squares = dict(BEFORE), {}, {}
    for mean in MEANS:
        weights, moments, squares = stepped(
            weights, mean, how=how, moments=moments, squares=squares
        )
    np.testing.assert_allclose(weights["w"], by_hand(how), rtol=2e-5)
    assert weights["w"].dtype == moments["w"].dtype == np.float32
    assert bool(squares) == (name != "momentum")
    assert BEFORE["w"].tolist() == [1.0, -2.0, 0.5]


def test_the_mean_is_the_mean_itself() -> None:
    weights, moments, squares = stepped(BEFORE, MEANS[0], how=ServerStep(), moments={}, squares={})
    assert weights is MEANS[0]
    assert (moments, squares) == ({}, {})


def test_training_is_held_to_where_it_began() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    descent = Descent([weight], Optimiser("sgd", 0.1, momentum=0.0, clip=0.0, term=Term(0.5)))
    descent.step_down([(3.0 * weight).sum()])  # w0: nothing pulls yet
    assert weight.item() == pytest.approx(2.0 - 0.1 * 3.0)
    descent.step_down([(3.0 * weight).sum()])
    assert weight.item() == pytest.approx(1.7 - 0.1 * (3.0 + 0.5 * (1.7 - 2.0)))


def test_of_a_sparse_gradient_the_rows_that_it_has_are_held() -> None:
    from confide.training.optimisers import row_steps

    table = torch.nn.Embedding(3, 1, sparse=True)
    with torch.no_grad():
        table.weight.fill_(1.0)
    how = Optimiser("sgd", 0.1, momentum=0.0, clip=0.0, term=Term(0.5))
    descent = Descent([table.weight], how, make=row_steps)
    for expected in (0.8, 0.8 - 0.1 * (2.0 + 0.5 * (0.8 - 1.0))):
        descent.step_down([(2.0 * table(torch.tensor([1]))).sum()])
        assert table.weight[:, 0].tolist() == pytest.approx([1.0, expected, 1.0])


def test_a_method_adds_terms_to_the_loss() -> None:
    """μ/2 ‖w - w₀‖² + ⟨g, w⟩ of the parameters that it names, also where a batch reads none."""
    one, two = (torch.nn.Parameter(torch.tensor([value])) for value in (2.0, 5.0))
    term = Term(
        0.5, {"one": np.float32([1.0])}, {"one": np.float32([0.25]), "two": np.float32([4])}
    )
    how = Optimiser("sgd", 0.1, momentum=0.0, clip=0.0, term=term)
    assert not how.term_keeps_still
    Descent([one, two], how, names=["one", "two"]).step_down([(3.0 * one).sum()])
    assert one.item() == pytest.approx(2.0 - 0.1 * (3.0 + 0.5 * (2.0 - 1.0) + 0.25))
    assert two.item() == pytest.approx(5.0 - 0.1 * 4.0)
