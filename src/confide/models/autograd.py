"""What torch hands to the two passes of a function with a gradient of its own.

A function that keeps more than tensors says so in a protocol that extends `Context`. One that adds
up 64-bit numbers takes its arguments through `where_doubles_are`.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Context(Protocol):
    """Carries values from `forward` to `backward`."""

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that `save_for_backward` kept."""
        ...

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each argument of `forward`, whether anyone asks for its gradient."""
        ...

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep these tensors for `backward`."""
        ...


def where_doubles_are(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, on the processor if they are on one of Apple's GPUs: these have no float64."""
    return tuple(one.cpu() if one.device.type == "mps" else one for one in tensors)
