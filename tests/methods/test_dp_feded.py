"""DP-FedED: sites train under noise of their own; predictions tell no more than the model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from cases import each
from confide.errors import QuorumError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import encode
from confide.federation.steps import Turn
from confide.methods import METHODS, answered_in, method_of, noise
from confide.methods.dp_feded import predict_noisily
from confide.methods.noise import budget_of, mean_gradient
from confide.privacy.accountant import Limit, PrivacyBudget
from confide.runs.run import run
from confide.training.optimisers import AdamMoments, adam
from contract.corpus import tiny, write_sites
from contract.runs import result, states
from methods.relation_runs import started
from methods.test_dp_fedsgd import Alone

STEP = "predict_noisily"
FROZEN = 'encoder.tune="frozen"'
ENCODER = "method=dp-feded-encoder"
SUMS = "federation.sums=masked"


def begun(tmp_path: Path, settings: Any) -> tuple[Any, Any, Any]:
    """A started method whose sites are members of secure sums of five honest ones each."""
    method, federation, engine = started(tmp_path, settings)
    for name in federation.sites:
        site = engine.site(name)
        site.member = Alone(5)
        limit = Limit(settings.guards.max_epsilon, 1e-5)
        site.budget = PrivacyBudget(tmp_path / "purses" / name, limit)
    return method, federation, engine


def asked_of(tmp_path: Path, *overrides: str, pair: str = ENCODER) -> tuple[Any, Any, Any, Any]:
    """The method, engine, state and what site-1 was asked in a round of two steps."""
    settings = tiny(tmp_path, pair, "privacy.steps=2", *overrides, sites=3)
    method, federation, engine = begun(tmp_path, settings)
    state = method.start(federation)
    method.round(state, federation, 1)
    return method, engine, state, engine.asks[STEP, "site-1"]


def account(site: Any) -> list[dict[str, Any]]:
    path = site.budget._folder / "account.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


# --- a site ---------------------------------------------------------------------------------------


@each("pair", ["encoder", "spans", "tagger", "relations"])
def test_a_site_steps_along_its_own_noisy_sums_and_predicts(
    pair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle takes the steps from the noisy sums alone, and asks its own model."""
    sums: list[Any] = []
    real = noise.NoisySite.total

    def total(self: Any, *arguments: Any, **named: Any) -> Any:
        found = real(self, *arguments, **named)
        sums.append((self.site.name, found))
        return found

    monkeypatch.setattr(noise.NoisySite, "total", total)
    method, engine, state, ask = asked_of(
        tmp_path, "options.wire_dtype=float32", pair=f"method=dp-feded-{pair}"
    )
    weights, moments = ask.weights, AdamMoments(0, {}, {})
    for _, found in [one for one in sums if one[0] == "site-1"]:
        weights, moments = adam(
            weights,
            mean_gradient(found, ask.noise, drawn=ask.drawn),
            moments=moments,
            learning_rate=0.01,
        )
    assert len(sums) == 2 * 3
    said = state.form.at(engine.site("site-2")).predicted(weights, state.public)
    reply = engine.replies[STEP, "site-1"]
    expected = np.clip(said[:, 1:] - said[:, :1], -16, 16)
    np.testing.assert_allclose(reply.said_SQ, expected, rtol=1e-3, atol=1e-3)
    assert (reply.loss, reply.sentences, reply.sites, reply.knows) == (0.0, 1, 1, {})
    own = method.run.privacy
    assert ask.drawn == pytest.approx(own.rate * own.units / 3) and ask.steps == 2
    assert ask.noise == method.plan.noise


def test_a_site_adds_all_of_the_noise_by_itself_and_charges_every_step(tmp_path: Path) -> None:
    """Five sites: in a shared sum, each would add a third of it or less."""
    settings = tiny(tmp_path, ENCODER, FROZEN, "privacy.steps=3", sites=5)
    method, federation, engine = begun(tmp_path, settings)
    state = method.start(federation)
    for n in (1, 2):
        method.round(state, federation, n)
    one = budget_of(settings).mechanism
    for name in ("site-1", "site-5"):
        lines = account(engine.site(name))
        assert len(lines) == 2 * 3 and len({line["ask"] for line in lines}) == 6
        assert {line["variance"] for line in lines} == {one.variance}
        assert {(line["clip"], line["rate"]) for line in lines} == {(one.clip, one.rate)}


def test_noise_of_the_whole_variance_is_in_every_step(tmp_path: Path) -> None:
    _, engine, state, ask = asked_of(tmp_path, FROZEN)
    site = engine.site("site-1")
    nobody = replace(ask, noise=replace(ask.noise, rate=1e-12))
    sums = noise.NoisySite.of(
        site, state.form.at(site), ask=nobody, turn=Turn(7, "site-1", STEP, 0), shared=False
    )
    total = sums.total(ask.weights, like=ask.weights)
    every = np.concatenate([array.ravel() for array in total.values()])
    assert every.size > 100
    assert 0.6 < every.var() / ask.noise.variance < 1.5


def test_the_same_ask_gets_the_same_answer_and_is_charged_once(tmp_path: Path) -> None:
    _, engine, _, ask = asked_of(tmp_path, FROZEN)
    site, memory = engine.site("site-1"), engine.memory("site-1")
    before = account(site)
    again, _ = predict_noisily(site, memory, ask, Turn(1, "site-1", STEP, 99))
    assert encode(again) == encode(
        predict_noisily(site, memory, ask, Turn(1, "site-1", STEP, 5))[0]
    )
    assert account(site) == before and len(before) == 2
    other = replace(ask, weights={name: 1.001 * array for name, array in ask.weights.items()})
    predict_noisily(site, memory, other, Turn(1, "site-1", STEP, 0))
    assert len(account(site)) == 4


def test_text_that_has_changed_and_an_account_that_is_spent_answer_nothing(tmp_path: Path) -> None:
    _, engine, _, ask = asked_of(tmp_path, FROZEN, "guards.max_epsilon=9")
    site, memory = engine.site("site-1"), engine.memory("site-1")
    with pytest.raises(Refusal) as caught:
        for n in range(2, 200):
            predict_noisily(site, memory, ask, Turn(n, "site-1", STEP, 0))
    assert caught.value.code == "spent" and 2 < n < 100
    assert site.budget.status().epsilon <= 9
    site.train = site.train[1:]
    del site.cache["fingerprint"]
    with pytest.raises(Refusal) as caught:
        predict_noisily(site, memory, ask, Turn(1, "site-1", STEP, 0))
    assert caught.value.code == "other-text"


ODD: tuple[dict[str, Any], ...] = (
    {"steps": 0}, {"steps": 10_001}, {"rate": 0.0}, {"rate": 1.5}, {"rate": math.nan},
    {"drawn": 0.0}, {"drawn": math.inf}, {"drawn": math.nan}, {"average": "known"},
)  # fmt: skip


def test_asks_without_sense_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    _, engine, _, ask = asked_of(tmp_path, FROZEN)
    site, memory = engine.site("site-1"), engine.memory("site-1")
    before = account(site)
    noise = [replace(ask, noise=replace(ask.noise, variance=0))]
    for wrong in (*noise, *(replace(ask, **one) for one in ODD)):
        with pytest.raises(Refusal) as caught:
            predict_noisily(site, memory, wrong, Turn(2, "site-1", STEP, 0))
        assert caught.value.code == "bad-ask"
    last = "1" if ask.public[-1] == "0" else "0"
    other = replace(ask, public=ask.public[:-1] + last)
    with pytest.raises(Refusal) as caught:
        predict_noisily(site, memory, other, Turn(2, "site-1", STEP, 0))
    assert caught.value.code == "other-public-set"
    site.member = None
    with pytest.raises(Refusal) as caught:
        predict_noisily(site, memory, ask, Turn(2, "site-1", STEP, 0))
    assert caught.value.code == "only-masked"
    assert account(site) == before


# --- a run ----------------------------------------------------------------------------------------


def test_the_account_counts_every_step_of_every_round(tmp_path: Path) -> None:
    settings = tiny(tmp_path, ENCODER, SUMS, FROZEN, "privacy.steps=4", "rounds=3", "key=simulated")
    done = run(settings, out=tmp_path / "run")
    alone = budget_of(settings.model_copy(update={"privacy": with_steps(settings, 1)}))
    assert budget_of(settings).epsilon_after(3) == pytest.approx(alone.epsilon_after(12))
    spent = [one["epsilon"] for one in result(done.folder)["history"]]
    assert done.result.privacy is not None and done.result.privacy.epsilon == spent[-1]
    assert spent == pytest.approx([alone.epsilon_after(4 * n) for n in (1, 2, 3)])


def with_steps(settings: Any, steps: int) -> Any:
    return settings.privacy.model_copy(update={"steps": steps})


def test_a_run_that_is_stopped_and_resumed_is_the_same_run(tmp_path: Path) -> None:
    settings = tiny(tmp_path, ENCODER, SUMS, FROZEN, "privacy.steps=2", "rounds=3", "key=simulated")
    straight = run(settings, out=tmp_path / "straight").folder

    def stop(event: Any) -> None:
        if (event.kind, event.step, event.round) == ("reply", STEP, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run", on_event=stop)
    done = run(settings, out=tmp_path / "run", resume=True)
    assert states(done.folder) == states(straight)
    for site in sorted((done.folder / "sites").glob("site-*")):
        lines = (site / "privacy" / "account.jsonl").read_text().splitlines()
        assert len(lines) == 1 + 2 * 3


@pytest.mark.slow
def test_it_learns_with_noise_and_not_with_a_thousand_times_as_much(tmp_path: Path) -> None:
    usual = (
        ENCODER, SUMS, FROZEN, "rounds=8", "select.every=8", "privacy.steps=12",
        "options.noisy_rate=0.05", "public.labelled=false", "options.distil_epochs=12",
        "options.distil_learning_rate=0.02", "privacy.clip=2", "privacy.rate=0.3",
        "privacy.units=600", "options.temperature=1",
    )  # fmt: skip
    site = write_sites(tmp_path / "large", train=200, held_out=20)
    strict = []
    for level in ("1", "1000"):
        settings = tiny(tmp_path, *usual, f"privacy.noise={level}", site=site)
        found = run(settings, out=tmp_path / level).result
        strict.append(found.scores.overall["strict"]["f1"])
    assert strict[0] > 0.75 and strict[1] < 0.5, strict


def test_a_run_ends_when_a_site_has_spent_all_it_allows(tmp_path: Path) -> None:
    own = ("guards.max_epsilon=8", "privacy.steps=10", "rounds=6")
    with pytest.raises(QuorumError, match="max_epsilon"):
        run(tiny(tmp_path, ENCODER, SUMS, FROZEN, *own), out=tmp_path / "run")


# --- settings -------------------------------------------------------------------------------------


def test_what_would_break_the_promise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="average"):
        settings = tiny(tmp_path, ENCODER, "options.average=known")
        method_of(settings)(settings)
    for pair in ("dp-fedsgd", "dp-fedner"):
        settings = tiny(tmp_path, f"method={pair}-encoder", "privacy.steps=2")
        with pytest.raises(SettingsError, match="one step under noise in a round"):
            method_of(settings)(settings)
    with pytest.raises(SettingsError, match="trains without noise"):
        method_of(tiny(tmp_path, ENCODER).model_copy(update={"method": "feded"}))


@each("name", [name for name, pair in METHODS.items() if pair.private])
def test_where_held_out_text_is_closed_no_ask_for_a_score_or_a_size_is_answered(
    name: str, tmp_path: Path
) -> None:
    """The attack: a server that lies asks for them all the same."""
    every = {step.name for step in METHODS[name].steps}
    closed = answered_in(tiny(tmp_path, f"method={name}", "privacy.holdout_scores=withheld"))
    assert every - closed.keys() >= {"score", "count_examples"}
    assert not {"score", "test", "count_examples"} & closed.keys()
    assert closed.keys() & {"add_noisily", "improve_noisily", STEP}
    assert answered_in(tiny(tmp_path, f"method={name}")).keys() == every
    assert answered_in(tiny(tmp_path)).keys() == {
        one.name for one in METHODS["fedavg-tagger"].steps
    }
