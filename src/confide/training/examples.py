"""Per-example gradients: of the last linear layer, of all layers, and of units of text.

Gradients of each row's loss by the weight of a model's last linear layer take one pass.

The loss depends on the weight only through the layer's output, so with the gradient g_t of a row's
loss by the output at token t, and the layer's input x_t there,

    d loss / d weight = Σ_t g_t x_tᵀ

and no backward pass through the model is needed, nor one for each row.

Shapes: S rows, B those of a batch, L tokens, D numbers in, Y numbers out, G = Y · D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.privacy.noise import TableRows, UnitGradients
from confide.training.batches import Rows
from confide.training.crf import CRF, gradient_of_scores
from confide.training.devices import WideLinear, at_home, enough_memory, on, where_is
from confide.training.encoder import MarkedEmbedding
from confide.training.weights import Arrays, gradients_of, still, trained_parameters

Parts = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class WholeGradients:
    """Gradients that are stored in full."""

    grads_SG: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.grads_SG)

    def norms_S(self) -> NDArray[np.float64]:  # noqa: N802
        """The norm of each row's gradient."""
        found_S: NDArray[np.float64] = np.linalg.norm(self.grads_SG.astype(np.float64), axis=1)
        return found_S

    def along_S(self, direction_G: NDArray[np.float32]) -> NDArray[np.float64]:  # noqa: N802
        """The inner product of each row's gradient and this one."""
        found_S: NDArray[np.float64] = self.grads_SG.astype(np.float64) @ direction_G.astype(
            np.float64
        )
        return found_S


@dataclass(frozen=True, eq=False)
class OuterGradients:
    """Gradients of rows that the layer reads once: outer products that are never written out.

    A row's gradient is errors_Y inputs_Dᵀ, stored as Y + D numbers instead of Y · D.
    """

    errors_SY: NDArray[np.float32]
    inputs_SD: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.errors_SY)

    def norms_S(self) -> NDArray[np.float64]:  # noqa: N802
        """The norm of each row's gradient, |error| · |input|."""
        by_S = (np.linalg.norm(one.astype(np.float64), axis=1) for one in self._factors)
        found_S: NDArray[np.float64] = np.multiply(*by_S)
        return found_S

    def along_S(self, direction_G: NDArray[np.float32]) -> NDArray[np.float64]:  # noqa: N802
        """The inner product of each row's gradient and this one: errorᵀ · direction · input."""
        errors_SY, inputs_SD = (one.astype(np.float64) for one in self._factors)
        shape = errors_SY.shape[1], inputs_SD.shape[1]
        turned_SD = errors_SY @ direction_G.astype(np.float64).reshape(shape)
        found_S: NDArray[np.float64] = np.einsum("sd,sd->s", turned_SD, inputs_SD)
        return found_S

    @property
    def _factors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self.errors_SY, self.inputs_SD


RowGradients = WholeGradients | OuterGradients
"""The gradients of S rows by the same weight, as far as comparing them needs."""


def last_layer_gradients(
    linear: nn.Linear, outputs: Callable[[], Tensor], *, losses: Callable[[Tensor], Parts]
) -> Parts:
    """grads_BG of each of two losses.

    `outputs` runs the model to scores_BLY, the output of its last layer `linear`; `losses` turns
    them into two losses_B. The model keeps its weights and their gradients.
    """
    scores_BLY, values_BLD = _caught(linear, outputs)
    first, second = (_by_weight(loss_B, scores_BLY, values_BLD) for loss_B in losses(scores_BLY))
    return first, second


def _caught(linear: nn.Linear, outputs: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The layer's output, from which gradients start, and its input."""
    inputs: list[Tensor] = []

    def catch(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        inputs.append(given[0])

    hook = linear.register_forward_pre_hook(catch)
    try:
        with torch.no_grad():
            scores = outputs()
    finally:
        hook.remove()
    scores.requires_grad_(True)
    return scores, inputs[-1]


def _by_weight(loss_B: Tensor, scores_BLY: Tensor, values_BLD: Tensor) -> Tensor:
    (grads_BLY,) = torch.autograd.grad(loss_B.sum(), scores_BLY, retain_graph=True)
    return torch.bmm(grads_BLY.transpose(1, 2), values_BLD).flatten(1)


# --- A stepwise LSTM
#
# It runs step by step, so that the gradients of its gates are seen at every step.
#
#     i, f, o = σ(z_i), σ(z_f), σ(z_o),  g = tanh(z_g),  z_t = W x_t + U h_t-1 + b
#     c_t = f c_t-1 + i g,               h_t = o tanh(c_t)
#
# torch's own LSTM gives the gradient of its weights for a whole batch. With the gradients of z a
# sentence's own gradient of W is Σ_t dz_t x_tᵀ, of U Σ_t dz_t h_t-1ᵀ, and of each bias Σ_t dz_t.
#
# Shapes: B rows, L steps, D features in, H features out, Z = 4 H gates in torch's order i, f, g,
# o.


Seen = Callable[[Tensor, Tensor, Tensor], None]
"""Gets x_LBD, the states before each step (before_LBH), the gradients of the gates (grads_LBZ)."""


def is_plain(lstm: nn.LSTM) -> bool:
    """True if it has one layer and one direction, batches first, with biases and no projection."""
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


class _Unfolded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_BLD: Tensor, anchor: Tensor, how: tuple[Any, Seen]) -> Tensor:
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
    def backward(ctx: Any, grads_BLH: Tensor) -> tuple[Tensor | None, ...]:
        values_LBD, states_LBH, cells_LBH, bent_LBH, gates_LBZ, weight_ZD, weight_ZH = (
            ctx.saved_tensors
        )
        (length, batch, _), hidden = values_LBD.shape, states_LBH.shape[2]
        into, forget, new, out = gates_LBZ.chunk(4, 2)
        bent = bent_LBH[1:]
        by_cell_LBH = out * (1 - bent * bent)
        times_LBZ = torch.empty_like(
            gates_LBZ
        )  # first what a gate's gradient is times, then gradients
        torch.mul(new, into * (1 - into), out=times_LBZ[:, :, :hidden])
        torch.mul(cells_LBH[:-1], forget * (1 - forget), out=times_LBZ[:, :, hidden : 2 * hidden])
        torch.mul(into, 1 - new * new, out=times_LBZ[:, :, 2 * hidden : 3 * hidden])
        torch.mul(bent, out * (1 - out), out=times_LBZ[:, :, 3 * hidden :])
        grads_LBH = grads_BLH.transpose(0, 1).contiguous()
        cell_BH = torch.zeros_like(grads_LBH[0])
        for step in range(length - 1, -1, -1):
            state_BH = grads_LBH[step]
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


# --- Terms of gradients
#
# Each layer's input and its output's effect on the loss are enough for gradients by row.
#
# A layer whose weight meets every row apart has a gradient that is a sum over rows, and over
# places in a row. One pass forwards and one backwards through the model give the terms of all
# rows:
#
# | layer | gradient of a row |
# |---|---|
# | linear, and a convolution along text | Σ_l g_l x_lᵀ, and Σ_l g_l of the bias |
# | layer norm | Σ_l g_l * x̂_l, and Σ_l g_l |
# | a table of rows | g_l at the row that was looked up at place l |
# | LSTM | Σ_l dz_l x_lᵀ, Σ_l dz_l h_(l-1)ᵀ, Σ_l dz_l (a stepwise LSTM, above) |
# | CRF | expected minus actual moves (`training.crf`) |
#
# where g are the gradients of the loss by the layer's output. Layers of other types are not known
# here (`unit_gradients` then goes through the model once for each unit).
#
# Shapes: B rows of a pass, L places of a row, D numbers in, H numbers out, K width of a
# convolution.


class UnknownError(Exception):
    """A layer was used in a way of which nothing is known here."""


@dataclass(frozen=True, eq=False)
class Outer:
    """The gradient of a row: Σ_l left_l right_lᵀ."""

    left_BLH: Tensor
    right_BLD: Tensor


@dataclass(frozen=True, eq=False)
class Plain:
    """The gradient of a row: Σ_l values_l."""

    values_BLH: Tensor


@dataclass(frozen=True, eq=False)
class Lookup:
    """The gradient of a row of text: at the table's row ids_l, values_l; -1: nowhere."""

    ids_BL: Tensor
    values_BLD: Tensor


Term = Outer | Plain | Lookup
Terms = dict[str, list[Term]]
"""Terms of the gradients of a pass's rows, by parameter: each gradient is the sum of these."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of N rows through a model; `terms` fill up in the backward pass.

    `widened` holds the layers whose one output for all rows was given to the model row by row.
    """

    rows: int
    terms: Terms = field(default_factory=dict)
    widened: set[nn.Module] = field(default_factory=set)

    def note(self, name: str, term: Term) -> None:
        """Add a term of a parameter's gradients."""
        self.terms.setdefault(name, []).append(term)


@dataclass(frozen=True)
class Layer:
    """A layer with parameters that are trained: their own names, and those in the model."""

    module: nn.Module
    names: dict[str, str]

    def note(self, here: Pass, own: str, term: Callable[[], Term]) -> None:
        """Add a term, if this parameter is trained."""
        if own in self.names:
            here.note(self.names[own], term())


def known_layers(model: nn.Module) -> list[Layer] | None:
    """The layers with what is trained; None if one is of no known type, or shares a parameter."""
    found, owned = [], set[int]()
    for prefix, module in model.named_modules():
        names: dict[str, str] = {}
        for own, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                if id(parameter) in owned:
                    return None
                owned.add(id(parameter))
                names[own] = f"{prefix}.{own}" if prefix else own
        if names:
            known = type(module) in _TAPS
            if not known or (isinstance(module, nn.LSTM) and not is_plain(module)):
                return None
            found.append(Layer(module, names))
    return found


@contextmanager
def watched(layers: Sequence[Layer], here: Pass) -> Iterator[None]:
    """Note the terms of all that passes through the layers meanwhile.

    No parameter gets a gradient: these layers' parameters require none for the duration.
    """
    parameters = [p for layer in layers for p in layer.module.parameters(recurse=False)]
    trained = [p for p in parameters if p.requires_grad]
    with ExitStack() as stack:
        for parameter in trained:
            parameter.requires_grad_(False)
            stack.callback(parameter.requires_grad_, True)
        for layer in layers:
            stack.callback(_TAPS[type(layer.module)](layer, here))
        yield


def note_scores(layers: Sequence[Layer], here: Pass, loss_B: Tensor) -> None:
    """Add the terms of a CRF's scores, before the backward pass. Raises UnknownError."""
    for layer in layers:
        if isinstance(layer.module, CRF):
            scores = gradient_of_scores(loss_B)
            if scores is None:
                raise UnknownError
            for own, values in zip(("moves_YY", "starts_Y", "ends_Y"), scores, strict=True):
                values = values.to(layer.module.moves_YY.device)
                layer.note(here, own, partial(Plain, values.flatten(1)[:, None]))


# --- layers ---------------------------------------------------------------------------------------

Noted = Callable[[Any, Tensor, Tensor, Callable[[str, Callable[[], Term]], None]], None]
"""Gets the layer's module, what it read, the gradients of its output, and notes terms."""


def _hooked(noted: Noted, layer: Layer, here: Pass) -> Callable[[], None]:
    def watch(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        read = given[0].detach()
        if read.dim() < 2 or read.shape[0] not in (1, here.rows):
            raise UnknownError
        if read.shape[0] != here.rows:  # the same for all rows, as places in a text are
            here.widened.add(module)
            read = read.expand(here.rows, *read.shape[1:])
            output = output.expand(here.rows, *output.shape[1:])
        version = read._version
        if not output.requires_grad:
            output = output.detach().requires_grad_()

        def keep(gradient: Tensor) -> None:
            if read._version != version:
                raise UnknownError
            noted(module, read, gradient.detach(), partial(layer.note, here))

        output.register_hook(keep)  # type: ignore[no-untyped-call]
        return output

    return layer.module.register_forward_hook(watch).remove


def _flat(values: Tensor) -> Tensor:
    """values_BLD of any number of axes between."""
    return values.reshape(len(values), -1, values.shape[-1]).float()


def _linear(module: Any, read: Tensor, gradient: Tensor, note: Any) -> None:
    note("weight", lambda: Outer(_flat(gradient), _flat(read)))
    note("bias", lambda: Plain(_flat(gradient)))


def _norm(module: nn.LayerNorm, read: Tensor, gradient: Tensor, note: Any) -> None:
    if len(module.normalized_shape) != 1:
        raise UnknownError
    shape = module.normalized_shape
    note(
        "weight",
        lambda: Plain(
            _flat(gradient) * _flat(functional.layer_norm(read, shape, None, None, module.eps))
        ),
    )
    note("bias", lambda: Plain(_flat(gradient)))


def _table(module: nn.Embedding, read: Tensor, gradient: Tensor, note: Any) -> None:
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise UnknownError

    def lookup() -> Lookup:
        ids_BL = read.flatten(1)
        if module.padding_idx is not None:
            ids_BL = ids_BL.masked_fill(ids_BL == module.padding_idx, -1)
        return Lookup(ids_BL, _flat(gradient))

    note("weight", lookup)


def _marked(module: MarkedEmbedding, read: Tensor, gradient: Tensor, note: Any) -> None:
    ids_BL = read.flatten(1)
    marks_BL = (ids_BL - module.num_embeddings).clamp(min=-1)
    note("marks_KD", lambda: Lookup(marks_BL, _flat(gradient)))
    padded_BL = ids_BL.masked_fill(marks_BL >= 0, -1)
    if module.padding_idx is not None:
        padded_BL = padded_BL.masked_fill(ids_BL == module.padding_idx, -1)
    note("weight", lambda: Lookup(padded_BL, _flat(gradient)))


def _convolution(module: nn.Conv1d, read: Tensor, gradient: Tensor, note: Any) -> None:
    plain = module.stride == (1,) and module.dilation == (1,) and module.groups == 1
    if not plain or module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise UnknownError
    slope_BLH = gradient.transpose(1, 2).float()

    edge, width = int(module.padding[0]), module.kernel_size[0]

    def windows() -> Outer:
        padded_BDL = functional.pad(read, (edge, edge))
        return Outer(slope_BLH, padded_BDL.unfold(2, width, 1).transpose(1, 2).flatten(2).float())

    note("weight", windows)
    note("bias", lambda: Plain(slope_BLH))


def _lstm(layer: Layer, here: Pass) -> Callable[[], None]:
    lstm: Any = layer.module

    def seen(values_LBD: Tensor, before_LBH: Tensor, grads_LBZ: Tensor) -> None:
        grads_BLZ = grads_LBZ.transpose(0, 1)
        layer.note(here, "weight_ih_l0", lambda: Outer(grads_BLZ, values_LBD.transpose(0, 1)))
        layer.note(here, "weight_hh_l0", lambda: Outer(grads_BLZ, before_LBH.transpose(0, 1)))
        for own in ("bias_ih_l0", "bias_hh_l0"):
            layer.note(here, own, lambda: Plain(grads_BLZ))

    def forward(values_BLD: Tensor, states: object = None) -> tuple[Tensor, None]:
        if states is not None or values_BLD.dim() != 3 or len(values_BLD) != here.rows:
            raise UnknownError
        return unfolded(lstm, values_BLD, seen), None

    lstm.forward = forward
    return lambda: lstm.__dict__.pop("forward")


def _crf(layer: Layer, here: Pass) -> Callable[[], None]:
    """Nothing to watch: `note_scores` has the terms."""
    return lambda: None


_TAPS: dict[type[nn.Module], Callable[[Layer, Pass], Callable[[], None]]] = {
    nn.Linear: partial(_hooked, _linear),
    WideLinear: partial(_hooked, _linear),
    nn.LayerNorm: partial(_hooked, _norm),
    nn.Embedding: partial(_hooked, _table),
    MarkedEmbedding: partial(_hooked, _marked),
    nn.Conv1d: partial(_hooked, _convolution),
    nn.LSTM: _lstm,
    CRF: _crf,
}
"""The function that begins to watch a layer, by its type, and returns the one that ends it."""


# --- Gradients of units
#
# Units are documents, sentences or patients, of which noise is to hide any one.
#
# Many units go through the model together, and the terms of each one's gradient are noted on the
# way (`Pass`). A model with a layer of which nothing is known there is gone through once
# for each unit: that is the reference, and a model's first unit is worked out both ways and
# compared. A large unit is gone through alone as well, part by part.
#
# Shapes: U units, B rows, L places of a row, N rows of a table that units reach, G numbers.


RowLosses = Callable[[Rows], Tensor]
"""loss_B of these rows of an encoded text."""
_MOST = 768
"""Most places of rows, with padding, that are worked out together; more would be padding."""
_NUMBERS = 2**18
"""About how many numbers of gradients are written out at a time."""
_CLOSE = 1e-3
_KNOWN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Models by whether their gradients by row were found equal to autograd's."""
_LAYERS: WeakKeyDictionary[nn.Module, list[Layer] | None] = WeakKeyDictionary()


def unit_gradients(
    model: nn.Module, losses: RowLosses, units: Iterable[Rows], *, lengths_S: Rows
) -> Iterator[UnitGradients]:
    """The gradient of each unit's loss by trained parameter, without dropout, in any order.

    A unit's loss is the sum over its rows, none of which any other unit has; without a row it is 0.
    `lengths_S` says how many places each row has. The model keeps its weights. What is yielded may
    be overwritten by what comes next.
    """
    every = list(units)
    if model not in _LAYERS:
        _LAYERS[model] = known_layers(model)
    layers = _LAYERS[model]
    for group in units_together(every, lengths_S):
        apart = layers is None or len(group) == 1 or not _KNOWN.get(model, True)
        if not apart:
            try:
                found = _together(model, losses, [every[one] for one in group], layers or [])
                if model not in _KNOWN and len(every[group[0]]):
                    _KNOWN[model] = _agrees(model, losses, every[group[0]], found)
            except UnknownError:
                _KNOWN[model] = False
            apart = not _KNOWN.get(model, True)
        if apart:
            for one in group:
                own = alone(model, losses, every[one], lengths_S=lengths_S)
                yield UnitGradients.of(own, number=one)
            continue
        yield from found.unit_gradients(np.array(group))


def units_together(units: Sequence[Rows], lengths_S: Rows) -> Iterator[list[int]]:
    """The units that are worked out together, by number: those of similar length, longest first."""
    longest_U = [int(lengths_S[rows].max(initial=0)) for rows in units]
    some: list[int] = []
    rows = longest = 0
    for number in sorted(range(len(units)), key=lambda one: -longest_U[one]):
        more = rows + len(units[number])
        if some and more * max(longest, longest_U[number]) > _MOST:
            yield some
            some, more, longest = [], len(units[number]), 0
        some.append(number)
        rows, longest = more, max(longest, longest_U[number])
    if some:
        yield some


def alone(model: nn.Module, losses: RowLosses, rows_B: Rows, *, lengths_S: Rows) -> Arrays:
    """The gradient of one unit by autograd: the reference for all others."""
    parameters = trained_parameters(model)
    for parameter in parameters.values():
        parameter.grad = None
    with still(model), enough_memory(where_is(model)):
        for part in _parts(rows_B, lengths_S):
            losses(part).sum().backward()  # type: ignore[no-untyped-call]
    found = gradients_of(parameters)
    for parameter in parameters.values():
        parameter.grad = None
    return found


def _parts(rows_B: Rows, lengths_S: Rows) -> Iterator[Rows]:
    """The rows, as many at a time as are worked out together."""
    start = longest = 0
    for place, length in enumerate(lengths_S[rows_B].tolist()):
        longest = max(longest, length)
        if place > start and longest * (place - start + 1) > _MOST:
            yield rows_B[start:place]
            start, longest = place, length
    if start < len(rows_B):
        yield rows_B[start:]


class _Found:
    """The terms of several units' gradients; unit u has the rows from `from_U1[u]` of the pass."""

    def __init__(self, terms: Terms, parameters: dict[str, nn.Parameter], from_U1: Rows) -> None:
        self._parameters = parameters
        self._from = from_U1.tolist()
        self.dense = {
            name: terms.get(name, [])
            for name in parameters
            if not any(isinstance(term, Lookup) for term in terms.get(name, []))
        }
        units_B = np.repeat(np.arange(len(from_U1) - 1), np.diff(from_U1))
        self._tables = {
            name: _reached(own, units_B, parameters[name])
            for name, own in terms.items()
            if name not in self.dense
        }

    def unit_gradients(self, numbers_U: NDArray[np.int64]) -> Iterator[UnitGradients]:
        """The gradients, written out some units at a time, always in the same memory."""
        size = sum(self._parameters[name].numel() for name in self.dense)
        some = min(len(numbers_U), max(1, _NUMBERS // max(size, 1)))
        device = next(iter(self._parameters.values())).device
        there_UG = torch.empty(some, size, device=device)  # new pages would cost more than numbers
        for start in range(0, len(numbers_U), some):
            own = slice(start, min(start + some, len(numbers_U)))
            tables = {name: _cut(table, own) for name, table in self._tables.items()}
            found_UG = self._written(own, there_UG[: own.stop - own.start])
            yield UnitGradients(numbers_U[own], tuple(self.dense), found_UG, tables)

    def _written(self, own: slice, found_UG: Tensor) -> NDArray[np.float32]:
        begins = self._from[own.start : own.stop + 1]
        start = 0
        for name, terms in self.dense.items():
            count = self._parameters[name].numel()
            place_UG = found_UG[:, start : start + count]
            if not terms:
                place_UG.zero_()
            for before, term in enumerate(terms):
                _write(term, place_UG, begins, add=before > 0)
            start += count
        array: NDArray[np.float32] = at_home(found_UG)
        return array


def _write(term: Term, place_UG: Tensor, begins: list[int], *, add: bool) -> None:
    """Write, or add, a term's sum over each unit's rows."""
    single = begins[-1] - begins[0] == len(begins) - 1
    assert not isinstance(term, Lookup)
    if single and len(place_UG) > 1:
        own = slice(begins[0], begins[-1])
        if isinstance(term, Outer):
            found = torch.bmm(term.left_BLH[own].transpose(1, 2), term.right_BLD[own])
        else:
            found = term.values_BLH[own].sum(1)
        found = found.view(place_UG.shape)
        place_UG.add_(found) if add else place_UG.copy_(found)
        return
    for unit, (begin, end) in enumerate(zip(begins, begins[1:], strict=False)):
        place_G = place_UG[unit]
        if isinstance(term, Plain):
            found_H = term.values_BLH[begin:end].flatten(0, 1).sum(0)
            place_G.add_(found_H) if add else place_G.copy_(found_H)
            continue
        left_NH = term.left_BLH[begin:end].flatten(0, 1)
        right_ND = term.right_BLD[begin:end].flatten(0, 1)
        place_HD = place_G.view(left_NH.shape[1], right_ND.shape[1])
        torch.addmm(place_HD, left_NH.T, right_ND, beta=1 if add else 0, out=place_HD)


def _reached(terms: Sequence[Term], units_B: Rows, table: nn.Parameter) -> TableRows:
    """The rows of a table that each unit reaches, and their gradients."""
    rows, width = table.shape
    keys, values = [], []
    for term in terms:
        assert isinstance(term, Lookup)
        own_BL = on(units_B, term.ids_BL)[:, None] * rows + term.ids_BL
        there_BL = term.ids_BL >= 0
        keys.append(own_BL[there_BL])
        values.append(term.values_BLD[there_BL])
    keys_N, places = torch.unique(torch.cat(keys), return_inverse=True)
    rows_ND = torch.zeros(len(keys_N), width, device=table.device)
    rows_ND.index_add_(0, places, torch.cat(values))
    units_N, ids_N = np.divmod(keys_N.cpu().numpy(), rows)
    return TableRows(units_N, ids_N, at_home(rows_ND))


def _cut(table: TableRows, own: slice) -> TableRows:
    """The rows that some of the units reach; units are numbered from the first of these."""
    start, end = np.searchsorted(table.units_N, [own.start, own.stop])
    units_N = table.units_N[start:end] - own.start
    return TableRows(units_N, table.ids_N[start:end], table.rows_ND[start:end])


def _together(
    model: nn.Module, losses: RowLosses, units: Sequence[Rows], layers: Sequence[Layer]
) -> _Found:
    """One pass of these units' rows. Raises UnknownError."""
    parameters = trained_parameters(model)
    from_U1 = np.append(0, np.cumsum([len(rows) for rows in units]))
    rows_B = np.concatenate([np.zeros(0, np.int64), *units])
    here = Pass(len(rows_B))
    if len(rows_B):
        with still(model), enough_memory(where_is(model)), watched(layers, here):
            try:
                loss_B = losses(rows_B)
            except RuntimeError as error:  # some models repeat what is the same for all rows
                if not here.widened or isinstance(error, torch.OutOfMemoryError):
                    raise
                raise UnknownError from error
            note_scores(layers, here, loss_B)
            loss_B.sum().backward()  # type: ignore[no-untyped-call]
    return _Found(here.terms, parameters, from_U1)


def _agrees(model: nn.Module, losses: RowLosses, rows_B: Rows, found: _Found) -> bool:
    """True if the first unit's gradient is the one that autograd gives of this unit alone."""
    if not len(rows_B):
        return True
    parameters = trained_parameters(model).items()
    shapes = {name: np.zeros(tuple(p.shape), np.float32) for name, p in parameters}
    own = next(next(found.unit_gradients(np.zeros(1, np.int64))).each(shapes))
    lengths_S = np.ones(int(rows_B.max()) + 1, np.int64)  # in one pass
    right = alone(model, losses, rows_B, lengths_S=lengths_S)
    norms = {name: float(np.linalg.norm(one)) for name, one in right.items()}
    most = max(norms.values())
    return all(
        float(np.linalg.norm(own[name] - one)) <= _CLOSE * (norms[name] + 1e-3 * most)
        for name, one in right.items()
    )
