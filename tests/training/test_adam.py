"""Adam as a function is Adam as an object."""

from __future__ import annotations

import numpy as np
import torch

from cases import each
from confide.training.optimisers import AdamMoments, adam

SHAPES = {"a": (7, 3), "b": (5,)}


@each("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_torch(weight_decay: float) -> None:
    draw = np.random.default_rng(0)
    values = {name: draw.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    twins = {name: torch.nn.Parameter(torch.from_numpy(v.copy())) for name, v in values.items()}
    optimiser = torch.optim.Adam(twins.values(), lr=0.01, weight_decay=weight_decay)
    moments = AdamMoments(0, {}, {})
    for number in range(1, 6):
        slope = {n: draw.normal(size=v.shape).astype(np.float32) for n, v in values.items()}
        before = {name: value.copy() for name, value in values.items()}
        kept, last = values, moments
        values, moments = adam(
            values, slope, moments=moments, learning_rate=0.01, weight_decay=weight_decay
        )
        assert all(np.array_equal(kept[name], before[name]) for name in SHAPES)
        assert (moments.steps, last.steps) == (number, number - 1)
        for name, twin in twins.items():
            twin.grad = torch.from_numpy(slope[name].copy())
        optimiser.step()
        for name, twin in twins.items():
            np.testing.assert_allclose(values[name], twin.detach().numpy(), atol=1e-6)


def test_nothing_to_move_is_no_error() -> None:
    assert adam({}, {}, moments=AdamMoments(3, {}, {}), learning_rate=0.1) == (
        {},
        AdamMoments(4, {}, {}),
    )
