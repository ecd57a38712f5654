"""Runs over real processes with TLS: the same numbers as on one machine, whatever is killed.

That they are the same where nothing is killed is held method by method in test_real_methods.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.federation.comparing import compare_ledgers
from confide.federation.events import Event
from confide.flare.kit import SUBMITTED_AGAIN
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import differences, states
from flare.real import Real, running
from flare.test_conducting import numbers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("runs"),
]

ROUNDS = 12


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("real")
    with running(folder, tiny(folder, f"rounds={ROUNDS}", "select.every=1")) as consortium:
        yield consortium


@pytest.fixture(scope="module")
def whole(real: Real) -> Path:
    """The same run on one machine, which nothing disturbs."""
    run(real.settings, out=real.folder / "whole")
    return real.folder / "whole"


def same(one: Path, other: Path) -> None:
    assert not list(differences(numbers(one), numbers(other)))
    assert not list(differences(states(one), states(other)))


@pytest.mark.parametrize("who", ["site-2", "server"])
def test_a_killed_job_is_submitted_again(real: Real, whole: Path, who: str) -> None:
    told: list[str] = []
    kill = real.at_round(3, lambda: real.job_process(who).kill())

    def watch(event: Event) -> None:
        told.append(event.message or "")
        kill(event)

    done = real.run(f"job-of-{who}", watch=watch)
    assert any(SUBMITTED_AGAIN in one and (who == "server" or who in one) for one in told)
    same(whole, done.folder)
    for site in done.result.data.sites:
        kept = real.memory(site).glob(f"**/job-of-{who}-*/ledger.jsonl")
        found = compare_ledgers(done.folder, next(kept))
        assert found.agree and found.verified > 0, found


@pytest.mark.parametrize("who", ["site-3", "server"])
def test_a_killed_resident_process_comes_back(real: Real, whole: Path, who: str) -> None:
    def kill() -> None:
        job, resident = real.job_process(who), real.resident(who)
        resident.kill()
        job.kill()

    done = real.run(f"parent-of-{who}", watch=real.at_round(3, kill))
    same(whole, done.folder)


def test_random_kills(real: Real, whole: Path) -> None:
    """Every process, the server's and each site's, each at a moment within a round of its own.

    The run waits at a gate until the lead has seen that round; half of the time it is on its way
    again for a moment when the process is killed.
    """
    draw = random.Random(5)
    left = [*real.names, "server"]
    kills = len(left)
    draw.shuffle(left)
    real.shut("site-1", 2)

    def watch(event: Event) -> None:
        if event.kind != "round" or not left or event.round != kills - len(left) + 1:
            return
        victim = left.pop()
        job = real.job_process(victim)
        go = next_gate(real, event.round + 2 if left else None)
        if len(left) % 2:
            go()
            time.sleep(draw.uniform(0.0, 0.5))  # a moment, not something to wait for
            job.kill()
        else:
            job.kill()
            go()

    done = real.run("kills", watch=watch)
    assert not left
    same(whole, done.folder)


def next_gate(real: Real, number: int | None) -> Callable[[], None]:
    """What lets the run go on to the next gate, or to its end."""
    return lambda: real.open("site-1") if number is None else real.shut("site-1", number)
