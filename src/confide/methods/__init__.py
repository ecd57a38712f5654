"""The methods, one file per paper, and an explicit dict of them."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from confide.errors import SettingsError
from confide.federation.federation import Federation
from confide.federation.steps import Step
from confide.federation.wire import WireRow, wire_table
from confide.methods.fedavg import FedAvg
from confide.methods.fedner import FedNER
from confide.methods.taggers import TaggerModel
from confide.scoring import EntityCounts
from confide.settings import REFERENCES, nearest
from confide.settings import Settings as RunSettings


class Method(Protocol):
    """What a method is: steps, messages, and a start and a round that read like the paper.

    `personal`: every site ends with a model of its own, part of which is in its memory only.
    """

    name: ClassVar[str]
    steps: ClassVar[tuple[Step, ...]]
    Settings: ClassVar[type]
    State: ClassVar[type]
    Memory: ClassVar[type]
    personal: ClassVar[bool]

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

    def model(self, state: Any, memory: Any) -> TaggerModel:
        """The trained tagger; `memory` is a site's, where the method is personal."""
        ...

    def extractor(self, state: Any, memory: Any, *, key: bytes, encoder: str | None = None) -> Any:
        """The thing that reads a document and returns it annotated."""
        ...


METHODS: dict[str, type[Method]] = {"fedavg": FedAvg, "fedner": FedNER}


def method_named(name: str) -> type[Method]:
    """The method of that name. Raises SettingsError with the nearest known one."""
    if name in METHODS:
        return METHODS[name]
    known = [*METHODS, *REFERENCES]
    raise SettingsError(f"there is no method {name!r}", fix=nearest(name, known))


def wire(method: str) -> list[WireRow]:
    """The table of what leaves a site under a method: step, direction, field, kind, what, seen."""
    return wire_table(method_named(method).steps)
