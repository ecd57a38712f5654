"""A site holds every run against its agreement, from join to leave, whatever the server says."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Generator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide import __version__
from confide.errors import QuorumError
from confide.federation.events import unwatched
from confide.federation.failures import CODES, Failure, Refusal
from confide.federation.federation import Delivery
from confide.federation.guards import Guards
from confide.federation.messages import decode, encode, peek
from confide.flare.agreements import CONSENT_FILE, COUNT_FILE
from confide.flare.joining import Join, check_guards, wire_digest, wire_of
from confide.flare.server import Conductor
from confide.flare.site import SiteHome
from confide.methods import METHODS
from confide.methods.fedavg import Train
from confide.settings import Settings
from confide.settings.sitefile import SiteGuards, dump_site, load_site, parse_site
from contract.corpus import tiny
from contract.entries import APART, CARRIED, pairs
from contract.runs import differences
from flare.homes import HomesEngine, Stops, as_toml, withdraw, write_consent, write_site_files
from flare.test_conducting import Listens, conduct, lines, numbers

DAY = date(2026, 11, 23)


class Clock:
    """A day that can be moved on."""

    def __init__(self, day: date = DAY) -> None:
        self.day = day

    def __call__(self) -> date:
        return self.day


def conduct_as(
    folder: Path, settings: Settings, engine: HomesEngine, *, run: str = "trial", lead: str = "ada"
) -> Any:
    return Conductor(
        run, as_toml(settings), version=__version__, engine=engine, folder=folder / run, lead=lead
    ).conduct(unwatched)


def agreed(tmp_path: Path, settings: Settings, **bounds: Any) -> dict[str, Path]:
    """Three sites, of which the second one has these bounds."""
    files = write_site_files(tmp_path / "homes", settings)
    write_consent(files["site-2"], **{settings.trained_by: bounds})
    return files


def joining(settings: Settings, run: str = "trial", **changes: Any) -> bytes:
    """What a server sends that asks a site to join."""
    method = settings.trained_by
    ask = Join(
        __version__,
        run,
        as_toml(settings),
        ["site-1", "site-2", "site-3"],
        wire_digest(wire_of(method)),
        "ada",
        "",
    )
    return encode(dataclasses.replace(ask, **changes))


def said(home: SiteHome, step: str, data: bytes, round: int = 0) -> tuple[str, str]:
    """The code and the detail of a refusal; of any other reply its message and nothing."""
    reply = home.answer(step, round, data)
    if peek(reply).message != "Failure":
        return peek(reply).message, ""
    failure = decode(Failure, reply)
    return failure.code, failure.detail


# --- defaults that refuse -----------------------------------------------------------------


def without_guards(files: dict[str, Path]) -> None:
    """Files of sites that say nothing of guards."""
    for path in files.values():
        tree = load_site(path).model_dump(by_alias=True, exclude_none=True, exclude={"guards"})
        path.write_text(dump_site(parse_site(tree)))
        assert "guards" not in path.read_text()


def test_a_lead_cannot_ask_one_site_alone_and_hold_its_weights(tmp_path: Path) -> None:
    settings = tiny(tmp_path, sites=1)
    files = write_site_files(tmp_path / "homes", settings)
    without_guards(files)
    with pytest.raises(QuorumError, match=r"site site-1, step join.*min_sites"):
        conduct(tmp_path / "server", settings, HomesEngine(files))


@each(
    ("overrides", "sites"),
    [
        (("method=alone",), ["site-1", "site-2", "site-3"]),
        ((), ["site-1", "site-1", "site-1"]),
        ((), ["site-1", "site-2"]),
        (("federation.fraction=0.5",), ["site-1", "site-2", "site-3"]),
        (("federation.at_least=1",), ["site-1", "site-2", "site-3"]),
    ],
)
def test_no_other_words_for_a_run_of_few_sites_help(
    tmp_path: Path, overrides: tuple[str, ...], sites: list[str]
) -> None:
    settings = tiny(tmp_path, *overrides)
    files = write_site_files(tmp_path / "homes", settings)
    without_guards(files)
    ask = joining(settings, sites=sites)
    assert said(SiteHome(files["site-1"]), "join", ask)[0] == "few-sites"


def test_little_text_and_small_gradients_are_refused_by_default(tmp_path: Path) -> None:
    usual = SiteGuards()
    for code, guards in (
        ("too-few-sentences", {"min_sentences": usual.min_sentences}),
        ("small-batch", {"min_batch": usual.min_batch}),
    ):
        for method in ("fedavg-tagger", "fedner-tagger"):
            settings = tiny(tmp_path, f"method={method}", "training.batch_size=7")
            files = write_site_files(tmp_path / f"{method}-{code}", settings, guards=guards)
            with pytest.raises(QuorumError) as raised:
                conduct(tmp_path / f"server-{method}-{code}", settings, HomesEngine(files))
            assert CODES[code] in str(raised.value)


def test_the_defaults_of_a_real_site_refuse_and_those_of_one_machine_do_not(tmp_path: Path) -> None:
    file = load_site(write_site_files(tmp_path, tiny(tmp_path))["site-1"])
    plain = parse_site(file.model_dump(by_alias=True, exclude_none=True, exclude={"guards"})).guards
    assert (plain.min_sites, plain.min_sentences, plain.min_batch) == (3, 20, 8)
    assert plain.max_norm is not None and plain.max_norm >= 500
    ours = Settings().guards
    assert (ours.min_sites, ours.min_sentences, ours.min_batch, ours.max_norm) == (1, 1, 1, None)


def test_what_a_file_does_not_say_stays_a_default_and_what_it_says_is_kept(tmp_path: Path) -> None:
    tree = {"name": "a", "train": "a.conll", "key": "k", "guards": {"max_norm": float("inf")}}
    once = dump_site(parse_site({**tree, "guards": {**tree["guards"], "min_sites": 1}}))
    path = tmp_path / "site.toml"
    path.write_text(once)
    read = load_site(path).guards
    assert read.model_fields_set == {"max_norm", "min_sites"}
    assert (read.max_norm, read.min_sites, read.min_batch) == (None, 1, SiteGuards().min_batch)
    assert dump_site(load_site(path)).count("min_batch") == 0


def test_a_file_that_an_older_setup_wrote_does_not_lower_the_defaults() -> None:
    tree = {"schema": 1, "name": "a", "train": "a.conll", "key": "k"}
    old = {"min_sentences": 50, "min_token_count": 1, "min_batch": 1, "min_sites": 1, "private": []}
    read = parse_site({**tree, "guards": old}).guards
    assert read == SiteGuards(min_sentences=50)
    assert read.model_fields_set == {"min_sentences"}
    assert parse_site({**tree, "schema": 2, "guards": old}).guards.min_sites == 1


@pytest.mark.parametrize("method", pairs(fast=CARRIED, of=APART))
def test_every_method_runs_under_the_defaults_with_the_same_numbers(
    tmp_path: Path, method: str
) -> None:
    """But for `min_sentences` and `min_batch`, of which these tiny sites have fewer.

    And for `masked`: tests/flare/test_peering.py.
    """
    settings = tiny(tmp_path, f"method={method}", "rounds=1", "training.batch_size=240")
    plain = HomesEngine(write_site_files(tmp_path / "plain", settings))
    conduct(tmp_path / "one", settings, plain)
    guards = {**SiteGuards().model_dump(), "min_sentences": 2, "min_batch": 2, "masked": False}
    files = write_site_files(tmp_path / "guarded", settings, guards=guards)
    conduct(tmp_path / "other", settings, HomesEngine(files))
    assert not list(differences(numbers(tmp_path / "one"), numbers(tmp_path / "other")))


# --- a server with other code -------------------------------------------------------------


class OtherCode(HomesEngine):
    """A server that asks for other training than the settings say which the sites joined with."""

    changes: Mapping[str, Any]

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Generator[Delivery, None, None]:
        if step == "train":
            asks = {site: encode(self._other(decode(Train, data))) for site, data in asks.items()}
        yield from super().deliver(step, round, asks=asks, timeout=timeout)

    def _other(self, ask: Train) -> Train:
        own = {name: value for name, value in self.changes.items() if hasattr(ask.config, name)}
        rest = {name: value for name, value in self.changes.items() if name not in own}
        return dataclasses.replace(ask, config=dataclasses.replace(ask.config, **own), **rest)


@each(
    ("name", "value"),
    [
        ("epochs", 50),
        ("batch_size", 1),
        ("batches", 1),
        ("learning_rate", 1e6),
        ("clip", 0.0),
        ("word_dropout", 0.9),
        ("optimiser", "sgd"),
        ("weighting", "examples"),
        ("tables", ["word.weight"]),
        ("outside", 1.0),
        ("round", 2),
    ],
)
def test_a_server_with_other_code_gets_no_other_training(
    name: str, value: object, tmp_path: Path
) -> None:
    settings = tiny(tmp_path, "rounds=1")
    engine = OtherCode(write_site_files(tmp_path / "homes", settings))
    engine.changes = {name: value}
    with pytest.raises(QuorumError) as raised:
        conduct(tmp_path / "server", settings, engine)
    place = name if name in ("weighting", "tables") else f"config.{name}"
    assert CODES["not-agreed"] in str(raised.value) and f"({place})" in str(raised.value)


def test_batches_below_the_guard_end_a_run_before_any_text_is_read(tmp_path: Path) -> None:
    """A tagger's usual batches are of four, and a site's usual guard is eight."""
    settings = tiny(tmp_path, "training.batch_size=4")
    files = write_site_files(tmp_path / "homes", settings, guards={"min_batch": 8})
    engine = HomesEngine(files)
    with pytest.raises(QuorumError, match="step join") as raised:
        conduct(tmp_path / "server", settings, engine)
    assert CODES["small-batch"] in str(raised.value)
    assert "training.batch_size" in CODES["small-batch"] and "8" in CODES["small-batch"]
    assert {step for _, step, _ in engine.asked} == {"join"}
    assert not files["site-1"].parent.joinpath("memory", "runs").exists()
    assert not [line for line in _counted(files["site-1"]) if line["run"]]


def test_batches_below_the_guard_are_seen_in_the_settings_of_every_method(tmp_path: Path) -> None:
    for method, pair in METHODS.items():
        draws = pair.private and pair.method != "dp-feded"  # whose server has batches
        for size, refused in ((7, not draws), (8, False)):
            settings = tiny(tmp_path / method, f"method={method}", f"training.batch_size={size}")
            try:
                check_guards(settings, Guards(min_batch=8))
                code = ""
            except Refusal as error:
                code = error.code
            assert code == ("small-batch" if refused else ""), (method, size)


def _counted(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.with_name(COUNT_FILE).read_text().splitlines()]


def test_under_the_guard_masked_nothing_of_an_open_run_leaves(tmp_path: Path) -> None:
    """No text is read, and no count of it is told."""
    settings = tiny(tmp_path)
    files = write_site_files(tmp_path / "homes", settings, guards={"masked": True})
    assert said(SiteHome(files["site-1"]), "join", joining(settings))[0] == "only-masked"
    assert not list((tmp_path / "homes/site-1/memory").glob("runs/*/site.log"))


def test_how_many_sites_may_collude_is_the_site_s_to_say(tmp_path: Path) -> None:
    """The lead may suppose more, and never fewer."""
    settings = tiny(tmp_path, "federation.sums=masked", sites=7)
    names = [one.name for one in settings.site]
    for lead, own, code in (
        ("federation.colluding=1", None, "outside-consent"),
        ("federation.colluding=1", 1, "uncertified"),  # this home has no identity
        ("federation.colluding=2", None, "uncertified"),
        ("federation.colluding=2", 3, "outside-consent"),
    ):
        chosen = tiny(tmp_path, "federation.sums=masked", lead, sites=7)
        more = {} if own is None else {"colluding": own}
        files = write_site_files(tmp_path / "homes", chosen, **more)
        ask = joining(chosen, f"{lead[-1]}-{own}", sites=names)
        found, detail = said(SiteHome(files["site-1"]), "join", ask)
        assert found == code
        assert detail == ("federation.colluding" if code == "outside-consent" else "site-1")


# --- bounds -------------------------------------------------------------------------------


@each(
    ("bounds", "field"),
    [
        ({"rounds": 1}, "rounds"),
        ({"local_epochs": 1}, "training.local_epochs"),
        ({"batch_size": 7}, "training.batch_size"),
        ({"fraction": 1.0}, "federation.fraction"),
        ({"at_least": 4}, "federation.at_least"),
        ({"combine": ["median"]}, "federation.combine"),
        ({"max_norm_ratio": 4.9}, "federation.max_norm_ratio"),
        ({"word_sites": 2}, "vocabulary.min_sites"),
        ({"lead": "bob"}, "lead"),
        ({"sites": ["site-1", "site-2"], "others": False}, "sites"),
        ({"sites": ["site-1", "site-2", "north"], "others": True}, "sites"),
        ({"until": date(2020, 1, 1)}, "until"),
    ],
)
def test_a_run_outside_is_refused_with_the_field_and_not_with_what_was_agreed(
    tmp_path: Path, bounds: dict[str, Any], field: str
) -> None:
    settings = tiny(tmp_path, "training.local_epochs=2", "federation.fraction=0.99")
    files = agreed(tmp_path, settings, **bounds)
    with pytest.raises(QuorumError) as raised:
        conduct_as(tmp_path / "server", settings, HomesEngine(files))
    told = str(raised.value)
    assert "site site-2, step join" in told and f"({field})" in told
    assert CODES["outside-consent"] in told
    assert not list((tmp_path / "homes/site-2/memory").glob("trial*")), "no text was read"
    reply = SiteHome(files["site-2"]).answer("join", 0, joining(settings))
    failure = decode(Failure, reply)
    assert (failure.code, failure.detail) == ("outside-consent", field)
    assert failure.kind == "Exception"
    assert failure.place.startswith("flare/agreements.py:")


def test_all_fields_that_are_outside_are_named(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = agreed(tmp_path, settings, rounds=1, lead="bob", until=date(2020, 1, 1))
    found = said(SiteHome(files["site-2"]), "join", joining(settings))
    assert found == ("outside-consent", "rounds, lead, until")


def test_a_run_within_goes_well_for_the_lead_and_the_sites_that_were_agreed_to(
    tmp_path: Path,
) -> None:
    settings = tiny(tmp_path)
    sites = {"sites": ["site-1", "site-2", "site-3"], "others": False}
    files = agreed(tmp_path, settings, rounds=2, batch_size=6, lead=["bob", "ada"], **sites)
    assert conduct_as(tmp_path / "server", settings, HomesEngine(files)).rounds == 2
    with pytest.raises(QuorumError, match=r"\(lead\)"):
        conduct_as(tmp_path / "server", settings, HomesEngine(files), run="other", lead="eve")


# --- time ---------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["train", "leave"])
def test_an_agreement_ends_in_the_middle_of_a_run_without_a_restart(
    tmp_path: Path, step: str
) -> None:
    settings = tiny(tmp_path, "rounds=3", "federation.at_least=2")
    files = agreed(tmp_path, settings, until=DAY)
    clock = Clock()

    class Ages(HomesEngine):
        def deliver(self, name: str, round: int, **asked: Any) -> Any:
            if name == step and round >= 2:
                clock.day = DAY + timedelta(days=1)
            yield from super().deliver(name, round, **asked)

    engine = Ages(files)
    engine.homes["site-2"] = SiteHome(files["site-2"], today=clock)
    done = conduct_as(tmp_path / "server", settings, engine)
    assert done.left_out == {"site-2": "outside-consent"}
    failed = [set(one.failed) for one in done.history]
    assert failed == [set(), *[{"site-2"} if step == "train" else set()] * 2]
    assert not (tmp_path / "homes/site-2/memory/runs/trial/result.json").exists()
    codes = [
        one for one in lines(tmp_path / "homes/site-2/memory/runs/trial") if one["field"] == "code"
    ]
    assert codes


def test_the_last_day_is_one_of_the_agreement(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = agreed(tmp_path, settings, until=DAY)
    clock = Clock()
    home = SiteHome(files["site-2"], today=clock)
    assert said(home, "join", joining(settings)) == ("Joined", "")
    clock.day += timedelta(days=1)
    assert said(home, "join", joining(settings)) == ("outside-consent", "until")


def test_a_bound_that_is_lowered_acts_at_the_next_ask(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=3")
    files = write_site_files(tmp_path / "homes", settings)

    class Lowers(HomesEngine):
        def deliver(self, step: str, round: int, **asked: Any) -> Any:
            if round == 2:
                write_consent(files["site-2"], **{"fedavg-tagger": {"rounds": 2}})
            yield from super().deliver(step, round, **asked)

    with pytest.raises(QuorumError, match=r"step train, round 2.*\(rounds\)"):
        conduct(tmp_path / "server", settings, Lowers(files))


# --- how many runs ------------------------------------------------------------------------


def test_a_run_counts_once_and_one_that_is_resumed_not_again(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=3")
    files = agreed(tmp_path, settings, runs=2)
    with pytest.raises(KeyboardInterrupt):
        conduct_as(tmp_path / "server", settings, Stops(files, 22))
    conduct_as(tmp_path / "server", settings, HomesEngine(files))
    conduct_as(tmp_path / "server", settings, HomesEngine(files), run="second")
    with pytest.raises(QuorumError, match=r"site-2.*\(runs\)"):
        conduct_as(tmp_path / "server", settings, HomesEngine(files), run="third")
    assert said(SiteHome(files["site-2"]), "join", joining(settings, "second")) == ("Joined", "")


def test_whoever_deletes_the_memory_gets_no_further_run(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = agreed(tmp_path, settings, runs=1)
    conduct_as(tmp_path / "server", settings, HomesEngine(files))
    shutil.rmtree(tmp_path / "homes/site-2/memory")
    home = SiteHome(files["site-2"])
    assert said(home, "join", joining(settings, "second")) == ("outside-consent", "runs")
    other = tiny(tmp_path, "seed=2")
    assert said(home, "join", joining(other)) == ("outside-consent", "runs"), "under the same name"
    assert said(home, "join", joining(settings)) == ("Joined", "")


def test_without_its_count_an_agreement_is_good_for_nothing(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = agreed(tmp_path, settings, runs=5)
    home = SiteHome(files["site-2"])
    assert said(home, "join", joining(settings)) == ("Joined", "")
    files["site-2"].with_name(COUNT_FILE).unlink()
    assert said(home, "train", b"") == ("outside-consent", "runs")
    assert said(home, "join", joining(settings)) == ("outside-consent", "runs")


def test_a_line_of_the_count_that_cannot_be_read_counts_as_a_run(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = agreed(tmp_path, settings, runs=2)
    count = files["site-2"].with_name(COUNT_FILE)
    with open(count, "a") as file:
        file.write('{"agreement": "fedavg-tagger 20')  # the disk was full
    home = SiteHome(files["site-2"])
    assert said(home, "join", joining(settings)) == ("Joined", "")
    assert json.loads(count.read_text().splitlines()[-1])["run"].startswith("trial ")
    assert said(home, "join", joining(settings, "second")) == ("outside-consent", "runs")


def test_a_run_that_cannot_be_counted_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(tmp_path)
    files = agreed(tmp_path, settings)
    home = SiteHome(files["site-2"])

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("confide.files.os.fsync", full)
    assert said(home, "join", joining(settings)) == ("disk-full", "")


# --- a server that does other things than it said -------------------------------------------


def with_weights(ask: Train, more: float) -> bytes:
    """The same ask from other weights."""
    weights = {name: array + np.float32(more) for name, array in ask.weights.items()}
    return encode(dataclasses.replace(ask, weights=weights))


def test_a_server_cannot_ask_more_rounds_than_it_said(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = write_site_files(tmp_path / "homes", settings)
    listening = Listens(files, "train")
    conduct(tmp_path / "server", settings, listening)
    home, heard = listening.homes["site-1"], listening.heard[-1]
    assert said(home, "train", heard, round=2) == ("Update", "")
    assert said(home, "train", heard, round=3) == ("outside-consent", "rounds")
    other = decode(Train, heard)
    asked = [with_weights(other, (1 + n) / 100) for n in range(4)]
    found = [said(home, "train", one, round=2)[0] for one in asked]
    assert found == ["Update", "Update", "Update", "outside-consent"]


def test_a_server_cannot_join_with_some_settings_and_train_with_others(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = agreed(tmp_path, settings, rounds=2)
    home = SiteHome(files["site-2"])
    assert said(home, "join", joining(settings)) == ("Joined", "")
    more = tiny(tmp_path, "rounds=3")
    assert said(home, "join", joining(more)) == ("outside-consent", "rounds")
    assert said(home, "train", b"", round=3) == ("outside-consent", "rounds")


# --- files --------------------------------------------------------------------------------


@each(
    "text",
    ["[method", 'site = "site-1"\n', "rounds = 3", "[" * 5000, 'site = "site-2"\nschema = 9'],
)
def test_agreements_that_cannot_be_read_or_are_anothers_let_nothing_run(
    tmp_path: Path, text: str
) -> None:
    settings = tiny(tmp_path)
    files = write_site_files(tmp_path / "homes", settings)
    home = SiteHome(files["site-2"])
    assert said(home, "join", joining(settings)) == ("Joined", "")
    files["site-2"].with_name(CONSENT_FILE).write_text(text)
    assert said(home, "train", b"") == ("site-file", "")
    assert said(home, "join", joining(settings)) == ("site-file", "")


def test_an_agreement_that_is_gone_is_one_that_was_withdrawn(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = write_site_files(tmp_path / "homes", settings)
    home = SiteHome(files["site-2"])
    assert said(home, "join", joining(settings)) == ("Joined", "")
    withdraw(files["site-2"])
    assert said(home, "train", b"") == ("no-consent", "fedavg-tagger")
    files["site-2"].with_name(CONSENT_FILE).unlink()
    assert said(home, "train", b"") == ("no-consent", "fedavg-tagger")


def old(files: dict[str, Path]) -> Path:
    """The second site agreed as an older confide wrote it, in its own file."""
    path = files["site-2"]
    path.with_name(CONSENT_FILE).unlink()
    path.with_name(COUNT_FILE).unlink()
    wire = wire_digest(wire_of("fedavg-tagger"))
    path.write_text(
        path.read_text() + f'\n[consent.fedavg-tagger]\nwire = "{wire}"\nsteps = ["train"]\n'
    )
    return path


def test_an_old_agreement_holds_with_the_usual_bounds(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    path = old(write_site_files(tmp_path / "homes", settings))
    clock = Clock(date.today())
    home = SiteHome(path, today=clock)
    assert said(home, "join", joining(tiny(tmp_path, "rounds=101"))) == (
        "outside-consent",
        "rounds",
    )
    small = tiny(tmp_path, "training.batch_size=3")
    assert said(home, "join", joining(small)) == ("outside-consent", "training.batch_size")
    for number in range(10):
        assert said(home, "join", joining(settings, f"run-{number}")) == ("Joined", "")
    assert said(home, "join", joining(settings, "run-10")) == ("outside-consent", "runs")
    assert said(home, "score", b"") == ("no-consent", "score")
    clock.day += timedelta(days=370)
    assert said(home, "train", b"") == ("outside-consent", "until")
    clock.day = date.today()
    os.utime(path, (1e9, 1e9))
    assert said(home, "train", b"") == ("outside-consent", "until")
