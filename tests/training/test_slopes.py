"""Gradients by the last layer's weight, of any model and any two losses, against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import each
from confide.training.devices import WideLinear
from confide.training.examples import OuterGradients, WholeGradients, last_layer_gradients


def losses(scores_BLY: Tensor) -> tuple[Tensor, Tensor]:
    """One that mixes tokens, one of a single token."""
    return scores_BLY.sum(1).logsumexp(1), scores_BLY[:, 0].square().sum(1)


@each("layer", [nn.Linear, WideLinear])
def test_each_row_has_the_gradient_of_its_own_loss(layer: type[nn.Linear]) -> None:
    torch.manual_seed(1)
    linear = layer(5, 3)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), linear)
    values = torch.randn(6, 7, 4)
    found = last_layer_gradients(linear, lambda: model(values), losses=losses)
    for row in range(6):
        for part, have in zip(losses(model(values[row : row + 1])), found, strict=True):
            (wanted,) = torch.autograd.grad(part.sum(), linear.weight, retain_graph=True)
            torch.testing.assert_close(have[row], wanted.flatten())
    assert linear.weight.grad is None
    assert not linear._forward_pre_hooks


def test_the_hook_goes_where_the_model_fails() -> None:
    linear = nn.Linear(2, 2)

    def outputs() -> Tensor:
        linear(torch.zeros(1, 1, 2))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        last_layer_gradients(linear, outputs, losses=losses)
    assert not linear._forward_pre_hooks


def test_outer_products_are_compared_as_if_they_were_written_out() -> None:
    random = np.random.default_rng(1)
    errors_SY = random.standard_normal((5, 3)).astype(np.float32)
    inputs_SD = random.standard_normal((5, 4)).astype(np.float32)
    errors_SY[2] = 0
    direction_G = random.standard_normal(12).astype(np.float32)
    found = OuterGradients(errors_SY, inputs_SD)
    whole = np.array([np.outer(*one).ravel() for one in zip(errors_SY, inputs_SD, strict=True)])
    for slopes in (found, WholeGradients(whole)):
        assert len(slopes) == 5
        np.testing.assert_allclose(slopes.norms_S(), np.linalg.norm(whole, axis=1), rtol=1e-6)
        np.testing.assert_allclose(slopes.along_S(direction_G), whole @ direction_G, atol=1e-5)
    assert found.norms_S()[2] == 0
    assert len(OuterGradients(errors_SY[:0], inputs_SD[:0]).along_S(direction_G)) == 0
