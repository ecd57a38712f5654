"""Tiny models that tests name as a run over real sites does: by name, from one folder of models."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from confide.models import MODELS


def folder_of(name: str) -> Path:
    """Where a model of that name lies."""
    return Path(_shelf().name) / name


def on_the_shelf() -> None:
    """From now on this process, and those that it starts, look models up where these tests do."""
    os.environ[MODELS] = _shelf().name


@functools.cache
def _shelf() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="confide-tests-")


def named(name: str, make: Callable[[Path], Path]) -> str:
    """The name, of a model that is made once for all tests of this process."""
    on_the_shelf()
    if not folder_of(name).exists():
        make(folder_of(name))
    return name
