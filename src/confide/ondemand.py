"""A dict whose values are imported when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class OnDemand(Mapping[str, T]):
    """Values by name, from `places`: "module:NAME" by name. `made` turns what is there into one.

    To ask for the names, or whether there is one, imports nothing.
    """

    def __init__(self, places: Mapping[str, str], made: Callable[[Any], T]) -> None:
        self._places, self._made = dict(places), made
        self._values: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._values:
            module, _, held = self._places[name].partition(":")
            self._values[name] = self._made(getattr(import_module(module), held))
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
