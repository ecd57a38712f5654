"""A run over real sites' homes gives what the same run gives on one machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide import __version__
from confide.errors import CheckpointError, FederationError, QuorumError, SettingsError
from confide.federation.comparing import compare_ledgers
from confide.federation.events import unwatched
from confide.federation.failures import CODES, Failure
from confide.federation.federation import Delivery
from confide.federation.ledger import read_ledger
from confide.federation.messages import decode, encode, peek
from confide.federation.steps import Step
from confide.flare import joining
from confide.flare.joining import Join, wire_digest, wire_of
from confide.flare.server import Conductor
from confide.flare.site import UNKNOWN, SiteHome
from confide.jobs.predict import predict
from confide.kinds.protocol import Score
from confide.methods import METHODS, method_of
from confide.methods.fedavg import Train
from confide.methods.fedner import Improve
from confide.runs.folder import RunFolder
from confide.runs.run import run
from confide.settings import Settings
from contract.corpus import tiny
from contract.entries import APART, CARRIED, ENTRIES, pairs
from contract.runs import Straight, differences, result, states
from flare.homes import HomesEngine, Stops, as_toml, public_of, withdraw, write_site_files

OURS = {"bytes", "data", "name"}
"""What differs: joining and leaving weigh something, and a fingerprint is veiled at each site."""


def numbers(folder: Path) -> Any:
    found = {key: value for key, value in result(folder).items() if key not in OURS}
    for record in found["history"]:
        record.pop("bytes")
    return found


def conduct(folder: Path, settings: Settings, engine: HomesEngine, **changes: Any) -> Any:
    arguments = {
        "version": __version__,
        "engine": engine,
        "folder": folder,
        "public": public_of(settings),
        **changes,
    }
    return Conductor("trial", as_toml(settings), **arguments).conduct(unwatched)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


UNLIKE = (*CARRIED, "chain-bags")
"""Pairs whose messages, or whose order of asks, are unlike each other's."""

CASES = [
    pytest.param(
        (name, *form),
        id=" ".join((name, *form)),
        marks=[] if name in UNLIKE and not form else [pytest.mark.slow],
    )
    for name, entry in ENTRIES.items()
    for form in [(), *entry.variants]
    if form or name in APART
]


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_one_machine(
    tmp_path: Path, case: tuple[str, ...], straight: Callable[..., Straight]
) -> None:
    one = straight(f"method={case[0]}", *case[1:])
    engine = HomesEngine(write_site_files(tmp_path / "homes", one.settings))
    conduct(tmp_path / "server", one.settings, engine)
    assert not list(differences(numbers(one.folder), numbers(tmp_path / "server")))
    assert not list(differences(states(one.folder), states(tmp_path / "server")))


def test_alone_is_a_federation_of_each_site(tmp_path: Path) -> None:
    """And each finds its own model in its own folder, for `predict`, `personalise` and the rest."""
    settings = tiny(tmp_path, "method=alone")
    run(settings, out=tmp_path / "one")
    conduct(tmp_path / "server", settings, HomesEngine(write_site_files(tmp_path, settings)))
    assert not list(differences(numbers(tmp_path / "one"), numbers(tmp_path / "server")))
    for site in settings.site:
        (own,) = (tmp_path / site.name / "memory/runs").iterdir()
        places = RunFolder(tmp_path / "one"), RunFolder(own)
        one, other = (place.trained(method_of(settings), site.name)[0].weights for place in places)
        assert one.keys() == other.keys()
        assert all(np.array_equal(array, other[name]) for name, array in one.items())


class Listens(HomesEngine):
    """Keeps what the first site is asked in a step."""

    def __init__(self, files: dict[str, Path], step: str) -> None:
        super().__init__(files)
        self.heard: list[bytes] = []
        self._step = step

    def deliver(self, step: str, round: int, **asked: Any) -> Any:
        if step == self._step:
            self.heard.append(asked["asks"]["site-1"])
        yield from super().deliver(step, round, **asked)


@pytest.mark.parametrize("method", pairs(fast=["fedavg-tagger", "feded-relations"], of=APART))
def test_a_job_that_dies_anywhere_goes_on_to_the_same_numbers(tmp_path: Path, method: str) -> None:
    settings = tiny(tmp_path, f"method={method}", "rounds=3", sites=2)
    files = write_site_files(tmp_path / "homes", settings)
    whole = HomesEngine(write_site_files(tmp_path / "other", settings))
    conduct(tmp_path / "whole", settings, whole)
    died = 0
    for asks in (1, 6, len(whole.asked) // 2, len(whole.asked)):
        try:
            conduct(tmp_path / "server", settings, Stops(files, asks))
        except KeyboardInterrupt:
            died += 1
    assert died > 2
    for site in files:
        found = compare_ledgers(
            tmp_path / "server", tmp_path / "homes" / site / "memory/runs/trial"
        )
        assert found.agree, found
        assert found.again > 0
    assert not list(differences(numbers(tmp_path / "whole"), numbers(tmp_path / "server")))
    assert not list(differences(states(tmp_path / "whole"), states(tmp_path / "server")))


def test_a_site_can_use_its_model_when_it_left(tmp_path: Path) -> None:
    settings = tiny(
        tmp_path, "method=fedner", *ENTRIES["fedner-tagger"].learning, "rounds=40", sites=2
    )
    files = write_site_files(tmp_path / "homes", settings)
    conduct(tmp_path / "server", settings, HomesEngine(files))
    run(settings, out=tmp_path / "one")
    text = settings.site[0].test[0]
    ours = predict(tmp_path / "homes/site-1/memory/runs/trial", [text], site="site-1")
    assert ours == predict(tmp_path / "one", [text], site="site-1")
    assert any(document.entities for document in ours)
    errors = json.loads(
        (tmp_path / "homes/site-1/memory/runs/trial/sites/site-1/errors.json").read_text()
    )
    assert errors["site"] == "site-1"
    assert not list((tmp_path / "server").rglob("errors.json"))


@each(
    ("changes", "code"),
    [
        ({"consent": {}}, "no-consent"),
        ({"consent": {"fedavg-tagger": {"wire": "0" * 16}}}, "other-wire"),
        ({"guards": {"max_rounds": 1}}, "too-many-rounds"),
        ({"guards": {"min_sentences": 1000}}, "too-few-sentences"),
        ({"guards": {"min_sites": 4}}, "few-sites"),
        ({"guards": {"private": ["crf"]}}, "private-part"),
        ({"format": "nonsense"}, "error"),
        ({"key": "nowhere.key"}, "no-key"),
    ],
)
def test_a_site_that_does_not_agree_is_named_and_nothing_runs(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    settings = tiny(tmp_path)
    files = write_site_files(tmp_path / "homes", settings)
    odd = settings.model_copy(update={"site": settings.site[1:2]})
    write_site_files(tmp_path / "homes", odd, **changes)
    with pytest.raises(QuorumError) as raised:
        conduct(tmp_path / "server", settings, HomesEngine(files))
    assert "site site-2, " in str(raised.value)
    assert CODES[code] in str(raised.value)
    assert "nonsense" not in str(raised.value)
    assert not (tmp_path / "server" / "result.json").exists()


def test_a_step_that_was_not_agreed_to_is_refused(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    wire = wire_digest(wire_of("fedavg-tagger"))
    steps = [step.name for step in METHODS["fedavg-tagger"].steps if step.name != "train"]
    files = write_site_files(
        tmp_path, settings, consent={"fedavg-tagger": {"wire": wire, "steps": steps}}
    )
    with pytest.raises(QuorumError, match=r"did not agree.*\(train\)"):
        conduct(tmp_path / "server", settings, HomesEngine(files))


def test_a_consent_that_is_withdrawn_ends_the_run(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=3")
    files = write_site_files(tmp_path / "homes", settings)

    class Withdraws(HomesEngine):
        def deliver(self, step: str, round: int, **asked: Any) -> Any:
            if round == 2:
                path = files["site-2"]
                withdraw(path)
            yield from super().deliver(step, round, **asked)

    with pytest.raises(QuorumError, match="step train, round 2: the site did not agree"):
        conduct(tmp_path / "server", settings, Withdraws(files))


@each("method", ["fedavg", "fedner"])
@each("who", [["site-2"], ["site-1", "site-2", "site-3"]])
def test_a_site_that_withdrew_gets_no_model_and_the_run_ends_well(
    tmp_path: Path, who: list[str], method: str
) -> None:
    settings = tiny(tmp_path, f"method={method}")
    files = write_site_files(tmp_path / "homes", settings)

    class Withdraws(HomesEngine):
        def deliver(self, step: str, round: int, **asked: Any) -> Any:
            for path in [files[site] for site in who if step == "leave"]:
                withdraw(path)
            yield from super().deliver(step, round, **asked)

    engine = Withdraws(files)
    done = conduct(tmp_path / "server", settings, engine)
    assert done.left_out == dict.fromkeys(who, "no-consent")
    assert sorted(done.scores.sites) == sorted(files)
    assert [site for site, step, _ in engine.asked if step == "leave"] == sorted(files)
    for site in files:
        kept = tmp_path / "homes" / site / "memory/runs/trial"
        assert (kept / "result.json").exists() == (site not in who)
        assert bool(list(kept.rglob("*.ckpt"))) == (site not in who)
        code = [one for one in lines(kept) if one["step"] == "leave" and one["field"] == "code"]
        assert len(code) == (site in who)


def test_a_site_that_withdrew_on_the_way_is_not_waited_for(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=3", "federation.at_least=2")
    files = write_site_files(tmp_path / "homes", settings)

    class Withdraws(HomesEngine):
        def deliver(self, step: str, round: int, **asked: Any) -> Any:
            if round == 2:
                path = files["site-2"]
                withdraw(path)
            yield from super().deliver(step, round, **asked)

    done = conduct(tmp_path / "server", settings, Withdraws(files))
    assert done.left_out == {"site-2": "no-consent"}
    assert [set(one.failed) for one in done.history] == [set(), {"site-2"}, {"site-2"}]
    assert not (tmp_path / "homes/site-2/memory/runs/trial/result.json").exists()


class Loses(HomesEngine):
    """Some sites are lost at the end."""

    gone: tuple[str, ...] = ("site-1", "site-2", "site-3")

    def deliver(self, step: str, round: int, **asked: Any) -> Any:
        lost = encode(Failure("lost", "", "", ""))
        for one in super().deliver(step, round, **asked):
            gone = step == "leave" and one.site in self.gone
            yield Delivery(one.site, lost, 0.0, heard=False) if gone else one


def test_a_run_whose_sites_are_lost_at_its_end_does_not_end_well_before_enough_are_back(
    tmp_path: Path,
) -> None:
    settings = tiny(tmp_path, "rounds=1")
    engine = Loses(write_site_files(tmp_path / "homes", settings))
    for gone in (engine.gone, ("site-2",)):
        engine.gone = gone
        with pytest.raises(QuorumError, match="step leave") as raised:
            conduct(tmp_path / "server", settings, engine)
        assert {fault.code for fault in raised.value.faults} == {"lost"}
    settings = tiny(tmp_path / "two", "rounds=1", "federation.at_least=2")
    engine = Loses(write_site_files(tmp_path / "two/homes", settings))
    engine.gone = ("site-2",)
    done = conduct(tmp_path / "two/server", settings, engine)
    assert done.left_out == {"site-2": "lost"}


def scaled(ask: Train, by: float) -> Train:
    """The ask with other weights."""
    weights = {name: by * array for name, array in ask.weights.items()}
    return dataclasses.replace(ask, weights=weights)


def test_a_round_that_is_asked_again_with_other_weights_counts(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = write_site_files(tmp_path / "homes", settings, guards={"max_rounds": 2})
    listening = Listens(files, "train")
    conduct(tmp_path / "server", settings, listening)
    home, heard = listening.homes["site-1"], listening.heard[0]
    assert peek(home.answer("train", 1, heard)).message == "Update"
    other = decode(Train, heard)
    third, fourth = (encode(scaled(other, by)) for by in (0.5, 0.6))
    assert peek(home.answer("train", 1, third)).message == "Update"
    assert decode(Failure, home.answer("train", 1, fourth)).code == "too-many-rounds"
    assert peek(home.answer("train", 1, third)).message == "Update"
    again = SiteHome(files["site-1"])
    assert decode(Failure, again.answer("train", 1, heard)).code == "not-joined"


def test_asks_of_steps_that_there_are_not_grow_nothing_and_are_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(tmp_path, "rounds=1")
    engine = HomesEngine(write_site_files(tmp_path / "homes", settings))
    conduct(tmp_path / "server", settings, engine)
    home, memory = engine.homes["site-1"], tmp_path / "homes/site-1/memory"
    asked = memory / "runs/trial/asked.txt"
    before, book = asked.read_bytes(), memory / "runs/trial/ledger.jsonl"
    crossed = len(list(read_ledger(book)))
    monkeypatch.setattr("confide.federation.site.MOST_LOG", 5000)
    for n in range(20):
        name = f"step{n}" + "y" * 900
        reply = home.answer(name, 1, b"x" * 7)
        assert decode(Failure, reply).code == "unknown-step"
    assert asked.read_bytes() == before
    noted = list(read_ledger(book))[crossed:]
    assert [(one.step, one.direction) for one in noted] == 20 * [(UNKNOWN, "down"), (UNKNOWN, "up")]
    assert (noted[0].bytes, noted[1].bytes) == (7, len(reply))
    assert "yyy" not in book.read_text()
    logs = sorted(path.stat().st_size for path in memory.glob("site*.log"))
    assert len(logs) == 2 and logs[-1] < 8000
    home = SiteHome(tmp_path / "homes/site-1/site.toml")  # before it joins a run
    assert decode(Failure, home.answer("y" * 900, 1, b"x" * 7)).code == "not-joined"
    assert next(read_ledger(memory.parent / "refused.jsonl")).step == UNKNOWN


def test_the_server_cannot_take_a_part_that_is_private(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedner")
    engine = Listens(write_site_files(tmp_path / "homes", settings), "improve")
    conduct(tmp_path / "server", settings, engine)
    ask = decode(Improve, engine.heard[-1])
    greedy = {**ask.weights, "crf.linear.bias": np.zeros(5, np.float32)}
    asked = encode(dataclasses.replace(ask, weights=greedy, local_steps=1))
    home = engine.homes["site-1"]
    assert decode(Failure, home.answer("improve", settings.rounds, asked)).code == "bad-ask"


@each(
    ("guards", "overrides", "code"),
    [
        ({"min_batch": 7}, (), "small-batch"),
        ({"private": ["crf"]}, ("options.private=[]",), "private-part"),
    ],
)
def test_a_sites_own_guards_hold(
    tmp_path: Path, guards: dict[str, Any], overrides: tuple[str, ...], code: str
) -> None:
    settings = tiny(tmp_path, "method=fedner", "training.batch_size=18", *overrides)
    engine = HomesEngine(write_site_files(tmp_path / "homes", settings, guards=guards))
    with pytest.raises(QuorumError) as raised:
        conduct(tmp_path / "server", settings, engine)
    assert CODES[code] in str(raised.value)


def test_a_site_bounds_what_it_uploads_by_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(tmp_path, "rounds=1")
    files = write_site_files(tmp_path / "homes", settings)
    one = settings.model_copy(update={"site": settings.site[:1]})
    write_site_files(tmp_path / "homes", one, guards={"max_norm": 0.02})
    moved = []

    def check(step: Step, ask: Any, reply: Any) -> None:
        if step.name == "train":
            change = [reply.weights[name] - ask.weights[name] for name in ask.weights]
            moved.append(np.linalg.norm(np.concatenate([array.ravel() for array in change])))

    monkeypatch.setattr("confide.federation.federation.check_reply", check)
    conduct(tmp_path / "server", settings, HomesEngine(files))
    assert moved[0] == pytest.approx(0.02, rel=1e-3)
    assert min(moved[1:]) > 0.1


def test_only_held_out_text_is_scored(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    engine = Listens(write_site_files(tmp_path / "homes", settings), "score")
    conduct(tmp_path / "server", settings, engine)
    ask = dataclasses.replace(decode(Score, engine.heard[0]), part="train")
    reply = engine.homes["site-1"].answer("score", 2, encode(ask))
    assert decode(Failure, reply).code == "bad-ask"


def test_the_server_cannot_name_what_lies_at_a_site(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    home = HomesEngine(write_site_files(tmp_path / "homes", settings)).homes["site-1"]
    wire = wire_digest(wire_of("fedavg-tagger"))
    for line in ('[model]\nvectors = "/etc/passwd"', "[data]\nmask_common = 0.5", 'key = "x"'):
        ask = Join(__version__, "trial", line, ["site-1"], wire, "", "")
        assert decode(Failure, home.answer("join", 0, encode(ask))).kind == "SettingsError"
    refused = (tmp_path / "homes/site-1/memory/refused.jsonl").read_text()
    assert '"step":"join","direction":"up"' in refused


def test_two_versions_are_refused_on_either_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(tmp_path)
    engine = HomesEngine(write_site_files(tmp_path, settings))
    with pytest.raises(FederationError, match="different versions"):
        conduct(tmp_path / "server", settings, engine, version="0.0.0")
    monkeypatch.setattr("confide.flare.site.__version__", "0.0.0")
    with pytest.raises(QuorumError, match="run different versions of confide"):
        conduct(tmp_path / "server", settings, engine)


@each(
    ("overrides", "said"),
    [
        (("method=pooled",), "does not move"),
        (("data.mask_common=0.5",), "data.mask_common: only a site"),
        (("model.vectors=v.txt",), "model.vectors: only a site"),
        (("pcnn.vectors=v.txt",), "pcnn.vectors: only a site"),
    ],
)
def test_what_only_sites_may_say_is_refused(
    tmp_path: Path, overrides: tuple[str, ...], said: str
) -> None:
    settings = tiny(tmp_path, *overrides)
    engine = HomesEngine(write_site_files(tmp_path, settings))
    with pytest.raises(SettingsError, match=said):
        conduct(tmp_path / "server", settings, engine)
    assert not engine.asked


def test_other_text_at_a_site_is_not_resumed(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=3")
    files = write_site_files(tmp_path / "homes", settings)
    with pytest.raises(KeyboardInterrupt):
        conduct(tmp_path / "server", settings, Stops(files, 22))
    with open(settings.site[0].train[0], "a") as file:
        file.write("\nmore\tO\n")
    with pytest.raises(CheckpointError, match="other data at site-1"):
        conduct(tmp_path / "server", settings, HomesEngine(files))


def test_the_two_ledgers_agree(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = write_site_files(tmp_path / "homes", settings)
    conduct(tmp_path / "server", settings, HomesEngine(files))
    theirs = list(read_ledger(tmp_path / "server" / "ledger.jsonl"))
    for name in files:
        ours = list(read_ledger(tmp_path / "homes" / name / "memory/runs/trial/ledger.jsonl"))
        assert ours
        assert sorted(map(str, ours)) == sorted(str(o) for o in theirs if o.site == name)
        compared = compare_ledgers(
            tmp_path / "server", tmp_path / "homes" / name / "memory/runs/trial"
        )
        assert compared.agree and not compared.again


class Forgetful(HomesEngine):
    """One home was started again before the run ends: its process has no weights any more."""

    def deliver(self, step: str, round: int, **said: Any) -> Generator[Delivery, None, None]:
        own = self.homes["site-2"]._run
        if step == "leave" and own is not None and self.asked[-1][1] != "leave":
            own.host.site.scratch.pop("common")
        yield from super().deliver(step, round, **said)


def test_a_site_that_has_the_model_is_not_sent_it_once_more(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "federation.down=int8")
    files = write_site_files(tmp_path / "homes", settings)
    conduct(tmp_path / "server", settings, Forgetful(files))
    rows = [one for one in read_ledger(tmp_path / "server" / "ledger.jsonl") if one.step == "leave"]
    sent: dict[str, list[int]] = {name: [] for name in files}
    for row in rows:
        if row.field == "weights":
            sent[row.site].append(row.bytes)
    whole = max(sent.pop("site-2"))
    assert whole > 5_000 and all(sum(sizes) < 100 for sizes in sent.values()), sent
    theirs = RunFolder(tmp_path / "server")
    for name in files:
        ours = RunFolder(tmp_path / "homes" / name / "memory/runs/trial")
        states = [one.trained(method_of(settings), None)[0] for one in (ours, theirs)]
        assert encode(states[0]) == encode(states[1])


@each("numbers", [(float("nan"), 0.0), (1.0, float("nan")), (0.0, 0.0), (1.0, 99.0)])
def test_a_site_refuses_a_calibration_out_of_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: tuple[float, float]
) -> None:
    settings = tiny(tmp_path, "rounds=1")
    files = write_site_files(tmp_path / "homes", settings)
    made = joining.leave_ask
    monkeypatch.setattr(joining, "leave_ask", lambda state, at, _: made(state, at, numbers))
    with pytest.raises(QuorumError, match=r"step leave.*could not read the ask"):
        conduct(tmp_path / "server", settings, HomesEngine(files))
    assert not list((tmp_path / "homes").rglob("result.json"))
