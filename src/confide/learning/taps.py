"""What each layer read and by how much its output moves the loss: enough for gradients by row.

A layer whose weight meets every row apart has a gradient that is a sum over rows, and over places
in a row. One pass forwards and one backwards through the model give the terms of all rows:

| layer | gradient of a row |
|---|---|
| linear, and a convolution along text | Σ_l g_l x_lᵀ, and Σ_l g_l of the bias |
| layer norm | Σ_l g_l * x̂_l, and Σ_l g_l |
| a table of rows | g_l at the row that was looked up at place l |
| LSTM | Σ_l dz_l x_lᵀ, Σ_l dz_l h_(l-1)ᵀ, Σ_l dz_l (`models.unfolded`) |
| CRF | expected minus actual moves (`models.crf`) |

where g are the slopes of the loss by the layer's output. Of a layer of any other type nothing is
known here (`learning.unit_slopes` then goes through the model once for each unit).

Shapes: B rows of a pass, L places of a row, D numbers in, H numbers out, K width of a convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from confide.learning.tuning import MarkedEmbedding
from confide.models.crf import CRF, slopes_of_scores
from confide.models.products import WideLinear
from confide.models.unfolded import is_plain, unfolded


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
"""What the gradients of a pass's rows are made of, by parameter: the sum of these terms."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of so many rows through a model; `terms` fill up in the backward pass.

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


def layers_of(model: nn.Module) -> list[Layer] | None:
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
            scores = slopes_of_scores(loss_B)
            if scores is None:
                raise UnknownError
            for own, values in zip(("moves_YY", "starts_Y", "ends_Y"), scores, strict=True):
                values = values.to(layer.module.moves_YY.device)
                layer.note(here, own, partial(Plain, values.flatten(1)[:, None]))


# --- layers ---------------------------------------------------------------------------------------

Noted = Callable[[Any, Tensor, Tensor, Callable[[str, Callable[[], Term]], None]], None]
"""Gets the layer's module, what it read, the slopes of its output, and notes terms."""


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

        def slopes(slope: Tensor) -> None:
            if read._version != version:
                raise UnknownError
            noted(module, read, slope.detach(), partial(layer.note, here))

        output.register_hook(slopes)  # type: ignore[no-untyped-call]
        return output

    return layer.module.register_forward_hook(watch).remove


def _flat(values: Tensor) -> Tensor:
    """values_BLD of any number of axes between."""
    return values.reshape(len(values), -1, values.shape[-1]).float()


def _linear(module: Any, read: Tensor, slope: Tensor, note: Any) -> None:
    note("weight", lambda: Outer(_flat(slope), _flat(read)))
    note("bias", lambda: Plain(_flat(slope)))


def _norm(module: nn.LayerNorm, read: Tensor, slope: Tensor, note: Any) -> None:
    if len(module.normalized_shape) != 1:
        raise UnknownError
    shape = module.normalized_shape
    note(
        "weight",
        lambda: Plain(
            _flat(slope) * _flat(functional.layer_norm(read, shape, None, None, module.eps))
        ),
    )
    note("bias", lambda: Plain(_flat(slope)))


def _table(module: nn.Embedding, read: Tensor, slope: Tensor, note: Any) -> None:
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise UnknownError

    def lookup() -> Lookup:
        ids_BL = read.flatten(1)
        if module.padding_idx is not None:
            ids_BL = ids_BL.masked_fill(ids_BL == module.padding_idx, -1)
        return Lookup(ids_BL, _flat(slope))

    note("weight", lookup)


def _marked(module: MarkedEmbedding, read: Tensor, slope: Tensor, note: Any) -> None:
    ids_BL = read.flatten(1)
    marks_BL = (ids_BL - module.num_embeddings).clamp(min=-1)
    note("marks_KD", lambda: Lookup(marks_BL, _flat(slope)))
    padded_BL = ids_BL.masked_fill(marks_BL >= 0, -1)
    if module.padding_idx is not None:
        padded_BL = padded_BL.masked_fill(ids_BL == module.padding_idx, -1)
    note("weight", lambda: Lookup(padded_BL, _flat(slope)))


def _convolution(module: nn.Conv1d, read: Tensor, slope: Tensor, note: Any) -> None:
    plain = module.stride == (1,) and module.dilation == (1,) and module.groups == 1
    if not plain or module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise UnknownError
    slope_BLH = slope.transpose(1, 2).float()

    edge, width = int(module.padding[0]), module.kernel_size[0]

    def windows() -> Outer:
        padded_BDL = functional.pad(read, (edge, edge))
        return Outer(slope_BLH, padded_BDL.unfold(2, width, 1).transpose(1, 2).flatten(2).float())

    note("weight", windows)
    note("bias", lambda: Plain(slope_BLH))


def _lstm(layer: Layer, here: Pass) -> Callable[[], None]:
    lstm: Any = layer.module

    def seen(values_LBD: Tensor, before_LBH: Tensor, slopes_LBZ: Tensor) -> None:
        slopes_BLZ = slopes_LBZ.transpose(0, 1)
        layer.note(here, "weight_ih_l0", lambda: Outer(slopes_BLZ, values_LBD.transpose(0, 1)))
        layer.note(here, "weight_hh_l0", lambda: Outer(slopes_BLZ, before_LBH.transpose(0, 1)))
        for own in ("bias_ih_l0", "bias_hh_l0"):
            layer.note(here, own, lambda: Plain(slopes_BLZ))

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
"""What begins to watch a layer of each known type, and gives what ends it."""
