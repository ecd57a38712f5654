"""An optimiser that goes on from what the last one remembered."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from cases import each
from confide.training.optimisers import Descent, Moments, Optimiser, RowSteps, row_steps

SLOPES = [torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.5, 3.0, 0.0]), torch.tensor([-1, 1, 2.0])]


def stepped(settings: Optimiser, slopes: list[torch.Tensor], start: torch.Tensor) -> torch.Tensor:
    """Parameters after a step down each of these gradients."""
    parameter = nn.Parameter(start.clone())
    descent = Descent([parameter], settings)
    for slope in slopes:
        descent.step_down([(parameter * slope).sum()])
    return parameter.detach()


@each("name", ["adam", "adamw", "sgd"])
def test_two_trainings_with_kept_moments_are_one(name: str) -> None:
    settings = Optimiser(name, 0.1, clip=0.0)
    start = torch.zeros(3)
    whole = stepped(settings, SLOPES, start)
    first = Moments()
    half = stepped(Optimiser(name, 0.1, clip=0.0, moments=first), SLOPES[:1], start)
    kept = first.arrays()
    assert kept
    second = Moments(kept)
    both = stepped(Optimiser(name, 0.1, clip=0.0, moments=second), SLOPES[1:], half)
    assert torch.equal(both, whole)
    afresh = stepped(settings, SLOPES[1:], half)
    assert not torch.equal(afresh, whole)


def test_what_is_kept_is_a_copy_that_later_steps_leave_alone() -> None:
    moments, parameter = Moments(), nn.Parameter(torch.zeros(3))
    descent = Descent([parameter], Optimiser("adam", 0.1, moments=moments))
    descent.step_down([(parameter * SLOPES[0]).sum()])
    kept = moments.arrays()
    before = {name: array.copy() for name, array in kept.items()}
    descent.step_down([(parameter * SLOPES[1]).sum()])
    assert kept.keys() == before.keys() == {"0/exp_avg", "0/exp_avg_sq", "0/step"}
    assert all(np.array_equal(kept[name], before[name]) for name in kept)
    given = {name: array.copy() for name, array in kept.items()}
    stepped(Optimiser("adam", 0.1, moments=Moments(given)), SLOPES, torch.zeros(3))
    assert all(np.array_equal(given[name], kept[name]) for name in kept)


def test_moments_of_another_shape_are_dropped() -> None:
    odd = {"0/exp_avg": np.ones(2, np.float32), "0/exp_avg_sq": np.ones(2, np.float32)}
    settings = Optimiser("adam", 0.1, moments=Moments(odd))
    fresh = stepped(Optimiser("adam", 0.1), SLOPES, torch.zeros(3))
    assert torch.equal(stepped(settings, SLOPES, torch.zeros(3)), fresh)


def test_steps_without_a_memory_have_nothing_to_keep() -> None:
    moments = Moments()
    parameter = nn.Parameter(torch.zeros(3))
    settings = Optimiser("sgd", 0.1, momentum=0.0, moments=moments)
    assert isinstance(Descent([parameter], settings, make=row_steps).steps, RowSteps)
    assert moments.arrays() == {}
