"""Real processes: a run begins and goes on with k of its n sites, and the others come in later."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from confide.federation.events import Event
from confide.flare.nvidia import processes
from contract.corpus import tiny
from flare.homes import Away, write_site_files
from flare.real import Real, running
from flare.residents import stop
from flare.test_attendance import conduct
from flare.test_real_runs import same
from flare.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("attendance"),
]

ABSENT = {"site-3": "absent"}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("attendance")
    with running(folder, tiny(folder, "federation.at_least=2", "rounds=5")) as consortium:
        yield consortium


class Clock:
    """Notes when the lead heard of what, and prints it: what a restart takes."""

    def __init__(self) -> None:
        self.told: list[tuple[float, Event]] = []

    def __call__(self, event: Event) -> None:
        self.told.append((time.monotonic(), event))

    def since(self, said: str) -> float:
        """Seconds from these words to the end of the next round; logged, to be quoted."""
        start = next(at for at, event in self.told if said in (event.message or ""))
        end = next(at for at, event in self.told if at > start and event.kind == "round")
        logging.info("%r to the end of a round: %.1f s", said, end - start)
        return end - start


def test_two_of_three_begin_and_the_third_comes_in(real: Real) -> None:
    """Bit for bit as in one process, where the third is away until the third checkpoint."""
    files = write_site_files(real.folder / "one", real.settings)
    conduct(real.folder / "late-one", real.settings, Away(files, site_3=3))
    stop(real.kit("site-3"))
    clock = Clock()
    come = real.at_round(2, lambda: real.wait_for_sites(real.start_one("site-3").name))

    def watch(event: Event) -> None:
        clock(event)
        come(event)

    done = real.run("late", watch=watch, sites=real.names)
    assert [one.failed for one in done.result.history] == [ABSENT, ABSENT, ABSENT, {}, {}]
    assert any("not connected" in (event.message or "") for _, event in clock.told)
    assert clock.since("site-3: connected again") > 0
    same(real.folder / "late-one", done.folder)


def test_a_run_that_broke_goes_on_without_a_site_that_is_away(real: Real) -> None:
    class Leaves(Away):
        """The run breaks in round 3, and the third site is not there when it goes on."""

        def deliver(self, step: str, round: int, **asked: Any) -> Any:
            if (step, round) == ("train", 3) and "site-3" not in self.until:
                self.until["site-3"] = 99
                raise EngineError("broken")
            yield from super().deliver(step, round, **asked)

    files = write_site_files(real.folder / "two", real.settings)
    conduct(real.folder / "broken-one", real.settings, Leaves(files))
    clock, killed = Clock(), list[float]()

    def kill() -> None:
        stop(real.kit("site-3"))
        until(lambda: "site-3" not in processes.status(real.kit("server")).sites)
        killed.append(time.monotonic())
        real.job_process("server").kill()

    breaks = real.at_round(2, kill)

    def watch(event: Event) -> None:
        clock(event)
        breaks(event)

    try:
        done = real.run("broken", watch=watch, sites=real.names)
    finally:
        real.start_one("site-3")
    assert [one.failed for one in done.result.history] == [{}, {}, ABSENT, ABSENT, ABSENT]
    end = next(at for at, event in clock.told if event.kind == "round" and at > killed[0] + 1)
    logging.info("killed to the end of a round of two of three: %.1f s", end - killed[0])
    same(real.folder / "broken-one", done.folder)
