"""Linear layers that multiply with oneDNN on processors where PyTorch's own choice is slow.

PyTorch's wheels multiply float32 matrices with MKL, which leaves half of each AVX-512 register
empty on processors that Intel did not make. oneDNN, in the same wheels, fills it: the same product,
summed in a different order (1e-6), more than twice as fast. PyTorch has no setting or public
function for this, so a layer calls the private operator by name, and falls back without it.

Shapes: N rows (whatever lies before the last axis), D features in, H features out.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.models.autograd import Context

_REGISTERS = "AVX512"
_LEAST = 2**16  # least numbers of a weight: for smaller ones the call costs more than it saves


@cache
def has_wide_products() -> bool:
    """Whether this processor and this PyTorch have wide products that are right on an example."""
    if not torch.backends.cpu.get_cpu_capability().startswith(_REGISTERS):
        return False
    left_ND, right_HD = torch.arange(12.0).view(3, 4), torch.arange(8.0).view(2, 4)
    try:
        return torch.equal(_product(left_ND, right_HD), left_ND @ right_HD.t())
    except (AttributeError, RuntimeError):  # missing in this build
        return False


def _product(left_ND: Tensor, right_HD: Tensor, *, bias_H: Tensor | None = None) -> Tensor:
    """`left · rightᵀ + bias`; either factor may be a transposed view."""
    operator = torch.ops.mkldnn._linear_pointwise
    found: Tensor = operator(left_ND, right_HD, bias_H, "none", [], "")
    return found


class _WideLinear(torch.autograd.Function):
    """y = x Wᵀ + b, and for a gradient g of y: g W of x, gᵀ x of W, the sum of g of b."""

    @staticmethod
    def forward(
        ctx: Context, values_ND: Tensor, weight_HD: Tensor, bias_H: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(values_ND, weight_HD)
        return _product(values_ND, weight_HD, bias_H=bias_H)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, gradient_NH: Tensor) -> tuple[Tensor | None, ...]:
        values_ND, weight_HD = ctx.saved_tensors
        wanted_values, wanted_weight, wanted_bias = ctx.needs_input_grad
        gradient_NH = gradient_NH.contiguous()
        return (
            _product(gradient_NH, weight_HD.t()) if wanted_values else None,
            _product(gradient_NH.t(), values_ND.t()) if wanted_weight else None,
            gradient_NH.sum(0) if wanted_bias else None,
        )


class WideLinear(nn.Linear):
    """`nn.Linear` with wide products for float32 on a processor that has them."""

    def forward(self, input: Tensor) -> Tensor:
        """X Wᵀ + b along the last axis."""
        usual = not input.numel() or input.dtype is not torch.float32 or input.device.type != "cpu"
        usual = usual or torch.is_autocast_enabled("cpu")
        if usual or not has_wide_products():
            return functional.linear(input, self.weight, self.bias)
        values_ND = input.reshape(-1, self.in_features)
        found_NH: Tensor = _WideLinear.apply(values_ND, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found_NH.view(*input.shape[:-1], self.out_features)


def widen(model: nn.Module) -> None:
    """Replace the large linear layers below `model` by `WideLinear`, with the same parameters."""
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if type(layer) is nn.Linear and layer.weight.numel() >= _LEAST:
                wide = WideLinear(layer.in_features, layer.out_features, device="meta")
                wide.weight, wide.bias = layer.weight, layer.bias
                setattr(module, name, wide.train(layer.training))
