"""An LSTM that is run step by step, so that the slopes of its gates are seen at every step.

    i, f, o = σ(z_i), σ(z_f), σ(z_o),  g = tanh(z_g),  z_t = W x_t + U h_t-1 + b
    c_t = f c_t-1 + i g,               h_t = o tanh(c_t)

torch's own LSTM gives the gradient of its weights for a whole batch. With the slopes of z a
sentence's own gradient of W is Σ_t dz_t x_tᵀ, of U Σ_t dz_t h_t-1ᵀ, and of each bias Σ_t dz_t.

Shapes: B rows, L steps, D features in, H features out, Z = 4 H gates in torch's order i, f, g, o.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.models.autograd import Context

Seen = Callable[[Tensor, Tensor, Tensor], None]
"""Gets x_LBD, the states before each step (before_LBH) and the slopes of the gates (slopes_LBZ)."""


def is_plain(lstm: nn.LSTM) -> bool:
    """Whether it has one layer and one direction, batches first, with biases and no projection."""
    return (
        lstm.num_layers == 1
        and not lstm.bidirectional
        and lstm.batch_first
        and lstm.bias
        and not lstm.proj_size
    )


def unfolded(lstm: nn.LSTM, values_BLD: Tensor, seen: Seen) -> Tensor:
    """states_BLH, as of `lstm`, from a state of zeros; `seen` is called in the backward pass.

    Gradients flow to the values, and to no weight.
    """
    apply = cast(Callable[..., Tensor], _Unfolded.apply)
    anchor = torch.zeros((), requires_grad=True)  # so that there is a backward pass in any case
    return apply(values_BLD, anchor, (lstm, seen))


class _Kept(Context, Protocol):
    seen: Seen


class _Unfolded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Kept, values_BLD: Tensor, anchor: Tensor, how: tuple[Any, Seen]) -> Tensor:
        lstm, ctx.seen = how
        weight_ZD, weight_ZH = lstm.weight_ih_l0.detach(), lstm.weight_hh_l0.detach()
        values_LBD = values_BLD.detach().transpose(0, 1).contiguous()
        gates_LBZ = functional.linear(values_LBD, weight_ZD, (lstm.bias_ih_l0 + lstm.bias_hh_l0))
        length, batch, hidden = *values_LBD.shape[:2], lstm.hidden_size
        # one more of each, for the state before the first step
        states_LBH = values_LBD.new_zeros(length + 1, batch, hidden)
        cells_LBH, bent_LBH = torch.zeros_like(states_LBH), torch.empty_like(states_LBH)
        weight_HZ = weight_ZH.T.contiguous()
        for step in range(length):
            gates_BZ = gates_LBZ[step]
            if step:
                gates_BZ.addmm_(states_LBH[step], weight_HZ)
            gates_BZ[:, : 2 * hidden].sigmoid_()
            gates_BZ[:, 3 * hidden :].sigmoid_()
            gates_BZ[:, 2 * hidden : 3 * hidden].tanh_()
            into, forget, new, out = gates_BZ.chunk(4, 1)
            torch.mul(into, new, out=cells_LBH[step + 1])
            cells_LBH[step + 1].addcmul_(forget, cells_LBH[step])
            torch.tanh(cells_LBH[step + 1], out=bent_LBH[step + 1])
            torch.mul(out, bent_LBH[step + 1], out=states_LBH[step + 1])
        ctx.save_for_backward(
            values_LBD, states_LBH, cells_LBH, bent_LBH, gates_LBZ, weight_ZD, weight_ZH
        )
        return states_LBH[1:].transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Kept, slopes_BLH: Tensor) -> tuple[Tensor | None, ...]:
        values_LBD, states_LBH, cells_LBH, bent_LBH, gates_LBZ, weight_ZD, weight_ZH = (
            ctx.saved_tensors
        )
        length, batch, hidden = *values_LBD.shape[:2], states_LBH.shape[2]
        into, forget, new, out = gates_LBZ.chunk(4, 2)
        bent = bent_LBH[1:]
        by_cell_LBH = out * (1 - bent * bent)
        times_LBZ = torch.empty_like(gates_LBZ)  # first what a gate's slope is times, then slopes
        torch.mul(new, into * (1 - into), out=times_LBZ[:, :, :hidden])
        torch.mul(cells_LBH[:-1], forget * (1 - forget), out=times_LBZ[:, :, hidden : 2 * hidden])
        torch.mul(into, 1 - new * new, out=times_LBZ[:, :, 2 * hidden : 3 * hidden])
        torch.mul(bent, out * (1 - out), out=times_LBZ[:, :, 3 * hidden :])
        slopes_LBH = slopes_BLH.transpose(0, 1).contiguous()
        cell_BH = torch.zeros_like(slopes_LBH[0])
        for step in range(length - 1, -1, -1):
            state_BH = slopes_LBH[step]
            if step < length - 1:
                state_BH.addmm_(times_LBZ[step + 1], weight_ZH)
                cell_BH.mul_(forget[step + 1])
            cell_BH.addcmul_(state_BH, by_cell_LBH[step])
            gates_B4H = times_LBZ[step].view(batch, 4, hidden)
            gates_B4H[:, :3].mul_(cell_BH[:, None])
            gates_B4H[:, 3].mul_(state_BH)
        ctx.seen(values_LBD, states_LBH[:-1], times_LBZ)
        wanted = ctx.needs_input_grad[0]
        return (times_LBZ @ weight_ZD).transpose(0, 1) if wanted else None, None, None
