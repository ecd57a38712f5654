"""Runs over k of n sites: who is missing is named and comes in later, and the numbers are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from confide.errors import EngineError, QuorumError
from confide.federation.engines import SequentialEngine
from confide.federation.events import Event
from confide.federation.failures import Failure
from confide.federation.federation import Federation
from confide.federation.ledger import Ledger
from confide.federation.messages import decode, encode
from confide.flare.server import Conductor
from confide.kinds.protocol import Take
from confide.methods import method_of
from confide.runs.folder import RunFolder
from confide.runs.run import hosting_of, run
from confide.runs.sites import gather
from confide.settings import Settings
from confide.version import __version__
from contract.corpus import tiny
from contract.runs import Forging, differences, states, use_engine
from flare.homes import Away, SealedHomes, as_toml, public_of, write_site_files
from flare.test_conducting import numbers
from flare.test_signing import evidence

TWO = "federation.at_least=2"


def conduct(
    folder: Path, settings: Settings, engine: Away, **given: Any
) -> tuple[Any, list[Event]]:
    """Conduct a run to its end, over as many submissions as it takes; and what was told."""
    told: list[Event] = []
    while True:
        conductor = Conductor(
            "trial",
            as_toml(settings),
            version=__version__,
            engine=engine,  # type: ignore[arg-type]
            folder=folder,
            public=public_of(settings),
            recheck=engine.recheck,
            **given,
        )
        try:
            return conductor.conduct(told.append), told
        except EngineError:
            again = type(engine)(engine.files)
            again.until, again.started = engine.until, engine.started
            engine = again


def test_a_run_of_two_of_three_sites_is_a_run_of_these_two(tmp_path: Path) -> None:
    settings = tiny(tmp_path, TWO)
    pair = settings.model_copy(update={"site": settings.site[:2]})
    run(pair, out=tmp_path / "one")
    files = write_site_files(tmp_path / "homes", settings)
    done, told = conduct(tmp_path / "server", settings, Away(files, site_3=99))
    assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))
    missing = [*differences(numbers(tmp_path / "one"), numbers(tmp_path / "server"))]
    assert {line.partition(":")[0].strip(".").partition(".")[0] for line in missing} <= {
        "history[0]", "history[1]", "left_out",
    }  # fmt: skip
    assert done.left_out == {"site-3": "absent"}
    assert [one.failed for one in done.history] == 2 * [{"site-3": "absent"}]
    assert "not connected" in done.history[0].faults[0].why
    said = [event.message or "" for event in told if event.kind == "failed"]
    assert said and "site site-3, step join, round 0" in said[0] and "not connected" in said[0]
    with pytest.raises(QuorumError, match="at least 2 of 3"):
        conduct(tmp_path / "few", settings, Away(files, site_2=99, site_3=99))


def state_of(folder: Path, settings: Settings, round: int) -> Any:
    """The state in a checkpoint."""
    kept = RunFolder(folder).store("").load(round).state
    return decode(method_of(settings).State, kept.tobytes())


def by_hand(folder: Path, settings: Settings, *, begin: Any, round: int) -> Any:
    """The state that all sites make of this one in a round, if each has been given its form."""
    method = method_of(settings)(settings)
    gathered = gather(settings, folder, key_file=RunFolder(folder).key_file(settings))
    engine = SequentialEngine(gathered.specs, hosting_of(settings))
    federation = Federation(engine, seed=settings.seed, ledger=Ledger(folder / "ledger.jsonl"))
    federation.ask(method.step("take"), Take(begin.form), round=0)
    return method.round(begin, federation, round)[0]


def test_a_site_that_missed_the_start_comes_in_at_a_later_round(tmp_path: Path) -> None:
    settings = tiny(tmp_path, TWO, "rounds=3")
    pair = settings.model_copy(update={"site": settings.site[:2], "rounds": 2})
    run(pair, out=tmp_path / "two")
    files = write_site_files(tmp_path / "homes", settings)
    done, _ = conduct(tmp_path / "server", settings, Away(files, site_3=2))
    away = {"site-3": "absent"}
    assert [one.failed for one in done.history] == [away, away, {}]
    assert done.left_out == {} and done.scores.sites.keys() == {"site-1", "site-2", "site-3"}
    two, begin = (state_of(tmp_path / one, settings, 2) for one in ("two", "server"))
    assert encode(two) == encode(begin)
    expected = by_hand(tmp_path / "hand", settings, begin=begin, round=3)
    assert encode(expected) == encode(state_of(tmp_path / "server", settings, 3))


@pytest.mark.slow
def test_a_site_that_is_away_for_a_while_comes_back_to_what_it_remembers(tmp_path: Path) -> None:
    """It was there at the start; the others go on without it from where the run broke."""
    settings = tiny(tmp_path, TWO, "rounds=3", "method=fedner")
    files = write_site_files(tmp_path / "homes", settings)
    asked: list[str] = []

    class Leaves(Away):
        def deliver(self, step: str, round: int, **asked_of: Any) -> Any:
            if (step, round) == ("improve", 2) and not asked:
                asked.append(step)
                self.until["site-3"] = self.started + 1
                raise EngineError("its process was killed, and so the run broke")
            yield from super().deliver(step, round, **asked_of)

    done, _ = conduct(tmp_path / "server", settings, Leaves(files))
    assert [one.failed for one in done.history] == [{}, {"site-3": "absent"}, {}]
    assert done.left_out == {} and "site-3" in done.scores.sites


class Listens(Away):
    """Nobody comes back, and it notes who might."""

    told: list[str] = []

    def recheck(self, sites: Any) -> None:
        self.told = list(sites)


@pytest.mark.slow
def test_not_every_method_takes_a_site_later(tmp_path: Path) -> None:
    """Those that do are asked of after each checkpoint but the last."""
    for method, expected in {
        "fedavg": ["site-1", "site-2", "site-3"],
        "fedner": ["site-1", "site-2"],
    }.items():
        settings = tiny(tmp_path / method, f"method={method}", TWO)
        engine = Listens(write_site_files(tmp_path / method / "homes", settings), site_3=99)
        conduct(tmp_path / method / "server", settings, engine)
        assert engine.told == expected, method


class MaskedLeaves(Away, SealedHomes):
    """A masked run breaks in round 2, and goes on while a site is away."""

    def deliver(self, step: str, round: int, **asked: Any) -> Any:
        if (step, round) == ("train", 2) and "site-2" not in self.until:
            self.until["site-2"] = self.started + 1
            raise EngineError("broken")
        yield from super().deliver(step, round, **asked)


@pytest.mark.slow
def test_a_masked_run_that_broke_goes_on_without_a_site_and_does_not_take_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are those of a run that lost the site before, when round 1 was scored."""
    given = ("federation.sums=masked", "federation.at_least=3", "rounds=4")
    settings = tiny(tmp_path, *given, sites=4)
    files = write_site_files(tmp_path / "homes", settings)
    engine = MaskedLeaves(files)
    signed = evidence(tmp_path, settings, engine)
    done, _ = conduct(tmp_path / "server", settings, engine, evidence=signed)
    away = {"site-2": "absent"}
    assert [one.failed for one in done.history] == [{}, away, away, away]
    gone: set[str] = set()

    def change(step: str, site: str, round: int, reply: bytes) -> bytes:
        if (step, site, round) == ("score", "site-2", 1):
            gone.add(site)
        return encode(Failure("lost", "", "", "")) if site in gone else reply

    use_engine(monkeypatch, Forging, change=staticmethod(change))
    run(settings, out=tmp_path / "one")
    assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "ditto",
        "feded-relations",
        "fedbn-relations",
        "feddf-relations",
        "lazy-mil-bags",
        "pseudo-complete-tagger",
        "scaffold",
    ],
)
def test_a_late_site_has_its_part_in_what_follows(tmp_path: Path, method: str) -> None:
    settings = tiny(tmp_path, f"method={method}", TWO, "rounds=3")
    files = write_site_files(tmp_path / "homes", settings)
    done, _ = conduct(tmp_path / "server", settings, Away(files, site_3=1))
    assert [one.failed for one in done.history] == [{"site-3": "absent"}, {}, {}]
    assert done.left_out == {} and done.scores.sites.keys() == {"site-1", "site-2", "site-3"}
