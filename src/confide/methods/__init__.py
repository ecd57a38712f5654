"""The methods, one file per paper, and an explicit dict of them."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from confide.errors import SettingsError
from confide.federation.federation import Federation
from confide.federation.steps import Step
from confide.federation.wire import WireRow, wire_table
from confide.methods.fedavg import FedAvg
from confide.scoring import EntityCounts
from confide.settings import REFERENCES, nearest
from confide.settings import Settings as RunSettings


class Method(Protocol):
    """What a method is: steps, messages, and a start and a round that read like the paper."""

    name: ClassVar[str]
    steps: ClassVar[tuple[Step, ...]]
    Settings: ClassVar[type]
    State: ClassVar[type]
    Memory: ClassVar[type]

    def __init__(self, settings: RunSettings) -> None: ...

    def start(self, federation: Federation) -> Any:
        """The first state."""
        ...

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Any, dict[str, Any]]:
        """The next state, and facts for the history."""
        ...

    def score(
        self, state: Any, federation: Federation, *, part: str, round: int
    ) -> dict[str, EntityCounts]:
        """Every site's counts on its own `part` ("dev" or "test")."""
        ...

    def extractor(self, state: Any, *, key: bytes) -> Any:
        """The thing that reads a document and returns it annotated."""
        ...


METHODS: dict[str, type[Method]] = {"fedavg": FedAvg}


def method_named(name: str) -> type[Method]:
    """The method of that name. Raises SettingsError with the nearest known one."""
    if name in METHODS:
        return METHODS[name]
    known = [*METHODS, *REFERENCES]
    raise SettingsError(f"there is no method {name!r}", fix=nearest(name, known))


def wire(method: str) -> list[WireRow]:
    """The table of what leaves a site under a method: step, direction, field, kind, what, seen."""
    return wire_table(method_named(method).steps)
