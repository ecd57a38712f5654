"""Where a model computes: its device, how narrow its numbers are, and how much is held at once.

A process computes in one place (`computing_at`). A model is moved there when it is made (`placed`),
batches follow it (`beside`), and whatever leaves the model comes home first (`home`): weights that
travel, scores and spans have the same form from any device.

Weights are always float32, on the processor when they are drawn and when they travel, so a run
starts from the same numbers on any device. Dropout is drawn by the device itself.

With bfloat16, only the encoder of a model (or its BART) computes in it, under torch's autocast:
its states come out as float32, and so do all losses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.errors import DeviceError, SettingsError
from confide.seeds import seeded

VARIABLE = "CONFIDE_DEVICE"
"""The variable that names the device of what has no settings: prediction, scores, pages."""

Precision = Literal["auto", "float32", "bfloat16"]
T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)

_PROCESSOR = torch.device("cpu")
_NAME = re.compile(r"cpu|mps|cuda(:[0-9]{1,2})?")
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """Where a process computes.

    `narrow`: encoders compute in bfloat16. `at_once` is the most examples of a batch whose
    gradients are computed together; the gradients of a larger batch are added up part by part. 0:
    all of them.
    """

    device: torch.device = _PROCESSOR
    narrow: bool = False
    at_once: int = 0

    @property
    def fused(self) -> bool:
        """Whether torch has optimisers for this device that step all parameters in one go."""
        return self.device.type in ("cpu", "cuda", "mps")


PROCESSOR = Place()
"""The processor, in float32, whole batches at once."""


def place_of(device: str = "auto", precision: str = "auto", *, at_once: int = 0) -> Place:
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
    return Place(found, narrow, at_once)


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
        _here.append(place_of(os.environ.get(VARIABLE, "cpu")))
    return _here[0]


def compute_at(place: Place) -> None:
    """Let this process compute there from now on. Models that are made stay where they are."""
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
    found: T = batch if device.type == "cpu" else _moved(batch, device)
    return found


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if not is_dataclass(batch) or isinstance(batch, type):
        return batch
    own = {one.name: getattr(batch, one.name) for one in fields(batch)}
    return replace(batch, **{name: _moved(value, device) for name, value in own.items()})


def home(values: Tensor) -> Tensor:
    """The values on the processor, as float32 if they are narrower. The only way out of a device.

    On the processor they are not copied.
    """
    values = values.detach()
    if values.dtype in (torch.bfloat16, torch.float16):
        values = values.float()
    return values.cpu()


def at_home(values: Tensor) -> NDArray[Any]:
    """`home`, as an array."""
    found: NDArray[Any] = home(values).numpy()
    return found


def on(values: NDArray[Any] | Tensor, like: Tensor) -> Tensor:
    """The values as a tensor beside another one."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    return tensor.to(like.device)


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
            got=f"at_once = {place.at_once}" if place.at_once else "whole batches",
            fix="set `at_once` to fewer examples than training.batch_size: the numbers stay the"
            " same up to rounding; or choose another device",
        ) from error


@contextmanager
def predicting(model: nn.Module) -> Iterator[None]:
    """Keep the model in evaluation mode, without gradients. Raises DeviceError."""
    was_training = model.training
    model.eval()
    try:
        with enough_memory(where_is(model)), torch.inference_mode():
            yield
    finally:
        model.train(was_training)


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
