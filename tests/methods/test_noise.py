"""Noise is never less than what is charged, whoever fails, and failing tells nothing of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import QuorumError
from confide.federation.engines import Hosting
from confide.federation.failures import Failure, Refusal
from confide.federation.federation import Federation
from confide.federation.guards import Guards
from confide.federation.messages import decode, encode
from confide.federation.secure.messages import Offered, Opening, colluders, threshold
from confide.federation.site import Site
from confide.kinds.protocol import Kept
from confide.kinds.steps import COUNT_EXAMPLES, CountExamples, ExamplesCounted
from confide.methods import METHODS, noise
from confide.methods.dp_fedner import IMPROVE_NOISILY, ImproveNoisily
from confide.methods.dp_fedsgd import ADD_NOISILY, Noisy
from confide.methods.fedner import Enrolled
from confide.methods.noise import Noise, budget_of
from confide.privacy.noise import UnitGradients
from confide.runs.run import run
from confide.settings import Settings
from confide.text.document import Document
from contract.corpus import sentences, tiny, write_conll
from contract.relations import documents, write_documents
from contract.runs import Forging, result, use_engine
from federation.secure.plays import BINDING, member, named
from federation.secure.summed import SEED, Lost, Sites, federation_of, summing_of

VARIANCE = 128**2 + 1
NOISE = Noise("document", "", clip=1.0, grid=64, variance=VARIANCE, rate=1.0)
NUMBERS = 10_000
"""Their variance is measured to a part in 70."""
LEAST = 0.94


@dataclass
class Text:
    """A form that is its own site model: units that pull at one number; `fails` may raise."""

    slope: int = -1
    fails: Callable[[str], None] = field(default=lambda place: None)

    def at(self, site: Any) -> Text:
        if site.train:
            self.fails("site_model")
        return self

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(number, 0) for number in range(5)]

    def check(self) -> None:
        self.fails("check")

    def unit_gradients(self, weights: Any, units: Any) -> Iterator[UnitGradients]:
        for _ in units:
            yield UnitGradients.of(
                {name: np.arange(one.size) == self.slope for name, one in weights.items()}
            )
        self.fails("gradient")


ASKS: dict[str, tuple[Any, Any]] = {
    "dp-fedsgd": (ADD_NOISILY, Noisy({"w": np.zeros(NUMBERS, np.float32)}, NOISE)),
    "dp-fedner": (
        IMPROVE_NOISILY,
        ImproveNoisily({"w": np.zeros(NUMBERS, np.float32)}, NOISE, rate=0.1, drawn=3.0),
    ),
}


def remembered(method: str, form: Any) -> Any:
    if method == "dp-fedsgd":
        return Kept(form)
    own = {"private": np.zeros(50, np.float32)}
    return Enrolled(
        form, private=["private"], batch_size=0, share=0.0, lift_ids={}, lift_rows={}, own=own
    )


@dataclass
class NoisySite:
    """Sites of a noisy sum, of which the replies are kept where only this test sees them."""

    method: str
    folder: Path
    count: int
    fails: Mapping[str, Callable[[str], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sent: dict[str, np.ndarray] = {}
        step, self.ask = ASKS[self.method]

        def answer(site: Any, memory: Any, ask: Any, turn: Any) -> Any:
            reply, after = step.answer(site, memory, ask, turn)
            self.sent[site.name] = reply.noisy["w"].astype(np.int64)
            return reply, after

        self.step = replace(step, answer=answer)
        memory = type(remembered(self.method, None))
        hosting = Hosting(
            {step.name: self.step}, memory, SEED, every=10**6, sums="masked", binding=BINDING
        )
        hosts, members = {}, {}
        for name in named(self.count):
            members[name] = member(name)
            text = [Document(str(number), f"{name} {number}") for number in range(5)]
            guards = Guards(max_epsilon=1e6)
            spec = Site(name, text, self.folder / name, guards=guards)
            hosts[name] = hosting.host(spec, {}, member=members[name])
            form = Text(fails=self.fails.get(name, lambda place: None))
            hosts[name]._memory.commit(1, "begin", remembered(self.method, form))
        self.engine = Sites(hosts, members)
        self.summing = summing_of(self.engine)

    def sum(self, *, round: int = 2) -> np.ndarray:
        """The opened sum; the least possible number of sites is enough for the server."""
        federation = federation_of(self.engine, self.summing, at_least=1)
        total = federation.sum(self.step, self.ask, round=round)
        return np.asarray(total.noisy["w"]).astype(np.int64)

    def left(self, total: np.ndarray) -> float:
        """The variance that is left to those who know most: the server with c of the sites."""
        known = self.summing.newest[: colluders(self.count)]
        rest = total - sum(self.sent[name] for name in known)
        return float(rest.astype(np.int32).var())

    def charges(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name / "privacy" / "account.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def raising(error: Exception, *places: str) -> Callable[[str], None]:
    def fail(place: str) -> None:
        if place in places:
            raise error

    return fail


FAILS = {
    "a unit's gradient": raising(MemoryError("no memory left"), "gradient"),
    "a guard": raising(Refusal("too-few-sentences"), "check"),
    "its own types": raising(Refusal("tag-outside-set"), "site_model"),
}
QUICK = {("dp-fedsgd", 3), ("dp-fedner", 5)}, {("dp-fedsgd", 4), ("dp-fedner", 7)}


def counts(quick: Collection[tuple[str, int]]) -> Any:
    """Both methods with three to ten sites, slow but for the quick ones."""
    return pytest.mark.parametrize(
        ("method", "count"),
        [
            pytest.param(*one, marks=[] if one in quick else [pytest.mark.slow])
            for one in product(ASKS, range(3, 11))
        ],
    )


@pytest.mark.parametrize("why", FAILS)
@counts(QUICK[0])
def test_a_site_that_fails_adds_all_of_its_noise(
    method: str, count: int, why: str, tmp_path: Path
) -> None:
    """Even if every site but one fails; all are charged, and nobody is seen to have failed."""
    names = named(count)
    for failing in (names[1:2], names[1:]):
        folder = tmp_path / str(len(failing))
        sites = NoisySite(method, folder, count, dict.fromkeys(failing, FAILS[why]))
        total = sites.sum()
        assert sites.summing.newest == names
        assert sites.left(total) >= LEAST * sites.charges(names[0])[0]["variance"]
        for name in names:
            (line,) = sites.charges(name)
            assert line["variance"] >= VARIANCE
            log = folder / name / "site.log"
            assert log.exists() == (name in failing)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("exchange", ["work", "mask", "agree", "unmask"])
@counts(QUICK[1])
def test_sites_that_are_lost_take_no_noise_that_is_charged(
    method: str, count: int, exchange: str, late: bool, tmp_path: Path
) -> None:
    """As many as can be; with one more the sum stays closed, however few the server wants."""
    c = colluders(count)
    t = threshold(count, c)
    names = named(count)
    for lost in (count - t, count - t + 1):
        folder = tmp_path / str(lost)
        sites = NoisySite(method, folder, count, {names[0]: FAILS["a unit's gradient"]})
        sites.engine.lost = [Lost(name, exchange, late) for name in names[count - lost :]]
        if lost > count - t:
            with pytest.raises(QuorumError):
                sites.sum()
            assert not sites.summing.newest
            continue
        total = sites.sum()
        assert len(sites.summing.newest) >= t
        assert sites.left(total) >= LEAST * sites.charges(names[0])[0]["variance"]


@each("method", ASKS)
def test_a_site_that_cannot_charge_is_out_before_the_offer(method: str, tmp_path: Path) -> None:
    """Its disk is full, which is no matter of text: the sum falls short, and stays closed."""
    for count, opened in ((3, False), (4, True)):
        sites = NoisySite(method, tmp_path / str(count), count)

        def full(charge: Any) -> bool:
            raise OSError(28, "No space left on device")

        sites.engine.hosts["site-02"].site.budget.spend = full
        federation = federation_of(sites.engine, sites.summing, at_least=1)
        if not opened:
            with pytest.raises(QuorumError):
                federation.sum(sites.step, sites.ask, round=2)
            assert not sites.summing.newest
        else:
            total = np.asarray(federation.sum(sites.step, sites.ask, round=2).noisy["w"])
            assert "site-02" not in sites.summing.newest
            assert sites.left(total.astype(np.int64)) >= LEAST * VARIANCE
        assert [(one.site, one.code) for one in federation.faults] == [("site-02", "disk-full")]


@each("method", ASKS)
def test_an_ask_that_failed_once_gets_the_same_noise_again(method: str, tmp_path: Path) -> None:
    """The attack: two answers to one ask, whose mean has half of the failing site's noise."""
    broken = [True]

    def fail(place: str) -> None:
        if broken[0]:
            raise MemoryError("no memory left")

    sites = NoisySite(method, tmp_path, 3, {"site-02": fail})
    sites.engine.hosts["site-02"]._memory.latest().form.slope = 7
    first, sent = sites.sum(), dict(sites.sent)
    broken[0] = False
    assert (sites.sum() == first).all()
    assert all((sites.sent[name] == sent[name]).all() for name in sent)
    assert len(sites.charges("site-02")) == 1


def test_a_group_of_sites_is_no_sum_under_noise(tmp_path: Path) -> None:
    """The attack: a group has fewer honest sites than the account counts."""
    sites = NoisySite("dp-fedsgd", tmp_path, 9)
    sites.summing = summing_of(sites.engine, colluding=1)
    sites.sum()
    roster = sites.summing._roster
    assert roster is not None
    host = sites.engine.hosts["site-01"]
    host.site.member.group = 3
    usual = Opening(
        ask_B=np.frombuffer(encode(sites.ask), np.uint8),
        roster=roster.id.hex(),
        attempt=7,
        group=False,
        sites=9,
        examples=0.0,
        labels=[],
    )
    for opening, kind in ((usual, Offered), (replace(usual, group=True, attempt=8), Failure)):
        reply = decode((Offered, Failure), host.answer("add_noisily", 3, encode(opening)))
        assert type(reply) is kind
    assert reply.code == "bad-set"


@each("noisy", [True, False])
def test_what_adds_no_noise_sees_no_text(noisy: bool, tmp_path: Path) -> None:
    """The attack: in a run under noise, an ask for what other methods count of the text."""

    def look(site: Any, memory: Any, ask: Any, turn: Any) -> Any:
        return ExamplesCounted(len(site.train)), memory

    count = replace(COUNT_EXAMPLES, answer=look)
    steps = {step.name: step for step in (count, ADD_NOISILY)[: 1 + noisy]}
    spec = Site("site-01", [Document("1", "text")], tmp_path)
    host = Hosting(steps, Kept, SEED, every=10**6).host(spec, {})
    reply = decode((ExamplesCounted, Failure), host.answer(count.name, 1, encode(CountExamples())))
    assert reply.examples == (0 if noisy else 1)


# --- runs ----------------------------------------------------------------------------------------


def sites_with(folder: Path, settings: Settings, *, odd: bool) -> Settings:
    """Three sites, of odd text: too little for its guard, less than usual, and nothing to learn."""
    tables = []
    for number, table in enumerate(settings.site):
        path = folder / table.name / Path(table.train[0]).name
        size = (4, 9, 18)[number] if odd else 18
        if settings.task == "re":
            texts = documents(table.name, "train", size)
            bare = [replace(one, entities=(), relations=()) for one in texts]
            write_documents(path, bare if odd and number == 2 else texts)
        else:
            words = sentences(table.name, "train", size)
            write_conll(path, words[:1] if odd and number == 2 else words)
        tables.append(table.model_copy(update={"train": (str(path),)}))
    return settings.model_copy(update={"site": tuple(tables)})


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(name, marks=[] if name.endswith("-tagger") else [pytest.mark.slow])
        for name, pair in METHODS.items()
        if pair.private
    ],
)
def test_nothing_that_leaves_without_noise_depends_on_the_text(
    pair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No site refuses, whatever its text is, and replies without noise are the same bytes."""
    said: list[tuple[str, str, int, bytes]] = []

    def keep(name: str, site: str, round: int, reply: bytes) -> bytes:
        if name in plain:
            said.append((name, site, round, reply))
        return reply

    plain = {step.name for step in METHODS[pair].steps if not step.noisy}
    use_engine(monkeypatch, Forging, change=staticmethod(keep))
    overrides = (
        f"method={pair}",
        "privacy.holdout_scores=withheld",
        "federation.sums=masked",
        "rounds=1",
    )
    given = tiny(tmp_path, *overrides, "guards.min_sentences=6", "key=simulated")
    heard = []
    for name in ("usual", "odd"):
        said.clear()
        settings = sites_with(tmp_path / f"{name}-texts", given, odd=name == "odd")
        run(settings, out=tmp_path / name)  # three sites can lose none
        heard.append(list(said))
    assert heard[0] == heard[1]
    logs = {path.parent.name for path in (tmp_path / "odd" / "sites").glob("*/site.log")}
    assert "site-1" in logs and "site-2" not in logs
    assert not list((tmp_path / "usual" / "sites").glob("*/site.log"))


@pytest.mark.parametrize(
    "pair", ["dp-fedsgd-encoder", pytest.param("dp-fedner-encoder", marks=pytest.mark.slow)]
)
def test_a_run_whose_sites_fail_at_every_exchange_has_the_noise_that_is_charged(
    pair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six sites three have too little text, and others are lost; one colludes."""
    lost = {("unmask", 2, "site-5"), ("agree", 3, "site-6"), ("mask", 4, "site-5")}
    lost.add((next(step.name for step in METHODS[pair].steps if step.noisy), 5, "site-6"))

    def change(name: str, site: str, round: int, reply: bytes) -> bytes:
        return encode(Failure("lost", "", "", "")) if (name, round, site) in lost else reply

    sums: list[np.ndarray] = []
    sent: dict[str, Any] = {}
    real_total, real_sum = noise.NoisySite.total, Federation.sum

    def total(self: Any, *given: Any, **named: Any) -> Any:
        sent[self.site.name] = found = real_total(self, *given, **named)
        return found

    def sum(self: Any, *given: Any, **named: Any) -> Any:
        found = real_sum(self, *given, **named)
        rest = [array - sent["site-3"][name] for name, array in sorted(found.noisy.items())]
        sums.append(np.concatenate([np.ravel(one) for one in rest]).astype(np.int32))
        return found

    use_engine(monkeypatch, Forging, change=staticmethod(change))
    monkeypatch.setattr(noise.NoisySite, "total", total)
    monkeypatch.setattr(Federation, "sum", sum)
    few = {"site-1", "site-2", "site-4"}
    settings = tiny(
        tmp_path, f"method={pair}", "privacy.holdout_scores=withheld", "federation.sums=masked",
        "federation.at_least=1", "guards.min_sentences=6", "privacy.rate=1e-6",
        "privacy.units=50000000", "rounds=5",
        sites=6,
    )  # fmt: skip
    for table in settings.site:
        if table.name in few:
            write_conll(Path(table.train[0]), sentences(table.name, "train", 4))
    done = run(settings, out=tmp_path / "run")
    assert len(sums) == 5 and sums[0].size > 500
    variance = budget_of(settings).mechanism.variance
    for number, rest in enumerate(sums):
        assert rest.astype(float).var() >= 0.8 * variance, number
    assert len(result(done.folder)["history"]) == 5
    for name in few:
        assert (done.folder / "sites" / name / "site.log").exists()
        lines = (done.folder / "sites" / name / "privacy" / "account.jsonl").read_text()
        assert len(lines.splitlines()) == 1 + 5
