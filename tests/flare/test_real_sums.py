"""Sums under masks over real processes, of which one is killed with -9 in a sum.

It dies when it is asked. What each exchange makes of a loss is the same wherever a site runs
(tests/contract/test_sums.py, tests/federation/secure): here one dies before its numbers came, one
after, and one whose loss ends the attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.federation.failures import Failure
from confide.federation.ledger import read_ledger
from confide.federation.messages import encode
from confide.federation.secure.site import SUMS, Sets
from confide.flare.kit import SUBMITTED_AGAIN
from confide.runs.run import RunResult, run
from confide.settings import Settings
from contract.corpus import tiny
from contract.runs import Forging, differences, states, use_engine
from flare.real import Real, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("sums"),
]

VICTIM, WHEN, ROUNDS, LANES = "site-2", 1, 2, "lanes_B"


def consortium(folder: Path, sites: int) -> Iterator[Real]:
    settings = tiny(folder, f"rounds={ROUNDS}", "guards.masked=true", sites=sites)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILENCE", "25")
        patch.setenv("NVFLARE_DEAD_CLIENT_GRACE_PERIOD", "2")  # FLARE may end a run after that
        with running(folder, settings) as found:
            yield found


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Five sites, of which one may collude: so four must be in a sum, and one may be lost."""
    yield from consortium(tmp_path_factory.mktemp("five"), 5)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Three sites: none may be lost."""
    yield from consortium(tmp_path_factory.mktemp("three"), 3)


def on_one_machine(
    settings: Settings, out: Path, patch: pytest.MonkeyPatch, *, lost: str = ""
) -> dict[str, Any]:
    """The states of the same run on one machine.

    The victim answers nothing from that step of the round on.
    """
    gone: set[str] = set()

    def change(step: str, site: str, round: int, reply: bytes) -> bytes:
        if (step, site, round) == (lost, VICTIM, WHEN):
            gone.add(site)
        return encode(Failure("lost", "", "", "")) if site in gone else reply

    use_engine(patch, Forging, change=staticmethod(change))
    federation = settings.federation.model_copy(update={"sums": "masked", "at_least": 2})
    return states(run(settings.model_copy(update={"federation": federation}), out=out).folder)


def lost_in(real: Real, exchange: str, who: str, *overrides: str) -> tuple[RunResult, list[str]]:
    """A run in which a process dies in that exchange of training, and what the lead was told."""
    told: list[str] = []
    fatal = real.killed_at(VICTIM, exchange, round=WHEN, who=who)
    masked = ("federation.sums=masked", *overrides)
    done = real.run(exchange, *masked, watch=lambda event: told.append(event.message or ""))
    assert not fatal.exists(), "its process did not die"
    return done, told


@pytest.mark.parametrize(("exchange", "seed"), [("mask", 11), ("unmask", 13)])
def test_of_five_sites_one_may_be_lost(
    five: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: str, seed: int
) -> None:
    """The sum is that of the sites whose masked numbers came, and the run goes on without it.

    Each run has a seed of its own: another run's same ask is never summed over another set.
    """
    settings = five.settings.model_copy(update={"seed": seed})
    done, told = lost_in(five, exchange, "site", "federation.at_least=4", f"seed={seed}")
    assert not any(SUBMITTED_AGAIN in one for one in told), "it was not submitted again"
    assert VICTIM in done.result.history[WHEN - 1].failed
    came = exchange == "unmask"
    lost = "score" if came else "train"
    alone = on_one_machine(settings, tmp_path / "alone", monkeypatch, lost=lost)
    assert not list(differences(alone, states(done.folder)))
    rows = read_ledger(done.folder / "ledger.jsonl")
    held = {row.site for row in rows if (row.step, row.field, row.round) == ("mask", LANES, WHEN)}
    assert (VICTIM in held) == came
    assert not [
        row for row in rows if row.site == VICTIM and row.round == ROUNDS and row.direction == "up"
    ]


def test_of_three_sites_none_may_be_lost_and_the_run_goes_on_when_it_is_back(
    three: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sum of two is ever opened: the round is run again with all three, under new keys."""
    done, told = lost_in(three, "agree", "job", "federation.at_least=2")
    assert any(SUBMITTED_AGAIN in one for one in told)
    alone = on_one_machine(three.settings, tmp_path / "alone", monkeypatch)
    assert not list(differences(alone, states(done.folder)))
    for name in three.names:
        assert set(Sets(three.memory(name) / SUMS).sizes()) == {3}
