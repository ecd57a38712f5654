"""The methods, one file per paper, and an explicit dict of the kinds that each trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points

from confide.errors import SettingsError
from confide.federation.broadcast import COMMON
from confide.federation.combining import NEEDED, ORDERED
from confide.federation.federation import round_half_up
from confide.federation.messages import forms_of
from confide.federation.quantising import can_quantise
from confide.federation.steps import Step, WireRow, wire_table
from confide.kinds import KINDS
from confide.kinds.steps import COUNT_EXAMPLES, SCORING
from confide.methods.method import Method, Pair, closed
from confide.ondemand import OnDemand
from confide.settings import REFERENCES, nearest
from confide.settings import Settings as RunSettings

OURS: OnDemand[type[Method]] = OnDemand(
    {
        "fedavg": "confide.methods.fedavg:FedAvg",
        "fedatt": "confide.methods.fedatt:FedAtt",
        "chain": "confide.methods.chain:Chain",
        "dp-fedsgd": "confide.methods.dp_fedsgd:DpFedSGD",
        "dp-feded": "confide.methods.dp_feded:DpFedED",
        "dp-fedner": "confide.methods.dp_fedner:DpFedNER",
        "fedner": "confide.methods.fedner:FedNER",
        "feded": "confide.methods.feded:FedED",
        "feddf": "confide.methods.feddf:FedDF",
        "lazy-mil": "confide.methods.lazy_mil:LazyMil",
        "pseudo-complete": "confide.methods.pseudo_complete:PseudoComplete",
        "fedprox": "confide.methods.fedprox:FedProx",
        "fedbn": "confide.methods.fedbn:FedBN",
        "scaffold": "confide.methods.scaffold:Scaffold",
        "ditto": "confide.methods.ditto:Ditto",
        "feddyn": "confide.methods.feddyn:FedDyn",
        "fedex": "confide.methods.fedex:FedEx",
    },
    lambda method: method,
)
"""The methods of this package by name; each is imported when it is asked for."""
COUNTING: OnDemand[Pair] = OnDemand(
    {"survey-tagger": "confide.methods.survey:SURVEY"}, lambda pair: pair
)
"""The pair that trains nothing: it is found by its name, and is not listed among methods."""
PLUGINS = "confide.methods"
"""The group of entry points under which other packages provide methods."""


def plugged() -> list[type[Method]]:
    """The methods of other installed packages.

    Raises SettingsError if two methods share a name, or if one names no kind or an unknown one.
    """
    found: list[type[Method]] = []
    taken = {*OURS, *REFERENCES}
    for entry in entry_points(group=PLUGINS):
        method: type[Method] = entry.load()
        if method.name in taken:
            raise SettingsError(
                f"two methods are called {method.name!r}",
                where=entry.value,
                fix="give the plugin's method another name, or uninstall one of the two",
            )
        odd = sorted(set(method.kinds) - KINDS.keys())
        if odd or not method.kinds:
            raise SettingsError(
                f"the method {method.name!r} does not say which kinds it trains",
                where=entry.value,
                expected=f"kinds, some of {', '.join(KINDS)}",
                got=odd[0] if odd else "none",
            )
        taken.add(method.name)
        found.append(method)
    return found


class _Pairs(Mapping[str, Pair]):
    """Every method with every kind that it trains; to ask for one imports these two alone."""

    def __init__(self) -> None:
        self._made: dict[str, Pair] = {}

    @cached_property
    def _plugged(self) -> dict[str, type[Method]]:
        return {method.name: method for method in plugged()}

    def __getitem__(self, name: str) -> Pair:
        if name in COUNTING:
            return COUNTING[name]
        if name not in self._made:
            method, _, kind = name.rpartition("-")
            of = OURS[method] if method in OURS else self._plugged[method]
            if kind not in of.kinds:
                raise KeyError(name)
            self._made[name] = Pair(of, KINDS[kind])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        for method in (*OURS.values(), *self._plugged.values()):
            yield from (f"{method.name}-{kind}" for kind in method.kinds)

    def __len__(self) -> int:
        return sum(1 for _ in self)


METHODS: Mapping[str, Pair] = _Pairs()
"""The pairs by the names that `Settings.trained_by` gives: METHOD-KIND."""


def method_named(name: str) -> Pair:
    """The pair of that name, METHOD-KIND; a bare METHOD stands for the first kind it trains.

    Raises SettingsError, which suggests the nearest known name.
    """
    name = f"{name}-tagger" if f"{name}-tagger" in COUNTING else name
    if name in METHODS:
        return METHODS[name]
    first = next((one for one in METHODS if METHODS[one].method == name), None)
    if first is not None:
        return METHODS[first]
    known = [*dict.fromkeys(pair.method for pair in METHODS.values()), *METHODS, *REFERENCES]
    raise SettingsError(f"there is no method {name!r}", fix=nearest(name, known))


def method_of(settings: RunSettings) -> Pair:
    """The pair that these settings run.

    Raises SettingsError if there is no such method, if it does not train this kind, or if it cannot
    train as the settings say.
    """
    found = METHODS.get(settings.trained_by)
    if found is None:
        named = settings.base if settings.method in REFERENCES else settings.method
        kinds = [pair.kind.name for pair in METHODS.values() if pair.method == named]
        if not kinds:
            known = [*dict.fromkeys(pair.method for pair in METHODS.values()), *REFERENCES]
            raise SettingsError(f"there is no method {named!r}", fix=nearest(named, known))
        raise SettingsError(
            f"{named} does not train {settings.kind}, the kind that these settings ask for",
            expected=f"one of the kinds it trains: {', '.join(kinds)}",
            got=settings.kind,
            fix=f"use one of {', '.join(methods_of(settings.task))}, or another kind of model",
        )

    # a reference is one site, or each by itself: it has no sum in which noise could hide anybody,
    # no mean, and no weights that travel
    own = settings.sharing
    private = found.private and settings.method not in REFERENCES
    if settings.privacy is not None and not private:
        able = dict.fromkeys(one.method for one in METHODS.values() if one.private)
        raise SettingsError(
            f"{settings.method} trains without noise, so nothing would keep what [privacy] says",
            expected=f"method = {' or '.join(map(repr, able))}",
            got=repr(settings.method),
            fix="change the method, or remove [privacy]",
        )
    if private and settings.privacy is None:
        raise SettingsError(
            f"{settings.method} trains under noise, and the settings have no [privacy]",
            fix="add the table (docs/differential-privacy.md); `confide privacy plan` shows what it"
            " costs",
        )
    if own.combine != "mean":
        if not any(step.summed and step.learnt and step.learnt.combined for step in found.steps):
            raise SettingsError(
                f"{settings.method} takes no mean of what its sites learn",
                expected='federation.combine = "mean"',
                got=repr(own.combine),
                fix="leave federation.combine out, or use a method that averages"
                " (docs/robust-aggregation.md)",
            )
        sites = len(settings.site) or (settings.split.sites if settings.split else 0)
        if sites:
            check_enough(settings, sites)

    common = [forms_of(step.ask).get(COMMON) for step in found.steps]
    gives = any(form is not None and form.kind == "arrays" for form in common)
    for name, value, plain, fits in (
        ("down", own.down, "whole", gives),
        ("up", own.up, "rows", any(map(can_quantise, found.steps))),
    ):
        if value != plain and not fits:
            raise SettingsError(
                f"under {settings.method} no weights travel {name}, so they cannot travel in codes",
                expected=f'federation.{name} = "{plain}"',
                got=repr(value),
                fix=f"leave federation.{name} out, or use a method whose weights travel",
            )
    return found


def answered_in(settings: RunSettings) -> dict[str, Step]:
    """The steps that a site answers in a run with these settings, by name.

    Where text is held out under noise and closed, it answers no ask for a score, or for how much
    text it has, whatever the server asks. Raises SettingsError if there is no such method.
    """
    pair = method_named(settings.trained_by)
    tell = (SCORING[pair.kind.task].reply, COUNT_EXAMPLES.reply)
    return {
        one.name: one
        for one in pair.steps
        if not (pair.private and closed(settings) and one.reply in tell)
    }


@dataclass(frozen=True)
class Expecting:
    """The fields of asks that a method's settings prescribe, at a site (`site.Expects`)."""

    settings: RunSettings

    def __call__(self, step: str, round: int) -> Mapping[str, object]:
        """The values of an ask of this step in this round, by the names of its fields."""
        return self._made.expects(step, round)

    @cached_property
    def _made(self) -> Method:
        return method_named(self.settings.trained_by)(self.settings)


def check_enough(settings: RunSettings, sites: int) -> None:
    """Raise SettingsError if a round of this many sites is too small for `federation.combine`."""
    own = settings.sharing
    drawn = max(1, round_half_up(own.fraction * sites))
    if own.combine not in ORDERED or drawn >= NEEDED:
        return
    raise SettingsError(
        f"federation.combine = {own.combine!r} needs {NEEDED} sites in every round",
        expected=f"at least {NEEDED}",
        got=f"{drawn} of {sites}",
        fix="raise federation.fraction, bring more sites together, or set federation.combine ="
        ' "clipped" or "mean"',
    )


def methods_of(task: str) -> list[str]:
    """The names of the methods that train models of a task."""
    return list(dict.fromkeys(one.method for one in METHODS.values() if one.task == task))


def wire(method: str) -> list[WireRow]:
    """The wire table of a method: step, direction, field, kind, what it carries, how it is seen."""
    return wire_table(method_named(method).steps)
