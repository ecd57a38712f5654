"""A site's certificate ends while the site is connected and in a run: real processes, with TLS."""

from __future__ import annotations

import datetime
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from confide.federation.events import Event
from confide.flare import processes
from confide.flare.coordinating import LOST
from confide.flare.kits import Kit, expires, renew
from confide.flare.processes import status
from confide.run import run
from contract.corpus import tiny
from flare.real import Real, running
from flare.test_real_runs import same

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
]

GOOD = 75
"""Seconds: enough to start the site and a run, and not much longer."""


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("certificates")
    with running(folder, tiny(folder, "rounds=90", "select.every=2", sites=2)) as consortium:
        yield consortium


def renewed(real: Real, name: str, *, days: float = 365.0) -> Kit:
    """The site has a new kit, with its own file from the old one, and runs."""
    old = real.kit(name)
    processes.stop(old)
    away = real.folder / f"old-{name}-{time.monotonic_ns()}"
    shutil.move(old.path, away)
    project = real.consortium.path / "consortium.toml"
    text = project.read_text()
    project.write_text(re.sub(r"(?m)^days = .*$", f"days = {days}", text))
    kit = renew(real.consortium.path, name)
    project.write_text(text)
    shutil.copy(away / "local" / "site.toml", kit.path / "local" / "site.toml")
    processes.start(kit, wait=40.0)
    return kit


def wait_for(event: threading.Event, seconds: float = 120.0) -> None:
    assert event.wait(seconds)


def test_a_certificate_ends_in_the_middle_of_a_run(real: Real) -> None:
    run(real.settings, out=real.folder / "whole")
    kit = renewed(real, "site-2", days=GOOD / 86400)
    end, server = expires(kit), real.kit("server")
    told: list[Event] = []
    third, later, lost, waits = (threading.Event() for _ in range(4))
    held = []

    def watch(event: Event) -> None:
        told.append(event)
        if event.kind == "round" and event.round == 3 and not held:
            held.append(real.job_process("site-1"))
            third.set()
        for seen, is_so in (
            (later, event.kind == "round"),
            (lost, event.message == LOST),
            (waits, event.message == "waiting for site-2"),
        ):
            if is_so:
                seen.set()

    done: list[Path] = []
    lead = threading.Thread(
        target=lambda: done.append(real.run("ending", watch=watch).folder), daemon=True
    )
    lead.start()
    wait_for(third)
    while datetime.datetime.now(datetime.UTC) < end + datetime.timedelta(seconds=12):
        held[0].send_signal(signal.SIGSTOP)  # so that the run takes its time; not for so long that
        time.sleep(10)  # site-1 counts as lost
        held[0].send_signal(signal.SIGCONT)
        time.sleep(0.2)

    now = status(kit)  # it is still in the run, and says what will be
    assert (now.connected, now.runs, now.days_left) == (True, 1, -1), [x.message for x in told]
    assert f"the certificate of site-2 ended on {end:%Y-%m-%d}" in now.trouble
    assert now.trouble in (kit.path / "log.txt").read_text()
    assert "site-2" in status(server).sites
    later.clear()
    wait_for(later)
    assert not lost.is_set()

    real.job_process("site-2").kill()  # now it has to be let in again, and is not
    wait_for(lost)
    wait_for(waits)
    assert processes._until(lambda: status(server).sites == ("site-1",), 40)
    now = status(kit)
    assert now.running and not now.connected and now.runs == 0
    assert "the certificate of site-2 ended on" in now.trouble
    with pytest.raises(EngineError, match="not connected: site-2"):
        real.run("another", sites=["site-1", "site-2"])

    renewed(real, "site-2")  # nothing is lost
    lead.join(180)
    assert done, [event.message for event in told]
    same(real.folder / "whole", done[0])
