"""Optimisers against their formulas."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from cases import each
from confide.errors import SettingsError
from confide.training.optimisers import OPTIMISERS, FusedSteps, Optimiser, clip

GRADIENTS = (0.5, -1.0, 2.0)


def walked(settings: Optimiser) -> float:
    parameter = nn.Parameter(torch.tensor([1.0]))
    optimiser = FusedSteps([parameter], settings)
    for gradient in GRADIENTS:
        parameter.grad = torch.tensor([gradient])
        optimiser.step()
    return float(parameter.detach())


def test_sgd_is_momentum_and_weight_decay() -> None:
    settings = Optimiser("sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    weight, speed = 1.0, 0.0
    for gradient in GRADIENTS:
        speed = 0.9 * speed + gradient + 0.01 * weight
        weight -= 0.1 * speed
    assert walked(settings) == pytest.approx(weight, abs=1e-6)


@each("name", ["adam", "adamw"])
def test_adam_and_adamw_differ_in_how_weights_decay(name: str) -> None:
    settings = Optimiser(name, learning_rate=0.1, weight_decay=0.05)
    weight, first, second = 1.0, 0.0, 0.0
    for step, raw in enumerate(GRADIENTS, 1):
        gradient = raw + (0.05 * weight if name == "adam" else 0.0)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        if name == "adamw":
            weight -= 0.1 * 0.05 * weight
        weight -= 0.1 * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)) ** 0.5 + 1e-8)
    assert walked(settings) == pytest.approx(weight, abs=1e-5)


@each("name", OPTIMISERS)
@each("decay", [0.0, 0.02])
def test_steps_are_those_of_torchs_classes_to_the_bit(name: str, decay: float) -> None:
    settings = Optimiser(name, learning_rate=0.05, weight_decay=decay)
    classes = {
        "sgd": lambda ours: torch.optim.SGD(ours, 0.05, 0.9, weight_decay=decay, fused=True),
        "adam": lambda ours: torch.optim.Adam(ours, 0.05, weight_decay=decay, fused=True),
        "adamw": lambda ours: torch.optim.AdamW(ours, 0.05, weight_decay=decay, fused=True),
        "adagrad": lambda ours: torch.optim.Adagrad(
            ours, 0.05, weight_decay=decay, initial_accumulator_value=0.1
        ),
    }
    torch.manual_seed(3)
    starts = [torch.randn(7, 33), torch.randn(5)]
    ours, theirs = ([nn.Parameter(one.clone()) for one in starts] for _ in range(2))
    steps, reference = FusedSteps(ours, settings), classes[name](theirs)
    for _ in range(4):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        steps.step()
        reference.step()
    assert all(map(torch.equal, ours, theirs))


def test_a_parameter_whose_gradient_comes_late_starts_then() -> None:
    early, late = (nn.Parameter(torch.ones(2)) for _ in range(2))
    steps = FusedSteps([early, late], Optimiser("sgd", learning_rate=0.5, momentum=0.9))
    early.grad = torch.ones(2)
    steps.step()
    late.grad = torch.ones(2)
    steps.step()
    assert early.tolist() == pytest.approx([1 - 0.5 - 0.5 * 1.9] * 2)
    assert late.tolist() == [0.5, 0.5]


def test_no_step_loads_torchs_compiler() -> None:
    code = """
import sys, torch
from torch import nn
from confide.training.optimisers import OPTIMISERS, Descent, Optimiser
for name in OPTIMISERS:
    layer = nn.Linear(3, 2)
    Descent(layer.parameters(), Optimiser(name)).step_down([layer(torch.ones(1, 3)).sum()])
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_an_unknown_optimiser_is_refused() -> None:
    with pytest.raises(SettingsError, match=", ".join(OPTIMISERS)):
        FusedSteps([], Optimiser("lion"))


@each("most", [0.1, 1e3])
def test_clipping_counts_the_rows_of_a_sparse_gradient(most: float) -> None:
    slopes = []
    for sparse in (False, True):
        torch.manual_seed(1)
        table, layer = nn.Embedding(9, 3, sparse=sparse), nn.Linear(3, 2)
        layer(table(torch.tensor([1, 4]))).square().sum().backward()
        parameters = [table.weight, *layer.parameters()]
        if sparse:
            clip(parameters, most)
        else:
            nn.utils.clip_grad_norm_(parameters, most)
        slopes.append([p.grad.to_dense() for p in parameters if p.grad is not None])
    for ours, torchs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, torchs)
