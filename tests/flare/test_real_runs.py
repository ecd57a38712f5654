"""Runs over real processes with TLS: the same numbers as on one machine, whatever is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.federation.comparing import compare_ledgers
from confide.federation.events import Event
from confide.flare.coordinating import LOST
from confide.methods import METHODS
from confide.predict import predict
from confide.release import FILE, release
from confide.run import run
from confide.settings import Settings
from contract.corpus import tiny
from contract.entries import ENTRIES
from contract.runs import differences, states
from flare.real import Real, at_round, running
from flare.test_conducting import numbers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
]

ROUNDS = "rounds=12"


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("real")
    with running(folder, tiny(folder, ROUNDS)) as consortium:
        yield consortium


@pytest.fixture(scope="module")
def relating(tmp_path_factory) -> Iterator[Real]:
    """Sites whose text has relations."""
    folder = tmp_path_factory.mktemp("relating")
    with running(folder, tiny(folder, "method=feded")) as consortium:
        yield consortium


@pytest.fixture(scope="module")
def bagging(tmp_path_factory) -> Iterator[Real]:
    """Sites whose text has bags."""
    folder = tmp_path_factory.mktemp("bagging")
    with running(folder, tiny(folder, "method=lazy-mil")) as consortium:
        yield consortium


@pytest.fixture(scope="module")
def lacking(tmp_path_factory) -> Iterator[Real]:
    """Sites of which some do not annotate all entity types."""
    folder = tmp_path_factory.mktemp("lacking")
    with running(folder, tiny(folder, "method=pseudo-complete-tagger")) as consortium:
        yield consortium


@pytest.fixture(scope="module")
def writing(tmp_path_factory) -> Iterator[Real]:
    """Sites with text that nobody annotated."""
    folder = tmp_path_factory.mktemp("writing")
    with running(folder, tiny(folder, "method=fedavg-text")) as consortium:
        yield consortium


TRIAL = {"ner": "real", "re": "relating", "bags": "bagging", "text": "writing"}
"""The fixture of each task."""


@pytest.fixture(scope="module")
def whole(real: Real) -> Path:
    """The same run on one machine, which nothing disturbs."""
    run(real.settings, out=real.folder / "whole")
    return real.folder / "whole"


def same(one: Path, other: Path) -> None:
    assert not list(differences(numbers(one), numbers(other)))
    assert not list(differences(states(one), states(other)))


@pytest.mark.parametrize("method", sorted(ENTRIES, key=lambda name: METHODS[name].task))
def test_the_numbers_are_those_of_one_machine(
    request: pytest.FixtureRequest, method: str, tmp_path: Path
) -> None:
    task = METHODS[method].task
    fixture = "lacking" if method.startswith("pseudo-complete") else TRIAL[task]
    real: Real = request.getfixturevalue(fixture)
    settings = tiny(real.folder, f"method={method}", "rounds=4", "select.every=2")
    done = real.run(f"plain-{method}", settings=settings)
    run(settings, out=tmp_path / "one")
    same(tmp_path / "one", done.folder)
    [note] = [p for p in real.memory("site-1").iterdir() if p.name.startswith(f"plain-{method}-")]
    if task == "text":
        mine, one = release(note, out=tmp_path / "a"), release(tmp_path / "one", out=tmp_path / "b")
        assert (mine / FILE).read_bytes() == (one / FILE).read_bytes()
    else:
        same_predictions(note, tmp_path / "one", settings, method)
    found = compare_ledgers(done.folder, note)
    assert found.agree and found.verified > 0 and not found.again, found


def same_predictions(note: Path, one: Path, settings: Settings, method: str) -> None:
    """What a site has at home predicts what the run of one machine does."""
    text = settings.site[0].test[0]
    ours = predict(note, [text], site="site-1")
    assert ours == predict(one, [text], site="site-1" if method == "fedner" else None)


@pytest.mark.parametrize("who", ["site-2", "server"])
def test_a_killed_job_is_submitted_again(real: Real, whole: Path, who: str) -> None:
    told: list[str] = []
    kill = at_round(3, lambda: real.job_process(who).kill())

    def watch(event: Event) -> None:
        told.append(event.message or "")
        kill(event)

    done = real.run(f"job-of-{who}", watch=watch)
    assert LOST in told
    same(whole, done.folder)
    for site in done.result["data"]["sites"]:
        kept = real.memory(site).glob(f"**/job-of-{who}-*/ledger.jsonl")
        found = compare_ledgers(done.folder, next(kept))
        assert found.agree and found.verified > 0, found


@pytest.mark.parametrize("who", ["site-3", "server"])
def test_a_killed_resident_process_comes_back(real: Real, whole: Path, who: str) -> None:
    def kill() -> None:
        job, resident = real.job_process(who), real.resident(who)
        resident.kill()
        job.kill()

    done = real.run(f"parent-of-{who}", watch=at_round(3, kill))
    same(whole, done.folder)


def test_twenty_random_kills(real: Real, tmp_path: Path) -> None:
    """Each submission gets some rounds further, then one of its processes is killed."""
    draw = random.Random(5)
    killed: list[str] = []
    armed = True

    def watch(event: Event) -> None:
        nonlocal armed
        if event.message == LOST:
            armed = True
        if event.kind != "round" or not armed or len(killed) == 20:
            return
        who = draw.choice(["server", "site-1", "site-2", "site-3"])
        try:
            real.job_process(who).kill()
        except LookupError:
            return  # what is told is a moment old
        killed.append(who)
        armed = False

    more = ("rounds=150", "select.every=1", "training.decay=1.0")
    done = real.run("kills", settings=tiny(real.folder, *more), watch=watch)
    assert len(killed) == 20
    run(tiny(real.folder, *more), out=tmp_path / "one")
    same(tmp_path / "one", done.folder)
