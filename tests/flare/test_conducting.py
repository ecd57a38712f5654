"""A run over real sites' homes gives what the same run gives on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from confide import __version__
from confide.errors import CheckpointError, FederationError, QuorumError, SettingsError
from confide.federation.events import unwatched
from confide.federation.failures import CODES
from confide.flare.conducting import Conductor
from confide.flare.joining import wire_digest, wire_of
from confide.methods import METHODS
from confide.predict import predict
from confide.run import run
from confide.settings import Settings
from contract.corpus import tiny
from contract.entries import ENTRIES
from contract.runs import differences, result, states
from flare.homes import HomesEngine, as_toml, write_site_files

OURS = {"bytes", "data", "name"}
"""What differs: joining and leaving weigh something, and a fingerprint is veiled at each site."""


def numbers(folder: Path) -> Any:
    found = {key: value for key, value in result(folder).items() if key not in OURS}
    for record in found["history"]:
        record.pop("bytes")
    return found


def conduct(folder: Path, settings: Settings, engine: HomesEngine, **changes: Any) -> Any:
    arguments = {"version": __version__, "engine": engine, "folder": folder, **changes}
    return Conductor("trial", as_toml(settings), **arguments).conduct(unwatched)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


CASES = [(name, *v) for name, entry in ENTRIES.items() for v in [(), *entry.variants]]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_numbers_are_those_of_one_machine(tmp_path: Path, case: tuple[str, ...]) -> None:
    settings = tiny(tmp_path, f"method={case[0]}", *case[1:])
    run(settings, out=tmp_path / "one")
    engine = HomesEngine(write_site_files(tmp_path / "homes", settings))
    conduct(tmp_path / "server", settings, engine)
    assert not list(differences(numbers(tmp_path / "one"), numbers(tmp_path / "server")))
    assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))


def test_alone_is_a_federation_of_each_site(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=alone")
    run(settings, out=tmp_path / "one")
    conduct(tmp_path / "server", settings, HomesEngine(write_site_files(tmp_path, settings)))
    assert not list(differences(numbers(tmp_path / "one"), numbers(tmp_path / "server")))


class Stops(HomesEngine):
    """An engine whose job dies after so many asks; the homes die with it."""

    def __init__(self, files: dict[str, Path], after: int) -> None:
        super().__init__(files)
        self._left = after

    def deliver(self, step: str, round: int, **asked: Any) -> Any:
        for delivery in super().deliver(step, round, **asked):
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
            yield delivery


@pytest.mark.parametrize("method", sorted(ENTRIES))
def test_a_job_that_dies_anywhere_goes_on_to_the_same_numbers(tmp_path: Path, method: str) -> None:
    settings = tiny(tmp_path, f"method={method}", "rounds=3", sites=2)
    files = write_site_files(tmp_path / "homes", settings)
    whole = HomesEngine(write_site_files(tmp_path / "other", settings))
    conduct(tmp_path / "whole", settings, whole)
    died = 0
    for asks in (1, 6, len(whole.asked) // 2, 9, 8, 11, len(whole.asked)):
        try:
            conduct(tmp_path / "server", settings, Stops(files, asks))
        except KeyboardInterrupt:
            died += 1
    assert died > 3
    assert not list(differences(numbers(tmp_path / "whole"), numbers(tmp_path / "server")))
    assert not list(differences(states(tmp_path / "whole"), states(tmp_path / "server")))


def test_a_site_can_use_its_model_when_it_left(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedner", *ENTRIES["fedner"].learning, "rounds=40", sites=2)
    files = write_site_files(tmp_path / "homes", settings)
    conduct(tmp_path / "server", settings, HomesEngine(files))
    run(settings, out=tmp_path / "one")
    text = settings.site[0].test[0]
    ours = predict(tmp_path / "homes/site-1/memory/trial", [text], site="site-1")
    assert ours == predict(tmp_path / "one", [text], site="site-1")
    assert any(document.entities for document in ours)
    errors = json.loads(
        (tmp_path / "homes/site-1/memory/trial/sites/site-1/errors.json").read_text()
    )
    assert errors["site"] == "site-1"
    assert not list((tmp_path / "server").rglob("errors.json"))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"consent": {}}, "no-consent"),
        ({"consent": {"fedavg": {"wire": "0" * 16}}}, "other-wire"),
        ({"guards": {"max_rounds": 1}}, "too-many-rounds"),
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
    assert not (tmp_path / "server" / "result.json").exists()


def test_a_step_that_was_not_agreed_to_is_refused(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    wire = wire_digest(wire_of("fedavg"))
    steps = [step.name for step in METHODS["fedavg"].steps if step.name != "train"]
    files = write_site_files(tmp_path, settings, consent={"fedavg": {"wire": wire, "steps": steps}})
    with pytest.raises(QuorumError, match=r"did not agree.*\(train\)"):
        conduct(tmp_path / "server", settings, HomesEngine(files))


def test_two_versions_are_refused_on_either_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(tmp_path)
    engine = HomesEngine(write_site_files(tmp_path, settings))
    with pytest.raises(FederationError, match="different versions"):
        conduct(tmp_path / "server", settings, engine, version="0.0.0")
    monkeypatch.setattr("confide.flare.home.__version__", "0.0.0")
    with pytest.raises(QuorumError, match="another version of confide than the server"):
        conduct(tmp_path / "server", settings, engine)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("method=pooled",), "does not move"),
        (("data.mask_common=0.5",), "data.mask_common: only a site"),
        (("model.vectors=v.txt",), "model.vectors: only a site"),
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
    with pytest.raises(CheckpointError, match="other settings or other data"):
        conduct(tmp_path / "server", settings, HomesEngine(files))


def test_the_two_ledgers_agree(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    files = write_site_files(tmp_path / "homes", settings)
    conduct(tmp_path / "server", settings, HomesEngine(files))
    theirs = lines(tmp_path / "server")
    for name in files:
        ours = lines(tmp_path / "homes" / name / "memory/trial")
        assert ours
        assert sorted(map(str, ours)) == sorted(str(o) for o in theirs if o["site"] == name)
