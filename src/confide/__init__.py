"""confide trains information extraction across organisations whose text may not leave them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from confide.version import __version__

if TYPE_CHECKING:
    from confide.api import load

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    """`confide.load`, imported on first use, so that `import confide` waits for nothing."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("confide.api").load
