"""Real processes: a lead that is killed and resumed, and a run that is ended before its time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.cli.screen import TERMINATED
from confide.flare.nvidia import processes
from confide.runs.run import run
from contract.corpus import tiny
from flare.homes import as_toml
from flare.real import Real, running
from flare.test_real_runs import same
from flare.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("leads"),
]

ROUNDS = 8
FEW = "rounds=4"
VERB = "from confide.cli import main; main()"
KILL = "import os, signal; kill = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
DIES = {
    "submitted": """
from confide.flare.nvidia.lead import LeadSession
submit = LeadSession.submit
LeadSession.submit = lambda *given: (submit(*given), kill())
""",
    "fetched": """
import shutil
shutil.move = lambda *given: kill()  # FLARE has the run in the kit, and moves it
""",
    "copied": """
from confide.flare import joining
copy, left = joining.shutil.copyfile, [None] * 3
joining.shutil.copyfile = lambda *given: (copy(*given), left.pop() if left else kill())
""",
}
"""How the lead's process is made to kill itself, and where."""


class Lead:
    """`confide coordinate` as a process of its own; what it says is in two files."""

    def __init__(self, real: Real, name: str, *more: str, script: str = VERB) -> None:
        self.said = real.folder / f"{name}.said"
        self.given = real.folder / f"{name}.given"
        words = ["coordinate", str(real.folder / f"{name}.toml"), "--out", str(real.folder / name)]
        words += ["--kit", str(real.kit("lead").path), *more]
        with open(self.said, "w") as said, open(self.given, "w") as given:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script, *words],
                stdin=subprocess.DEVNULL,
                stdout=given,
                stderr=said,
            )

    def until(self, said: str) -> None:
        """Wait until it has said that."""

        def has_said() -> bool:
            over = self.process.poll() is not None
            found = said in self.said.read_text()
            assert found or not over, self.said.read_text()
            return found

        until(has_said, what=self.said.read_text)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        assert self.ended() == -signal.SIGKILL

    def terminate(self) -> None:
        """As a service manager ends it: with one sentence, and its own exit code."""
        os.kill(self.process.pid, signal.SIGTERM)
        assert self.ended() == TERMINATED, self.said.read_text()
        last = self.said.read_text().splitlines()[-1]
        assert last.startswith("no longer watching, but the run continues"), last

    def ended(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("leads")
    with running(folder, tiny(folder, f"rounds={ROUNDS}", "select.every=2")) as consortium:
        yield consortium


@pytest.fixture(scope="module")
def whole(real: Real) -> Path:
    """The same run on one machine, which nothing disturbs."""
    run(real.settings, out=real.folder / "whole")
    return real.folder / "whole"


@pytest.fixture(scope="module")
def brief(real: Real, tmp_path_factory) -> Path:
    """A shorter one."""
    run(tiny(tmp_path_factory.mktemp("brief"), FEW, "select.every=2"), out=real.folder / "brief")
    return real.folder / "brief"


def write(real: Real, name: str) -> None:
    (real.folder / f"{name}.toml").write_text(as_toml(real.settings))


def submissions(real: Real) -> int:
    """How many the server ever took."""
    store = real.kit("server").path / "store" / "runs"
    return sum(1 for path in store.rglob("meta") if path.is_file())


def test_a_lead_that_is_killed_or_terminated_is_resumed(real: Real, whole: Path) -> None:
    write(real, "killed")
    before = submissions(real)
    real.shut("site-1", 4)
    lead = Lead(real, "killed")
    lead.until(f"round 3/{ROUNDS}")
    lead.kill()
    real.shut("site-1", 6)  # it goes on while nobody looks, and is not over when somebody does
    again = Lead(real, "killed", "--resume")
    again.until(f"round 5/{ROUNDS}")
    again.terminate()
    real.open("site-1")
    last = Lead(real, "killed", "--resume", "--log", "jsonl")
    assert last.ended() == 0, last.said.read_text()
    same(whole, real.folder / "killed")
    logged = (real.folder / "killed/events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in logged]
    assert (events[0]["event"], events[-1]["event"]) == ("start", "end")
    assert events[-1]["test"] and ROUNDS in [one.get("round") for one in events]
    assert submissions(real) == before + 1
    shown = last.given.read_text()
    assert shown.startswith("fedavg: F1 on test text") or "strict" in shown
    assert "FLARE" not in shown + last.said.read_text()


@pytest.mark.parametrize("where", sorted(DIES))
def test_a_lead_is_killed_at_a_bad_moment(real: Real, brief: Path, where: str) -> None:
    write(real, where)
    before = submissions(real)
    lead = Lead(real, where, "--set", FEW, script=KILL + DIES[where] + VERB)
    assert lead.ended() == -signal.SIGKILL, lead.said.read_text()
    assert not (real.folder / where / "result.json").exists()
    again = Lead(real, where, "--set", FEW, "--resume")
    assert again.ended() == 0, again.said.read_text()
    same(brief, real.folder / where)
    assert submissions(real) == before + 1
    kept = real.kit("lead").path / "transfer"
    assert not [path for path in kept.rglob("*") if path.is_file()], "what was fetched is not kept"


def nothing_runs(real: Real) -> bool:
    names = ["server", *(site.name for site in real.settings.site)]
    return all(processes.status(real.kit(name)).runs == 0 for name in names)


def test_a_run_is_ended_everywhere_and_goes_on_later(real: Real, whole: Path) -> None:
    write(real, "ended")
    real.shut("site-1", 4)
    watching = Lead(real, "ended")
    watching.until(f"round 3/{ROUNDS}")
    ending = Lead(real, "ended", "--end")
    assert ending.ended() == 0, ending.said.read_text()
    assert "has ended, at the server and at the sites" in ending.said.read_text()
    assert watching.ended() == 2
    assert "was ended by `confide coordinate --end`" in watching.said.read_text()
    real.open("site-1")
    until(lambda: nothing_runs(real))
    assert not (real.folder / "ended" / "result.json").exists()
    before = submissions(real)
    again = Lead(real, "ended", "--end")
    assert again.ended() == 0 and "nothing to end" in again.said.read_text()
    resumed = Lead(real, "ended", "--resume")
    resumed.until("round ")
    begun = next(x for x in resumed.said.read_text().splitlines() if x.startswith("round "))
    assert int(begun.split()[1].split("/")[0]) > 1, "from the checkpoint on"
    assert resumed.ended() == 0, resumed.said.read_text()
    assert submissions(real) == before + 1
    same(whole, real.folder / "ended")


def test_a_run_is_ended_when_it_has_hardly_begun(real: Real) -> None:
    """Submitted by a lead who is no more; no site has joined it yet."""
    write(real, "early")
    real.shut("site-1", 0)
    lead = Lead(real, "early", script=KILL + DIES["submitted"] + VERB)
    assert lead.ended() == -signal.SIGKILL, lead.said.read_text()
    ending = Lead(real, "early", "--end")
    assert ending.ended() == 0, ending.said.read_text()
    assert "has ended" in ending.said.read_text()
    real.open("site-1")
    until(lambda: nothing_runs(real))
    real.run("after", FEW)  # the server takes submissions in turn, and would have taken that one
    until(lambda: nothing_runs(real))
    runs = real.kit("server").path / "runs"
    assert list(runs.glob("after-*/result.json"))
    assert not list(runs.glob("early-*/result.json"))


def test_a_site_that_hangs_does_not_keep_a_run(real: Real) -> None:
    write(real, "hangs")
    real.shut("site-1", 3)
    lead = Lead(real, "hangs")
    lead.until(f"round 2/{ROUNDS}")
    held = real.job_process("site-2")
    held.send_signal(signal.SIGSTOP)
    try:
        ending = Lead(real, "hangs", "--end")
        assert ending.ended() == 0, ending.said.read_text()
        assert "has ended" in ending.said.read_text()
        assert lead.ended() == 2
        until(lambda: nothing_runs(real))
    finally:
        real.open("site-1")
        if held.is_running():
            held.send_signal(signal.SIGCONT)
