"""One site of five lies, under every method: it loses its round, by name, and nobody else does.

The methods are those of the dict, so that a new one is attacked too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from cases import each
from confide.errors import FederationError, QuorumError, SettingsError
from confide.federation.engines import SequentialEngine
from confide.federation.failures import Failure
from confide.federation.federation import Delivery
from confide.federation.messages import decode, encode, forms_of, peek
from confide.federation.quantising import restore_reply
from confide.federation.steps import LARGEST, Step, odd_part
from confide.methods import METHODS, check_enough
from confide.runs.run import run
from contract.corpus import tiny
from contract.entries import APART, CARRIED, METHOD, OPEN, OPTIONAL, pairs
from contract.runs import Asking, same_run, states, stopping_at, use_engine

LIAR = "site-1"
Lie = Callable[[np.ndarray, np.ndarray], np.ndarray]
LIES: dict[str, Lie] = {
    "1e30": lambda before, after: np.full_like(after, _most(after, 1e30)),
    "change times -1000": lambda before, after: _fit(before + -1000.0 * (after - before), after),
    "random": lambda before, after: _fit(
        np.random.default_rng(1).normal(0, 1000, after.shape), after
    ),
}
ROBUST = ("trimmed", "median", "clipped")
AVERAGING = [
    name
    for name, kind in OPEN.items()
    if any(step.summed and step.learnt and step.learnt.combined for step in kind.steps)
]
MEAN = ("fedavg-tagger", "fedner-tagger", "pseudo-complete-tagger", "lazy-mil-bags")
"""One pair of each way in which a server takes a mean."""


def lying() -> list[Any]:
    """Pairs with every lie; fast is each lie of FedAvg, and one of each other method.

    What is compared is arrays by their names, and `learnt` of the step that a pair shares with
    others of its task.
    """
    quick = [*METHOD.values()]
    return [
        pytest.param(
            name,
            lie,
            marks=[]
            if name in quick and (name == quick[0] or quick.index(name) % len(LIES) == number)
            else [pytest.mark.slow],
        )
        for name in OPEN
        if name in APART
        for number, lie in enumerate(LIES)
    ]


def robust(fast: int) -> list[Any]:
    """`MEAN` with every way to combine, and others that average with one; fast are the first."""
    found = [(name, number, way) for number, name in enumerate(MEAN) for way in range(len(ROBUST))]
    others = [name for name in AVERAGING if name in APART and name not in MEAN]
    found += [(name, len(MEAN), turn % len(ROBUST)) for turn, name in enumerate(others)]
    return [
        pytest.param(
            name,
            ROBUST[way],
            marks=[] if number < fast and (way - number) % len(ROBUST) == 0 else [pytest.mark.slow],
        )
        for name, number, way in found
    ]


def _most(array: np.ndarray, number: float) -> float:
    info: Any = (np.finfo if array.dtype.kind == "f" else np.iinfo)(array.dtype)
    return min(number, float(info.max))


def _fit(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    most = _most(like, np.inf)
    return np.clip(array, -most, most).astype(like.dtype)


def lied(step: Step, ask: bytes, data: bytes, lie: Lie) -> bytes:
    """The reply with something else than what the site learnt."""
    assert step.learnt is not None
    asked = decode(step.ask, ask)
    reply = restore_reply(step, asked, decode(step.reply, data))
    found = getattr(reply, step.learnt.field)
    named = found if isinstance(found, dict) else {"": found}
    told = {}
    for name, array in named.items():
        start = step.learnt.begun(asked, reply, name) if step.learnt.start else None
        told[name] = lie(np.zeros_like(array) if start is None else start, array)
    spoilt: Any = told if isinstance(found, dict) else told[""]
    return encode(dataclasses.replace(reply, **{step.learnt.field: spoilt}))


def let_lie(patch: pytest.MonkeyPatch, method: str, lie: Lie, liar: str = LIAR) -> None:
    """Let one site lie at every step at which it says what it learnt."""
    steps = {step.name: step for step in METHODS[method].steps if step.learnt}

    def deliver(
        self: Any, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        answered = SequentialEngine.deliver(self, step, round, asks=asks, timeout=timeout)
        for one in answered:
            reply = one.reply
            if one.site == liar and step in steps and peek(reply).message != "Failure":
                reply = lied(steps[step], asks[one.site], reply, lie)
            yield Delivery(one.site, reply, one.seconds)

    use_engine(patch, SequentialEngine, deliver=deliver)


def test_every_sum_of_arrays_says_what_was_learnt() -> None:
    """Or one site's reply could be as large as it likes."""
    for method, kind in OPEN.items():
        for step in kind.steps:
            arrays = {"array", "arrays"} & {form.kind for form in forms_of(step.reply).values()}
            if step.summed and arrays and step.name not in OPTIONAL:  # these count, in lanes
                assert step.learnt is not None, f"{method}: step {step.name} has no `learnt`"
            if step.learnt is not None:
                assert step.learnt.field in forms_of(step.reply)


@pytest.mark.parametrize(("method", "lie"), lying())
def test_a_lie_costs_the_site_its_round_and_nobody_else_theirs(
    method: str, lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_lie(monkeypatch, method, LIES[lie])
    settings = tiny(tmp_path, f"method={method}", "federation.at_least=2", sites=5)
    try:
        done = run(settings, out=tmp_path / "run").result
    except FederationError as error:  # a chain has no other sites to compare a site with
        assert METHODS[method].method == "chain"
        assert "a state that no site could train from" in str(error)
        assert LIAR in str(error)
        return
    blamed = [fault for turn in done.history for fault in turn.faults]
    assert {fault.site for fault in blamed} <= {LIAR}
    if METHODS[method].method != "chain" or lie == "1e30":
        codes = {turn.failed.get(LIAR) for turn in done.history}
        small = method == "fedner-lightner" and lie != "1e30"  # times -1000 is not absurd yet
        assert codes <= {"refused", "too-far", *([None] if small else [])}
        assert all("the server refused the site's reply" in fault.why for fault in blamed)
    for data in states(tmp_path / "run").values():
        assert odd_part(decode(METHODS[method].State, data)) is None


@pytest.mark.parametrize("method", pairs(fast=CARRIED, of=APART))
def test_of_two_sites_no_lie_is_ever_saved(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As large as is taken at all: the honest site is never blamed for what came of it.

    But in a chain, where it trains from the lie itself, before any sum.
    """
    in_turn = METHODS[method].method == "chain"
    let_lie(monkeypatch, method, lambda _, after: np.full_like(after, _most(after, LARGEST)))
    events: list[Any] = []
    settings = tiny(tmp_path, f"method={method}", "federation.at_least=1", "rounds=3", sites=2)
    try:
        run(settings, out=tmp_path / "run", on_event=events.append)
    except QuorumError as error:
        assert in_turn or {fault.site for fault in error.faults} <= {LIAR}
    except FederationError as error:
        assert "a state that no site could train from" in str(error)
        assert "site-1" in str(error)
    if not in_turn:
        assert {event.site for event in events if event.kind == "failed"} <= {LIAR}
    for data in states(tmp_path / "run").values():
        assert odd_part(decode(METHODS[method].State, data)) is None


@pytest.mark.parametrize(("method", "how"), robust(len(MEAN)))
def test_without_a_refusal_a_lie_is_outvoted(
    method: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is nearly as near the honest one as single sites are."""
    most = ["federation.max_norm_ratio=inf", f"federation.combine={how}", "rounds=1"]
    if METHODS[method].method == "feded":
        most.append("options.wire_dtype=float32")
    settings = tiny(tmp_path, f"method={method}", *most, sites=5)
    honest = run(settings, out=tmp_path / "honest").folder
    let_lie(monkeypatch, method, lambda _, after: np.full_like(after, 9))
    attacked = run(settings, out=tmp_path / "attacked").folder
    one, other = (
        decode(METHODS[method].State, states(folder).popitem()[1]).weights
        for folder in (honest, attacked)
    )
    away = max(float(np.abs(one[name] - other[name]).max()) for name in one)
    assert 0 < away < (10 if how == "clipped" else 2)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "how"), list(zip(MEAN, (*ROBUST, "median"), strict=True)))
def test_both_engines_agree(method: str, how: str, tmp_path: Path) -> None:
    """Whoever answers first: with what is combined, no method and no kind has to do."""
    chosen = [f"method={method}", f"federation.combine={how}"]
    one = run(tiny(tmp_path, *chosen, sites=4), out=tmp_path / "one").folder
    same_run(one, run(tiny(tmp_path, *chosen, "workers=2", sites=4), out=tmp_path / "two").folder)


@pytest.mark.parametrize(("method", "how"), robust(len(ROBUST)))
def test_a_resumed_run_is_the_same(method: str, how: str, tmp_path: Path) -> None:
    events: list[Any] = []
    settings = tiny(tmp_path, f"method={method}", f"federation.combine={how}", sites=4)
    straight = run(settings, out=tmp_path / "one", on_event=events.append).folder
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "stopped", on_event=stopping_at(2 * len(events) // 3))
    same_run(straight, run(settings, out=tmp_path / "stopped", resume=True).folder)


@each("method", ["chain-bags", "fedatt-relations", "chain-tagger"])
def test_a_method_without_a_mean_has_nothing_to_combine(method: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="takes no mean of what its sites learn"):
        run(tiny(tmp_path, f"method={method}", "federation.combine=median"), out=tmp_path / "run")


@each("how", ["trimmed", "median"])
@each(("sites", "fraction"), [(2, 1.0), (5, 0.4)])
def test_rounds_too_small_for_a_median_are_said_at_the_start(
    how: str, sites: int, fraction: float, tmp_path: Path
) -> None:
    chosen = (f"federation.combine={how}", f"federation.fraction={fraction}")
    with pytest.raises(SettingsError) as caught:
        run(tiny(tmp_path, *chosen, sites=sites), out=tmp_path / "run")
    assert "needs 3 sites in every round" in str(caught.value)
    assert f"2 of {sites}" in str(caught.value)
    assert '"clipped"' in str(caught.value)
    assert not (tmp_path / "run" / "checkpoints").exists()
    check_enough(tiny(tmp_path, chosen[0], sites=3), 3)


@each("reference", ["pooled", "alone"])
def test_a_reference_of_one_site_combines_nothing(reference: str, tmp_path: Path) -> None:
    plain = run(tiny(tmp_path, f"method={reference}"), out=tmp_path / "a").folder
    chosen = tiny(tmp_path, f"method={reference}", "federation.combine=median")
    assert states(plain) == states(run(chosen, out=tmp_path / "b").folder)


def test_the_largest_number_is_one_that_sites_can_train_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state at the edge is saved, and no honest site's guard trips over it."""
    let_lie(monkeypatch, "fedavg-tagger", lambda _, after: np.full_like(after, LARGEST))
    settings = tiny(tmp_path, "method=fedavg-tagger", "rounds=3", sites=2)
    done = run(settings, out=tmp_path / "run").result
    assert [turn.faults for turn in done.history] == [[], [], []]


# --- what a site keeps to itself ------------------------------------------------------------------

PARTS = {
    "tagger": ("crf", "word"),
    "encoder": ("tag", "encoder"),
    "lightner": ("prompts", "bart"),
    "spans": ("span", "encoder"),
    "linear": ("crf", "table"),
    "relations": ("relation", "encoder"),
    "bags": ("relation", "reader"),
}
"""Of each kind a part that FedNER keeps private anyhow, and one that it shares."""


@pytest.mark.parametrize("method", pairs())
def test_a_part_that_a_site_keeps_leaves_it_under_no_pair(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server asks for: neither weights nor a gradient of the part."""
    pair = METHODS[method]
    part = PARTS[pair.kind.name][pair.method == "fedner"]
    left: list[tuple[str, str]] = []

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        left.extend((step, name) for name in safetensors.numpy.load(reply))

    use_engine(monkeypatch, Asking, look=look)
    settings = tiny(tmp_path, f"method={method}", f'guards.private=["{part}"]')
    if pair.method == "feded":  # what leaves is what a model says, and nothing of the model
        run(settings, out=tmp_path / "run")
    else:
        with pytest.raises(QuorumError, match="a part of the model that the site's own guard"):
            run(settings, out=tmp_path / "run")
    fields = [name.partition("/") for _, name in left]
    assert not [key for field, _, key in fields if key.startswith(f"{part}.") or key == part]
    assert not {field for field, _, _ in fields} & {"weights", "update", "slope_G"}


@each("kind", ["tagger", "relations"])
def test_a_method_that_shares_other_parts_alone_may_train(kind: str, tmp_path: Path) -> None:
    """FedNER leaves these where they are anyhow."""
    settings = tiny(
        tmp_path, f"method=fedner-{kind}", f'guards.private=["{PARTS[kind][0]}"]', "rounds=1"
    )
    done = run(settings, out=tmp_path / "run").result
    assert done.history[0].failed == {}


@each("kind", ["encoder", "relations"])
def test_a_server_that_asks_for_a_private_part_gets_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server than ours, which asks a site to improve what FedNER would leave to it."""
    pair, part = METHODS[f"fedner-{kind}"], PARTS[kind][0]
    answers: list[bytes] = []

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        if step == "improve" and not answers:
            declared = next(one for one in pair.steps if one.name == step)
            asked = decode(declared.ask, ask)
            greedy = asked.weights | {f"{part}.linear.bias": np.zeros(3, np.float32)}
            wanted = encode(dataclasses.replace(asked, weights=greedy))
            answers.append(engine._hosts[site].answer(step, round, wanted))

    use_engine(monkeypatch, Asking, look=look)
    settings = tiny(tmp_path, f"method=fedner-{kind}", f'guards.private=["{part}"]', "rounds=1")
    run(settings, out=tmp_path / "run")
    assert [decode(Failure, one).code for one in answers] == ["private-part"]
