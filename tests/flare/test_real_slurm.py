"""A site whose runs start through Slurm: FLARE's launcher and real processes, a scheduler of ours.

Another site's start beside its own process. Numbers are those of one machine, whatever is killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.federation.events import Event
from confide.flare.kit import SUBMITTED_AGAIN, gone_from
from confide.flare.nvidia import processes
from confide.flare.nvidia.components import SILENCE
from confide.flare.nvidia.processes import IN_SLURM
from confide.flare.sitekit import setup_site
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import differences, states
from flare import residents, slurm
from flare.ports import free_port
from flare.real import Real, running
from flare.test_conducting import numbers
from flare.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("slurm"),
]

SITE = "site-1"


class Cluster:
    """The scheduler's own view of its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = slurm.install(folder)

    def jobs(self, *states: str) -> list[dict[str, Any]]:
        found = [slurm.read(path) for path in sorted((self.folder / "jobs").glob("*.json"))]
        return [job for job in found if not states or job["state"] in states]

    def pending(self, seconds: float) -> None:
        """From now on a job waits for its place so long; below 0, none is taken."""
        (self.folder / slurm.PENDING.name).write_text(str(seconds))

    def idle(self) -> int:
        """Wait until nothing runs; how many jobs there have been."""
        until(lambda: not self.jobs("PENDING", "RUNNING"))
        return len(self.jobs())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("slurm") / "bin")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("real")

    class Clustered(Real):
        def start(self) -> None:
            file = self.files[SITE]
            said = f'by = "slurm"\nhost = "localhost"\nport = {free_port()}\ncpus = 2\n'
            said += 'sbatch = { partition = "gpu", time = "01:00:00" }\n'
            file.write_text(f"{file.read_text()}\n[launcher]\n{said}")
            setup_site(self.kit(SITE), file)
            super().start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join((str(cluster.folder), os.environ["PATH"])))
        patch.setattr("flare.real.Real", Clustered)
        three = tiny(folder, "rounds=3", "select.every=1")
        with running(folder, three.model_copy(update={"site": three.site[:2]})) as consortium:
            yield consortium


@pytest.fixture(scope="module")
def whole(real: Real) -> Path:
    run(real.settings, out=real.folder / "whole")
    return real.folder / "whole"


def same(one: Path, other: Path) -> None:
    assert not list(differences(numbers(one), numbers(other)))
    assert not list(differences(states(one), states(other)))


def test_what_a_killed_site_left_in_slurm_is_cancelled(
    real: Real, whole: Path, cluster: Cluster
) -> None:
    """Its job goes on without it, until the site's own process is there again."""

    def kill() -> None:
        real.resident(SITE).kill()
        until(lambda: not cluster.jobs("RUNNING"))

    before = cluster.idle()
    done = real.run("left", watch=real.at_round(1, kill, gate="site-2"))
    same(whole, done.folder)
    left, again = cluster.jobs()[before:]
    assert left["state"] == "CANCELLED" and again["state"] in ("RUNNING", "COMPLETED")


def test_a_site_that_stops_leaves_nothing_in_slurm(real: Real, cluster: Cluster) -> None:
    def stop() -> None:
        assert len(cluster.jobs("RUNNING")) == 1
        residents.stop(real.kit(SITE))
        until(lambda: not cluster.jobs("PENDING", "RUNNING"))
        assert not list((real.kit(SITE).path / IN_SLURM).iterdir())
        real.start_one(SITE)

    cluster.idle()
    done = real.run("stopped", watch=real.at_round(1, stop, gate="site-2"))
    assert done.result.best_round


def test_a_killed_slurm_job_is_submitted_again(real: Real, whole: Path, cluster: Cluster) -> None:
    def kill() -> None:
        (job,) = cluster.jobs("RUNNING")
        os.killpg(job["pid"], signal.SIGKILL)

    before = cluster.idle()
    done = real.run("killed", watch=real.at_round(1, kill, gate="site-2"))
    same(whole, done.folder)
    assert len(cluster.jobs()) == before + 2


def test_a_run_waits_for_its_place_in_the_queue(real: Real, whole: Path, cluster: Cluster) -> None:
    """For longer than a process of a run may be silent."""
    cluster.idle()
    cluster.pending(SILENCE + 15)
    told: list[str] = []
    try:
        done = real.run("queued", watch=lambda event: told.append(event.message or ""))
    finally:
        cluster.pending(1)
    assert not any(SUBMITTED_AGAIN in one for one in told)
    same(whole, done.folder)


@pytest.mark.parametrize(("seconds", "jobs"), [(3600, 2), (-1, 1)])
def test_a_site_that_waits_in_vain_is_named(
    real: Real, whole: Path, cluster: Cluster, seconds: float, jobs: int
) -> None:
    """For its place, for as long as its own file says, or for one that takes no job at all."""
    before, file = cluster.idle(), real.files[SITE]
    own, named = file.read_text(), list[str]()

    def say(launcher: str) -> None:
        cluster.pending(1)
        file.write_text(own + launcher)
        setup_site(real.kit(SITE), file)

    def watch(event: Event) -> None:
        if event.message == gone_from([SITE]) and not named:
            named.append(event.message)
            say("")

    say("starts_within = 10\n")
    cluster.pending(seconds)
    try:
        done = real.run(f"in-vain-{jobs}", watch=watch)
    finally:
        say("")
    assert named
    same(whole, done.folder)
    cluster.idle()
    made = cluster.jobs()[before:]
    assert [job["state"] for job in made] == [*["CANCELLED"] * (jobs - 1), "COMPLETED"]


def test_a_run_through_slurm_has_the_numbers_of_one_machine(
    real: Real, whole: Path, cluster: Cluster
) -> None:
    running: list[int] = []
    done = real.run(
        "plain",
        watch=real.at_round(
            1, lambda: running.append(processes.status(real.kit(SITE)).runs), gate="site-2"
        ),
    )
    same(whole, done.folder)
    assert running == [1]
    job = cluster.jobs()[-1]
    assert {"--partition=gpu", "--time=01:00:00", "--cpus-per-task=2"} <= set(job["asked"])
    cluster.idle()
    assert cluster.jobs()[-1]["state"] == "COMPLETED"
    until(lambda: not list((real.kit(SITE).path / IN_SLURM).iterdir()))
    for path in real.kit(SITE).path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
