"""What a server gives its sites before a sum is a part of the sum: whoever has something else is
not in it, for every pair, so no site can be left alone in a sum by what the others were told."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.errors import FederationError, MessageError, QuorumError
from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.failures import CODES, Failure
from confide.federation.federation import Delivery
from confide.federation.messages import class_of, decode, encode, peek
from confide.federation.secure.messages import Meet, Opening
from confide.federation.secure.server import SumAttempt
from confide.federation.secure.steps import EXCHANGES, is_summed
from confide.federation.site import Site, SiteHost
from confide.federation.steps import Step
from confide.methods import METHODS
from confide.methods.lazy_mil import HEAR_WINNERS, HearWinners, WinnersHeard
from confide.runs.run import run
from contract.corpus import tiny
from contract.entries import APART, FEDAVG, METHOD, SEES_EACH
from contract.runs import Asking, states, use_engine
from contract.test_sums import QUICK

MASKED = ("rounds=2", "federation.sums=masked", "federation.at_least=1")
PRIVATE = [
    name
    for name, pair in METHODS.items()
    if pair.private and pair.kind.name in ("tagger", "relations")
]
"""Pairs that train under noise, one a method and task."""
TO_EACH = {
    # a site hears of its own bags alone; one that won none refuses in the open, as it has said so
    "hear_winners"
}
"""Steps that ask each site something of its own."""
CACHED = {
    # of text, of the form, or of an ask whose digest is in the key
    "site_model", "train examples", "own types", "all types", "fingerprint", "units",
    "completing annotated", "completing slopes",
}  # fmt: skip
"""What sites keep in their processes, beside what they remember."""


def others(message: Any) -> Iterator[tuple[str, Any]]:
    """The message with another value in one field, field by field; nested ones as well."""
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        found: list[tuple[str, Any]] = [("", other) for other in _other(value)]
        if dataclasses.is_dataclass(value):
            found = [(f".{name}", inner) for name, inner in others(value)]
        for name, other in found:
            yield field.name + name, dataclasses.replace(message, **{field.name: other})


def _other(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 0.5 + 0.01]
    if isinstance(value, str):
        return [f"{value}x"]
    if isinstance(value, list | tuple):
        return [value[:-1]] if value else []
    if isinstance(value, dict):
        keys = list(value)[:1]
        return [{**value, key: other} for key in keys for other in _other(value[key])]
    if isinstance(value, np.ndarray) and value.size:
        found = value.copy()
        found.flat[0] += 1
        return [found]
    return []


# --- what sites remember ------------------------------------------------------------------------


def some(names: Collection[str]) -> list[object]:
    """The pairs of these names as parameters of a test; fast are those of `QUICK`."""
    return [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in METHODS
        if name in names and name not in SEES_EACH
    ]


@pytest.mark.usefixtures("unsettled")
@pytest.mark.parametrize("method", some({*QUICK, *APART, *PRIVATE}))
def test_every_ask_that_a_site_remembers_names_its_later_sums(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field by field: with another value in it, the site shares masks with nobody else."""
    bound: set[str] = set()
    given: set[str] = set()
    kept: set[str] = set()

    def look(engine: Asking, name: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        host = engine._hosts[site]
        step = host._steps.get(name)
        cache = dict(host.site.cache)
        cache |= cache.pop("without text", {})  # of the site without its text, under noise
        kept.update(key if isinstance(key, str) else str(key[0]) for key in cache)
        if site == "site-1" and given:
            assert given <= host._memory.latest().given.keys(), "what was bound stays bound"
        if step is None or is_summed(step) or site != "site-1" or (name, round) in done:
            return
        done.add((name, round))
        honest, before = host._common(round, "~"), host._memory.as_of(round, name)
        if host._memory.latest() is before or not step.gives:
            assert step.learnt is not None or name in TO_EACH or not step.to_each
            return
        for field, other in others(decode(step.ask, ask)):
            try:
                data = encode(other)
                said = engine.again(name, round, site, data)
            except MessageError:
                continue  # no such message can be sent
            if peek(said).message != Failure.__name__:
                bound.add(f"{name}.{field}")
                given.add(name)
                assert host._common(round, "~") != honest, f"{name}.{field} is not bound"
        engine.again(name, round, site, ask)
        assert host._common(round, "~") == honest

    done: set[tuple[str, int]] = set()
    use_engine(monkeypatch, Asking, look=look)
    run(tiny(tmp_path, f"method={method}", *MASKED), out=tmp_path / "run")
    assert any(".form." in f".{name}" for name in bound)
    assert kept <= CACHED, "what does a step keep there of an ask, and what binds it to a sum?"


def test_only_these_steps_ask_each_site_something_of_its_own() -> None:
    assert {
        step.name for pair in METHODS.values() for step in pair.steps if step.to_each
    } == TO_EACH


# --- a server that lies -------------------------------------------------------------------------


class Lying(SequentialEngine):
    """Tells `misled` sites something else, once a lie is found that they believe."""

    misled = frozenset({"site-3", "site-4"})
    lies: Callable[[Step, bytes], Iterator[bytes]]
    told: list[str]

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Any:
        asks = dict(asks)
        if self.told:
            self.told.append(step)
        for site in sorted(asks.keys() & type(self).misled):
            host = self._hosts[site]
            for other in type(self).lies(EXCHANGES.get(step) or host._steps[step], asks[site]):
                self.told.append(f"lied in {step}")
                believed = self._hosts[site].answer(step, round, other)
                if step in EXCHANGES or peek(believed).message != Failure.__name__:
                    asks[site] = other
                    break
        return super().deliver(step, round, asks=asks, timeout=timeout)


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No site works out from the settings what an ask must hold: its memory alone protects it."""
    monkeypatch.setattr("confide.federation.site.check_expected", lambda ask, expected: None)


@pytest.fixture
def unjust(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes every offer, whatever its site holds and signs: only sites can refuse."""

    def part(attempt: SumAttempt, offers: dict[str, Any]) -> None:
        attempt.common = offers[min(offers)].common if offers else ""

    monkeypatch.setattr(SumAttempt, "_drop_differing", part)
    monkeypatch.setattr(SumAttempt, "_check_signed", lambda attempt, offers, context: None)


def has(step: Step, field: str) -> bool:
    return field in {one.name for one in dataclasses.fields(class_of(step.ask))}


def in_form(step: Step, ask: bytes) -> Iterator[bytes]:
    """Another model spec."""
    if peek(ask).message != Opening.__name__ and has(step, "form"):
        for field, other in others(decode(step.ask, ask)):
            if field.startswith("form."):
                yield encode(other)


def in_public_set(step: Step, ask: bytes) -> Iterator[bytes]:
    """A public set without its last sentence."""
    if has(step, "public") and has(step, "form"):
        said = decode(step.ask, ask)
        sentences_S = said.public.row_sentences
        part = said.public.part(sentences_S < sentences_S.max())
        yield encode(dataclasses.replace(said, public=part))


def _in_opening(ask: bytes, change: Callable[[Opening], Opening]) -> Iterator[bytes]:
    if peek(ask).message == Opening.__name__:
        yield encode(change(decode(Opening, ask)))


def in_weights(step: Step, ask: bytes) -> Iterator[bytes]:
    """Other broadcast weights."""

    def change(opening: Opening) -> Opening:
        inner = decode(step.ask, opening.ask_B.tobytes())
        weights = dict(inner.weights)
        name = max(weights)
        weights[name] = weights[name] + weights[name].dtype.type(1)
        inner = dataclasses.replace(inner, weights=weights)
        return dataclasses.replace(opening, ask_B=np.frombuffer(encode(inner), np.uint8))

    if has(step, "weights"):
        yield from _in_opening(ask, change)


def in_labels(step: Step, ask: bytes) -> Iterator[bytes]:
    """Other names of what is counted, as many."""
    if step.tables is not None:
        yield from _in_opening(
            ask,
            lambda one: dataclasses.replace(
                one, labels=[f"{name}x" for name in one.labels] or ["x"]
            ),
        )


def in_examples(step: Step, ask: bytes) -> Iterator[bytes]:
    """Another size of all text, by which shares and weights are measured."""
    yield from _in_opening(
        ask, lambda one: dataclasses.replace(one, examples=one.examples + 1000.0)
    )


def in_roster(step: Step, ask: bytes) -> Iterator[bytes]:
    """A roster with more colluders."""
    if step.name == "meet":
        said = decode(Meet, ask)
        yield encode(dataclasses.replace(said, colluding=said.colluding + 1))


LIES = {
    "form": in_form,
    "public": in_public_set,
    "weights": in_weights,
    "labels": in_labels,
    "examples": in_examples,
    "roster": in_roster,
}


BELIEVED = {
    "form": {*APART, *PRIVATE, *QUICK},  # of every kind, to every method
    "public": {*APART, *PRIVATE},
    "weights": {*METHOD.values(), *PRIVATE, *QUICK},  # in asks of every method
    # an opening says these, and a meeting, whatever is summed
    "labels": FEDAVG,
    "examples": FEDAVG,
    "roster": FEDAVG,
}
"""The pairs that are told each lie: with another, no site would read another field."""


def lies_by_pair() -> list[object]:
    found: list[object] = []
    for name, pair in METHODS.items():
        if name in SEES_EACH:
            continue
        public = any(has(step, "public") and has(step, "form") for step in pair.steps)
        for what in LIES:
            if name not in BELIEVED[what] or (what == "public" and not public):
                continue
            quick = name == QUICK[0] or (name in QUICK and what in ("form", "public"))
            marks = [] if quick else [pytest.mark.slow]
            found.append(pytest.param(name, what, id=f"{name}-{what}", marks=marks))
    return found


@pytest.mark.usefixtures("unsettled", "unjust")
@pytest.mark.parametrize(("method", "what"), lies_by_pair())
def test_a_sum_of_sites_that_were_told_different_things_ends_with_a_code(
    method: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    use_engine(monkeypatch, Lying, lies=staticmethod(LIES[what]), told=told)
    settings = tiny(tmp_path, f"method={method}", *MASKED, sites=4)
    with pytest.raises((QuorumError, FederationError)) as caught:
        run(settings, out=tmp_path / "run")
    assert told, "nobody was told something else"
    assert "unmask" not in told
    assert "site-" in str(caught.value)


def test_a_server_cannot_leave_one_of_three_sites_alone_in_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the form no part of a sum, the others would fail, and the sum be this site's vector."""
    told: list[str] = []
    misled = frozenset({"site-2", "site-3"})
    use_engine(monkeypatch, Lying, lies=staticmethod(in_form), told=told, misled=misled)
    settings = tiny(tmp_path, *MASKED, "options.weighting=examples")
    with pytest.raises(QuorumError, match="something other than most"):
        run(settings, out=tmp_path / "run")
    assert "unmask" not in told


@pytest.mark.parametrize("method", some({*METHOD.values(), *PRIVATE, *QUICK}))
def test_sites_that_received_other_settings_sum_nothing(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Hosting.host

    def host(self: Hosting, spec: Site, scratch: dict[str, Any], **given: Any) -> SiteHost:
        other = dataclasses.replace(self, binding=bytes(32), seed=self.seed + 1)
        return real(self if spec.name == "site-1" else other, spec, scratch, **given)

    monkeypatch.setattr(Hosting, "host", host)
    with pytest.raises(FederationError, match="other-binding"):
        run(tiny(tmp_path, f"method={method}", *MASKED), out=tmp_path / "run")


# --- what a site is asked by itself, and what it keeps from one sum to the next -----------------


def test_sites_that_are_told_of_no_winners_hide_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server asks them to train on theirs all the same: they refuse, and send no zeros."""
    told: list[str] = []

    class Unfair(SequentialEngine):
        def deliver(
            self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
        ) -> Iterator[Delivery]:
            told.append(step)
            asks = dict(asks)
            honest = {site: ask for site, ask in asks.items() if step == HEAR_WINNERS.name}
            for site in honest.keys() - {"site-1"}:
                ask = decode(HearWinners, asks[site])
                none = dataclasses.replace(ask, digests_W16=ask.digests_W16[:0])
                asks[site] = encode(none)
            for found in super().deliver(step, round, asks=asks, timeout=timeout):
                if found.site in honest:
                    won = len(decode(HearWinners, honest[found.site]).digests_W16)
                    found = dataclasses.replace(found, reply=encode(WinnersHeard(won)))
                yield found

    use_engine(monkeypatch, Unfair)
    with pytest.raises(QuorumError, match=re.escape(CODES["not-bid"])):
        run(tiny(tmp_path, "method=lazy-mil-bags", *MASKED), out=tmp_path / "run")
    assert "unmask" not in told[told.index(HEAR_WINNERS.name) :]


def test_a_site_attends_only_to_a_change_whose_norm_it_has_helped_to_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[str] = []

    def look(engine: Asking, name: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        if (name, round) == ("attend", 1) and not codes:
            later = dataclasses.replace(decode(Opening, ask), attempt=1)
            said = engine.again("attend", 2, "site-2", encode(later))
            codes.append(decode(Failure, said).code)

    use_engine(monkeypatch, Asking, look=look)
    run(tiny(tmp_path, "method=fedatt-tagger", *MASKED), out=tmp_path / "run")
    assert codes == ["early-ask"]


def test_a_site_that_is_restarted_between_two_sums_still_has_its_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Restarting(SequentialEngine):
        def __init__(self, specs: Sequence[Site], hosting: Hosting) -> None:
            super().__init__(specs, hosting)
            self._again = {spec.name: lambda: hosting.host(specs[1], {}) for spec in specs[1:2]}

        def deliver(
            self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
        ) -> Iterator[Delivery]:
            if step == "attend":
                self._hosts |= {name: make() for name, make in self._again.items()}
                self._again = {}
            yield from super().deliver(step, round, asks=asks, timeout=timeout)

    settings = tiny(tmp_path, "method=fedatt-tagger", *MASKED)
    straight = run(settings, out=tmp_path / "straight").folder
    use_engine(monkeypatch, Restarting)
    assert states(run(settings, out=tmp_path / "run").folder) == states(straight)
