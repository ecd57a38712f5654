"""What torch hands to the two passes of a function with a gradient of its own.

A function that keeps more than tensors says so in a protocol that extends `Context`.
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
