"""DP-FedSGD: what leaves under noise, the account that each site keeps, and attacks on both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import QuorumError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.ledger import read_ledger
from confide.federation.messages import encode
from confide.federation.site import Site
from confide.federation.steps import Turn
from confide.kinds.entities import clipped_sum
from confide.kinds.protocol import Kept
from confide.methods import METHODS, method_of
from confide.methods.dp_fedsgd import Noisy, NoisySum, add_noisily
from confide.methods.noise import Noise, budget_of, with_noise
from confide.privacy.account import Mechanism
from confide.privacy.accountant import Limit, PrivacyBudget
from confide.privacy.noise import UnitGradients
from confide.runs.run import run
from confide.settings import Settings, SplitTable
from contract.corpus import tiny, write_sites
from contract.runs import Forging, result, states, use_engine

ENCODER = "method=dp-fedsgd-encoder"
FROZEN = 'encoder.tune="frozen"'


class Alone:
    """A member of sums with this many honest sites in each."""

    def __init__(self, honest: int = 1) -> None:
        self.honest = honest
        self.run = "run"
        self.binding = b"binding"


class Desk:
    """Units whose gradients are set: a document each."""

    def __init__(self, gradients: Mapping[int, Any]) -> None:
        self.gradients = gradients
        self.places = [(number, 0) for number in gradients]

    def check(self) -> None:
        """All text fits."""

    def unit_gradients(self, weights: Any, units: Any) -> Any:
        for rows in units:
            yield UnitGradients.of({"w": np.sum([self.gradients[int(row)] for row in rows], 0)})


class Form:
    """A form whose site_model is given."""

    def __init__(self, site_model: Desk) -> None:
        self.site_model = site_model

    def at(self, site: Site) -> Desk:
        return self.site_model


def site_of(
    folder: Path, *, units: int = 40, honest: int = 1, epsilon: float = 100.0, text: str = "text"
) -> tuple[Site, Any]:
    """A site of this many documents of one row, and its memory."""
    from confide.text.document import Document

    draw = np.random.default_rng(3)
    documents = [Document(str(number), f"{text} {number}") for number in range(units)]
    site = Site("site-1", documents)
    site.member = Alone(honest)
    site.budget = PrivacyBudget(folder / "budget", Limit(epsilon, 1e-5))
    site_model = Desk({n: draw.normal(0, 3, 8).astype(np.float32) for n in range(units)})
    return site, Kept(Form(site_model))


ASK = Noisy(
    weights={"w": np.zeros(8, np.float32)},
    noise=Noise("document", "", clip=1.0, grid=64, variance=64**2 * 4, rate=0.5),
)


def noised(**changed: Any) -> Noisy:
    """The ask with another noise."""
    return replace(ASK, noise=replace(ASK.noise, **changed))


def asked(site: Site, memory: Any, ask: Noisy = ASK, *, round: int = 1) -> np.ndarray:
    reply, after = add_noisily(site, memory, ask, Turn(round, site.name, "add_noisily", 0))
    assert after is memory
    return reply.noisy["w"]


# --- one site ----------------------------------------------------------------------------------


def test_the_same_ask_gets_the_same_answer_and_is_charged_once(tmp_path: Path) -> None:
    site, memory = site_of(tmp_path)
    first = asked(site, memory)
    assert site.budget is not None
    spent = site.budget.status()
    again, _ = site_of(tmp_path)  # another process
    assert (asked(again, memory) == first).all()
    assert site.budget.status() == spent and spent.charges == 1


@each("what", ["round", "weights", "rate", "clip"])
def test_another_ask_gets_another_draw_and_other_noise_and_is_charged(
    what: str, tmp_path: Path
) -> None:
    site, memory = site_of(tmp_path)
    first = asked(site, memory)
    ask, round = ASK, 1
    if what == "round":
        round = 2
    elif what == "weights":
        ask = replace(ASK, weights={"w": np.full(8, 1e-6, np.float32)})
    else:
        ask = noised(**{what: 0.25})
    second = asked(site, memory, ask, round=round)
    assert site.budget is not None and site.budget.status().charges == 2
    assert np.abs(first - second).max() > 64  # no noise in common, although all gradients are


def test_noise_has_the_variance_that_is_charged(tmp_path: Path) -> None:
    """Of 1,000 rounds, less the sum of the units that were drawn in each."""
    site, memory = site_of(tmp_path, units=3)
    total = clipped_sum(
        memory.form.site_model.unit_gradients(
            None, [np.arange(1), np.arange(1, 2), np.arange(2, 3)]
        ),
        like=ASK.weights,
        clip=1.0,
        grid=64,
    )["w"]
    ask = noised(rate=1.0, variance=512**2)
    noise = np.array([asked(site, memory, ask, round=n) - total for n in range(1, 251)])
    assert abs(noise.mean()) < 6 * 512 / math.sqrt(noise.size)
    assert 0.9 < noise.var() / 512**2 < 1.1
    lines = (tmp_path / "budget" / "account.jsonl").read_text().splitlines()[1:]
    assert len(lines) == 250
    for line in map(json.loads, lines):
        assert (line["clip"], line["variance"], line["rate"]) == (64, 512**2, 1.0)
        assert line["draws"] == 8


def test_honest_sites_share_the_noise_and_the_account_is_of_all(tmp_path: Path) -> None:
    site, memory = site_of(tmp_path, units=1, honest=4)
    ask = noised(rate=1.0, variance=512**2 * 4 + 1)
    site.train = ()
    memory.form.site_model.places = []
    noise = np.array([asked(site, memory, ask, round=n) for n in range(1, 201)])
    share = math.ceil(ask.noise.variance / 4)
    assert 0.88 < noise.var() / share < 1.12
    line = json.loads((tmp_path / "budget" / "account.jsonl").read_text().splitlines()[1])
    assert line["variance"] == 4 * share >= ask.noise.variance


def test_units_are_drawn_by_chance_in_secret(tmp_path: Path, monkeypatch: Any) -> None:
    site, memory = site_of(tmp_path, units=200)
    counts: list[int] = []
    real = memory.form.site_model.unit_gradients

    def count(weights: Any, units: Any) -> Any:
        counts.append(len(units))
        return real(weights, units)

    monkeypatch.setattr(memory.form.site_model, "unit_gradients", count)
    for number in range(1, 41):
        asked(site, memory, round=number)
    assert 92 < np.mean(counts) < 108 and 4 < np.std(counts) < 11
    other, same = site_of(tmp_path / "other", units=200)
    monkeypatch.setattr(same.form.site_model, "unit_gradients", count)
    asked(other, same)
    first = asked(site, memory)
    assert (asked(other, same) != first).any()  # another site, of the same text: another key


def test_text_that_has_changed_is_asked_nothing_more(tmp_path: Path) -> None:
    """The attack: a document is taken out between two asks."""
    site, memory = site_of(tmp_path)
    asked(site, memory)
    less, _ = site_of(tmp_path)
    less.train = less.train[1:]
    with pytest.raises(Refusal) as refused:
        asked(less, memory, round=2)
    assert refused.value.code == "other-text"
    assert site.budget is not None and site.budget.status().charges == 1


def test_beyond_its_guard_a_site_sends_nothing(tmp_path: Path) -> None:
    site, memory = site_of(tmp_path, epsilon=3.0)
    sent = 0
    with pytest.raises(Refusal) as refused:
        for number in range(1, 200):
            asked(site, memory, round=number)
            sent += 1
    assert refused.value.code == "spent" and 1 <= sent < 100
    assert site.budget is not None
    assert site.budget.status().charges == sent and site.budget.status().epsilon <= 3.0
    assert (asked(site, memory, round=sent) == asked(site, memory, round=sent)).all()


def test_nothing_is_sent_that_could_not_be_charged(tmp_path: Path, monkeypatch: Any) -> None:
    """The disk is full: a reply that is not in the account does not leave."""
    site, memory = site_of(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("confide.privacy.accountant.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        asked(site, memory)


def test_one_ask_is_answered_with_one_noise_only(tmp_path: Path) -> None:
    """The attack: numbers that differ in the last bit from one machine to the next."""
    site, memory = site_of(tmp_path)
    asked(site, memory)
    memory.form.site_model.gradients = {
        n: 1.5 * g for n, g in memory.form.site_model.gradients.items()
    }
    with pytest.raises(Refusal) as refused:
        asked(site, memory)
    assert refused.value.code == "spent"


def test_an_empty_draw_sends_noise(tmp_path: Path) -> None:
    site, memory = site_of(tmp_path, units=1)
    noisy = [asked(site, memory, noised(rate=1e-9), round=n) for n in range(1, 4)]
    assert all(one.any() for one in noisy)
    assert site.budget is not None and site.budget.status().charges == 3


def test_units_that_are_not_finite_are_zeros_and_refuse_nothing(tmp_path: Path) -> None:
    site, memory = site_of(tmp_path)
    memory.form.site_model.gradients = {n: np.full(8, np.nan, np.float32) for n in range(40)}
    assert np.abs(asked(site, memory)).max() < 128 * 8


@each(
    "odd",
    [
        {"unit": "site"}, {"patients": "-" * 11}, {"clip": 0.0}, {"clip": math.inf},
        {"clip": math.nan}, {"grid": 0}, {"grid": 2**20}, {"variance": 0}, {"variance": 2**40},
        {"rate": 0.0}, {"rate": 1.5}, {"rate": math.nan},
    ],
)  # fmt: skip
def test_asks_without_sense_are_refused(odd: dict[str, Any], tmp_path: Path) -> None:
    site, memory = site_of(tmp_path)
    with pytest.raises(Refusal) as refused:
        asked(site, memory, noised(**odd))
    assert refused.value.code == "bad-ask"
    assert site.budget is not None and site.budget.status().charges == 0


def test_a_server_that_asks_for_less_noise_pays_for_it(tmp_path: Path) -> None:
    """The site's account is of what it sends, not of what the settings promised."""
    site, memory = site_of(tmp_path, epsilon=5.0)
    asked(site, memory)
    assert site.budget is not None
    before = site.budget.status()
    with pytest.raises(Refusal) as refused:
        asked(site, memory, noised(variance=1), round=2)
    assert refused.value.code == "spent" and site.budget.status() == before
    asked(site, memory, noised(variance=ASK.noise.variance // 4), round=3)
    assert site.budget.status().epsilon > before.epsilon + 0.5


def test_noise_wraps_and_is_never_too_large() -> None:
    """A number beyond a lane comes out as its rest, which is what the sum needs."""
    total = {"w": np.array([2**40 + 5, -(2**33) - 1, 7])}
    noise = with_noise({"w": np.zeros(3, np.int64)}, b"k" * 32, variance=100)["w"].astype(np.int64)
    found = with_noise(total, b"k" * 32, variance=100)["w"].astype(np.int64)
    assert ((found - noise - np.array([5, -1, 7])) % 2**32 == 0).all()


def test_no_two_arrays_have_noise_in_common() -> None:
    """The attack: the difference of two arrays would be without noise."""
    clean = {name: np.zeros((50, 4), np.int64) for name in ("a", "b")} | {"c": np.zeros(200, int)}
    noise = with_noise(clean, b"k" * 32, variance=64**2)
    every = [array.ravel() for array in noise.values()]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(np.corrcoef(every[one], every[other])[0, 1]) < 0.3
        assert (every[one] != every[other]).mean() > 0.9
    assert noise["a"].shape == (50, 4) and noise["c"].shape == (200,)


@dataclass(frozen=True)
class Common:
    """The state of the server that a round of noise needs."""

    weights: dict[str, np.ndarray]
    moments: dict[str, np.ndarray]
    squares: dict[str, np.ndarray]
    idle: tuple[str, ...] = ()


class Summed:
    """A federation whose noisy sum is set."""

    sites = ("site-1", "site-2", "site-3")

    def sum(self, step: Any, ask: Noisy, *, round: int, sites: Any) -> NoisySum:
        self.ask = ask
        return NoisySum({"w": np.array([2**16, -(2**15)], np.int32)})


def test_the_server_divides_by_a_constant_of_the_settings(tmp_path: Path) -> None:
    """By rate times units, whoever was drawn: the mean step of so many units of norm `clip`."""
    usual = ("options.server=mean", "training.learning_rate=0.5", "privacy.clip=0.25")
    settings = private(tmp_path, *usual, "privacy.rate=0.2", "privacy.units=50")
    made, summed = method_of(settings)(settings), Summed()
    start = Common({"w": np.array([1.0, 2.0], np.float32)}, {}, {})
    after, facts = made.round(start, summed, 1)
    gradient = np.array([2**16, -(2**15)]) * 0.25 / summed.ask.noise.grid / (0.2 * 50)
    np.testing.assert_allclose(after.weights["w"], [1.0, 2.0] - 0.5 * gradient, rtol=1e-6)
    assert (summed.ask.noise.rate, summed.ask.noise.clip) == (0.2, 0.25)
    assert facts["loss"] is None and facts["sentences"] == 0


# --- a run -------------------------------------------------------------------------------------


def private(folder: Path, *overrides: str, sites: int = 3) -> Settings:
    return tiny(folder, ENCODER, FROZEN, *overrides, sites=sites)


CLOSED = ("privacy.holdout_scores=withheld", "federation.sums=masked", "rounds=3", "key=simulated")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five sites of which nothing is scored."""
    folder = tmp_path_factory.mktemp("closed")
    return run(private(folder, *CLOSED, sites=5), out=folder / "run").folder


def test_nothing_but_noise_tells_of_the_text(closed: Path) -> None:
    """Neither names, nor counts, nor scores; the ledger has the steps."""
    rows = [one for one in read_ledger(closed / "ledger.jsonl") if one.direction == "up"]
    assert {one.step for one in rows} == {
        "describe", "take", "greet", "meet", "add_noisily", "mask", "agree",
        "unmask",
    }  # fmt: skip
    found = json.loads((closed / "result.json").read_text())
    assert found["scores"]["overall"]["strict"]["support"] == 0
    assert found["dev"] in (None, {})
    assert all(one["loss"] is None and not one["sentences"] for one in found["history"])


def test_the_result_says_what_was_spent(closed: Path) -> None:
    found = json.loads((closed / "result.json").read_text())
    said = found["privacy"]
    spent = [one["epsilon"] for one in found["history"]]
    assert spent == sorted(spent) and len(spent) == 3
    assert said["epsilon"] == spent[-1] and said["simulated"]
    assert (said["unit"], said["rounds"], said["noise"]) == ("sentence", 3, 2.0)
    for site in sorted((closed / "sites").glob("site-*")):
        lines = (site / "privacy" / "account.jsonl").read_text().splitlines()
        assert len(lines) == 1 + 3
        charged = Mechanism(*(json.loads(lines[1])[name] for name in ("clip", "variance", "rate")))
        promised = budget_of(private(closed.parent, *CLOSED, sites=5)).mechanism
        assert (charged.clip, charged.rate) == (promised.clip, promised.rate)
        assert promised.variance <= charged.variance < promised.variance + 3


def test_a_private_run_that_is_stopped_and_resumed_is_the_same_run(
    closed: Path, tmp_path: Path
) -> None:
    settings = private(closed.parent, *CLOSED, sites=5)

    def stop(event: Any) -> None:
        if (event.kind, event.step, event.round) == ("reply", "unmask", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run", on_event=stop)
    done = run(settings, out=tmp_path / "run", resume=True)
    assert states(done.folder) == states(closed)
    assert result(done.folder)["privacy"] == result(closed)["privacy"]
    for site in sorted((done.folder / "sites").glob("site-*")):
        lines = (site / "privacy" / "account.jsonl").read_text().splitlines()
        assert len(lines) == 1 + 3  # what was asked again was charged once


def test_a_site_that_is_lost_takes_no_noise_that_the_account_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five sites, of which one may collude: the noise of three is all that is counted."""
    from confide.federation.failures import Failure

    def change(name: str, site: str, round: int, reply: bytes) -> bytes:
        lost = site == "site-2" and name == "mask" and round == 2
        return encode(Failure("lost", "", "", "")) if lost else reply

    use_engine(monkeypatch, Forging, change=staticmethod(change))
    settings = private(tmp_path, *CLOSED, "federation.at_least=4", sites=5)
    found = run(settings, out=tmp_path / "run").result
    assert found.privacy is not None and found.privacy.rounds == 3
    path = tmp_path / "run" / "sites" / "site-1" / "privacy" / "account.jsonl"
    assert len(path.read_text().splitlines()) == 1 + 3


@pytest.mark.parametrize(
    ("noise", "least", "most"),
    [("2", 0.9, 1.0), pytest.param("200", 0.0, 0.4, marks=pytest.mark.slow)],
)
def test_it_learns_with_noise_and_not_with_a_hundred_times_as_much(
    noise: str, least: float, most: float, tmp_path: Path
) -> None:
    usual = (
        ENCODER, FROZEN, "rounds=60", "select.every=60", "options.server_rate=0.1",
        "privacy.clip=2", "privacy.rate=0.3", "privacy.units=600",
    )  # fmt: skip
    site = write_sites(tmp_path / "large", train=200, held_out=20)
    settings = tiny(tmp_path, *usual, f"privacy.noise={noise}", site=site)
    found = run(settings, out=tmp_path / noise).result
    assert least <= found.scores.overall["strict"]["f1"] <= most


def test_a_run_ends_when_a_site_has_spent_all_it_allows(tmp_path: Path) -> None:
    settings = private(tmp_path, "guards.max_epsilon=8", "rounds=30", "select.every=1")
    with pytest.raises(QuorumError, match="max_epsilon"):
        run(settings, out=tmp_path / "run")


# --- settings ----------------------------------------------------------------------------------


@each(
    ("override", "words"),
    [
        ("rounds=61", "more rounds than"),
        ("data.types=[]", "data.types is empty"),
        ("training.unannotated_types=0.5", "depends on its text"),
        ("data.mask_common=0.5", "depends on all others"),
        ("privacy.units=", "privacy.units is missing"),
        ("privacy.epsilon=0.5", "out of reach"),
        ("privacy.noise=0.1", "too little noise"),
    ],
)
def test_settings_that_break_the_promise_are_refused(
    override: str, words: str, tmp_path: Path
) -> None:
    if override == "privacy.units=":
        settings = private(tmp_path)
        own = settings.privacy
        assert own is not None
        settings = settings.model_copy(update={"privacy": own.model_copy(update={"units": None})})
    else:
        settings = private(tmp_path, override)
    with pytest.raises(SettingsError, match=words):
        method_of(settings)(settings)


def test_text_that_is_dealt_so_that_one_document_takes_out_others_is_refused(
    tmp_path: Path,
) -> None:
    settings = private(tmp_path)
    for apart, refused in (("", False), ("file", True)):
        split = SplitTable(train=("all.conll",), sites=2, disjoint_by=apart)
        dealt = settings.model_copy(update={"site": (), "split": split})
        with pytest.raises(SettingsError, match="out of training") if refused else nullcontext():
            method_of(dealt)(dealt)


def test_relations_have_no_sentence_and_are_named(tmp_path: Path) -> None:
    for override, words in (
        ("privacy.unit=sentence", "no sentence of its own"),
        ("data.relations=[]", "data.relations is empty"),
    ):
        settings = tiny(tmp_path, "method=dp-fedsgd-relations", override)
        with pytest.raises(SettingsError, match=words):
            method_of(settings)(settings)


def test_a_tagger_that_would_count_words_is_refused(tmp_path: Path) -> None:
    for override in ("model.context=none", "model.character=cnn"):
        settings = tiny(tmp_path, "method=dp-fedsgd-tagger", override)
        with pytest.raises(SettingsError, match="counts its words"):
            method_of(settings)(settings)


def test_no_method_takes_privacy_for_granted(tmp_path: Path) -> None:
    """Neither one without noise with [privacy], nor one under noise without."""
    settings = private(tmp_path)
    with pytest.raises(SettingsError, match="trains without noise"):
        method_of(settings.model_copy(update={"method": "fedavg"}))
    with pytest.raises(SettingsError, match=r"no \[privacy\]"):
        method_of(settings.model_copy(update={"privacy": None}))
    for reference in ("pooled", "alone"):
        update = {"method": reference, "base": "dp-fedsgd"}
        with pytest.raises(SettingsError, match="without noise"):
            method_of(settings.model_copy(update=update))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (not name.endswith(("-tagger", "-bags"))))
        for name, pair in METHODS.items()
        if pair.private
    ],
)
def test_every_private_pair_runs_closed(name: str, tmp_path: Path) -> None:
    settings = tiny(tmp_path, f"method={name}", "privacy.holdout_scores=withheld")
    done = run(settings, out=tmp_path / "run")
    assert done.result.privacy is not None and not done.result.privacy.simulated
