"""The methods, one file per paper, and an explicit dict of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from confide.errors import SettingsError
from confide.federation.combining import NEEDED, ORDERED
from confide.federation.federation import Federation, round_half_up
from confide.federation.steps import Step
from confide.federation.wire import WireRow, wire_table
from confide.methods.bag_averaging import Chain, FedAvgBags
from confide.methods.fedavg import FedAvg
from confide.methods.feded import FedED
from confide.methods.fedner import FedNER
from confide.methods.lazy_mil import LazyMil
from confide.methods.pseudo_complete import (
    PseudoComplete,
    PseudoCompleteEncoder,
    PseudoCompleteTagger,
)
from confide.methods.relation_averaging import FedAttRE, FedAvgRE
from confide.methods.text_averaging import FedAvgText
from confide.scoring import Counts
from confide.settings import OF_THE_KIND, OF_THE_TASK, REFERENCES, Task, nearest
from confide.settings import Settings as RunSettings
from confide.text.document import Document


class Method(Protocol):
    """What a method is: steps, messages, and a start and a round that read like the paper.

    `personal`: every site ends with a model of its own, part of which is in its memory only.
    `keyed`: who has no key of the sites cannot use the model. `public` is text that the server and
    all sites may read, for a method that makes use of it.
    """

    name: ClassVar[str]
    steps: ClassVar[tuple[Step, ...]]
    Settings: ClassVar[type]
    State: ClassVar[type]
    Memory: ClassVar[type]
    task: ClassVar[Task]
    personal: ClassVar[bool]
    keyed: ClassVar[bool]

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None: ...

    def start(self, federation: Federation) -> Any:
        """The first state."""
        ...

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Any, dict[str, Any]]:
        """The next state, and facts for the history."""
        ...

    def score(
        self, state: Any, federation: Federation, *, part: str, round: int
    ) -> Mapping[str, Counts]:
        """Every site's counts on its own `part` ("dev" or "test")."""
        ...

    def model(self, state: Any, memory: Any) -> Any:
        """What was trained, not yet built; `memory` is a site's, where the method is personal."""
        ...

    def extractor(
        self, state: Any, memory: Any, *, key: bytes | None, encoder: str | None = None
    ) -> Any:
        """The thing that reads a document and returns it annotated."""
        ...


METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedner": FedNER,
    "feded": FedED,
    "fedavg-re": FedAvgRE,
    "fedatt-re": FedAttRE,
    "pseudo-complete-tagger": PseudoCompleteTagger,
    "pseudo-complete": PseudoComplete,
    "pseudo-complete-encoder": PseudoCompleteEncoder,
    "lazy-mil": LazyMil,
    "fedavg-bags": FedAvgBags,
    "chain": Chain,
    "fedavg-text": FedAvgText,
}
"""By the names that `Settings.trained_by` gives; of two tasks with a method, each has its own."""


def method_named(name: str) -> type[Method]:
    """The method of that name. Raises SettingsError with the nearest known one."""
    if name in METHODS:
        return METHODS[name]
    known = [*METHODS, *REFERENCES]
    raise SettingsError(f"there is no method {name!r}", fix=nearest(name, known))


def method_of(settings: RunSettings) -> type[Method]:
    """The method that these settings run.

    Raises SettingsError: there is none of that name, or it is one of another task.
    """
    kind = method_named(settings.trained_by)
    if kind.task != settings.task:
        raise SettingsError(
            f"{settings.method} is no method of task {settings.task!r}",
            fix=f"set task = {kind.task!r}, or use one of {', '.join(methods_of(settings.task))}",
        )
    kinds: tuple[str, ...] = getattr(kind, "kinds", ("tagger",))
    if settings.task == "ner" and settings.model.kind not in kinds:
        raise SettingsError(
            f"{settings.method} does not train this kind of model",
            expected=f"model.kind = {' or '.join(map(repr, kinds))}",
            got=repr(settings.model.kind),
            fix='method = "pseudo-complete" trains them all; with options.distil and'
            " options.instance_weights off it is FedAvg",
        )
    _check_combine(settings, kind)
    return kind


def _check_combine(settings: RunSettings, kind: type[Method]) -> None:
    """Raise SettingsError where nothing can be combined as the settings say."""
    how = settings.federation.combine
    if how == "mean" or settings.method in REFERENCES:
        return
    if not any(step.summed and step.learnt and step.learnt.combined for step in kind.steps):
        raise SettingsError(
            f"{settings.method} takes no mean of what its sites learnt",
            expected='federation.combine = "mean"',
            got=repr(how),
            fix="leave federation.combine out, or use a method that averages (docs/robust.md)",
        )
    sites = len(settings.site) or (settings.split.sites if settings.split else 0)
    if sites:
        check_enough(settings, sites)


def check_enough(settings: RunSettings, sites: int) -> None:
    """Raise SettingsError where rounds of so many sites are too small for `federation.combine`."""
    own = settings.federation
    drawn = max(1, round_half_up(own.fraction * sites))
    if own.combine not in ORDERED or settings.method in REFERENCES or drawn >= NEEDED:
        return
    raise SettingsError(
        f"federation.combine = {own.combine!r} needs {NEEDED} sites in every round",
        expected=f"at least {NEEDED}",
        got=f"{drawn} of {sites}",
        fix="raise federation.fraction, bring more sites together, or set federation.combine ="
        ' "clipped" or "mean"',
    )


def methods_of(task: str) -> list[str]:
    """The names by which settings of a task call its methods."""
    short = {full: name for (_, name), full in OF_THE_TASK.items()}
    short |= {full: name for (name, _), full in OF_THE_KIND.items()}
    names = [short.get(name, name) for name, kind in METHODS.items() if kind.task == task]
    return list(dict.fromkeys(names))


def wire(method: str) -> list[WireRow]:
    """The table of what leaves a site under a method: step, direction, field, kind, what, seen."""
    return wire_table(method_named(method).steps)
