"""Where a model computes: its device, how narrow its numbers are, and how much is held at once.

A process computes in one place (`computing_at`). A model is moved there when it is made (`placed`),
batches follow it (`beside`), and whatever leaves the model comes home first (`home`): weights that
travel, scores and spans have the same form from any device.

A GPU computes while the processor goes on, for as long as nobody waits for its numbers. So a batch
goes there as one block of page-locked memory, which nobody waits for, and a step of a training
looks at no number that lies there, but for one of a CRF (`training.crf`).

Weights are always float32, on the processor when they are drawn and when they travel, so a run
starts from the same numbers on any device. Dropout is drawn by the device itself.

With bfloat16, only the encoder of a model (or its BART) computes in it, under torch's autocast:
its states come out as float32, and so do all losses.
"""

from __future__ import annotations

import os
import platform
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from confide.errors import DeviceError, SettingsError
from confide.seeds import seeded

VARIABLE = "CONFIDE_DEVICE"
"""The variable that names the device of what has no settings: prediction, scores, pages."""

Precision = Literal["auto", "float32", "bfloat16"]
T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)

_PROCESSOR = torch.device("cpu")
_APART, _LEAST_APART = 8, 16_384
_ALIGNED = 16  # bytes: every number type may begin at a multiple of it
_NAME = re.compile(r"cpu|mps|cuda(:[0-9]{1,2})?")
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """Where a process computes.

    `narrow`: encoders compute in bfloat16. `micro_batch_size` is the most examples of a batch whose
    gradients are computed together, 0: as many as `padded_tokens` allow. The gradients of a larger
    batch are added up part by part.
    """

    device: torch.device = _PROCESSOR
    narrow: bool = False
    micro_batch_size: int = 0

    @property
    def apart(self) -> bool:
        """True if the device computes while the processor does something else."""
        return self.device.type == "cuda"

    @property
    def padded_tokens(self) -> int:
        """The most tokens, padding included, whose gradients are computed together."""
        return 8192 if self.device.type == "cpu" else 32_768


PROCESSOR = Place()
"""The processor, in float32, whole batches at once."""


def place_of(device: str = "auto", precision: str = "auto", *, micro_batch_size: int = 0) -> Place:
    """The place that settings name.

    `auto` is the first GPU, or else Apple's, or else the processor; for numbers it is bfloat16 on a
    GPU that has units for it, and float32 anywhere else. Raises SettingsError if this machine has
    no such device, or the precision has another name.
    """
    if precision not in get_args(Precision):
        raise SettingsError(
            "nobody knows this precision",
            expected=", ".join(get_args(Precision)),
            got=repr(precision[:40]),
        )
    found = torch.device(_first() if device == "auto" else _known(device))
    _check_there(found)
    narrow = precision == "bfloat16"
    if precision == "auto" and found.type == "cuda":
        with torch.cuda.device(found):
            narrow = torch.cuda.is_bf16_supported(including_emulation=False)
    return Place(found, narrow, micro_batch_size)


def _first() -> str:
    if torch.cuda.is_available():
        return "cuda:0"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _known(device: str) -> str:
    if not _NAME.fullmatch(device):
        raise SettingsError(
            "this is not the name of a device",
            expected="auto, cpu, cuda, cuda:1 or mps",
            got=repr(device[:40]),
        )
    return "cuda:0" if device == "cuda" else device


def _check_there(device: torch.device) -> None:
    """Raise SettingsError if this machine has no such device."""
    there = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
    if (device.index or 0) >= there.get(device.type, 0):
        own = [f"cuda:{number}" for number in range(there["cuda"])]
        own += ["mps"] * there["mps"]
        raise SettingsError(
            "this machine has no such device",
            expected=", ".join(["auto", "cpu", *own]),
            got=str(device),
            fix='set device = "auto", or "cpu"; a GPU also needs its driver and a torch built for'
            " it",
        )


# --- the place of this process ------------------------------------------------------------------

_here: list[Place] = []  # one place for the process, as torch's number of threads


def here() -> Place:
    """Where this process computes: by default on the device that `VARIABLE` names.

    Raises SettingsError if this machine has no such device.
    """
    if not _here:
        compute_at(place_of(os.environ.get(VARIABLE, "cpu")))
    return _here[0]


def compute_at(place: Place) -> None:
    """Let this process compute there from now on. Models that are made stay where they are."""
    if place.device.type == "cuda":  # or the first GPU would hold something for this process too
        torch.cuda.set_device(place.device)
    _here[:] = [place]


@contextmanager
def computing_at(place: Place, *, threads: int | None = None) -> Iterator[None]:
    """Let this process compute there, with this many threads, for the duration."""
    before, had = list(_here), torch.get_num_threads()
    compute_at(place)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        _here[:] = before
        torch.set_num_threads(had)


# --- models and batches ---------------------------------------------------------------------------

_PLACES: WeakKeyDictionary[nn.Module, Place] = WeakKeyDictionary()


def placed(model: M, place: Place | None = None) -> M:
    """The model, moved to where this process computes (or to `place`). Raises DeviceError."""
    where = place or here()
    if where.device.type == "cuda":
        # cuDNN plans its attention anew for each shape of a batch, which takes longer than a step
        torch.backends.cuda.enable_cudnn_sdp(False)
    with enough_memory(where):
        model.to(where.device)
    for module in model.modules():
        _PLACES[module] = where
    for body in _bodies(model) if where.narrow else ():
        body.register_forward_pre_hook(_narrowly(where.device))
        body.register_forward_hook(_widely, always_call=True)
    return model


def where_is(model: nn.Module) -> Place:
    """The place of a model: that of a model never `placed` is the processor."""
    return _PLACES.get(model, PROCESSOR)


def most_read(model: nn.Module, places: int) -> int:
    """The most padded places of a batch that is only read: as given, or more on a device apart.

    That has work for eight times as many at once, and for 16,384 at least, unless the settings
    spare its memory.
    """
    where = where_is(model)
    if where.apart and not where.micro_batch_size:
        return max(_APART * places, _LEAST_APART)
    return places


def _bodies(model: nn.Module) -> Iterator[nn.Module]:
    """The topmost modules that may be narrow: those that are transformers'."""
    if hasattr(model, "get_input_embeddings"):
        yield model
        return
    for child in model.children():
        yield from _bodies(child)


_ENTERED: WeakKeyDictionary[nn.Module, list[AbstractContextManager[Any]]] = WeakKeyDictionary()


def _narrowly(device: torch.device) -> Any:
    def enter(body: nn.Module, _: object) -> None:
        context = torch.autocast(device.type, torch.bfloat16)
        context.__enter__()  # type: ignore[no-untyped-call]
        _ENTERED.setdefault(body, []).append(context)

    return enter


def _widely(body: nn.Module, _: object, found: Any) -> Any:
    if opened := _ENTERED.get(body):
        opened.pop().__exit__(None, None, None)
    if isinstance(found, Tensor):
        return found.float()
    if getattr(found, "last_hidden_state", None) is not None:
        found.last_hidden_state = found.last_hidden_state.float()
    if getattr(found, "hidden_states", None) is not None:
        found.hidden_states = tuple(one.float() for one in found.hidden_states)
    return found


def beside(batch: T, model: nn.Module) -> T:
    """The batch, with its tensors on the model's device."""
    device = where_is(model).device
    if device.type == "cpu":
        return batch
    moved = iter(_moved(list(_tensors(batch)), device))
    found: T = _with(batch, moved)
    return found


def _tensors(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in the order of its fields."""
    if isinstance(batch, Tensor):
        yield batch
    elif is_dataclass(batch):
        for one in fields(batch):
            yield from _tensors(getattr(batch, one.name))


def _with(batch: Any, moved: Iterator[Tensor]) -> Any:
    """The batch with these tensors in place of its own."""
    if isinstance(batch, Tensor):
        return next(moved)
    if not is_dataclass(batch) or isinstance(batch, type):
        return batch
    own = {one.name: _with(getattr(batch, one.name), moved) for one in fields(batch)}
    return replace(batch, **own)


def _moved(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors on a device, as views of one block that travels there.

    Memory that can be paged out is copied only once the GPU has done all before it.
    """
    if device.type == "mps":  # its memory is the processor's
        return [one.to(device) for one in tensors]
    places, end = list[slice](), 0
    for one in tensors:
        places.append(slice(end, end + one.nbytes))
        end += -(-one.nbytes // _ALIGNED) * _ALIGNED
    block = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for one, place in zip(tensors, places, strict=True):
        block[place] = one.reshape(-1).view(torch.uint8)
    there = block.to(device, non_blocking=True)
    return [
        there[place].view(one.dtype).view(one.shape)
        for one, place in zip(tensors, places, strict=True)
    ]


def home(values: Tensor) -> Tensor:
    """The values on the processor, as float32 if they are narrower. The only way out of a device.

    On the processor they are not copied.
    """
    return _wide(values).cpu()


def homeward(values: Tensor) -> Callable[[], Tensor]:
    """Start the values on their way `home`; what is given back waits for them alone.

    So the device may be asked for more in between.
    """
    values = _wide(values)
    if values.device.type != "cuda":
        return values.cpu
    there = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    there.copy_(values, non_blocking=True)
    arrived = torch.cuda.current_stream(values.device).record_event()

    def waited() -> Tensor:
        arrived.synchronize()
        return there

    return waited


def _wide(values: Tensor) -> Tensor:
    values = values.detach()
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def at_home(values: Tensor) -> NDArray[Any]:
    """`home`, as an array."""
    found: NDArray[Any] = home(values).numpy()
    return found


def on(values: NDArray[Any] | Tensor, like: Tensor) -> Tensor:
    """The values as a tensor beside another one."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    return tensor if tensor.device == like.device else _moved([tensor], like.device)[0]


# --- computing ------------------------------------------------------------------------------------


@contextmanager
def enough_memory(place: Place) -> Iterator[None]:
    """Turn torch's many ways to run out of memory into one DeviceError."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
            raise
        if place.device.type == "cuda":
            torch.cuda.empty_cache()
        raise DeviceError(
            f"{place.device} ran out of memory",
            got=f"micro_batch_size = {place.micro_batch_size}"
            if place.micro_batch_size
            else "whole batches",
            fix="set `micro_batch_size` to fewer examples than training.batch_size: the numbers"
            " stay the same up to rounding; or choose another device",
        ) from error


@contextmanager
def predicting(model: nn.Module) -> Iterator[None]:
    """Keep the model in evaluation mode, without gradients. Raises DeviceError."""
    was_training = model.training
    if any(module.training for module in model.modules()):  # to say it takes longer than to ask
        model.eval()
    try:
        with enough_memory(where_is(model)), torch.inference_mode():
            yield
    finally:
        if was_training:
            model.train()


@contextmanager
def drawing(model: nn.Module, seed: int) -> Iterator[None]:
    """Let the model's device draw dropout from this seed; outside, its generator is as before."""
    device = where_is(model).device
    with ExitStack() as stack:
        stack.enter_context(seeded(seed))
        if device.type in ("cuda", "mps"):
            index = device.index or 0
            stack.enter_context(torch.random.fork_rng([index], device_type=device.type))
            own = getattr(torch, device.type)
            stack.enter_context(own.device(index) if device.type == "cuda" else nullcontext())
            own.manual_seed(seed)
        yield


def where_doubles_are(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, on the processor if they are on one of Apple's GPUs: these have no float64."""
    return tuple(one.cpu() if one.device.type == "mps" else one for one in tensors)


# --- Wide linear layers
#
# They multiply with oneDNN on processors where PyTorch's own choice is slow.
#
# PyTorch's wheels multiply float32 matrices with MKL, which leaves half of each AVX-512 register
# empty on processors that Intel did not make. oneDNN, in the same wheels, fills it: the same
# product, summed in a different order (1e-6), more than twice as fast. On Intel's own MKL is the
# faster one, by a tenth. PyTorch has no setting or public function for this, so a layer calls the
# private operator by name, and falls back without it.
#
# Shapes: N rows (whatever lies before the last axis), D features in, H features out.


_REGISTERS = "AVX512"
_LEAST = 2**16  # least numbers of a weight: for smaller ones the call costs more than it saves


@cache
def has_wide_products() -> bool:
    """True if wide products are the faster ones on this processor, and right on an example."""
    if _is_intel() or not torch.backends.cpu.get_cpu_capability().startswith(_REGISTERS):
        return False
    left_ND, right_HD = torch.arange(12.0).view(3, 4), torch.arange(8.0).view(2, 4)
    try:
        return torch.equal(_product(left_ND, right_HD), left_ND @ right_HD.t())
    except (AttributeError, RuntimeError):  # missing in this build
        return False


def _is_intel() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return "GenuineIntel" in file.read(4096)
    except OSError:  # not Linux
        return "GenuineIntel" in platform.processor()


def _product(left_ND: Tensor, right_HD: Tensor, *, bias_H: Tensor | None = None) -> Tensor:
    """`left · rightᵀ + bias`; either factor may be a transposed view."""
    operator = torch.ops.mkldnn._linear_pointwise
    found: Tensor = operator(left_ND, right_HD, bias_H, "none", [], "")
    return found


class _WideLinear(torch.autograd.Function):
    """y = x Wᵀ + b, and for a gradient g of y: g W of x, gᵀ x of W, the sum of g of b."""

    @staticmethod
    def forward(ctx: Any, values_ND: Tensor, weight_HD: Tensor, bias_H: Tensor | None) -> Tensor:
        ctx.save_for_backward(values_ND, weight_HD)
        return _product(values_ND, weight_HD, bias_H=bias_H)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_NH: Tensor) -> tuple[Tensor | None, ...]:
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
        usual = torch._C._is_tracing() or torch.compiler.is_exporting()  # to ONNX
        usual = usual or input.dtype is not torch.float32 or input.device.type != "cpu"
        usual = usual or not input.numel() or torch.is_autocast_enabled("cpu")
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


# --- Linear layers in int8
#
# For labelling alone: a byte for each weight, with a scale for each output, and a byte for each
# number that is read. Two ways to multiply:
#
# - by rows, where the processor has AVX-512 with VNNI: each row that is read has a scale and an
#   offset of its own, and oneDNN multiplies the bytes (in AMX where there is that). A row x is
#   about s q + m, with whole numbers q and its least number m, so its product with a weight w is
#   s (q · w) + m Σ w. PyTorch has no public function for either step: private operators are called
#   by name, and tried on an example first;
# - all at once: PyTorch's own, with one scale for all that is read. So what is read together with a
#   sentence moves its confidences a little.
#
# Without VNNI, processors add two products of bytes in 16 bits, where eight bits would saturate:
# there weights take seven.
#
# Shapes: as above.

_ADDS_IN_32_BITS = ("avx512_vnni", "avx_vnni")


class Int8Linear(nn.Module):
    """A linear layer in int8, made of another one; it is not trained."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        has = torch.cpu.get_capabilities()
        most = 127 if any(has.get(name) for name in _ADDS_IN_32_BITS) else 63
        weight_HD, bias_H = layer.weight.detach(), layer.bias
        scales_H = weight_HD.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / most
        by_rows = has.get("avx512_vnni") and multiplies_rows()
        self._multiply = (_by_rows if by_rows else _at_once)(weight_HD, scales_H, bias_H)

    def forward(self, values: Tensor) -> Tensor:
        """X Wᵀ + b along the last axis, about."""
        return self._multiply(values)


def _by_rows(
    weight_HD: Tensor, scales_H: Tensor, bias_H: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """The product with a scale for each row that is read."""
    codes_HD = (weight_HD / scales_H[:, None]).round_()
    zeros_H = torch.zeros(len(scales_H), dtype=torch.int64)
    sums_H = codes_HD.sum(1) * scales_H
    added_2H = torch.stack([sums_H, torch.zeros_like(sums_H)])
    if bias_H is not None:
        added_2H[1] = bias_H.detach()
    packed = torch.ops.onednn.qlinear_prepack(codes_HD.to(torch.int8), None)
    in_bytes: Any = torch.ops.quantized.embedding_bag_byte_prepack
    product: Any = torch.ops.onednn.qlinear_pointwise
    width = weight_HD.shape[1]

    def multiply(values: Tensor) -> Tensor:
        bytes_NR = in_bytes(values.reshape(-1, width))  # each row's codes, then s and m as float32
        codes_ND = bytes_NR[:, :width].contiguous()
        ends_N8 = bytes_NR[:, width:].clone(memory_format=torch.contiguous_format)
        scale_N1, least_N1 = ends_N8.view(torch.float32).split(1, 1)
        found_NH: Tensor = product(
            codes_ND, 1.0, 0, packed, scales_H, zeros_H, None, 1.0, 0, torch.float32, "none", [], ""
        )
        more_N2 = torch.cat([least_N1, torch.ones_like(least_N1)], 1)
        found_NH.mul_(scale_N1).addmm_(more_N2, added_2H)
        return found_NH.view(*values.shape[:-1], len(scales_H))

    return multiply


def _at_once(
    weight_HD: Tensor, scales_H: Tensor, bias_H: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """The product with one scale for all that is read."""
    zeros_H = torch.zeros(len(scales_H), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # these will go in a later PyTorch
        codes_HD = torch.quantize_per_channel(weight_HD, scales_H, zeros_H, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(codes_HD, bias_H)
    product: Any = torch.ops.quantized.linear_dynamic
    return lambda values: product(values, packed, reduce_range=False)


@cache
def multiplies_rows() -> bool:
    """True if this PyTorch multiplies by rows, and right on an example."""
    weight_HD, values_ND = torch.arange(-8.0, 8.0).view(2, 8), torch.arange(24.0).view(3, 8) ** 2
    bias_H = torch.tensor([1.0, -1.0])
    scales_H, wanted_NH = torch.ones(2), functional.linear(values_ND, weight_HD, bias_H)
    try:
        found_NH = _by_rows(weight_HD, scales_H, bias_H)(values_ND)
    except (AttributeError, RuntimeError):  # missing in this build, or another one by now
        return False
    return torch.allclose(found_NH, wanted_NH, rtol=0.02)


def in_int8(model: M) -> M:
    """A copy of a model on a processor, with the large linear layers of its encoder in int8.

    The model itself stays as it is, and the two share the weights of all else. Raises SettingsError
    if the model has no such layer or is on another device, or if this PyTorch has no such products.
    """
    large = [
        layer
        for body in _bodies(model)
        for layer in body.modules()
        if isinstance(layer, nn.Linear) and type(layer) in (nn.Linear, WideLinear)
        if layer.weight.numel() >= _LEAST
    ]
    if not large:
        raise SettingsError(
            "int8 is for the large linear layers of an encoder, and this model has none",
            got=type(model).__name__,
            fix="leave int8 out",
        )
    if where_is(model).device.type != "cpu":
        raise SettingsError(
            "int8 is for processors", got=str(where_is(model).device), fix=f"set {VARIABLE}=cpu"
        )
    shared: dict[int, Any] = {id(one): one for one in model.parameters()}
    try:
        shared |= {id(layer): Int8Linear(layer) for layer in large}
    except (AttributeError, RuntimeError) as error:
        raise SettingsError(
            "this PyTorch has no products in int8", got=torch.__version__, fix="leave int8 out"
        ) from error
    return deepcopy(model, shared)
