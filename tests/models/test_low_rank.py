"""Low-rank updates: nothing at the start, and the same as weights that hold them."""

from __future__ import annotations

import torch
from torch import nn

from confide.models.low_rank import LowRankLinear, add_low_rank


def layer(*, bias: bool = True) -> tuple[nn.Linear, LowRankLinear]:
    torch.manual_seed(1)
    plain = nn.Linear(7, 5, bias=bias)
    return plain, LowRankLinear(plain, 2)


def test_zero_at_the_start() -> None:
    plain, low = layer()
    values = torch.randn(3, 4, 7)
    torch.testing.assert_close(low(values), plain(values))
    assert low.down_RD.abs().min() > 0
    assert not low.up_HR.any()


def test_equal_to_merged_weights() -> None:
    for bias in (True, False):
        _, low = layer(bias=bias)
        nn.init.normal_(low.up_HR)
        values = torch.randn(3, 4, 7)
        merged = low.weight + low.up_HR @ low.down_RD
        expected = nn.functional.linear(values, merged, low.bias)
        torch.testing.assert_close(low(values), expected, atol=1e-5, rtol=1e-5)
        assert torch.linalg.matrix_rank(merged - low.weight) == 2


def test_layers_are_named_and_keep_their_parameters() -> None:
    model = nn.ModuleDict({"q_proj": nn.Linear(4, 4), "k_proj": nn.Linear(4, 4)})
    before = dict(model.named_parameters())
    add_low_rank(model, 1, names=("q_proj",))
    after = dict(model.named_parameters())
    assert set(after) - set(before) == {"q_proj.down_RD", "q_proj.up_HR"}
    assert all(after[name] is before[name] for name in before)
    assert type(model["k_proj"]) is nn.Linear


def test_gradients_reach_the_update() -> None:
    _, low = layer()
    low.weight.requires_grad_(False)
    nn.init.normal_(low.up_HR)
    values = torch.randn(6, 7)
    low(values).square().sum().backward()
    twin = (low.weight + low.up_HR.detach() @ low.down_RD.detach()).requires_grad_()
    nn.functional.linear(values, twin, low.bias).square().sum().backward()
    assert twin.grad is not None
    torch.testing.assert_close(
        low.up_HR.grad, twin.grad @ low.down_RD.detach().t(), atol=1e-4, rtol=1e-4
    )
    assert low.weight.grad is None
