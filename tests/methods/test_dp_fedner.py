"""DP-FedNER: one noisy sum of shared and private parts, of which the private ones never leave."""

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
from confide.errors import SettingsError
from confide.federation.failures import Refusal
from confide.federation.messages import encode
from confide.federation.steps import Turn
from confide.methods import METHODS, method_of, noise
from confide.methods.dp_fedner import improve_noisily
from confide.methods.noise import budget_of
from confide.privacy.accountant import Limit, PrivacyBudget
from confide.runs.run import run
from contract.corpus import tiny, write_sites
from contract.runs import result, states
from methods.relation_runs import started
from methods.test_dp_fedsgd import Alone

STEP = "improve_noisily"
ENCODER = "method=dp-fedner-encoder"
FROZEN = 'encoder.tune="frozen"'
TOP = ('encoder.tune="top"', "encoder.layers=1")
SUMS = "federation.sums=masked"
KINDS = ("encoder", "spans", "tagger", "relations")


def begun(
    tmp_path: Path, *overrides: str, pair: str = ENCODER, honest: int = 4
) -> tuple[Any, Any, Any, Any]:
    """Method, engine, state and what site-1 was asked in a round."""
    settings = tiny(tmp_path, pair, *overrides, sites=3)
    method, federation, engine = started(tmp_path, settings)
    for name in federation.sites:
        site = engine.site(name)
        site.member = Alone(honest)
        limit = Limit(settings.guards.max_epsilon, 1e-5)
        site.budget = PrivacyBudget(tmp_path / "purses" / name, limit)
    state = method.start(federation)
    method.round(state, federation, 1)
    return method, engine, state, engine.asks[STEP, "site-1"]


def account(site: Any) -> list[dict[str, Any]]:
    path = site.budget._folder / "account.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def turn(round: int = 2) -> Turn:
    return Turn(round, "site-1", STEP, 0)


def flat(arrays: Any) -> np.ndarray:
    return np.concatenate([np.ravel(one).astype(np.float64) for one in arrays])


# --- a site ---------------------------------------------------------------------------------------


@each("kind", KINDS)
def test_the_private_parts_stay_and_the_shared_ones_leave(kind: str, tmp_path: Path) -> None:
    method, engine, state, ask = begun(
        tmp_path, *TOP * (kind in ("encoder", "relations")), pair=f"method=dp-fedner-{kind}"
    )
    memory = engine.memory("site-1")
    reply = engine.replies[STEP, "site-1"]
    assert memory.own and not reply.noisy.keys() & memory.own.keys()
    assert reply.noisy.keys() == ask.weights.keys() == state.weights.keys()
    assert memory.steps == 1
    own = method.run.privacy
    assert ask.drawn == pytest.approx(own.rate * own.units / 3)
    assert {"take_share", "improve"} & {
        step.name for step in METHODS[f"dp-fedner-{kind}"].steps
    } == set()


def test_shared_and_private_parts_are_clipped_to_one_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a single unit, which is drawn for sure: the clean sum of both has the norm of the clip."""
    seen: list[Any] = []
    real = noise.with_noise

    def with_noise(total: Any, key: bytes, *, variance: int) -> Any:
        seen.append((total, key, variance))
        return real(total, key, variance=variance)

    _, engine, _, ask = begun(tmp_path, *TOP, "privacy.unit=document")
    monkeypatch.setattr(noise, "with_noise", with_noise)
    site, memory = engine.site("site-1"), engine.memory("site-1")
    place = ("units", ask.noise.unit, ask.noise.patients)
    site.cache[place] = site.cache[place][:1]
    tight = replace(ask, noise=replace(ask.noise, rate=1.0, clip=1e-4))
    improve_noisily(site, memory, tight, turn())
    (shared, one_key, few), (private, other_key, all_) = seen
    norms = [math.sqrt(np.square(flat(part.values())).sum()) for part in (shared, private)]
    both = math.hypot(*norms)
    assert 0.98 * ask.noise.grid < both <= ask.noise.grid
    assert min(norms) > 0 and max(norms) < ask.noise.grid
    assert one_key != other_key  # or the noise of what leaves would be known from what is kept
    assert (few, all_) == (math.ceil(ask.noise.variance / 4), ask.noise.variance)


def test_private_parts_get_all_of_the_noise_and_shared_ones_a_site_s_part(tmp_path: Path) -> None:
    _, engine, _, ask = begun(tmp_path, *TOP)
    site, memory = engine.site("site-1"), engine.memory("site-1")
    before = len(account(site))
    nobody = replace(ask, noise=replace(ask.noise, rate=1e-12))
    fresh = replace(memory, steps=0, means={}, squares={})
    reply, after = improve_noisily(site, fresh, nobody, turn())
    sent = flat(reply.noisy.values())
    # Adam's first means are a tenth of the gradient
    kept = flat(after.means.values()) * 10 * ask.noise.grid * ask.drawn / ask.noise.clip
    assert sent.size > 500 and kept.size > 100
    assert 0.8 < sent.var() / (ask.noise.variance / 4) < 1.2
    assert 0.6 < kept.var() / ask.noise.variance < 1.5
    line = account(site)[before]
    assert (line["variance"], line["clip"]) == (ask.noise.variance, ask.noise.grid)
    assert line["draws"] == sent.size + kept.size


def test_where_all_parts_are_shared_it_is_dp_fedsgd_s_sum(tmp_path: Path) -> None:
    _, engine, _, ask = begun(tmp_path, FROZEN, "options.private=[]")
    (line,) = account(engine.site("site-1"))
    assert line["variance"] == 4 * math.ceil(ask.noise.variance / 4)
    assert not engine.memory("site-1").own


def test_the_same_ask_gets_the_same_answer_and_other_private_parts_none(tmp_path: Path) -> None:
    """The attack: an ask made again over another state would tell the difference of two draws."""
    _, engine, _, ask = begun(tmp_path, *TOP)
    site, memory = engine.site("site-1"), engine.memory("site-1")
    first, after = improve_noisily(site, memory, ask, turn())
    again, same = improve_noisily(site, memory, ask, turn())
    assert encode(first) == encode(again)
    assert all((after.own[name] == same.own[name]).all() for name in after.own)
    assert len(account(site)) == 2
    with pytest.raises(Refusal) as caught:
        improve_noisily(site, after, ask, turn())
    assert caught.value.code == "spent" and len(account(site)) == 2


def test_asks_without_sense_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    """Among them one whose answer would hold the private parts."""
    _, engine, _, ask = begun(tmp_path, *TOP)
    site, memory = engine.site("site-1"), engine.memory("site-1")
    before = account(site)
    odd = [{"rate": 0.0}, {"rate": math.nan}, {"drawn": 0.0}, {"drawn": math.inf}]
    wrong = [replace(ask, **one) for one in odd]
    wrong += [replace(ask, noise=replace(ask.noise, unit="site"))]
    wrong += [replace(ask, weights={**ask.weights, **memory.own})]
    for one in wrong:
        with pytest.raises(Refusal) as caught:
            improve_noisily(site, memory, one, turn())
        assert caught.value.code == "bad-ask"
    assert account(site) == before


@each(("pair", "private"), [("dp-fedsgd-encoder", "tag"), ("dp-fedner-encoder", "encoder")])
def test_a_guard_keeps_parts_that_would_leave_under_noise(
    pair: str, private: str, tmp_path: Path
) -> None:
    """The attack: noise hides a unit, and the guard is about a part of the model."""
    settings = tiny(tmp_path, f"method={pair}", SUMS, f'guards.private=["{private}"]')
    with pytest.raises(Exception, match="private"):
        run(settings, out=tmp_path / "run")


# --- a run ----------------------------------------------------------------------------------------


def test_a_run_that_is_stopped_and_resumed_is_the_same_run(tmp_path: Path) -> None:
    settings = tiny(tmp_path, ENCODER, SUMS, *TOP, "rounds=3", "key=simulated")
    straight = run(settings, out=tmp_path / "straight").folder

    def stop(event: Any) -> None:
        if (event.kind, event.step, event.round) == ("reply", STEP, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run", on_event=stop)
    done = run(settings, out=tmp_path / "run", resume=True)
    assert states(done.folder) == states(straight)
    spent = budget_of(settings).epsilon_after(3)
    assert result(done.folder)["privacy"]["epsilon"] == pytest.approx(spent)
    for site in sorted((done.folder / "sites").glob("site-*")):
        lines = (site / "privacy" / "account.jsonl").read_text().splitlines()
        assert len(lines) == 1 + 3


@pytest.mark.slow
def test_it_learns_with_noise_and_not_with_a_hundred_times_as_much(tmp_path: Path) -> None:
    usual = (
        ENCODER, SUMS, *TOP, "rounds=60", "select.every=60", "options.noisy_rate=0.02",
        "privacy.clip=2", "privacy.rate=0.3", "privacy.units=600", "privacy.rounds=60",
    )  # fmt: skip
    site = write_sites(tmp_path / "large", train=200, held_out=20)
    strict = []
    for level in ("1", "100"):
        settings = tiny(tmp_path, *usual, f"privacy.noise={level}", site=site)
        found = run(settings, out=tmp_path / level).result
        strict.append(found.scores.overall["strict"]["f1"])
    assert strict[0] > 0.8 and strict[1] < 0.4, strict


def test_what_would_break_the_promise_is_refused(tmp_path: Path) -> None:
    for override, words in (
        ("options.types=own", "types"),
        ("options.local_steps=2", "local_steps"),
        ("model.vectors=v.txt", "no word vectors of its own"),
    ):
        with pytest.raises(SettingsError, match=words):
            settings = tiny(tmp_path, ENCODER, override)
            method_of(settings)(settings)
